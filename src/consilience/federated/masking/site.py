"""A site of a masked sum: five answers, without a transport.

With z_i the numbers of site i in fixed point, b_i its seed and s_ij the secret that i and j have in common,

    y_i = z_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)      modulo 2^128

leaves the site. The masks of pairs cancel in the sum. Of a site that leaves after step 2 T others rebuild the key from
their shares. Of each site either the key or the seed is opened, never both: with both its numbers would be bare
(Bonawitz and others, Practical secure aggregation, CCS 2017, with the consistency check for a server that lies).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from consilience.checks import AnyArray
from consilience.errors import InputError
from consilience.federated.masking import fixed_point, keys, shamir
from consilience.federated.masking.fixed_point import Words
from consilience.federated.masking.messages import (
    ADVERTISE,
    CONFIRM,
    DEAL,
    DIGEST_BYTES,
    MASK,
    REVEAL,
    SEALED_BYTES,
    Message,
    as_bytes,
    payload_of,
    shape_problem,
)
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.site_secret import SiteSecret, commitment

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NOTHING, OF_SEED, OF_KEY = 0, 1, 2
"""What a site opens of another one."""

_SERVER = "the server"


class MaskedSite:
    """A site's side of one masked sum.

    Every method is a function of the secret and of what the server agreed on: called again, it gives the same message.

    `secret` is that of this sum; whoever keeps it saves it after each method, before the message leaves. Raises
    InputError where the plan has another key of this site, or does not expect it.
    """

    def __init__(self, plan: MaskedPlan, name: str, signing_key: Ed25519PrivateKey, secret: SiteSecret) -> None:
        if name not in plan.keys:
            raise InputError(name, "is not a site of this masked sum, which expects others", code="E-ROUND")
        if plan.keys[name] != keys.signing_public(signing_key):
            text = "has another signing key than the plan says"
            raise InputError(name, text, "give the server the public key again", "E-ROUND")
        self.plan, self.name, self.signing_key, self.secret = plan, name, signing_key, secret
        self.round_id = plan.round_id
        self._verified: tuple[bytes, dict[str, tuple[bytes, bytes]]] | None = None

    def advertise(self) -> Message:
        """Return public keys, and the commitment to the seed."""
        rows = [*self.secret.public_keys, commitment(self.round_id, self.secret.seed)]
        return self._signed(ADVERTISE, {"keys": as_bytes(rows, keys.KEY_BYTES)})

    def deal(self, agreed_keys: Message) -> Message:
        """Return the shares of the seed and of the masking key, sealed for each of the sites whose keys came.

        Raises InputError for keys that are not signed by their sites, and fewer than the threshold.
        """
        public = self._public_keys(agreed_keys)
        plains = self._shares_for(tuple(public))
        boxes = [
            bytes(SEALED_BYTES) if site == self.name else self._seal(site, public[site][0], plain)
            for site, plain in zip(public, plains, strict=True)
        ]
        digests = [share_digest(_part(plain, kind)) for plain in plains for kind in (OF_SEED, OF_KEY)]
        return self._signed(
            DEAL,
            {
                "boxes": as_bytes(boxes, SEALED_BYTES),
                "digests": as_bytes(digests, DIGEST_BYTES).reshape(-1, 2, DIGEST_BYTES),
            },
        )

    def box_for(self, site: str, sealing_key: bytes) -> bytes:
        """Return the box with the shares for one site, whose public sealing key it is."""
        return self._seal(site, sealing_key, self._shares_for((site,))[0])

    def mask(self, agreed_keys: Message, agreed_shares: Message, words: Words) -> Message:
        """Return the site's numbers under masks.

        `words` (L, 2) are the site's numbers in fixed point. Raises InputError where masks under the same secret had
        left for other sites or other numbers.
        """
        public, dealers = self._public_keys(agreed_keys), self._dealers(agreed_keys, agreed_shares)
        if words.shape != (self.plan.length, 2):
            raise InputError(self.name, f"has {len(words)} numbers, expected {self.plan.length}", code="E-SHAPE")
        numbers = numbers_digest(words)
        self.secret.bind("masked", sha256(agreed_keys.payload + _names(dealers) + numbers).digest())
        self.secret.numbers = numbers
        masked = fixed_point.add(words, keys.mask(own_seed(self.round_id, self.secret.seed), len(words)))
        for site in dealers:
            if site != self.name:
                seed = pair_seed(self.round_id, self.secret.masking_key, public[site][1])
                one = keys.mask(seed, len(words))
                masked = fixed_point.add(masked, one if self.name < site else fixed_point.negated(one))
        return self._signed(MASK, {"words": masked})

    def confirm(self, agreed_keys: Message, agreed_shares: Message, agreed_sum: Message) -> Message:
        """Return that this site has seen whose numbers are summed.

        Raises InputError where it is not among them, where they are fewer than the threshold, and where it has
        confirmed others.
        """
        transcript = self._transcript(agreed_keys, agreed_shares, agreed_sum)
        self.secret.bind("confirmed", transcript)
        return self._signed(CONFIRM, {"seen": as_bytes([transcript], len(transcript))[0]})

    def reveal(
        self, agreed_keys: Message, agreed_shares: Message, agreed_sum: Message, agreed_confirmations: Message
    ) -> Message:
        """Return shares: of the seeds of sites whose numbers are summed, and of the keys of those that left.

        Raises InputError where fewer sites than the threshold have confirmed the same, and where this site has
        confirmed others.
        """
        transcript = self._transcript(agreed_keys, agreed_shares, agreed_sum)
        self._check_confirmations(transcript, agreed_sum, agreed_confirmations)
        self.secret.bind("confirmed", transcript)
        public, summed = self._public_keys(agreed_keys), set(agreed_sum.sites)
        kinds, shares = [], []
        for row, site in enumerate(agreed_shares.sites):
            plain = self._open_box(site, public[site][0], agreed_shares.arrays["boxes"][row].tobytes())
            kind = NOTHING if plain is None else OF_SEED if site in summed else OF_KEY
            part = bytes(shamir.ELEMENT_BYTES) if plain is None else _part(plain, kind)
            kinds.append(kind)
            shares.append(part)
        return self._signed(
            REVEAL, {"kinds": np.array(kinds, np.uint8), "shares": as_bytes(shares, shamir.ELEMENT_BYTES)}
        )

    def _signed(self, step: int, arrays: Mapping[str, AnyArray]) -> Message:
        text = keys.signed_text(self.round_id, step, self.name, payload_of(arrays))
        return Message(self.round_id, step, (self.name,), arrays, self.signing_key.sign(text))

    def _public_keys(self, agreed: Message) -> dict[str, tuple[bytes, bytes]]:
        """Return the public keys of the sites whose keys came, each with its site's signature under it."""
        if self._verified is not None and self._verified[0] == agreed.payload + _names(agreed.sites):
            return self._verified[1]
        self._check_agreed(agreed, ADVERTISE, {"keys": (3, keys.KEY_BYTES), "signatures": (keys.SIGNATURE_BYTES,)})
        for site, rows, signature in zip(agreed.sites, agreed.arrays["keys"], agreed.arrays["signatures"], strict=True):
            text = keys.signed_text(self.round_id, ADVERTISE, site, payload_of({"keys": rows}))
            if not keys.verify(self.plan.keys[site], signature.tobytes(), text):
                raise InputError(_SERVER, f"sent keys of {site} that {site} has not signed", code="E-ROUND")
        public = {
            site: (rows[0].tobytes(), rows[1].tobytes())
            for site, rows in zip(agreed.sites, agreed.arrays["keys"], strict=True)
        }
        if public.get(self.name) != self.secret.public_keys:
            reason = f"has other keys of {self.name} than this site's, or none: it came too late"
            raise InputError(_SERVER, reason, code="E-ROUND")
        self._verified = agreed.payload + _names(agreed.sites), public
        return public

    def _dealers(self, agreed_keys: Message, agreed: Message) -> tuple[str, ...]:
        """Return the sites whose shares came."""
        self._check_agreed(agreed, DEAL, {"boxes": (SEALED_BYTES,)})
        if not set(agreed.sites) <= set(agreed_keys.sites) or self.name not in agreed.sites:
            text = f"has no shares of {self.name}, or of sites without keys: it came too late"
            raise InputError(_SERVER, text, code="E-ROUND")
        return agreed.sites

    def _check_agreed(self, agreed: Message, step: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise for a message of another round or step, of sites that are not in the plan, or of fewer than T."""
        if agreed.round_id != self.round_id or agreed.step != step:
            raise InputError(_SERVER, "sent a message of another round or step", code="E-ROUND")
        count = len(agreed.sites)
        if list(agreed.sites) != sorted(set(agreed.sites) & set(self.plan.sites)):
            raise InputError(_SERVER, "names sites that are not in the plan, or not in order", code="E-ROUND")
        if count < self.plan.threshold:
            text = f"goes on with {count} sites, and this sum takes {self.plan.threshold}"
            raise InputError(_SERVER, text, code="E-ROUND")
        if problem := shape_problem(agreed, {name: ((count, *shape), "uint8") for name, shape in shapes.items()}):
            raise InputError(_SERVER, f"sent a message that is none: {problem}", code="E-ROUND")

    def _transcript(self, agreed_keys: Message, agreed_shares: Message, agreed_sum: Message) -> bytes:
        """Return the digest of what a site confirms, everything checked."""
        self._public_keys(agreed_keys)
        dealers = self._dealers(agreed_keys, agreed_shares)
        self._check_agreed(agreed_sum, MASK, {})
        if not set(agreed_sum.sites) <= set(dealers):
            raise InputError(_SERVER, "sums numbers of sites without shares", code="E-ROUND")
        if self.name not in agreed_sum.sites:
            raise InputError(_SERVER, f"sums without {self.name}, whose numbers came too late", code="E-ROUND")
        return transcript_of(agreed_keys, dealers, agreed_sum.sites)

    def _check_confirmations(self, transcript: bytes, agreed_sum: Message, agreed: Message) -> None:
        """Raise where fewer than T of the sites that are summed have signed that they have seen the same."""
        self._check_agreed(agreed, CONFIRM, {"signatures": (keys.SIGNATURE_BYTES,)})
        payload = payload_of({"seen": np.frombuffer(transcript, np.uint8)})
        for site, signature in zip(agreed.sites, agreed.arrays["signatures"], strict=True):
            text = keys.signed_text(self.round_id, CONFIRM, site, payload)
            if site not in agreed_sum.sites or not keys.verify(self.plan.keys[site], signature.tobytes(), text):
                raise InputError(_SERVER, f"has no signature of {site} for what this site has seen", code="E-ROUND")

    def _shares_for(self, sites: tuple[str, ...]) -> list[bytes]:
        """Return the share of the seed and that of the masking key for each of some sites, one after the other."""
        parties = [self.plan.party(site) for site in sites]
        of_both = [
            shamir.share(
                int.from_bytes(secret, "little"), self.secret.coefficients(name, self.plan.threshold - 1), parties
            )
            for name, secret in ((b"seed", self.secret.seed), (b"key", self.secret.masking_key))
        ]
        return [b"".join(map(shamir.element_bytes, pair)) for pair in zip(*of_both, strict=True)]

    def _seal(self, site: str, sealing_key: bytes, plain: bytes) -> bytes:
        key = self._box_key(sealing_key, self.name, site)
        return keys.seal(key, plain, self._box_context(self.name, site))

    def _box_key(self, public: bytes, dealer: str, recipient: str) -> bytes:
        """Return the key of a box: another one for each direction, so that each seals once."""
        shared = keys.agree(self.secret.sealing_key, public)
        return keys.derive(shared, self.round_id, b"share", dealer.encode(), recipient.encode())

    def _box_context(self, dealer: str, recipient: str) -> bytes:
        return self.round_id + dealer.encode() + b"\0" + recipient.encode()

    def _open_box(self, dealer: str, public: bytes, box: bytes) -> bytes | None:
        """Return the two shares that a site dealt to this one; None where the box does not open."""
        if dealer == self.name:
            return self._shares_for((dealer,))[0]
        return keys.unseal(self._box_key(public, dealer, self.name), box, self._box_context(dealer, self.name))


def numbers_digest(words: Words) -> bytes:
    """Return the digest by which a site knows its own numbers again."""
    return sha256(fixed_point.to_bytes(words)).digest()


def share_digest(share: bytes) -> bytes:
    """Return the digest by which a share is known."""
    return sha256(b"consilience share" + share).digest()[:DIGEST_BYTES]


def own_seed(round_id: bytes, seed: bytes) -> bytes:
    """Return the key of the stream of a site's own mask."""
    return keys.derive(seed, round_id, b"own")


def pair_seed(round_id: bytes, private: bytes, public: bytes) -> bytes:
    """Return the key of the stream that two sites have in common."""
    return keys.derive(keys.agree(private, public), round_id, b"pair")


def transcript_of(agreed_keys: Message, dealers: tuple[str, ...], summed: tuple[str, ...]) -> bytes:
    """Return the digest of the keys, of the sites whose shares came, and of those whose numbers are summed."""
    return sha256(agreed_keys.payload + _names(agreed_keys.sites) + _names(dealers) + _names(summed)).digest()


def _names(sites: tuple[str, ...]) -> bytes:
    return sha256("\0".join(sites).encode()).digest()


def _part(plain: bytes, kind: int) -> bytes:
    return plain[: shamir.ELEMENT_BYTES] if kind == OF_SEED else plain[shamir.ELEMENT_BYTES :]
