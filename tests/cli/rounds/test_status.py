"""`round status`: before a round is open, while it is (by its place alone, and with the server's files), and after."""

import json
import shutil
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import consilience as cs
from consilience.federated.folder.inbox import site_folder
from tests.cli.running import command as run
from tests.federated.masked_sites import write_keys
from tests.federated.rounds import digest, rows, write_sites

QUICK = {"method": "kmeans", "poll": 0.05}
send = cs.federated.send_folder


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path, "abc")
    return tmp_path


@contextmanager
def serving(until, **options):
    """Run the server of a round in a thread, from when its log has said something until the round ends."""
    reached = threading.Event()
    results = {}

    def say(line):
        if until in line:
            reached.set()

    def serve():
        try:
            results["done"] = cs.federated.serve_folder("round", "fused.safetensors", say=say, **options)
        except cs.errors.InputError as error:
            results["error"] = error

    thread = threading.Thread(target=serve)
    thread.start()
    assert reached.wait(60)
    yield results
    thread.join()


def status(*words):
    done = run("round", "status", *words, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_a_round_that_is_not_opened_yet_shows_who_sent(room):
    send("a", "round", "a")
    assert status("round")["state"] == "not opened"
    assert status("round")["sites_in"] == ["a"]
    assert run("round", "status", "round").out == "the round of round is not opened\nin: a\n"


def test_an_open_round_shows_who_is_in_and_missing_by_its_place_and_more_by_the_server(room):
    send("a", "round", "a")
    (room / "broken").write_bytes(b"no model")
    folder = room / "round" / site_folder("b")
    folder.mkdir(parents=True)
    shutil.copy("broken", folder / digest("broken"))
    (folder / f"1-1-{digest('broken')}").touch()
    with serving("in 1: a", sites=["a", "b", "c"], deadline=100, **QUICK):
        seen = status("round")
        assert (seen["state"], seen["number"]) == ("open", 1)
        assert (seen["sites_in"], seen["missing"], seen["seconds_left"]) == (["a", "b"], ["c"], None)
        own = status("round", "-o", "fused.safetensors")
        assert (own["state"], own["sites_in"], own["missing"]) == ("open", ["a"], ["c"])
        assert list(own["refused"]) == ["b"]
        assert 60 < own["seconds_left"] <= 100
        lines = run("round", "status", "round", "-o", "fused.safetensors").out.splitlines()
        assert lines[0] == "round 1 of round is open"
        assert lines[1].startswith("deadline: in 1 min") or lines[1].startswith("deadline: in 9")
        assert lines[2:4] == ["in: a", "missing: c"]
        assert lines[4].startswith("refused: b: ")
        assert "deadline: known where the server runs (-o OUTPUT)" in run("round", "status", "round").out
        for site in "bc":
            send(site, "round", site)
    over = status("round")
    assert (over["state"], over["sites_in"], over["report"]["closed"]) == ("over", ["a", "b", "c"], "all sites in")
    assert over["verdict"] == over["report"]["verdict"]
    said = run("round", "status", "round", "-o", "fused.safetensors").out
    assert said.startswith("the round of round is over\nround 1 closed (all sites in): 3 of 3 sites took part\n")
    assert "verdict: " in said


def test_an_open_request_is_named(room):
    for seed, site in enumerate("ab"):
        send(site, "round", site)
        np.save(f"{site}.npy", rows(seed))
    with serving("round 2: request", sites=["a", "b"], then="em:2", deadline=100, poll=0.05):
        deadline = time.monotonic() + 60
        while (seen := status("round"))["request"] is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (seen["state"], seen["number"]) == ("open", 2)
        assert seen["request"] == {"kind": "em", "number": 1, "rounds": 2}
        assert seen["report"]["number"] == 1
        assert "round 2 (request em 1 of 2) of round is open\n" in run("round", "status", "round").out
        sites = [
            threading.Thread(
                target=cs.federated.answer_folder, args=("round", site, f"{site}.npy"), kwargs={"follow": True}
            )
            for site in "ab"
        ]
        for site in sites:
            site.start()
    for site in sites:
        site.join()
    assert status("round")["report"]["number"] == 3


def test_a_round_that_failed_shows_why(room):
    send("a", "round", "a")
    with serving("waiting", sites=["a", "b"], deadline=0.3, **QUICK) as results:
        pass
    assert "error" in results
    seen = status("round")
    assert (seen["state"], seen["missing"]) == ("failed", ["b"])
    (problem,) = seen["report"]["problems"]
    assert problem in run("round", "status", "round").out


def test_the_step_of_a_masked_sum_is_shown(room):
    keys = write_keys(room / "signing", "abc")
    for seed, site in enumerate("abc"):
        X = rows(seed)
        cs.save(Ridge().fit(X, X[:, 0]), f"{site}.safetensors", data=(X, X[:, 0]))
    masked = cs.federated.Masked(keys)
    options = {"sites": ["a", "b", "c"], "expect": "a.safetensors", "masked": masked, "deadline": 100, "poll": 0.05}

    def take_part(site):
        signing = {"signing_key": f"signing/{site}.key", "signing_keys": keys, "timeout": 60}
        cs.federated.send_masked(f"{site}.safetensors", "round", site, **signing)

    sites = [threading.Thread(target=take_part, args=(site,)) for site in "abc"]
    sites[0].start()
    with serving("a: keys in", **options):
        for words in (("round",), ("round", "-o", "fused.safetensors")):
            seen, until = status(*words), time.monotonic() + 20
            while seen["sites_in"] != ["a"] and time.monotonic() < until:  # files may be visible a moment later
                seen = status(*words)
            assert (seen["state"], seen["number"], seen["step"], seen["sites_in"]) == ("open", 1, 1, ["a"])
        assert "is open, step 1 of 5: keys\n" in run("round", "status", "round").out
        for site in sites[1:]:
            site.start()
    for site in sites:
        site.join()
    assert status("round")["state"] == "over"


def test_a_place_that_is_not_there_is_said(room):
    done = run("round", "status", "nowhere")
    assert done.code == 1
    assert done.complaints() == ["nowhere: there is no such folder, and no report of a server [E-MISSING]"]


@pytest.mark.parametrize("name", ["plan.json", "1/round.json"])
def test_links_are_not_followed(room, name):
    (room / "round" / "server" / "1").mkdir(parents=True)
    (room / "round" / "server" / "plan.json").write_text('{"sites": ["a", "b"], "limits": {}}')
    (room / "round" / "server" / name).unlink(missing_ok=True)
    (room / "round" / "server" / name).symlink_to(room / "a")
    for words in (("status", "round"), ("send", "a", "--to", "round", "--site", "a")):
        done = run("round", *words)
        assert done.code == 1
        assert done.complaints() == [f"round: server/{name}: is a link, which is not followed"]


def test_a_plan_that_is_none_is_said(room):
    (room / "round" / "server").mkdir(parents=True)
    (room / "round" / "server" / "plan.json").write_text("[]")
    done = run("round", "status", "round")
    assert done.code == 1
    assert "server/plan.json is no plan of a round" in done.err


def test_names_of_strangers_folders_are_printed_without_control_characters(room):
    (room / "round" / "sites" / "a\x1b[31m").mkdir(parents=True)
    assert "\x1b" not in run("round", "status", "round").out
