"""`round check`: every problem of a round before it is opened, all at once, and what is as it must be."""

import datetime
import json
import os
import socket

import pytest
from sklearn.linear_model import Ridge

import consilience as cs
from consilience.cli.rounds.check import MAX_CLOCK_DIFFERENCE, Preflight
from consilience.federated.folder.storage import LocalStorage, RemoteStorage
from tests.cli.running import command as run
from tests.end_to_end.pki import write_certificates, write_key
from tests.end_to_end.test_federated import free_port
from tests.federated.masked_sites import write_keys
from tests.federated.rounds import rows, write_sites

SITES = ("--sites", "a,b")


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path, "ab")
    return tmp_path


@pytest.fixture
def keys(room):
    """Certificates, and keys of two sites for the connection."""
    write_certificates(room)
    (room / "keys").mkdir()
    for site in "ab":
        write_key(room, site, room / "keys")
    return ("--site-keys", "keys", "--certificates", ".")


def problems(*words):
    """Return what the check of a round that cannot be opened lists."""
    done = run("round", "check", *words)
    assert done.code == 1
    assert "ok: " not in done.out
    document = json.loads(run("round", "check", *words, "--json").out)
    assert len(document["problems"]) == len(done.complaints())
    return done.complaints()


def test_a_round_that_can_be_opened(room):
    before = sorted(room.rglob("*"))
    done = run("round", "check", "round", *SITES, "-o", "fused.safetensors", "--expect", "a")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[-1] == "ok: the round can be opened"
    assert {"sites: 2: a, b; a quorum of 2", "place: round can be written", "earlier round: none"} < set(lines)
    assert "expected file: a can be read" in lines
    assert any(line.startswith("disk: ") and "bytes free in" in line for line in lines)
    assert sorted(room.rglob("*")) == before  # nothing is left behind
    document = json.loads(run("round", "check", "round", *SITES, "--json").out)
    assert (document["ok"], set(document["checked"])) == (True, {"sites", "place", "clock", "earlier round", "disk"})


def test_names_of_sites(room):
    (said,) = problems("round", "--sites", "a")
    assert said.startswith("--sites: a round takes at least two, found 1")
    (said,) = problems("round", "--sites", "a,../b")
    assert "expected names of letters, digits" in said


def test_a_place_that_is_not_mounted(room):
    (said,) = problems("mnt/shared/round", *SITES)
    assert said == "mnt/shared/round: there is no folder mnt/shared to make it in; is the file system mounted?"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_place_that_cannot_be_written(room):
    (room / "round").mkdir(mode=0o500)
    (said,) = problems("round", *SITES)
    assert "Permission denied" in said


def test_a_place_that_cannot_be_written_by_its_file_system(room, monkeypatch):
    def refuse(**_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("consilience.cli.rounds.check.tempfile.NamedTemporaryFile", refuse)
    (said,) = problems("round", *SITES)
    assert said == "round: place: Permission denied"


def test_earlier_rounds_and_folders_of_strangers(room):
    for site in "ab":
        cs.federated.send_folder(site, "round", site)
    cs.federated.send_folder("a", "round", "aa")
    (said,) = problems("round", "--sites", "a,b")
    text = "has folders of sites that are not expected: aa"
    assert said == f"round: {text}; give their names in `--sites`, or remove them"
    cs.federated.serve_folder("round", "fused.safetensors", sites=["a", "b"], method="kmeans", poll=0.05)
    said = problems("round", "--sites", "a,b,aa")
    assert said == ["round: has an earlier round; use a new place for each round"]
    (room / "fused.safetensors.work").mkdir()
    (room / "fused.safetensors.work" / "state.json").write_text("{}")
    (said,) = problems("new", *SITES, "-o", "fused.safetensors")
    assert said.startswith("fused.safetensors.work: has a round that is not over; open it with the same options")


def test_a_place_that_nothing_opens_is_said_once(room):
    (said,) = problems("nothing://bucket/round", *SITES)
    assert said.startswith("nothing://bucket/round: ")


def test_output_and_work(room):
    (said,) = problems("round", *SITES, "-o", "nowhere/fused.safetensors")
    assert said.startswith("nowhere/fused.safetensors: ")
    (room / "round").mkdir()
    (said,) = problems("round", *SITES, "-o", "round/fused.safetensors")
    assert said.startswith("round/fused.safetensors.work: lies in round, where sites may write; give a folder")


def test_room_on_the_disk(room):
    size = 2**60
    (said,) = problems("round", *SITES, "-o", "fused.safetensors", "--file-size", size)
    assert f"bytes free, and the round takes {2 * (2 * size + size):,}; make room" in said
    keys = write_keys(room / "signing", "ab")
    (said,) = problems("round", *SITES, "--file-size", size, "--signing-keys", keys)
    assert f"the round takes {2 * 4 * size + size:,}; make room" in said  # under masks a number takes more


@pytest.mark.parametrize("difference", [-3600.0, 7200.0])
def test_the_clock_of_the_file_system(room, monkeypatch, difference):
    monkeypatch.setattr("consilience.cli.rounds.check._modified", lambda path: path.stat().st_mtime + difference)
    (said,) = problems("round", *SITES)
    where = "ahead of" if difference > 0 else "behind"
    by = f"{abs(difference):.0f} s {where} this machine's"
    assert said == f"round: the clock of its files is {by}, by which rounds end; set both clocks"
    monkeypatch.setattr("consilience.cli.rounds.check._modified", lambda path: path.stat().st_mtime + 1.0)
    assert run("round", "check", "round", *SITES).code == 0
    assert MAX_CLOCK_DIFFERENCE > 1.0


def test_the_expected_file(room):
    (room / "bad").write_bytes(b"nothing")
    (said,) = problems("round", *SITES, "--expect", "bad")
    assert said.startswith("bad: ")
    (said,) = problems("round", *SITES, "--expect", "nowhere")
    assert said.startswith("nowhere: ")


def test_signing_keys(room):
    keys = write_keys(room / "signing", "ab")
    done = run("round", "check", "round", "--signing-keys", keys)
    assert "sites: 2: a, b; a quorum of 2" in done.out
    assert f"signing keys: 2 in {keys}" in done.out
    (said,) = problems("round", "--signing-keys", keys, "--sites", "a,b,c")
    assert said == f"{keys}: has no key of c; put NAME.pub there"
    write_key(room, "c", keys)
    (said,) = problems("round", "--signing-keys", keys)
    assert said.startswith(f"{keys}/c.pub: is no key of Ed25519; make one with ssh-keygen -t ed25519")
    (said,) = problems("round", "--signing-keys", room)
    assert "holds no public keys NAME.pub" in said


def test_a_server_of_flower(keys, room):
    port = free_port()
    done = run("round", "check", f"flower://127.0.0.1:{port}", *keys, "-o", "fused.safetensors")
    assert (done.code, done.err) == (0, "")
    assert f"port: 127.0.0.1:{port} is free" in done.out
    assert "site keys: 2 in keys" in done.out
    assert "certificate: valid until 20" in done.out
    assert "place: " not in done.out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (said,) = problems(f"flower://127.0.0.1:{port}", *keys)
    assert said.startswith(f"127.0.0.1:{port}: cannot be listened at: Address already in use; give another port")


def test_certificates_and_keys_of_sites(keys, room, monkeypatch):
    flower = f"flower://127.0.0.1:{free_port()}"
    (room / "other").mkdir()
    write_certificates(room / "other")
    (room / "other" / "server.key").write_bytes((room / "server.key").read_bytes())
    (said,) = problems(flower, "--site-keys", "keys", "--certificates", "other")
    assert "server.crt: is no certificate with its key in" in said
    said = problems(flower, "--site-keys", "keys", "--certificates", "keys", "--sites", "a,b,c")
    assert said[0] == "keys: has no key of c; put NAME.pub there"
    assert all("server." in line for line in said[1:])
    write_keys(room / "signing", "ab")
    said = problems(flower, "--site-keys", "signing/public", "--insecure")
    assert len(said) == 2
    assert all("is not on a NIST curve" in line for line in said)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) + datetime.timedelta(days=30)

    monkeypatch.setattr("consilience.cli.rounds.check.datetime", Later)
    (said,) = problems(flower, *keys)
    assert "and not now; make a new one" in said


def test_every_problem_is_said_at_once(room):
    X = rows(0)
    cs.save(Ridge().fit(X, X[:, 0]), "ridge", data=(X, X[:, 0]))
    cs.federated.send_folder("a", "round", "aa")
    said = problems(
        "round", "--sites", "a", "-o", "nowhere/x", "--expect", "nothing", "--file-size", 2**60, "--signing-keys", "no"
    )
    assert [line.partition(": ")[0] for line in said][:3] == ["--sites", "round", "nowhere/x"]
    assert len(said) == 6


def test_a_bucket_is_written_read_and_left_as_it_was():
    fsspec = pytest.importorskip("fsspec")
    given = dict.fromkeys(("output", "work", "expect", "file_size", "signing_keys", "site_keys", "certificates"))
    asked = Preflight(place="memory://bucket/round", sites="a,b", insecure=False, **given)
    facts, wrong = asked.run()
    assert not wrong
    assert facts["place"] == "memory://bucket/round can be written"
    assert "clock" in facts
    assert isinstance(asked.storage, RemoteStorage)
    assert not fsspec.filesystem("memory").find("/bucket/round")
    assert not isinstance(asked.storage, LocalStorage)
