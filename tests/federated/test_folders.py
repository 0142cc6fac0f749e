"""Rounds in a shared folder and in a bucket: what may go wrong there, and changes nothing."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import consilience as cs
from consilience.errors import InputError, OptionError
from consilience.federated import Announcement, RoundError, RoundPlan, RoundReport
from consilience.federated.folder.inbox import Inbox, seconds_left
from consilience.federated.folder.site import load_fused
from consilience.federated.folder.storage import LocalStorage, RefusedError, RemoteStorage, storage_of
from consilience.files.limits import Limits
from tests.federated.rounds import digest, mixture, write_sites

send, serve, receive = cs.federated.send_folder, cs.federated.serve_folder, cs.federated.receive_folder
QUICK = {"deadline": 0.4, "poll": 0.05, "method": "kmeans"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("sites"), "abcd")


@pytest.fixture
def expected(files, tmp_path, monkeypatch):
    """Return the bytes of the file that fusing these sites gives."""

    def of(sites):
        monkeypatch.chdir(files["a"].parent)
        cs.fuse(list(sites), "kmeans").save(tmp_path / "directly")
        return (tmp_path / "directly").read_bytes()

    return of


@pytest.fixture
def place(tmp_path):
    return tmp_path / "round"


@pytest.fixture
def output(tmp_path):
    return tmp_path / "fused.safetensors"


def announce(place, site, path, attempt=1, name=None):
    """Put a file into a place by hand, as a site that goes its own ways."""
    folder = place / "sites" / site
    folder.mkdir(parents=True, exist_ok=True)
    (folder / digest(path)).write_bytes(Path(path).read_bytes())
    (folder / (name or Announcement(site, 1, attempt, digest(path)).name)).touch()
    return folder


def test_a_round_gives_the_model_of_its_sites_to_the_server_and_to_them(files, place, output, expected, tmp_path):
    for site in "abc":
        assert not send(files[site], place, site).again
    result = serve(place, output, sites=["a", "b", "c"], **QUICK)
    assert output.read_bytes() == expected("abc")
    assert result.report.closed == "all sites in"
    assert RoundReport.from_bytes((tmp_path / "fused.round.json").read_bytes()) == result.report
    report = receive(place, tmp_path / "back", timeout=1)
    assert (tmp_path / "back").read_bytes() == output.read_bytes()
    assert report == result.report
    assert report.fused["sha256"] == digest(output)
    assert not (tmp_path / "fused.safetensors.work").exists()
    assert load_fused(output).n_components == 3


def test_a_round_ends_at_its_deadline_without_those_that_are_late(files, place, output, expected, tmp_path):
    for site in "abc":
        send(files[site], place, site)
    started = time.monotonic()
    report = serve(place, output, sites=["a", "b", "c", "d"], **QUICK).report
    assert time.monotonic() - started < QUICK["deadline"] + 10.0
    assert (report.closed, report.sites, report.missing) == ("deadline", ("a", "b", "c"), ("d",))
    assert output.read_bytes() == expected("abc")
    with pytest.raises(InputError, match="is over"):
        send(files["d"], place, "d")
    with pytest.raises(InputError, match="is over"):  # another plan
        serve(place, output, sites=["a", "b", "c"], **QUICK)


@pytest.mark.parametrize("work", [None, "work"])
@pytest.mark.parametrize("lost", ["nothing", "the output", "its bytes"])
def test_a_round_that_had_ended_gives_the_same_again(work, lost, files, place, output, expected, tmp_path):
    work = None if work is None else tmp_path / work
    for site in "abc":
        send(files[site], place, site)
    first = serve(place, output, sites=["a", "b", "c"], work=work, **QUICK).report
    if lost == "the output":
        output.unlink()
    elif lost == "its bytes":
        output.write_bytes(b"damaged")
    again = serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)
    assert again.report == first
    assert output.read_bytes() == expected("abc")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("fused", "."))) == [
        "fused.round.json",
        "fused.safetensors",
    ]
    copies = {digest(files[site]) for site in "abc"}
    assert not [path for path in tmp_path.rglob("*") if path.name in copies and place not in path.parents]


def test_what_comes_between_the_close_and_the_end_is_named_as_late(files, place, tmp_path):
    for site in "abc":
        announce(place, site, files[site])
    storage, plan = LocalStorage(place), RoundPlan(tuple("abcd"))
    inbox = Inbox(storage, plan, 1, tmp_path / "work")
    inbox.poll(time.monotonic() + 5)
    assert inbox.late_announcements() == []
    announce(place, "d", files["d"])
    assert [one.site for one in inbox.late_announcements()] == ["d"]


def test_sending_again_changes_nothing_and_another_file_is_another_attempt(files, place, output, expected):
    for site in "abc":
        send(files[site], place, site)
    again = send(files["a"], place, "a")
    assert (again.again, again.announcement.attempt) == (True, 1)
    other = send(files["d"], place, "a")
    assert (other.again, other.announcement.attempt) == (False, 2)
    send(files["a"], place, "a")
    report = serve(place, output, sites=["a", "b", "c"], **QUICK).report
    assert output.read_bytes() == expected("abc")
    assert [(one.site, one.attempt) for one in report.ignored] == [("a", 1), ("a", 2)]


def test_hostile_folders_change_nothing(files, place, output, expected, tmp_path):
    (secret := tmp_path / "secret").write_bytes(files["d"].read_bytes())
    for site in "abc":
        folder = announce(place, site, files[site])
        for name in ("1-1-..%2f..", "2-1-" + "0" * 64, "1-0-" + "0" * 64, ".hidden", "x" * 200, "1-1-" + "0" * 65):
            (folder / name).touch()
    linked = announce(place, "link", files["d"])
    (linked / digest(files["d"])).unlink()
    (linked / digest(files["d"])).symlink_to(secret)
    piped = announce(place, "pipe", files["d"])
    (piped / digest(files["d"])).unlink()
    os.mkfifo(piped / digest(files["d"]))
    announce(place, "lying", files["d"], name=Announcement("lying", 1, 1, digest(files["a"])).name)
    (place / "sites" / "lying" / digest(files["a"])).write_bytes(files["d"].read_bytes())
    huge = place / "sites" / "huge"
    huge.mkdir()
    (huge / ("1-1-" + "e" * 64)).touch()
    with (huge / ("e" * 64)).open("wb") as stream:
        stream.truncate(2**40)
    (place / "sites" / "stranger").mkdir()
    sites = ["a", "b", "c", "huge", "link", "lying", "pipe"]
    report = serve(place, output, sites=sites, quorum=3, limits=Limits(file_bytes=10**6), **QUICK).report
    assert output.read_bytes() == expected("abc")
    why = {one.site: one.reasons[0] for one in report.left_out}
    assert why == {
        "huge": f"is {2**40} bytes long, which is more than the 1000000 that are taken here",
        "link": "is a link, which is not followed",
        "lying": "its content is not what was announced; send it again",
        "pipe": "is not an ordinary file",
    }
    assert report.unknown == ("stranger",)


def test_a_folder_of_thousands_of_files_leaves_its_site_out(files, place, output, monkeypatch):
    monkeypatch.setattr("consilience.federated.folder.inbox.MAX_FILES", 20)
    for site in "abcd":
        announce(place, site, files[site])
    for number in range(40):
        (place / "sites" / "d" / f"{number}").touch()
    report = serve(place, output, sites=["a", "b", "c", "d"], **QUICK).report
    assert report.sites == ("a", "b", "c")
    assert "more than 20 files" in report.left_out[0].reasons[0]


def test_a_file_changed_after_it_was_taken_changes_nothing(files, place, output, expected, tmp_path):
    for site in "abc":
        announce(place, site, files[site])
    work = tmp_path / "work"
    inbox = Inbox(LocalStorage(place), RoundPlan(tuple("abc")), 1, work)
    inbox.poll(time.monotonic() + 5)
    for path in (place / "sites").rglob("*"):
        if path.is_file():
            path.write_bytes(b"something else")
    serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)
    assert output.read_bytes() == expected("abc")


def test_contributions_that_vanish_after_they_were_taken_still_count(files, place, output, expected, tmp_path):
    announce(place, "a", files["a"])
    work = tmp_path / "work"
    Inbox(LocalStorage(place), RoundPlan(tuple("abc")), 1, work).poll(time.monotonic() + 5)
    for path in (place / "sites" / "a").iterdir():
        path.unlink()
    for site in "bc":
        announce(place, site, files[site])
    serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)
    assert output.read_bytes() == expected("abc")


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on(files, place, output, expected, tmp_path):
    command = [sys.executable, "-m", "consilience", "round", "open", str(place), "-o", str(output)]
    command += ["--sites", "a,b,c", "--deadline", "60", "--poll", "0.05", "--method", "kmeans"]
    send(files["a"], place, "a")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            while b"a: is in" not in server.stderr.readline():
                pass
        finally:
            server.send_signal(signal.SIGKILL)
    assert not output.exists()
    for path in (place / "sites" / "a").iterdir():
        path.unlink()
    for site in "bc":
        send(files[site], place, site)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "going on with round 1" in done.stderr
    assert "3 of 3 sites took part" in done.stdout
    assert output.read_bytes() == expected("abc")


def test_a_server_that_was_killed_at_the_very_end_publishes_what_it_had(files, place, output, expected, tmp_path):
    work = tmp_path / "work"
    for site in "abc":
        send(files[site], place, site)
    serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)
    report = (place / "server" / "1" / "round.json").read_bytes()
    for path in (output, place / "server" / "1" / "round.json", place / "server" / "1" / "fused.safetensors"):
        path.unlink()
    send(files["d"], place, "a")
    again = serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)
    assert again.fusion is None
    assert again.report.to_bytes() == report
    assert not list((work / "1").glob("files/*"))  # copies of what sites sent
    assert output.read_bytes() == expected("abc")
    assert (place / "server" / "1" / "round.json").read_bytes() == report
    receive(place, tmp_path / "back", timeout=1)


@pytest.mark.parametrize("kept", ["1", "state.json"])
def test_a_server_that_was_killed_while_it_tidied_up_has_ended(files, place, output, monkeypatch, kept):
    for site in "abc":
        send(files[site], place, site)

    def killed(folder, **options):
        if Path(folder).suffix != ".work":
            remove(folder, **options)
            return
        for path in sorted(Path(folder).rglob("*"), reverse=True):  # in an order that is nobody's
            if path.is_file() and kept not in path.relative_to(folder).parts:
                path.unlink()
        raise KeyboardInterrupt

    remove = shutil.rmtree
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            serve(place, output, sites=["a", "b", "c"], **QUICK)
    fused, report = output.read_bytes(), (place / "server" / "1" / "round.json").read_bytes()
    for path in (place / "sites").glob("*/*"):  # as sites do that have the model
        path.unlink()
    again = serve(place, output, sites=["a", "b", "c"], **QUICK)
    assert again.report.to_bytes() == report
    assert output.read_bytes() == fused
    assert (place / "server" / "1" / "round.json").read_bytes() == report
    assert not output.with_name(f"{output.name}.work").exists()


def test_going_on_with_another_plan_is_refused(files, place, output, tmp_path):
    work = tmp_path / "work"
    send(files["a"], place, "a")
    with pytest.raises(RoundError):
        serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)
    (work / "state.json").write_text(json.dumps({"sites": ["a", "b"]}))
    with pytest.raises(InputError, match=r"of a round with other .*sites"):
        serve(place, output, sites=["a", "b", "c"], work=work, **QUICK)


def test_a_round_that_failed_can_be_tried_again_without_sending_again(files, place, output, expected, tmp_path):
    for site in "ab":
        send(files[site], place, site)
    with pytest.raises(RoundError, match="2 good contributions, and the round needs 3"):
        serve(place, output, sites=["a", "b", "c", "d"], **QUICK)
    assert json.loads((place / "server" / "1" / "round.json").read_text())["status"] == "failed"
    with pytest.raises(InputError, match="round 1 failed"):
        receive(place, tmp_path / "back", timeout=1)
    send(files["c"], place, "c")
    serve(place, output, sites=["a", "b", "c", "d"], **QUICK)
    assert output.read_bytes() == expected("abc")


def test_trouble_with_the_place_is_tried_again(files, place, output, expected, monkeypatch):
    for site in "abc":
        send(files[site], place, site)
    failures = iter([OSError("stale handle")] * 5)
    names = LocalStorage.names

    def flaky(self, folder, most):
        for error in failures:
            raise error
        return names(self, folder, most)

    monkeypatch.setattr(LocalStorage, "names", flaky)
    heard = []
    serve(place, output, sites=["a", "b", "c"], deadline=20, poll=0.05, method="kmeans", say=heard.append)
    assert any("stale handle" in line for line in heard)
    assert output.read_bytes() == expected("abc")


def test_a_bucket_serves_as_well_as_a_folder(files, output, expected, tmp_path):
    place = "memory://a-round"
    for site in "abc":
        send(files[site], place, site)
    assert send(files["a"], place, "a").again
    announced = [name for name in fsspec.filesystem("memory").ls("/a-round/sites/a", detail=False) if "1-1-" in name]
    assert len(announced) == 1
    report = serve(place, output, sites=["a", "b", "c", "d"], **QUICK).report
    assert report.sites == ("a", "b", "c")
    receive(place, tmp_path / "back", timeout=1)
    assert (tmp_path / "back").read_bytes() == output.read_bytes() == expected("abc")


def test_a_bucket_keeps_the_limits(files, output):
    place, size = "memory://narrow", max(path.stat().st_size for path in files.values())
    memory = fsspec.filesystem("memory")
    for site in "abc":
        send(files[site], place, site)
    memory.pipe_file("/narrow/sites/d/" + "e" * 64, bytes(size + 1))
    memory.pipe_file("/narrow/sites/d/1-1-" + "e" * 64, b"")
    report = serve(place, output, sites=["a", "b", "c", "d"], limits=Limits(file_bytes=size), **QUICK).report
    assert report.sites == ("a", "b", "c")
    assert f"is {size + 1} bytes long" in report.left_out[0].reasons[0]


def test_what_a_service_raises_is_trouble_that_may_pass():
    storage = RemoteStorage("memory://nothing")
    with pytest.raises(FileNotFoundError):
        storage.read("missing", 10)

    class Broken:
        def ls(self, *_args, **_more):
            raise RuntimeError("status 503")

        def invalidate_cache(self):
            """Nothing is cached."""

    storage.files = Broken()
    with pytest.raises(OSError, match="status 503"):
        storage.names("sites/a", 5)


def test_unknown_places_are_refused(tmp_path):
    with pytest.raises((InputError, OptionError)):
        storage_of("nosuchscheme://x")
    assert isinstance(storage_of(tmp_path.as_uri()), LocalStorage)


def test_a_copy_stops_when_its_time_is_over(files, tmp_path):
    storage = LocalStorage(files["a"].parent)
    with pytest.raises(OSError, match="in the time there was"):
        storage.fetch("a", digest(files["a"]), tmp_path / "copy", 10**9, deadline=time.monotonic() - 1)
    with pytest.raises(RefusedError, match="not what was announced"):
        storage.fetch("a", "0" * 64, tmp_path / "copy", 10**9)
    assert list(tmp_path.iterdir()) == []


def test_a_site_checks_its_own_file_first(place, tmp_path, files):
    (tmp_path / "bad").write_bytes(files["a"].read_bytes()[:-3])
    with pytest.raises(InputError, match="truncated"):
        send(tmp_path / "bad", place, "a")
    assert not place.exists()
    with pytest.raises(InputError, match=r"none of its \d components has 1000 effective observations"):
        send(files["a"], place, "a", min_count=1000.0)
    assert not place.exists()
    assert send(files["b"], place, "b").warnings == ()


def test_what_few_observations_tell_of_does_not_leave_the_site(place, tmp_path, files):
    model = cs.load(files["a"])
    least = float(np.sort(model.counts)[0])
    between = (least + float(np.sort(model.counts)[1])) / 2.0
    before = files["a"].read_bytes()
    sent = send(files["a"], place, "a", min_count=between)
    assert f"1 of {model.n_components} components has fewer than" in sent.warnings[0]
    assert "was withheld" in sent.warnings[0]
    (there,) = list(place.rglob(sent.announcement.digest))
    assert_array_equal(np.sort(cs.load(there).counts), np.sort(model.counts)[1:])
    assert files["a"].read_bytes() == before
    assert send(files["a"], place, "a", min_count=between).again
    whole = send(files["a"], place, "a", min_count=0.0)
    assert whole.warnings == ()
    assert whole.announcement.digest == hashlib.sha256(before).hexdigest()


def test_a_site_that_is_not_expected_is_told_so(files, place, output):
    for site in "ab":
        send(files[site], place, site)
    with pytest.raises(RoundError):
        serve(place, output, sites=["a", "b", "c", "d"], **QUICK)
    with pytest.raises(InputError, match="is not a site of the round"):
        send(files["c"], place, "mallory")
    with pytest.raises(OptionError, match="expected a name"):
        send(files["c"], place, "../a")


def test_the_servers_own_folder_is_not_where_sites_write(place):
    place.mkdir()
    with pytest.raises(InputError, match="where sites may write"):
        serve(place, place / "fused", sites=["a", "b", "c"], **QUICK)


def test_waiting_for_a_round_that_never_ends_ends(place, tmp_path):
    with pytest.raises(InputError, match=r"did not end within 0\.2 seconds"):
        receive(place, tmp_path / "back", timeout=0.2)


def test_sites_that_take_part_in_rounds_converge(place, output):
    heard = []

    def refine(fused, number):
        seeds = {"a": 0, "b": 1, "c": 2}
        heard.append((number, fused is None))
        return mixture(seeds[threading.current_thread().name])

    threads = [
        threading.Thread(target=cs.federated.take_part, args=(place, site, refine), kwargs={"timeout": 60}, name=site)
        for site in "abc"
    ]
    for thread in threads:
        thread.start()
    result = serve(place, output, sites=["a", "b", "c"], rounds=4, deadline=60, poll=0.05)
    for thread in threads:
        thread.join(60)
    assert len(result.reports) == 2  # the same models again: nothing changed, so no third round
    assert [one.continues for one in result.reports] == [True, False]
    assert result.report.convergence["change"] == 0.0
    assert result.report.convergence["divergence"] == pytest.approx(0.0, abs=1e-9)
    assert sorted(set(heard)) == [(1, True), (2, False)]


def test_a_later_round_that_fails_leaves_the_model_of_the_one_before(files, place, output, expected):
    for site in "abc":
        send(files[site], place, site)
    result = serve(place, output, sites=["a", "b", "c"], rounds=3, **QUICK)
    assert [bool(one.problems) for one in result.reports] == [False, True]
    assert output.read_bytes() == expected("abc")
    assert result.fusion.n_components == 3


@pytest.mark.parametrize("told", [{"rounds": 0}, {"poll": 0}, {"tolerance": -1}, {"method": "nope"}, {"quorum": 9}])
def test_options_that_make_no_sense_are_refused_before_waiting(told, place, output):
    with pytest.raises(OptionError):
        serve(place, output, **{"sites": ["a", "b", "c"], **QUICK, **told})
    assert not place.exists()


def in_background(action):
    """Run an action in a thread that the test joins."""
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_a_file_that_was_announced_in_time_may_become_visible_after_the_deadline(files, place, output, expected):
    for site in "ab":
        send(files[site], place, site)
    late = announce(place, "c", files["c"]) / digest(files["c"])
    content = late.read_bytes()
    late.unlink()

    def appears():
        time.sleep(1.4)
        late.write_bytes(content)

    thread = in_background(appears)
    report = serve(place, output, sites=["a", "b", "c"], **{**QUICK, "deadline": 1.0}).report
    thread.join()
    assert (report.closed, report.sites) == ("all sites in", ("a", "b", "c"))
    assert output.read_bytes() == expected("abc")


def test_what_is_announced_after_the_deadline_is_late_while_others_are_waited_for(files, place, output):
    for site in "ab":
        send(files[site], place, site)
    (announce(place, "c", files["c"]) / digest(files["c"])).unlink()

    def announces():
        time.sleep(1.4)
        announce(place, "d", files["d"])

    thread = in_background(announces)
    report = serve(place, output, sites=["a", "b", "c", "d"], quorum=2, **{**QUICK, "deadline": 1.0}).report
    thread.join()
    assert (report.closed, report.sites) == ("deadline", ("a", "b"))
    assert [record.site for record in report.late] == ["d"]
    assert report.left_out[0].reasons == ("its file never came",)


def test_a_file_that_was_seen_in_part_is_taken_once_it_is_whole(files, place, output, expected):
    for site in "ab":
        send(files[site], place, site)
    partial = announce(place, "c", files["c"]) / digest(files["c"])
    content = partial.read_bytes()
    partial.write_bytes(content[: len(content) // 2])
    lines = []

    def completes():
        while not any("not what was announced" in line for line in lines):
            time.sleep(0.02)
        partial.write_bytes(content)

    thread = in_background(completes)
    report = serve(place, output, sites=["a", "b", "c"], say=lines.append, **{**QUICK, "deadline": 30.0}).report
    thread.join()
    assert (report.closed, report.sites) == ("all sites in", ("a", "b", "c"))
    assert output.read_bytes() == expected("abc")


def test_a_file_that_stays_another_is_read_a_few_times_only(files, place, tmp_path, monkeypatch):
    announce(place, "a", files["b"], name=Announcement("a", 1, 1, digest(files["a"])).name)
    (place / "sites" / "a" / digest(files["a"])).write_bytes(files["b"].read_bytes())
    inbox, reads = Inbox(storage_of(place), RoundPlan(("a", "b")), 1, tmp_path / "work"), []
    fetch = LocalStorage.fetch
    monkeypatch.setattr(LocalStorage, "fetch", lambda self, *told: (reads.append(told[0]), fetch(self, *told))[1])
    clock = [0.0]
    monkeypatch.setattr("consilience.federated.folder.inbox.time.monotonic", lambda: clock[0])
    for second in range(600):
        clock[0] = float(second)
        inbox.poll(1e9)
    assert 5 <= len(reads) <= 12
    assert inbox.is_waiting
    (one,) = inbox.contributions()
    assert (one.problem, one.is_final) == ("its content is not what was announced; send it again", False)


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_is_put_to_another_day_closes_no_round_that_is_resumed(days, tmp_path, monkeypatch):
    started = tmp_path / "started"
    assert 99.0 < seconds_left(started, 100.0) <= 100.0
    now = time.time()
    monkeypatch.setattr("consilience.federated.folder.inbox.time.time", lambda: now + days * 86400.0)
    if Path("/proc/sys/kernel/random/boot_id").exists():
        assert 90.0 < seconds_left(started, 100.0) <= 100.0
    monkeypatch.setattr("consilience.federated.folder.inbox._boot", lambda: "another")  # the machine started anew
    assert (seconds_left(started, 100.0) < 0) == (days > 0)


def test_a_full_disk_at_the_status_file_is_trouble_and_not_the_end(files, place, output, expected, monkeypatch):
    from consilience.federated.folder import server

    for site in "abc":
        send(files[site], place, site)
    write, failed, lines = server.write_bytes, [], []

    def full(path, data):
        if path.name.endswith(".round.json") and not failed:
            failed.append(path)
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(server, "write_bytes", full)
    report = serve(place, output, sites=["a", "b", "c", "d"], say=lines.append, **QUICK).report
    assert failed
    assert report.sites == ("a", "b", "c")
    assert sum("No space left" in line for line in lines) == 1
    assert output.read_bytes() == expected("abc")


def test_of_two_servers_in_one_place_the_earlier_ends_and_publishes_nothing(files, place, tmp_path):
    for site in "ab":
        send(files[site], place, site)
    ended, lines = [], []

    def earlier():
        try:
            serve(place, tmp_path / "earlier", sites=["a", "b", "c"], say=lines.append, **{**QUICK, "deadline": 60.0})
        except InputError as error:
            ended.append(str(error))

    thread = in_background(earlier)
    while not any("in 2: a, b" in line for line in lines):
        time.sleep(0.02)
    report = serve(place, tmp_path / "later", sites=["a", "b"], **QUICK).report
    thread.join(timeout=60)
    assert report.sites == ("a", "b")
    assert "another server has opened a round here meanwhile" in ended[0]
    assert not (tmp_path / "earlier").exists()


def test_two_servers_do_not_share_a_work_folder(files, place, output, tmp_path):
    lines, ended = [], []
    told = {"sites": ["a", "b"], "work": tmp_path / "work"}

    def first():
        ended.append(serve(place, output, say=lines.append, **told, **{**QUICK, "deadline": 60.0}).report)

    thread = in_background(first)
    while not lines:
        time.sleep(0.02)
    with pytest.raises(InputError, match="is in use: another process runs this round"):
        serve(place, output, **told, **{**QUICK, "deadline": 60.0})
    for site in "ab":
        send(files[site], place, site)
    thread.join(timeout=60)
    assert ended[0].sites == ("a", "b")
