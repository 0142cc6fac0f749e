"""What ``make test`` runs within its budget: of every law as many cases as one allowance pays for."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import budget
from tests.budget import Clock, cases_within, in_part, law_of, mark_beyond, record, spread_places

LAWS = {"a": (1.0, 5), "b": (2.0, 1), "c": (0.5, 8), "d": (30.0, 2)}


@pytest.mark.parametrize("seconds", [0.0, 0.7, 4.0, 9.0, 12.0, 50.0, 1000.0])
def test_all_laws_together_stay_within_the_budget_and_have_one_allowance(seconds):
    counts = cases_within(LAWS, seconds)
    assert sum(counts[law] * of_one for law, (of_one, _) in LAWS.items()) <= seconds
    allowance = max((counts[law] * LAWS[law][0] for law in LAWS), default=0.0)
    for law, (of_one, n) in LAWS.items():
        # Another case would take this law beyond what the greatest of them takes, or of equal ones comes later.
        assert counts[law] == n or (counts[law] + 1) * of_one >= allowance


def test_a_budget_for_all_runs_all():
    assert cases_within(LAWS, 100.0) == {law: n for law, (_, n) in LAWS.items()}


@pytest.mark.parametrize("n_cases", [1, 2, 5, 17])
@pytest.mark.parametrize("n_run", [0, 1, 2, 4, 40])
def test_the_cases_that_run_are_spread_over_all(n_cases, n_run):
    places = spread_places(n_cases, n_run)
    assert len(places) == len(set(places)) == min(n_cases, n_run)
    assert n_run < 2 or {places[0], places[-1]} == {0, n_cases - 1}


@pytest.mark.parametrize("n_parts", [1, 2, 3, 7])
def test_parts_have_every_case_once_and_of_every_law_as_many(n_parts):
    laws = [law for law, (_, n) in LAWS.items() for _ in range(n)]
    parts = [in_part(laws, f"{number + 100 * n_parts}/{n_parts}") for number in range(n_parts)]
    assert sorted(place for part in parts for place in part) == list(range(len(laws)))
    for law in LAWS:
        counts = [sum(laws[place] == law for place in part) for part in parts]
        assert max(counts) - min(counts) <= 1


class Item:
    """A case as pytest has it."""

    def __init__(self, nodeid):
        self.nodeid, self.markers = nodeid, []

    def get_closest_marker(self, name):
        return next((mark for mark in self.markers if mark.name == name), None)

    def add_marker(self, mark):
        self.markers.append(mark)


def test_what_is_beyond_the_budget_is_slow_and_what_has_no_record_runs(tmp_path, monkeypatch):
    path = tmp_path / "seconds.json"
    path.write_text(json.dumps({"others": 1.0, "laws": {"t::long": [9.0, 1], "t::law": [1.0, 3]}}))
    monkeypatch.setattr(budget, "RECORDED", path)
    items = [Item(nodeid) for nodeid in ("t::long", "t::law[0]", "t::law[1]", "t::law[2]", "t::new[0]", "t::new[1]")]
    mark_beyond(items, 3.5)
    assert [item.nodeid for item in items if item.markers] == ["t::long", "t::law[1]"]


def test_what_a_clock_measures_is_what_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "RECORDED", tmp_path / "seconds.json")
    clock = Clock(tmp_path / "times")
    for case in range(2):
        protocol = clock.pytest_runtest_protocol(SimpleNamespace(nodeid=f"t::law[{case}]"))
        next(protocol)
        start = sum(os.times()[:4])
        while sum(os.times()[:4]) - start < 0.2:
            pass
        with pytest.raises(StopIteration):
            protocol.send(True)
    clock.pytest_sessionfinish()
    record(clock.path)
    of_one, n = json.loads(budget.RECORDED.read_text())["laws"]["t::law"]
    assert n == 2
    assert 0.18 <= of_one < 1.0


def test_recorded_laws_are_there():
    root, recorded = Path(__file__).parents[1], json.loads(budget.RECORDED.read_text())
    gone = {law for law in recorded["laws"] if not (root / law.partition("::")[0]).exists()}
    assert gone == set()
    assert law_of("a::b[c[d]]") == "a::b"
