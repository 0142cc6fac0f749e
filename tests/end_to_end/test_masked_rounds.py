"""Masked rounds between real processes: over a folder with kills on both sides, and over Flower with TLS and keys."""

import json
import os
import signal
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge

import consilience as cs
from consilience.cli.commands import cli
from tests.end_to_end.pki import write_certificates, write_key
from tests.end_to_end.test_federated import free_port, listening, running
from tests.federated.masked_sites import write_keys

SITES = ("ada", "bell", "curie", "dirac")


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with the statistics and the signing keys of four sites."""
    monkeypatch.chdir(tmp_path)
    write_keys(tmp_path / "signing", SITES)
    for seed, site in enumerate(SITES):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(50, 3))
        y = X @ [1.0, -2.0, 0.5] + rng.normal(size=50)
        cs.save(Ridge(alpha=0.5).fit(X, y), tmp_path / f"{site}.safetensors", data=(X, y))
    return tmp_path


def run(*arguments):
    """Return how the command ended."""
    return CliRunner().invoke(cli, [str(one) for one in arguments], standalone_mode=False)


def coefficients(room):
    """Return the coefficients of the open fusion."""
    return cs.fuse([room / f"{site}.safetensors" for site in SITES]).model.coef_


def serve_arguments(*more):
    return [
        "round", "masked", "round", "-o", "fused.safetensors", "--signing-keys", "signing/public",
        "--expect", "ada.safetensors", "--poll", "0.05", *more,
    ]  # fmt: skip


def send_arguments(site, *more):
    return [
        "round", "send", f"{site}.safetensors", "--signing-key", f"signing/{site}.key",
        "--signing-keys", "signing/public", *more,
    ]  # fmt: skip


def test_commands_run_a_masked_round(room):
    results = {}

    def send(site):
        more = ["--receive", f"{site}.back", "--json"] if site == "ada" else []
        results[site] = run(*send_arguments(site, "--to", "round", "--site", site, "--timeout", "60", *more))

    threads = [threading.Thread(target=send, args=(site,)) for site in SITES[1:]]
    for thread in threads:
        thread.start()
    serving = threading.Thread(target=lambda: results.update(server=run(*serve_arguments("--deadline", "60"))))
    serving.start()
    send("ada")
    for thread in [*threads, serving]:
        thread.join()
    assert all(result.exception is None for result in results.values()), results
    assert_allclose(cs.rebuild(room / "fused.safetensors").coef_, coefficients(room), rtol=1e-12)
    assert (room / "ada.back").read_bytes() == (room / "fused.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.alone
def test_processes_that_are_killed_on_both_sides_go_on(room):
    to_round = ["--to", "round", "--timeout", "240"]
    with ExitStack() as stack:
        sites = {
            site: stack.enter_context(running(*send_arguments(site, *to_round, "--site", site), cwd=room))
            for site in SITES
        }
        with running(*serve_arguments("--deadline", "120"), cwd=room) as server:
            while "ada: shares in" not in server.stderr.readline():
                pass
            os.killpg(server.pid, signal.SIGKILL)
        os.killpg(sites["curie"].pid, signal.SIGKILL)
        sites["curie"].wait(60)
        again = stack.enter_context(running(*send_arguments("curie", *to_round, "--site", "curie"), cwd=room))
        server = stack.enter_context(running(*serve_arguments("--deadline", "120"), cwd=room))
        out, err = server.communicate(timeout=240)
        assert server.returncode == 0, err
        assert "4 of 4 sites took part" in out
        for site, process in {**sites, "curie": again}.items():
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, f"{site}: {err}"
    assert_allclose(cs.rebuild(room / "fused.safetensors").coef_, coefficients(room), rtol=1e-12)
    assert {path.name for path in room.glob("*.masked/*")} == {"opened"}


@pytest.mark.slow
@pytest.mark.alone
def test_a_masked_round_over_flower(room):
    (room / "keys").mkdir()
    write_certificates(room)
    for site in SITES:
        write_key(room, f"{site}.key", room / "keys")
    for path in (room / "keys").glob("*.key.pub"):
        path.rename(path.with_name(path.name.replace(".key.pub", ".pub")))
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["round", "masked", f"flower://{address}", "--certificates", room, "--site-keys", room / "keys"]
    serve += ["-o", "fused.safetensors", "--deadline", "60", "--poll", "0.1", "--expect", "ada.safetensors"]
    serve += ["--signing-keys", "signing/public"]
    known = ["--to", f"flower://{address}", "--root-certificates", "ca.crt", "--timeout", "240"]
    with ExitStack() as stack:
        server = stack.enter_context(running(*serve, cwd=room))
        listening(port)
        bare = stack.enter_context(running("round", "send", "ada.safetensors", *known, "--key", "ada.key", cwd=room))
        _, err = bare.communicate(timeout=120)
        assert bare.returncode == 1
        assert "this round is masked, and what you would send is not; nothing was sent" in err
        sites = {
            site: stack.enter_context(
                running(*send_arguments(site, *known, "--key", f"{site}.key", "--receive", f"{site}.back"), cwd=room)
            )
            for site in SITES
        }
        started = time.monotonic()
        for site, process in sites.items():
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, f"{site}: {err}"
            assert "4 of 4 sites were summed under masks" in out
        out, err = server.communicate(timeout=120)
        assert server.returncode == 0, err
        assert time.monotonic() - started < 240
    assert_allclose(cs.rebuild(room / "fused.safetensors").coef_, coefficients(room), rtol=1e-12)
    assert (room / "dirac.back").read_bytes() == (room / "fused.safetensors").read_bytes()
    opened = [json.loads(path.read_text()) for path in room.glob("*.masked/opened/*.json")]
    assert [sorted(group["sites"]) for group in opened] == [sorted(SITES)] * len(SITES)
    assert json.loads((room / "fused.round.json").read_text())["masked"]["n_observations"] == 200
