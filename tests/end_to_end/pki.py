"""A certificate authority of one round, a server's certificate for 127.0.0.1, and keys of sites."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM, _PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _built(subject, issuer, key, signer, *extensions):
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=2))
    )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    return made.sign(signer, hashes.SHA256())


def write_certificates(folder):
    """Write ca.crt, server.crt and server.key."""
    folder = Path(folder)
    root, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = _built(
        "ca of a round", "ca of a round", root, root,
        (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (identifier, False),
    )  # fmt: skip
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = _built(
        "server", "ca of a round", server, root,
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), False),
    )  # fmt: skip
    (folder / "ca.crt").write_bytes(ca.public_bytes(_PEM))
    (folder / "server.crt").write_bytes(leaf.public_bytes(_PEM))
    (folder / "server.key").write_bytes(
        server.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, _PLAIN)
    )


def write_key(folder, name, public_folder=None):
    """Write a site's private key NAME, and NAME.pub into `public_folder`."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN)
    (Path(folder) / name).write_bytes(private)
    if public_folder is not None:
        line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (Path(public_folder) / f"{name}.pub").write_bytes(line)
