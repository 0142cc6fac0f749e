"""Operating a round: who is in while it is open, a signal that closes it, logs for machines, kills at any line."""

import json
import os
import signal

import pytest
from click.testing import CliRunner

import consilience as cs
from consilience.cli.commands import cli
from consilience.core.fusion import Fusion
from consilience.errors import InputError
from consilience.federated import RoundReport
from consilience.federated.report import Event, json_line
from tests.federated.rounds import write_sites

send, serve = cs.federated.send_folder, cs.federated.serve_folder
OPTIONS = {"sites": ["a", "b", "c"], "method": "kmeans", "poll": 0.05}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("sites"), "abcd")


class Killed(BaseException):
    """The process was killed."""


def test_an_open_round_says_who_is_in_missing_and_refused(files, tmp_path):
    place, output, seen = tmp_path / "round", tmp_path / "fused.safetensors", []
    send(files["a"], place, "a")
    (broken := tmp_path / "broken").write_bytes(b"no model")
    folder = place / "sites" / "b"
    folder.mkdir(parents=True)
    digest = cs.core.provenance.file_digest(broken)
    (folder / digest).write_bytes(broken.read_bytes())
    (folder / f"1-1-{digest}").touch()

    def say(line):
        if line.kind == "status":
            seen.append(json.loads((tmp_path / "fused.round.json").read_text()))
            if len(seen) == 1:
                send(files["c"], place, "c")
                os.kill(os.getpid(), signal.SIGUSR1)

    result = serve(place, output, deadline=60, say=say, quorum=2, **OPTIONS)
    assert [document["status"] for document in seen] == ["open"] * len(seen)
    first = seen[0]
    assert [record["site"] for record in first["took_part"]] == ["a"]
    assert first["missing"] == ["c"]
    assert [record["site"] for record in first["left_out"]] == ["b"]
    assert first["left_out"][0]["reasons"]
    assert result.report.closed in ("signal", "all sites in")
    final = RoundReport.from_bytes((tmp_path / "fused.round.json").read_bytes())
    assert final == result.report


def test_a_signal_closes_a_round_with_what_it_has(files, tmp_path):
    place = tmp_path / "round"
    for site in "ab":
        send(files[site], place, site)

    def say(line):
        if line.kind == "waiting":
            os.kill(os.getpid(), signal.SIGUSR1)

    report = serve(place, tmp_path / "fused.safetensors", deadline=60, say=say, **OPTIONS).report
    assert (report.closed, report.sites, report.missing) == ("signal", ("a", "b"), ("c",))


def test_a_signal_closes_the_round_that_is_open_and_none_after_it(files, tmp_path):
    place = tmp_path / "round"
    for site in "ab":
        for number in (1, 2):
            send(files[site], place, site, number=number)

    def say(line):
        if line.kind == "waiting" and line.number == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    told = {"deadline": 1.0, "rounds": 2, "tolerance": 0.0, "say": say}
    reports = serve(place, tmp_path / "fused.safetensors", **told, **OPTIONS).reports
    assert [report.closed for report in reports] == ["signal", "deadline"]


def test_a_site_that_has_sent_may_say_so_again_when_the_round_is_over(files, tmp_path):
    place = tmp_path / "round"
    for site in "abc":
        send(files[site], place, site)
    serve(place, tmp_path / "fused.safetensors", deadline=60, **OPTIONS)
    again = send(files["a"], place, "a", receive=tmp_path / "back", timeout=5)
    assert (again.again, again.announcement.attempt) == (True, 1)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "fused.safetensors").read_bytes()
    with pytest.raises(InputError, match="is over; nothing was sent"):
        send(files["b"], place, "a")


def test_a_full_disk_is_no_fault_of_the_sites(files, tmp_path, monkeypatch):
    place, output = tmp_path / "round", tmp_path / "fused.safetensors"
    for site in "abc":
        send(files[site], place, site)
    save = Fusion.save
    for error in (OSError(28, "No space left on device"), InputError(output, "cannot be written", "", "E-SYSTEM")):

        def full(*_, error=error, **__):
            raise error

        monkeypatch.setattr(Fusion, "save", full)
        with pytest.raises(type(error)):
            serve(place, output, deadline=60, **OPTIONS)
        monkeypatch.setattr(Fusion, "save", save)
    assert serve(place, output, deadline=60, **OPTIONS).report.sites == ("a", "b", "c")


def test_a_round_killed_at_any_line_of_its_log_ends_with_the_same_bytes(files, tmp_path):
    def run(name, kill_at):
        place, output, lines = tmp_path / name, tmp_path / f"{name}.safetensors", []
        for site in "abc":
            send(files[site], place, site)

        def say(line):
            lines.append(line)
            if len(lines) == kill_at:
                raise Killed

        options = {**OPTIONS, "deadline": 60}
        try:
            serve(place, output, say=say, **options)
        except Killed:
            serve(place, output, **options)
        assert not (tmp_path / f"{name}.safetensors.work").exists()
        return output.read_bytes(), len(lines)

    whole, n_lines = run("whole", 0)
    assert n_lines >= 4
    for kill_at in range(1, n_lines + 1):
        assert run(f"killed-{kill_at}", kill_at)[0] == whole


def test_logs_for_a_machine_are_json_lines(files, tmp_path):
    for site in "abc":
        send(files[site], tmp_path / "round", site)
    command = ["round", "open", str(tmp_path / "round"), "-o", str(tmp_path / "fused.safetensors"), "--sites", "a,b,c"]
    done = CliRunner().invoke(cli, [*command, "--method", "kmeans", "--poll", "0.05", "--log", "json"])
    assert done.exit_code == 0, done.output
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"waiting", "in", "status", "closed"} <= {event["event"] for event in events}
    assert sorted(event["site"] for event in events if event["event"] == "in") == ["a", "b", "c"]
    again = CliRunner().invoke(cli, [*command, "--method", "kmeans", "--poll", "0.05", "--log", "json"])
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert [json.loads(line)["event"] for line in again.stderr.splitlines()] == ["ended"]


def test_a_line_that_is_no_event_is_json_too():
    assert json.loads(json_line("two\nlines")) == {"event": "log", "text": "two\nlines"}
    assert json.loads(json_line(Event("text", "failed", 2))) == {"event": "failed", "round": 2, "text": "text"}
