"""What a round over Flower is started with: all public keys that cannot be used are named at once.

And what ends the process at its port."""

import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import consilience as cs
from consilience.errors import InputError, OptionError


def public_key(private):
    return private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


ADA, BO = (public_key(ec.generate_private_key(ec.SECP384R1())) for _ in range(2))
UNUSABLE = [
    ("copy", ADA + b" copied", "is the key of ada"),
    ("two words", BO, "its name is to be a site's"),
    ("curve25519", public_key(ed25519.Ed25519PrivateKey.generate()), "is not on a NIST curve"),
    ("text", b"no key at all", "is no OpenSSH public key"),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ada.pub").write_bytes(ADA)
    (tmp_path / "notes.txt").write_text("of no site")
    return tmp_path


def refusal(folder, **options):
    with pytest.raises((InputError, OptionError)) as caught:
        cs.federated.serve_flower("127.0.0.1:1", folder / "out", site_keys=folder, insecure=True, **options)
    return caught.value


@pytest.mark.parametrize("shift", range(len(UNUSABLE)))
def test_every_unusable_key_is_named_in_whatever_order_they_are_read(folder, shift):
    expected = {}
    for place, (name, key, text) in enumerate(UNUSABLE[shift:] + UNUSABLE[:shift]):
        path = folder / f"site{place}-{name}.pub"
        path.write_bytes(key)
        expected[str(path)] = text
    found = {str(problem.subject): problem.text for problem in refusal(folder).problems}
    assert found.keys() == expected.keys()
    assert all(found[path].startswith(text) for path, text in expected.items())


def test_a_round_takes_keys_of_two_sites_and_of_all_that_are_expected(folder):
    assert "holds 1 public keys" in str(refusal(folder))
    (folder / "bo.pub").write_bytes(BO)
    assert "has no key of cleo, dan" in str(refusal(folder, sites=["ada", "dan", "bo", "cleo"]))


@pytest.mark.parametrize("address", ["nowhere", ":80", "host:", "host:0", "host:65536", "host:-1", "host:http"])
def test_an_address_is_a_host_and_a_port(folder, address):
    (folder / "bo.pub").write_bytes(BO)
    with pytest.raises(OptionError, match="HOST:PORT"):
        cs.federated.serve_flower(address, folder / "out", site_keys=folder, insecure=True)


LINGERING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from consilience.federated.flower import link

waiting = SimpleNamespace(waiting=Path(sys.argv[1]), online=lambda node: True)
link._follow_input(waiting, SimpleNamespace(), {"ada": 1})
"""


def test_a_process_that_waits_for_sites_ends_with_the_server_that_started_it(tmp_path):
    (tmp_path / "ada").touch()  # is online, and has not got the fused model
    command = [sys.executable, "-c", LINGERING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        process.stdin.write("finish\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.stdin.close()
        assert process.wait(10) == 0
