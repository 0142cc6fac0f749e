"""Which cases of a law ``make test`` runs: as many as an allowance of processor time pays for, the same for all laws.

The allowance is the greatest at which all tests together take no more than ``--budget`` seconds, by the times that
``make times`` recorded. A law of which one case takes longer counts as slow; a law without a record is run whole.
"""

import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from zlib import crc32

import pytest

RECORDED = Path(__file__).with_name("processor_seconds.json")
LEAST = 0.2
"""Seconds of all cases of a law below which it is always run, its time recorded with that of all such laws."""
OTHERS = "others"
"""Under which name these are recorded."""


def law_of(nodeid):
    """Return the law that a case is one of: the test without its parameters.

    Examples
    --------
    >>> law_of("tests/core/test_a.py::test_b[2-x]")
    'tests/core/test_a.py::test_b'
    """
    return nodeid.partition("[")[0]


def cases_within(recorded, seconds):
    """Return how many cases of each law are run, where `recorded` has seconds of one and the number of cases by law.

    Examples
    --------
    >>> cases_within({"short": (1.0, 3), "long": (2.5, 4), "longest": (9.0, 1)}, 7.0)
    {'short': 3, 'long': 1, 'longest': 0}
    """
    counts, left = dict.fromkeys(recorded, 0), seconds
    allowances = sorted((number * of_one, law) for law, (of_one, n) in recorded.items() for number in range(1, n + 1))
    for _, law in allowances:
        left -= recorded[law][0]
        if left < 0.0:
            break
        counts[law] += 1
    return counts


def spread_places(n_cases, n_run):
    """Return the places of so many cases in a list, from the first to the last.

    Examples
    --------
    >>> spread_places(7, 3), spread_places(7, 1), spread_places(2, 5)
    ([0, 3, 6], [0], [0, 1])
    """
    if n_run >= n_cases:
        return list(range(n_cases))
    return [0] if n_run == 1 else [place * (n_cases - 1) // (n_run - 1) for place in range(n_run)]


def mark_beyond(items, seconds):
    """Mark as slow what all laws together may not take."""
    recorded = json.loads(RECORDED.read_text())
    counts = cases_within({law: tuple(of) for law, of in recorded["laws"].items()}, seconds - recorded[OTHERS])
    laws = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            laws[law_of(item.nodeid)].append(item)
    for law, cases in laws.items():
        run = set(spread_places(len(cases), counts.get(law, len(cases))))
        for place, case in enumerate(cases):
            if place not in run:
                case.add_marker(pytest.mark.slow)


def in_part(laws, part):
    """Return the places of the cases of one of n parts, "k/n", of cases by their laws: of every law each n-th.

    Which is first the name of the law says, so that laws of one case are spread over the parts.

    Examples
    --------
    >>> in_part(["a", "a", "a", "a", "b", "c"], "0/3"), in_part(["a", "a", "a", "a", "b", "c"], "4/3")
    ([0, 3, 5], [1])
    """
    number, n_parts = map(int, part.split("/"))
    firsts, seen = {law: crc32(law.encode()) for law in laws}, Counter()
    places = []
    for place, law in enumerate(laws):
        if (firsts[law] + seen[law]) % n_parts == number % n_parts:
            places.append(place)
        seen[law] += 1
    return places


class Clock:
    """Adds up the processor time of every case, its children included, and appends it to a file."""

    def __init__(self, path):
        self.path, self.seconds = Path(path), []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Measure one case with its set-up and what ends it."""
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds.append((law_of(item.nodeid), sum(os.times()[:4]) - before))

    def pytest_sessionfinish(self):
        """Append what was measured, all at once: every worker has a clock of its own."""
        with self.path.open("a") as file:
            file.write("".join(f"{seconds:.3f} {law}\n" for law, seconds in self.seconds))


def record(path):
    """Write ``processor_seconds.json`` from what clocks appended to a file."""
    laws = defaultdict(list)
    for line in Path(path).read_text().splitlines():
        seconds, _, law = line.partition(" ")
        laws[law].append(float(seconds))
    long = {law: times for law, times in sorted(laws.items()) if sum(times) >= LEAST}
    rows = [f"  {json.dumps(law)}: [{sum(times) / len(times):.3f}, {len(times)}]" for law, times in long.items()]
    others = sum(sum(times) for law, times in laws.items() if law not in long)
    RECORDED.write_text(f'{{"{OTHERS}": {others:.1f}, "laws": {{\n' + ",\n".join(rows) + "\n}}\n")


if __name__ == "__main__":
    record(sys.argv[1])
