"""Keys of masked sums: signatures, key agreement, key streams and sealed boxes, all of the library ``cryptography``.

Ed25519 signs (RFC 8032), X25519 agrees (RFC 7748), HKDF with SHA-256 derives (RFC 5869), the key stream of ChaCha20 is
the mask, and ChaCha20-Poly1305 seals shares (RFC 8439). Nothing here is our own but the order of the inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.catalogue import unreadable
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.federated.masking.fixed_point import WORD_BYTES, Words, as_words
from consilience.federated.plan import NAME_RULE, is_name
from consilience.files.opening import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64
MAC_BYTES = 16

_CONTEXT = b"consilience masked sum 1"
"""Before everything that is signed or derived, so that nothing of another protocol is taken for it."""


def require_cryptography() -> None:
    """Raise where the library is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        remedy = 'pip install "consilience[federated]"'
        raise UnsupportedError("", "masked sums need cryptography", remedy, "E-EXTRA") from error


def derive(secret: bytes, *context: bytes, length: int = KEY_BYTES) -> bytes:
    """Return bytes that only who has the secret can compute, others for every context."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"".join(len(part).to_bytes(4, "little") + part for part in context)
    return HKDF(SHA256(), length, _CONTEXT, info).derive(secret)


def key_stream(seed: bytes, n_bytes: int) -> bytes:
    """Return the key stream of ChaCha20 under a key that is used once."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return bytes(Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(n_bytes)))


def mask(seed: bytes, length: int) -> Words:
    """Return the mask of a seed (L, 2): words that nobody without the seed tells from random ones."""
    return as_words(key_stream(seed, length * WORD_BYTES)) if length else np.zeros((0, 2), np.uint64)


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return bytes(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agree(private: bytes, public: bytes) -> bytes:
    """Return the secret of two keys, the same for both owners.

    Raises
    ------
    ValueError
        For a public key of small order, whose secret would be zero.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    return bytes(X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public)))


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Return bytes that only who has the key opens, and only in this context; each key seals once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), plain, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """Return what was sealed; None where a bit of it, of the key or of the context is another."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, context)
    except InvalidTag:
        return None


def signed_text(round_id: bytes, step: int, site: str, payload: bytes) -> bytes:
    """Return what a site signs: the payload (a digest), and where it belongs."""
    name = site.encode()
    return b"".join([_CONTEXT, round_id, bytes([step, len(name)]), name, payload])


def verify(public: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether a signature is that of a text by the owner of a key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def signing_public(private: Ed25519PrivateKey) -> bytes:
    """Return the public key of a signing key, 32 bytes."""
    return bytes(private.public_key().public_bytes_raw())


def read_signing_key(path: str | Path) -> Ed25519PrivateKey:
    """Return a site's signing key, an OpenSSH or PEM file of Ed25519 without password.

    Raises InputError for anything else.
    """
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    try:
        text = read_file(path)
    except OSError as error:
        raise InputError(unreadable(path, error)) from error
    for load in (load_ssh_private_key, load_pem_private_key):
        try:
            key: Any = load(text, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        if isinstance(key, Ed25519PrivateKey):
            return key
    raise InputError(path, "is no private key of Ed25519 without password", _MAKE_KEY, "E-ROUND")


_MAKE_KEY = 'make one with ssh-keygen -t ed25519 -N "" -f NAME'


def read_public_keys(folder: str | Path) -> dict[str, bytes]:
    """Return the public signing keys ``NAME.pub`` in a folder, by site.

    Raises InputError for what is no such key, and for one that two sites have.
    """
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    found = site_keys(Path(folder), Ed25519PublicKey, ("is no key of Ed25519", _MAKE_KEY))
    if not found:
        raise InputError(folder, "holds no public keys NAME.pub", _MAKE_KEY, "E-ROUND")
    return {site: bytes(key.public_bytes_raw()) for site, (_, key) in found.items()}


def site_keys(folder: Path, key_type: type, other: tuple[str, str]) -> dict[str, tuple[Path, Any]]:
    """Return the OpenSSH public keys ``NAME.pub`` in a folder, by site, each with its file.

    `other` is the message about a key of another type than `key_type`, and the remedy. Raises InputError for what is no
    such key, and for one that two sites have.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    problems, keys, owners = [], dict[str, tuple[Path, Any]](), dict[bytes, str]()
    for path in sorted(folder.glob("*.pub")):
        if not is_name(path.stem):
            problems.append(Problem(path, f"its name is to be a site's: {NAME_RULE}"))
            continue
        try:
            key = load_ssh_public_key(read_file(path))
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            problems.append(Problem(path, f"is no OpenSSH public key: {error}"))
            continue
        if not isinstance(key, key_type):
            problems.append(Problem(path, *other))
            continue
        owner = owners.setdefault(read_file(path).split()[1], path.stem)  # between the type and a comment
        if owner != path.stem:
            problems.append(Problem(path, f"is the key of {owner}; every site needs its own"))
        keys[path.stem] = path, key
    if problems:
        raise InputError(problems)
    return keys
