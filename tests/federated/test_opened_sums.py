"""Sites open no two sums of groups that differ by few sites: the rule, servers that lie, and sites that are killed."""

import json
import threading
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import consilience as cs
from consilience.errors import InputError
from consilience.federated import Masked
from consilience.federated.folder import masked_server
from consilience.federated.folder.masked_site import FolderMailbox
from consilience.federated.folder.storage import LocalStorage
from consilience.federated.masking import exchange, fixed_point, opened
from consilience.federated.masking.opened import MIN_DIFFERENCE, OpenedSums
from consilience.federated.masking.table import MaskedSiteRows, RequestSum
from consilience.federated.requests.exchange import request
from tests.federated import test_em
from tests.federated.masked_sites import write_keys
from tests.federated.test_masked_rounds import Killed, leave_after

KEYS = {f"s{site:02d}": bytes([site]) * 32 for site in range(14)}
NUMBERS = b"\1" * 32


def group(sites):
    """Return the keys of sites that are given by their numbers."""
    return {f"s{site:02d}": KEYS[f"s{site:02d}"] for site in sites}


def is_opened(record, sites, state=None, numbers=NUMBERS):
    """Open the sum of a group where the record lets it; return whether it does."""
    try:
        record.record(group(sites), state, numbers)
    except InputError:
        return False
    return True


def random_groups(seed, count=60):
    """Yield groups of 14 sites at random, many of which are near to each other."""
    rng = np.random.default_rng(seed)
    centres = rng.random((4, 14)) < 0.6
    for _ in range(count):
        flips = rng.random(14) < rng.choice([0.0, 0.1, 0.5])
        if len(sites := np.flatnonzero(centres[rng.integers(4)] ^ flips)):
            yield frozenset(sites.tolist())


# The rule


@pytest.mark.parametrize("seed", range(5))
def test_no_two_opened_groups_differ_by_fewer_sites_than_the_least_difference(seed, tmp_path):
    record = OpenedSums(tmp_path, "place")
    groups = {sites for number, sites in enumerate(random_groups(seed)) if is_opened(record, sites, f"state {number}")}
    assert len(groups) > 1
    assert all(one == other or len(one ^ other) >= MIN_DIFFERENCE for one, other in product(groups, repeat=2))
    assert {frozenset(json.loads(path.read_text())["sites"]) for path in tmp_path.glob("*.json")} == {
        frozenset(group(sites)) for sites in groups
    }


@pytest.mark.parametrize("seed", range(3))
def test_an_equal_group_always_opens(seed, tmp_path):
    record = OpenedSums(tmp_path, "place")
    for number, sites in enumerate(random_groups(seed, 30)):
        if is_opened(record, sites, f"state {number}"):
            assert is_opened(record, sites, f"another state {number}")


@pytest.mark.parametrize("seed", range(20))
def test_of_two_groups_it_does_not_matter_which_comes_first_nor_how_sites_are_ordered(seed, tmp_path):
    one, other = list(random_groups(seed, 10))[:2]
    first, second = OpenedSums(tmp_path / "1", "place"), OpenedSums(tmp_path / "2", "place")
    decisions = [(is_opened(first, one), is_opened(first, other)), (is_opened(second, other), is_opened(second, one))]
    assert decisions[0] == decisions[1]
    first.record(dict(reversed(group(one).items())), None, NUMBERS)
    assert len(list((tmp_path / "1").glob("*.json"))) == 1 + (decisions[0][1] and one != other)


@pytest.mark.parametrize(
    ("sites", "match"),
    [
        (
            range(9),
            r"a sum without s09, .* reveal what s09 sent; the requests end, and the last model stays; for other data",
        ),
        (range(11), "a sum with s10, .* reveal what s10 sent"),
        ([*range(8), 10, 11], "a sum without s08, s09 and with s10, s11"),
        (range(6), "a sum without s06, s07, s08, s09"),
    ],
    ids=str,
)
def test_a_refusal_says_who_is_missing_and_what_it_costs(sites, match, tmp_path):
    record = OpenedSums(tmp_path, "place")
    record.record(group(range(10)), None, NUMBERS)
    with pytest.raises(InputError, match=f"^place: asks to open {match}"):
        record.refuse_near(group(sites), "request")
    record.refuse_near(group(range(5)), "request")
    with pytest.raises(InputError, match="the round ends without a model"):
        record.refuse_near(group(range(9)), None)


def test_sites_that_the_server_gives_other_names_are_the_same_sites(tmp_path):
    record = OpenedSums(tmp_path, "place")
    record.record(group(range(6)), None, NUMBERS)
    renamed = {f"other-{name}": key for name, key in group(range(6)).items()}
    record.refuse_near(renamed, None)
    del renamed["other-s05"]
    with pytest.raises(InputError, match="without s05"):
        record.refuse_near(renamed, None)


def test_a_request_is_answered_once_with_the_same_numbers_for_the_same_sites(tmp_path):
    record = OpenedSums(tmp_path, "place")
    assert is_opened(record, range(6), "request")
    assert is_opened(record, range(6), "request")
    assert not is_opened(record, range(6), "request", b"\2" * 32)
    assert not is_opened(record, range(12), "request")
    assert is_opened(record, range(12), "another request")
    with pytest.raises(InputError, match="answered before from other rows"):
        record.refuse_other_numbers("request", b"\2" * 32)
    record.refuse_other_numbers(None, b"\2" * 32)


def test_of_two_sums_at_the_same_time_at_most_one_is_opened(tmp_path, monkeypatch):
    """Another process writes its group after this one has looked, and before this one writes."""
    record, write = OpenedSums(tmp_path, "place"), opened.write_bytes

    def write_after_another(path, data):
        monkeypatch.setattr(opened, "write_bytes", write)
        OpenedSums(tmp_path, "place").record(group(range(5)), None, NUMBERS)
        write(path, data)

    monkeypatch.setattr(opened, "write_bytes", write_after_another)
    with pytest.raises(InputError, match="with s05"):
        record.record(group(range(6)), None, NUMBERS)


@pytest.mark.parametrize("text", ["", "{}", '{"sites": [], "states": {"a": 1}}', '{"sites": 3, "states": {}}'])
def test_a_damaged_record_opens_nothing(text, tmp_path):
    record = OpenedSums(tmp_path, "place")
    record.record(group(range(5)), None, NUMBERS)
    next(tmp_path.glob("*.json")).write_text(text)
    with pytest.raises(InputError, match="is no record of an opened sum; restore it from a copy"):
        record.refuse_near(group(range(5)), None)


# Rounds

LEAVES = 3.0
"""Seconds of each step of a round in which a site sends nothing."""


class EmRounds:
    """Masked rounds of EM over a folder, of sites that keep their folders from round to round."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.keys = write_keys(folder / "keys", test_em.DATA)
        self.start = folder / "start.safetensors"
        cs.save(test_em.fused().posterior, self.start)
        self.opened = []
        monkeypatch.setattr(exchange, "MAX_PAUSE", 0.2)
        open_sum = masked_server.MaskedServer.open

        def open_and_keep(server, masked, openings):
            words, problems = open_sum(server, masked, openings)
            self.opened.append((server.agreed_sum.sites, words))
            return words, problems

        monkeypatch.setattr(masked_server.MaskedServer, "open", open_and_keep)

    def answer(self, place, site, **options):
        """Answer the requests of a round as a site."""
        return cs.federated.answer_masked(
            self.folder / place,
            site,
            options.pop("data", test_em.DATA[site]),
            signing_key=self.folder / "keys" / f"{site}.key",
            signing_keys=self.keys,
            work=self.folder / f"{site}.masked",
            min_count=0,
            timeout=60.0,
            **options,
        )

    def run(
        self, place, then="em:1", sites=tuple(test_em.DATA), expected=tuple(test_em.DATA), deadline=60.0, **options
    ):
        """Run a round with sites in threads; return the result, or the error, of the server and of each site."""
        results = {}

        def take_part(site):
            try:
                results[site] = self.answer(place, site, **options)
            except (InputError, Killed) as error:
                results[site] = error

        threads = [threading.Thread(target=take_part, args=(site,)) for site in sites]
        for thread in threads:
            thread.start()
        try:
            served = cs.federated.serve_folder(
                *(self.folder / place, self.folder / f"{place}.safetensors"),
                sites=list(expected),
                masked=Masked(self.keys),
                expect=self.start,
                then=then,
                deadline=deadline,
                poll=0.02,
            )
        except InputError as error:
            served = error
        for thread in threads:
            thread.join()
        return served, results


@pytest.fixture
def rounds(tmp_path, monkeypatch):
    return EmRounds(tmp_path, monkeypatch)


def lie(monkeypatch):
    """Let the server go on whatever the sites know of it."""
    monkeypatch.setattr(masked_server.MaskedSums, "_refuse_near", lambda *_: None)


def call_a_site_gone_in_the_next_sum(rounds, monkeypatch):
    leave_after(monkeypatch, {GONE: 5})
    return rounds.run("round", "em:2", deadline=LEAVES)


def repeat_a_request_and_call_a_site_gone(rounds, _monkeypatch):
    rounds.run("round")
    return rounds.run("another", sites=OTHERS, deadline=LEAVES)


def run_a_round_without_a_site(rounds, _monkeypatch):
    rounds.run("round")
    return rounds.run("another", sites=OTHERS, expected=OTHERS, deadline=LEAVES)


*OTHERS, GONE = test_em.DATA
ATTACKS = {
    call_a_site_gone_in_the_next_sum: 0.3,
    repeat_a_request_and_call_a_site_gone: 0.0,
    run_a_round_without_a_site: 0.0,
}
"""What a server that lies tries, with the error of what it learns where sites remember nothing, relative to the largest
of the site's sums. The first request is not near convergence, hence the 0.3; the others are exact."""


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("remembers", [True, False])
def test_a_server_that_lies_learns_the_sums_of_a_site_only_from_sites_that_remember_nothing(
    attack, remembers, rounds, monkeypatch
):
    lie(monkeypatch)
    if not remembers:
        monkeypatch.setattr(OpenedSums, "refuse_near", lambda *_: None)
    _, results = attack(rounds, monkeypatch)
    assert rounds.opened[0][0] == (*OTHERS, GONE)
    if remembers:
        assert len(rounds.opened) == 1
        assert all("asks to open a sum without site-3, unlike an earlier one" in str(results[site]) for site in OTHERS)
        return
    (_, whole), (rest, part) = rounds.opened
    assert rest == tuple(OTHERS)
    learned = fixed_point.decode(fixed_point.add(whole, fixed_point.negated(part)))
    first = RequestSum(request("em", cs.load(rounds.start), rounds=2 if "em:2" in str(attack) else 1))
    own = fixed_point.decode(first.words(MaskedSiteRows(test_em.DATA[GONE], 0), 4, 60))
    assert np.abs(learned - own).max() <= ATTACKS[attack] * np.abs(own).max()


def test_consecutive_sums_differ_by_what_the_site_that_left_sent_the_more_exactly_the_later():
    """Why sums of other requests than the first one count as the same function; docs/sites has the numbers."""
    message, before, errors = request("em", test_em.fused().posterior, rounds=20), None, {}
    while message is not None:
        summand = RequestSum(message)
        words = {site: summand.words(MaskedSiteRows(rows, 0), 4, 60) for site, rows in test_em.DATA.items()}
        whole, own = fixed_point.total(list(words.values())), fixed_point.decode(words[GONE])
        if before is not None:
            rest = fixed_point.total([words[site] for site in OTHERS])
            learned = fixed_point.decode(fixed_point.add(before, fixed_point.negated(rest)))
            errors[message.number - 1] = np.abs(learned - own).max() / np.abs(own).max()
        before, message = whole, summand.result(whole, list(words), {}, 60).model.next_request
    assert 0.01 < errors[1] < 0.1
    assert errors[19] < 1e-5


def test_a_site_that_drops_out_after_the_first_sum_ends_the_requests_and_its_model_stays(rounds, monkeypatch):
    leave_after(monkeypatch, {GONE: 5})
    received = rounds.folder / "received.safetensors"
    served, results = rounds.run("round", "em:3", deadline=LEAVES, receive=received)
    assert [report.number for report in served.reports] == [1, 2]
    (problem,) = served.report.problems
    assert problem.startswith("site-3: dropped out after sum 1, and a sum without site-3 would reveal what it sent; ")
    assert "the requests end, and the model of sum 1 stays" in problem
    assert len(rounds.opened) == 1
    once = cs.federated.exchange("em", cs.load(rounds.start), test_em.DATA, rounds=1, min_count=0)
    assert test_em.relative(cs.load(rounds.folder / "round.safetensors").natural, once.natural) < test_em.ROUNDING
    assert received.read_bytes() == (rounds.folder / "round.safetensors").read_bytes()
    for site in OTHERS:
        assert "masked sum 2 failed; the model of sum 1 stays" in str(results[site])
    assert not (rounds.folder / "round" / "server" / "2" / "agreed-1").exists()


def test_a_site_that_drops_out_of_the_first_sum_is_in_no_later_one(rounds, monkeypatch):
    leave_after(monkeypatch, {GONE: 2})
    served, _ = rounds.run("round", "em:3", deadline=LEAVES)
    assert [sites for sites, _ in rounds.opened] == [tuple(OTHERS)] * 3
    assert [report.closed for report in served.reports] == ["deadline", "all sites in", "all sites in"]
    lines = served.report.lines()
    assert "left out: site-3: was not in sum 2, and a sum with it would reveal what it sends" in lines


def test_a_site_that_comes_after_the_first_sum_sends_nothing(rounds, monkeypatch):
    put, comes = LocalStorage.put, threading.Event()

    def put_and_say(self, name, data):
        put(self, name, data)
        if name == "server/1/round.json":
            comes.set()

    monkeypatch.setattr(LocalStorage, "put", put_and_say)
    late = []

    def come_late():
        comes.wait(30.0)
        try:
            rounds.answer("round", GONE)
        except InputError as error:
            late.append(str(error))

    thread = threading.Thread(target=come_late)
    thread.start()
    rounds.run("round", "em:2", sites=OTHERS, deadline=LEAVES)
    thread.join()
    assert len(late) == 1
    assert "was not in sum 1, and a later one with it would reveal what it sends; nothing was sent" in late[0]
    assert not list((rounds.folder / "round" / "sites" / GONE).iterdir())


def test_equal_groups_open_in_round_after_round_with_the_numbers_of_sites_that_remember_nothing(rounds, monkeypatch):
    for place in ("first", "second"):
        served, results = rounds.run(place, "em:2")
        assert not isinstance(served, Exception), served
        assert {result.sums for result in results.values()} == {2}
    monkeypatch.setattr(OpenedSums, "refuse_near", lambda *_: None)
    monkeypatch.setattr(OpenedSums, "record", lambda *_: None)
    rounds.run("third", "em:2")
    for first, second, third in zip(*(rounds.opened[start : start + 2] for start in (0, 2, 4)), strict=True):
        assert_array_equal(first[1], third[1])
        assert_array_equal(second[1], third[1])


def test_a_request_that_was_answered_is_not_answered_from_other_rows(rounds):
    rounds.run("first")
    served, results = rounds.run("second", data=test_em.rows_of(99), deadline=LEAVES)
    assert isinstance(served, InputError)
    for site in test_em.DATA:
        assert "asks what this site has answered before from other rows" in str(results[site])
        assert not list((rounds.folder / "second" / "sites" / site).iterdir())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_site_that_is_killed_while_it_writes_the_record_goes_on_and_remembers(when, rounds, monkeypatch):
    record, died = OpenedSums.record, []

    def record_or_die(self, *arguments):
        dies = not died and self.folder.parent.name == f"{GONE}.masked"
        if when == "after" or not dies:
            record(self, *arguments)
        if dies:
            died.append(True)
            raise Killed

    monkeypatch.setattr(OpenedSums, "record", record_or_die)
    answer = rounds.answer

    def answer_again(place, site, **options):
        try:
            return answer(place, site, **options)
        except Killed:
            folder = rounds.folder / f"{site}.masked" / "opened"
            assert len(list(folder.glob("*.json"))) == (when == "after")
            return answer(place, site, **options)

    rounds.answer = answer_again
    served, _ = rounds.run("round", "em:2")
    assert died
    assert not served.report.problems
    assert [sites for sites, _ in rounds.opened] == [tuple(test_em.DATA)] * 2
    kept = [json.loads(path.read_text()) for path in (rounds.folder / f"{GONE}.masked" / "opened").glob("*.json")]
    assert [sorted(one["sites"]) for one in kept] == [sorted(test_em.DATA)]
    assert len(kept[0]["states"]) == 2


def test_nothing_is_opened_before_it_is_recorded(rounds, monkeypatch):
    send, recorded = FolderMailbox.send, []

    def send_and_look(self, number, data):
        if number % 5 == 0:
            states = [
                json.loads(path.read_text())["states"] for path in rounds.folder.glob(f"{self.site}.masked/opened/*")
            ]
            recorded.append(len(states[0]) == number // 5)
        send(self, number, data)

    monkeypatch.setattr(FolderMailbox, "send", send_and_look)
    rounds.run("round", "em:2")
    assert recorded == [True] * 8
