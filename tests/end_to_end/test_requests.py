"""Requests between real processes: over a folder with a server that is killed, and over Flower with TLS and keys."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegression

import consilience as cs
from consilience.cli.commands import cli
from consilience.errors import InputError, OptionError
from tests.end_to_end.pki import write_certificates, write_key
from tests.end_to_end.test_federated import ENVIRONMENT, free_port, listening, running
from tests.federated.rounds import rows, write_sites

SITES = ("ada", "bell", "curie")
ANSWER = ("round", "answer", "round")


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with the models and the rows of three sites."""
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path, SITES)
    for seed, site in enumerate(SITES):
        np.save(tmp_path / f"{site}.npy", rows(seed))
    return tmp_path


@pytest.fixture
def expected(room):
    """Return the natural parameters after two requests, in one memory."""
    fusion = cs.fuse({site: cs.load(room / site) for site in SITES})
    data = {site: room / f"{site}.npy" for site in SITES}
    return cs.federated.exchange("em", fusion, data, rounds=2).posterior.natural


def run(*arguments):
    """Return how the command ended."""
    return CliRunner().invoke(cli, [str(one) for one in arguments], standalone_mode=False)


@pytest.mark.slow
def test_sites_answer_over_a_folder_and_a_server_that_was_killed_goes_on(room, expected):
    serve = ["round", "open", "round", "-o", "fused.safetensors", "--sites", ",".join(SITES), "--then", "em:2"]
    serve += ["--deadline", "120", "--poll", "0.05"]
    for site in SITES:
        assert run("round", "send", "--early", site, "--to", "round", "--site", site).exception is None
    follow = ["--follow", "--timeout", "240"]
    with ExitStack() as stack:
        sites = {
            site: stack.enter_context(running(*ANSWER, "--site", site, "--data", f"{site}.npy", *follow, cwd=room))
            for site in SITES[:2]
        }
        with running(*serve, cwd=room) as server:
            while "round 2: request em 1 of 2" not in server.stderr.readline():
                pass
            os.killpg(server.pid, signal.SIGKILL)
        third = stack.enter_context(
            running(*ANSWER, "--site", "curie", "--data", "curie.npy", *follow, "--receive", "back", cwd=room)
        )
        done = subprocess.run(
            [sys.executable, "-m", "consilience", *serve],
            cwd=room,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for site, process in {**sites, "curie": third}.items():
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, f"{site}: {err}"
            assert "answered request em 1 of 2 with sums over 90 rows" in out
            assert "answered 2 requests" in out
    assert "going on with round 2" in done.stderr
    assert "round 3 (request em 2 of 2) closed (all sites in): 3 of 3 sites answered" in done.stdout
    np.testing.assert_allclose(cs.load(room / "fused.safetensors").natural, expected, rtol=1e-12)
    assert (room / "back").read_bytes() == (room / "fused.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.alone
def test_sites_answer_over_flower(room, expected):
    (room / "keys").mkdir()
    write_certificates(room)
    for site in SITES:
        write_key(room, f"{site}.key", room / "keys")
    for path in (room / "keys").glob("*.key.pub"):
        path.rename(path.with_name(path.name.replace(".key.pub", ".pub")))
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["round", "flower", "--address", address, "--certificates", room, "--site-keys", room / "keys"]
    serve += ["-o", "fused.safetensors", "--deadline", "120", "--poll", "0.1", "--then", "em:2"]
    known = [f"flower://{address}", "--root-certificates", "ca.crt", "--timeout", "240"]
    with ExitStack() as stack:
        server = stack.enter_context(running(*serve, cwd=room))
        listening(port)
        for site in SITES:
            sent = stack.enter_context(running("round", "send", site, "--to", *known, "--key", f"{site}.key", cwd=room))
            assert sent.wait(240) == 0, sent.stderr.read()
        follow = {
            site: stack.enter_context(
                running("round", "answer", *known, "--key", f"{site}.key", "--data", f"{site}.npy", *more, cwd=room)
            )
            for site, more in (("ada", ["--follow", "--receive", "back"]), ("bell", ["--follow"]))
        }
        for number in (1, 2):  # curie is called for every request
            command = ("round", "answer", *known, "--key", "curie.key", "--data", "curie.npy")
            once = stack.enter_context(running(*command, cwd=room))
            out, err = once.communicate(timeout=240)
            assert once.returncode == 0, err
            assert f"answered request em {number} of 2 with sums over 90 rows" in out
            report = room / "fused.safetensors.work" / "flower" / "server" / str(number + 1) / "round.json"
            ends = time.monotonic() + 60
            while not report.exists() and server.poll() is None and time.monotonic() < ends:
                time.sleep(0.1)
        out, err = server.communicate(timeout=240)
        assert server.returncode == 0, err
        for site, process in follow.items():
            text, trouble = process.communicate(timeout=120)
            assert process.returncode == 0, f"{site}: {trouble}"
            assert "answered 2 requests" in text
    np.testing.assert_allclose(cs.load(room / "fused.safetensors").natural, expected, rtol=1e-12)
    assert (room / "back").read_bytes() == (room / "fused.safetensors").read_bytes()
    report = json.loads((room / "fused.round.json").read_text())
    assert [one["site"] for one in report["took_part"]] == list(SITES)
    assert report["request"]["number"] == 2


@pytest.mark.slow
@pytest.mark.alone
def test_a_refinement_over_flower_is_that_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    y = (X @ [1.0, -2.0, 0.5] + rng.logistic(size=240) > 0).astype(int)
    data = {site: (X[number::2], y[number::2]) for number, site in enumerate(SITES[:2])}
    (tmp_path / "keys").mkdir()
    write_certificates(tmp_path)
    for site, (own, labels) in data.items():
        model = LogisticRegression(C=20.0, tol=1e-10, max_iter=10_000).fit(own, labels)
        cs.save(model, tmp_path / f"{site}.safetensors", data=(own, labels))
        np.savez(tmp_path / f"{site}.npz", x=own, y=labels)
        write_key(tmp_path, f"{site}.key", tmp_path / "keys")
        (tmp_path / "keys" / f"{site}.key.pub").rename(tmp_path / "keys" / f"{site}.pub")
    sent = {site: cs.load(tmp_path / f"{site}.safetensors") for site in data}
    expected = cs.federated.exchange("refine", cs.fuse(sent), data, rounds=6)
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["round", "flower", "--address", address, "--certificates", tmp_path, "--site-keys", tmp_path / "keys"]
    serve += ["-o", "fused.safetensors", "--deadline", "120", "--poll", "0.1", "--then", "refine:6"]
    known = [f"flower://{address}", "--root-certificates", "ca.crt", "--timeout", "240"]
    with ExitStack() as stack:
        server = stack.enter_context(running(*serve, cwd=tmp_path))
        listening(port)
        for site in data:
            send = stack.enter_context(
                running("round", "send", f"{site}.safetensors", "--to", *known, "--key", f"{site}.key", cwd=tmp_path)
            )
            assert send.wait(240) == 0, send.stderr.read()
        follow = [
            stack.enter_context(
                running(
                    "round", "answer", *known, "--key", f"{site}.key", "--data", f"{site}.npz", "--follow", cwd=tmp_path
                )
            )
            for site in data
        ]
        out, err = server.communicate(timeout=240)
        assert server.returncode == 0, err
        for process in follow:
            text, trouble = process.communicate(timeout=120)
            assert process.returncode == 0, trouble
            assert "answered request refine 1 of 6" in text
    assert "of 6) closed (all sites in): 2 of 2 sites answered" in out
    model = cs.rebuild(cs.load(tmp_path / "fused.safetensors"))
    np.testing.assert_array_equal(model.coef_, expected.model.coef_)
    pooled = LogisticRegression(C=20.0, tol=1e-12, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-6)


def test_the_command_says_what_was_withheld_and_is_quiet_when_told(room, tmp_path):
    for site in SITES:
        run("round", "send", "--early", site, "--to", "round", "--site", site)
    opened = ["round", "open", "round", "-o", "f", "--then", "em", "--deadline", "0.2", "--poll", "0.05"]
    run(*opened, "--sites", ",".join(SITES))
    for path in room.glob("round/server/2/round.json"):  # the request is open again
        path.unlink()
    np.save(tmp_path / "near.npy", rows(0)[:4])
    found = run(*ANSWER, "--site", "ada", "--data", "near.npy", "--min-count", 1.5)
    assert found.exception is None
    assert "with sums over 4 rows" in found.output
    assert re.search(r"parts? of few observations (was|were) withheld", found.output)
    assert run(*ANSWER, "--site", "ada", "--data", "ada.npy", "--quiet").output == ""
    few = run(*ANSWER, "--site", "ada", "--data", "near.npy").exception
    assert isinstance(few, InputError)
    assert few.problems[0].startswith("near.npy: has 4 rows, and sums over fewer than 5")
    module = run(*ANSWER, "--site", "ada", "--data", "ada.npy", "--module", "torch:nn.Identity").exception
    assert isinstance(module, OptionError)


def test_requests_and_answers_are_inspected(room):
    request = cs.federated.request("em", cs.fuse([cs.load(room / site) for site in SITES]), rounds=2)
    cs.federated.write_message(room / "request", request)
    cs.federated.write_message(room / "answer", cs.federated.answer(request, room / "ada.npy"))
    said = run("inspect", "request").output
    assert "em, request 1 of 2" in said
    assert "covariance_type full" in said
    said = run("inspect", "answer").output
    assert f"em, request 1, sha256 {request.digest}" in said
    assert "sums over 90 rows, none over fewer than 5" in said
    assert json.loads(run("inspect", "answer", "--json").output)["shapes"]["first"] == [3, 2]
    (room / "short").write_bytes(request.data[:-9])
    assert isinstance(run("inspect", "short").exception, InputError)
