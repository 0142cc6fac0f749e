"""Sites of a round: they wait for its plan, never send openly to a masked round, and fetch the model later."""

import json
import threading
import time

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import consilience as cs
from tests.cli.running import command as run
from tests.cli.running import run as process
from tests.federated.masked_sites import write_keys
from tests.federated.rounds import rows, write_sites

QUICK = {"method": "kmeans", "poll": 0.05, "deadline": 60}


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with the files and rows of three sites."""
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path, "abc")
    for seed, site in enumerate("abc"):
        np.save(f"{site}.npy", rows(seed))
    return tmp_path


def publish_plan(place, **more):
    """Publish what the server of a round does."""
    plan = {"sites": ["a", "b"], "limits": {}, "rounds": 1, "name": "round", **more}
    (place / "server").mkdir(parents=True)
    (place / "server" / "plan.json").write_text(json.dumps(plan))


def opened(**options):
    """Run the server of a round in a thread; return the thread and where its result goes."""
    results = {}
    place = options.pop("place", "round")

    def serve():
        results["done"] = cs.federated.serve_folder(place, "fused.safetensors", **{**QUICK, **options})

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, results


def test_a_site_waits_until_the_round_is_open(room):
    done = run("round", "send", "a", "--to", "round", "--site", "a", "--timeout", "0.3")
    assert done.code == 1
    assert "waiting for a server to open the round in round; --early sends without waiting\n" in done.err
    assert "no server has opened a round here in 0.3 seconds" in done.err
    assert "or give `--early` [E-ROUND]" in done.err
    assert not (room / "round").exists()
    server, _ = opened(sites=["a", "b"])
    assert run("round", "send", "a", "--to", "round", "--site", "a", "--quiet").out == ""
    assert run("round", "send", "b", "--to", "round", "--site", "b").code == 0
    server.join()


def test_a_file_that_no_server_takes_is_refused_before_a_site_waits(room):
    (room / "bad").write_bytes(b"nothing")
    started = time.monotonic()
    done = run("round", "send", "bad", "--to", "round", "--site", "a", "--timeout", "60")
    assert (done.code, "bad: " in done.err) == (1, True)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("early", [(), ("--early",)], ids=["", "early"])
def test_nothing_is_sent_openly_to_a_masked_round(room, early):
    publish_plan(room / "round", masked=True)
    sent = run("round", "send", "a", "--to", "round", "--site", "a", *early)
    answered = run("round", "answer", "round", "--site", "a", "--data", "a.npy")
    for done in (sent, answered):
        assert done.code == 1
        assert "this round is masked, and what you would send is not; nothing was sent" in done.err
        assert "--signing-key" in done.err
    assert not (room / "round" / "sites").exists()


@pytest.mark.parametrize("words", [("send", "a.safetensors", "--to"), ("answer", "--data", "a.npy")], ids=" ".join)
def test_an_open_round_is_never_taken_for_a_masked_one(room, words):
    X = rows(0)
    cs.save(Ridge().fit(X, X[:, 0]), "a.safetensors", data=(X, X[:, 0]))
    keys = write_keys(room / "signing", "ab")
    publish_plan(room / "round")
    done = run("round", *words, "round", "--site", "a", "--signing-key", "signing/a.key", "--signing-keys", keys)
    assert done.code == 1
    assert "this round is not masked; nothing was sent" in done.err
    assert not (room / "round" / "sites").exists()


def test_a_site_that_sent_without_waiting_fetches_later(room):
    for site in "ab":
        assert run("round", "send", site, "--to", "round", "--site", site, "--early").code == 0
    late = run("round", "fetch", "round", "-o", "back", "--timeout", "0.2")
    assert late.code == 1
    assert "waiting for the end of the round in round\n" in late.err
    assert "round 1 did not end within 0.2 seconds" in late.err
    cs.federated.serve_folder("round", "fused.safetensors", sites=["a", "b", "c"], **{**QUICK, "deadline": 0.3})
    done = run("round", "fetch", "round", "-o", "back", "--site", "a")
    assert (done.code, done.err) == (0, "")
    assert "2 of 3 sites took part" in done.out
    assert done.out.endswith("wrote back\n")
    assert (room / "back").read_bytes() == (room / "fused.safetensors").read_bytes()
    missing = run("round", "fetch", "round", "-o", "again", "--site", "c", "--json")
    assert "c did not take part in round 1: nothing came of it" in missing.err
    document = json.loads(missing.out)
    assert document["wrote"] == ["again"]
    assert [one["site"] for one in document["report"]["took_part"]] == ["a", "b"]


def test_the_model_after_the_last_request_is_fetched(room):
    for site in "ab":
        run("round", "send", site, "--to", "round", "--site", site, "--early")
    server, results = opened(sites=["a", "b"], then="em:2")
    sites = [
        threading.Thread(
            target=cs.federated.answer_folder, args=("round", site, f"{site}.npy"), kwargs={"follow": True}
        )
        for site in "ab"
    ]
    for site in sites:
        site.start()
    assert run("round", "fetch", "round", "-o", "back", "--quiet").out == ""
    for one in (server, *sites):
        one.join()
    assert results["done"].report.number == 3
    assert (room / "back").read_bytes() == (room / "fused.safetensors").read_bytes()
    assert (room / "back").read_bytes() != (room / "round/server/1/fused.safetensors").read_bytes()


def test_where_a_request_failed_the_model_before_it_is_fetched_with_a_warning(room):
    for site in "ab":
        run("round", "send", site, "--to", "round", "--site", site, "--early")
    cs.federated.serve_folder("round", "fused.safetensors", sites=["a", "b"], then="em", **{**QUICK, "deadline": 0.3})
    done = run("round", "fetch", "round", "-o", "back")
    assert done.code == 0
    assert "warning: round 2 failed (0 good answers, and the round needs 2" in done.err
    assert "this is the model of round 1" in done.err
    assert (room / "back").read_bytes() == (room / "fused.safetensors").read_bytes()


def test_of_a_round_that_failed_nothing_is_fetched(room):
    run("round", "send", "a", "--to", "round", "--site", "a", "--early")
    with pytest.raises(cs.federated.RoundError):
        cs.federated.serve_folder("round", "fused.safetensors", sites=["a", "b"], **{**QUICK, "deadline": 0.2})
    done = run("round", "fetch", "round", "-o", "back")
    assert done.code == 1
    assert "round 1 failed" in done.err
    assert not (room / "back").exists()


def test_over_flower_the_model_is_handed_out_while_the_server_runs(room):
    done = process("round", "fetch", "flower://127.0.0.1:9", "-o", "back", "--key", "a", "--insecure")
    assert done.code == 1
    assert "127.0.0.1:9: no server runs there" in done.err
    assert "ask the server's owner for the fused file [E-ROUND]" in done.err
