"""Requests over a folder: late, missing, bad and repeated answers, and servers that are killed."""

import json
import threading
import time

import numpy as np
import pytest

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated import Announcement, RoundReport
from tests.federated.rounds import digest, rows, write_sites

send, serve, answer = cs.federated.send_folder, cs.federated.serve_folder, cs.federated.answer_folder
SITES = ["a", "b", "c"]
DATA = {site: rows(seed) for seed, site in enumerate(SITES)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("sites"), SITES)


@pytest.fixture
def place(files, tmp_path):
    for site in SITES:
        send(files[site], tmp_path / "round", site)
    return tmp_path / "round"


@pytest.fixture
def output(tmp_path):
    return tmp_path / "fused.safetensors"


@pytest.fixture(scope="module")
def expected(files):
    """Return the model after so many requests, all in memory."""

    def of(rounds, data=None):
        fusion = cs.fuse({site: cs.load(files[site]) for site in SITES})
        return cs.federated.exchange("em", fusion, data or DATA, rounds=rounds).posterior.natural

    return of


class Following:
    """Sites that answer all requests, in threads of their own."""

    def __init__(self, place, sites, **options):
        self.results = {}
        self.threads = [
            threading.Thread(target=self._follow, args=(place, site, options), daemon=True) for site in sites
        ]

    def _follow(self, place, site, options):
        try:
            self.results[site] = answer(place, site, DATA[site], follow=True, timeout=60, **options)
        except Exception as error:
            self.results[site] = error

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, error, *_):
        for thread in self.threads:
            thread.join(60 if error is None else 0)  # nobody answers them any more


def test_the_model_after_requests_in_a_folder_is_that_of_the_exchange_in_memory(place, output, expected, tmp_path):
    with Following(place, ["b", "c"]) as others, Following(place, "a", receive=tmp_path / "back") as first:
        result = serve(place, output, sites=SITES, then="em:3", deadline=60, poll=0.05)
    assert [len(sent) for sent in (first.results | others.results).values()] == [3, 3, 3]
    np.testing.assert_allclose(cs.load(output).natural, expected(3), rtol=1e-12)
    assert (tmp_path / "back").read_bytes() == output.read_bytes()
    assert [report.number for report in result.reports] == [1, 2, 3, 4]
    assert result.reports[0].then == "em:3"
    assert [report.request["number"] for report in result.reports[1:]] == [1, 2, 3]
    assert [report.goes_on for report in result.reports] == [True, True, True, False]
    assert np.all(np.diff(result.fusion.history) >= 0.0)
    saved = RoundReport.from_bytes(output.with_name("fused.round.json").read_bytes())
    assert saved == result.report
    assert saved.fused["sha256"] == digest(output)
    assert "round 4 (request em 3 of 3) closed (all sites in): 3 of 3 sites answered" in saved.lines()[0]
    assert not output.with_name("fused.safetensors.work").exists()


def test_one_call_answers_the_open_request_and_the_same_answer_is_sent_once(place, output, expected):
    with Following(place, ["b", "c"]):
        server = threading.Thread(
            target=serve,
            args=(place, output),
            kwargs={"sites": SITES, "then": "em:2", "deadline": 60, "poll": 0.05},
            daemon=True,
        )
        server.start()
        first = answer(place, "a", DATA["a"], timeout=60)
        assert [(one.number, one.rounds, one.again) for one in first] == [(1, 2, False)]
        while not (place / "server" / "3" / "request.safetensors").exists():
            assert server.is_alive()
            time.sleep(0.02)
        second = answer(place, "a", DATA["a"], timeout=60)
        server.join(60)
    assert second[0].number == 2
    np.testing.assert_allclose(cs.load(output).natural, expected(2), rtol=1e-12)
    with pytest.raises(InputError, match="all requests of this round are over"):
        answer(place, "a", DATA["a"], timeout=5)


def test_a_missing_site_is_carried_on_and_one_that_never_answered_left_out(place, output):
    with Following(place, ["a", "c"]):
        once = threading.Thread(target=answer, args=(place, "b", DATA["b"]), kwargs={"timeout": 60})
        once.start()
        result = serve(place, output, sites=SITES, then="em:3", deadline=1.5, quorum=2, poll=0.05)
        once.join(60)
    second, third = result.reports[2:]
    assert (second.missing, third.missing) == (("b",), ("b",))
    assert [(one.site, one.reasons) for one in third.carried] == [
        ("b", ("answer to request 1: sent no answer in time",))
    ]
    history = result.fusion.history
    assert np.all(np.diff(history) >= -1e-9 * abs(history[0]))
    rounds = result.fusion.provenance["result"]["then"]["rounds"]
    assert rounds[2]["carried"] == {"b": 1}
    assert "carried on: b" in "\n".join(third.lines())


def test_an_answer_that_comes_late_counts_in_the_next_round(place, output, tmp_path):
    late = []

    def say(line):
        # Site c answers request 1 when that is over: it computed for long.
        if line.startswith("round 3: request") and not late:
            request = cs.federated.read_request(place / "server" / "2" / "request.safetensors")
            message = cs.federated.answer(request, DATA["c"])
            folder = place / "sites" / "c"
            (folder / message.digest).write_bytes(message.data)
            (folder / Announcement("c", 2, 1, message.digest).name).touch()
            late.append(message.digest)

    with Following(place, ["a", "b"]):
        result = serve(place, output, sites=SITES, then="em:2", deadline=8.0, quorum=2, poll=0.05, say=say)
    assert result.reports[1].missing == ("c",)
    assert [(one.site, one.sha256) for one in result.reports[2].carried] == [("c", late[0])]
    assert "its answer to request 1 came late" in result.reports[2].carried[0].reasons[0]
    rounds = result.fusion.provenance["result"]["then"]["rounds"]
    assert [sorted(one["answers"]) for one in rounds] == [["a", "b"], ["a", "b", "c"]]


def announce(place, site, data, number=2, attempt=1):
    """Put a file and its announcement into a site's folder."""
    path = place / "sites" / site / "file"
    path.write_bytes(data)
    name = digest(path)
    path.rename(path.with_name(name))
    (place / "sites" / site / Announcement(site, number, attempt, name).name).touch()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data, _: data[:-9], "is truncated or not a safetensors file"),
        (lambda data, _: b"\x80\x04pickle", "is a pickle or zip archive, which is never loaded"),
        (lambda data, request: request.data, "is a request of a round, expected an answer"),
        (
            lambda data, _: data.replace(b'\\"number\\": 1', b'\\"number\\": 2'),
            "answers another request: its number is 2",
        ),
    ],
)
def test_a_bad_answer_is_left_out_with_its_reason_and_stops_nobody(place, output, change, reason):
    def say(line):
        if line.startswith("round 2: request"):
            request = cs.federated.read_request(place / "server" / "2" / "request.safetensors")
            announce(place, "c", change(cs.federated.answer(request, DATA["c"]).data, request))

    with Following(place, ["a", "b"]):
        result = serve(place, output, sites=SITES, then="em:1", deadline=3.0, quorum=2, poll=0.05, say=say)
    (left_out,) = result.report.left_out
    assert left_out.site == "c"
    assert reason in left_out.reasons[0]
    assert result.report.sites == ("a", "b")


def test_a_copy_of_anothers_answer_counts_once(place, output):
    def say(line):
        if line.startswith("round 2: request"):
            request = cs.federated.read_request(place / "server" / "2" / "request.safetensors")
            for site in "bc":
                announce(place, site, cs.federated.answer(request, DATA["b"]).data)

    with Following(place, ["a"]):
        result = serve(place, output, sites=SITES, then="em:1", deadline=3.0, quorum=2, poll=0.05, say=say)
    assert result.report.sites == ("a", "b")
    assert "the same answer as b" in result.report.left_out[0].reasons[0]


def test_with_fewer_answers_than_the_quorum_the_model_stays(place, output):
    with Following(place, ["a"]) as sites:
        result = serve(place, output, sites=SITES, then="em:2", deadline=0.6, quorum=2, poll=0.05)
    assert [bool(report.problems) for report in result.reports] == [False, True]
    assert "1 good answers, and the round needs 2; the model stays as it was" in result.report.problems
    assert output.read_bytes() == (place / "server" / "1" / "fused.safetensors").read_bytes()
    assert [one.number for one in sites.results["a"]] == [1]


class Killed(BaseException):
    """The end of a server, wherever it is."""


@pytest.mark.parametrize(
    "when",
    [
        "round 3: request",
        *(
            pytest.param(when, marks=pytest.mark.slow)
            for when in ("round 2: request", "round 2: closed", "round 3: closed")
        ),
    ],
)
def test_a_server_that_was_killed_goes_on_with_the_same_bytes(when, files, tmp_path):
    def run(name, kill):
        place, output = tmp_path / name / "round", tmp_path / name / "fused.safetensors"
        for site in SITES:
            send(files[site], place, site)

        def say(line):
            if kill and line.startswith(when):
                raise Killed

        options = {"sites": SITES, "then": "em:2", "deadline": 60, "poll": 0.05, "work": tmp_path / name / "work"}
        with Following(place, SITES):
            if kill:
                with pytest.raises(Killed):
                    serve(place, output, say=say, **options)
            serve(place, output, **options)
        return [path.read_bytes() for path in (output, *sorted(place.glob("server/*/request.safetensors")))]

    assert run("killed", True) == run("whole", False)


def test_a_server_that_was_killed_before_it_published_does_so(place, output, tmp_path):
    work = tmp_path / "work"
    options = {"sites": SITES, "then": "em:1", "deadline": 60, "poll": 0.05, "work": work}
    with Following(place, SITES):
        serve(place, output, **options)
    whole = output.read_bytes()
    for path in (output, place / "server" / "2" / "round.json"):
        path.unlink()
    assert serve(place, output, **options).fusion is None
    assert output.read_bytes() == whole
    assert (place / "server" / "2" / "round.json").exists()


def test_going_on_with_other_requests_is_refused(place, output, tmp_path):
    options = {"sites": SITES, "deadline": 0.3, "poll": 0.05, "work": tmp_path / "work"}
    serve(place, output, then="em:2", **options)
    with pytest.raises(InputError, match=r"of a round with other .*then"):
        serve(place, output, then="em:3", **options)


def test_a_request_that_failed_can_be_tried_again(place, output, expected, tmp_path):
    options = {"sites": SITES, "then": "em:2", "poll": 0.05, "work": tmp_path / "work"}
    result = serve(place, output, deadline=0.3, **options)
    assert result.report.problems
    (tmp_path / "work" / "state.json").write_text(
        (tmp_path / "work" / "state.json").read_text().replace('"deadline": 0.3', '"deadline": 60.0')
    )
    for path in place.glob("server/2/round.json"):
        path.unlink()
    with Following(place, SITES):
        serve(place, output, deadline=60.0, **options)
    np.testing.assert_allclose(cs.load(output).natural, expected(2), rtol=1e-12)


def test_models_without_such_requests_are_fused_and_said(tmp_path, output):
    from sklearn.cluster import KMeans

    place = tmp_path / "round"
    for site in SITES:
        cs.save(KMeans(2, random_state=0, n_init=1).fit(DATA[site]), tmp_path / site)
        send(tmp_path / site, place, site)
    with pytest.raises(UnsupportedError, match=r"this is a sklearn\.KMeans"):
        serve(place, output, sites=SITES, then="em:2", deadline=20, poll=0.05)
    assert output.exists()
    with pytest.raises(InputError, match="this round has no requests"):
        answer(place, "a", DATA["a"], timeout=5)


def test_a_round_that_failed_or_has_no_requests_is_said_to_a_site(place, output):
    with pytest.raises(InputError, match="published no request in time"):
        answer(place, "a", DATA["a"], timeout=0.2)
    serve(place, output, sites=SITES, deadline=20, poll=0.05)
    with pytest.raises(InputError, match="this round has no requests"):
        answer(place, "a", DATA["a"], timeout=5)
    with pytest.raises(InputError, match="is not a site of the round"):
        answer(place, "mallory", DATA["a"], timeout=5)
    with pytest.raises(OptionError, match="comes with follow"):
        answer(place, "a", DATA["a"], receive=output)
    with pytest.raises(OptionError, match="expected a name"):
        answer(place, "../a", DATA["a"])


def test_a_request_that_a_stranger_put_there_is_refused_by_the_site(place, output):
    serve(place, output, sites=SITES, then="em:1", deadline=0.3, quorum=3, poll=0.05)
    request = place / "server" / "2" / "request.safetensors"
    (place / "server" / "2" / "round.json").unlink()
    data = request.read_bytes()
    for changed, text in (
        (b"\x80\x04", "is a pickle"),
        (data[:-9], "truncated"),
        (data.replace(b'\\"kind\\": \\"em\\"', b'\\"kind\\": \\"am\\"'), "there is no kind 'am'"),
        (data.replace(b'\\"number\\": 1', b'\\"number\\": 2'), "number 2 of 1"),
    ):
        request.write_bytes(changed)
        with pytest.raises((InputError, OptionError), match=text):
            answer(place, "a", DATA["a"], timeout=5)


def test_the_server_refuses_requests_with_rounds_of_models(place, output):
    with pytest.raises(OptionError, match="give one of rounds and then"):
        serve(place, output, sites=SITES, then="em:2", rounds=2)
    with pytest.raises(OptionError, match="1 to 1000 requests, found 0"):
        serve(place, output, sites=SITES, then="em:0")
    with pytest.raises(OptionError, match="the kinds are"):
        serve(place, output, sites=SITES, then="gossip")


def test_a_bucket_serves_as_well_as_a_folder(files, output, expected):
    place = "memory://requests"
    for site in SITES:
        send(files[site], place, site)
    with Following(place, SITES):
        serve(place, output, sites=SITES, then="em:2", deadline=60, poll=0.05)
    np.testing.assert_allclose(cs.load(output).natural, expected(2), rtol=1e-12)


def test_the_work_folder_says_which_answers_counted(place, output, tmp_path):
    with Following(place, SITES):
        serve(place, output, sites=SITES, then="em:1", deadline=60, poll=0.05, work=tmp_path / "work")
    record = json.loads((tmp_path / "work" / "2" / "answers.json").read_text())
    assert sorted(record["answers"]) == SITES
    assert record["late"] == {}
