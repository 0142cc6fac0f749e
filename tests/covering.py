"""Laws over several lists: by default a covering array of their product, all of it among the slow tests.

A covering array of strength t holds every combination of values of any t parameters at least once (Cohen et al. 1997,
The AETG system). A fault of one value is found by strength 1, of two values together by strength 2; strength 0 is one
case.

A law, or all of a module, is marked ``pytest.mark.covering(strength)``. Seeds repeat a case: its first stands for it.
"""

from itertools import combinations

import pytest


def covering_rows(rows, strength):
    """Return the places of rows that hold every combination of `strength` of their values that is in any row.

    Greedy: the row that holds most of what is not yet held comes next, of equal ones the first.

    Examples
    --------
    >>> rows = [(a, b, c) for a in "xy" for b in "xy" for c in "xy"]
    >>> [rows[place] for place in covering_rows(rows, 2)]
    [('x', 'x', 'x'), ('x', 'y', 'y'), ('y', 'x', 'y'), ('y', 'y', 'x')]
    >>> [covering_rows([("x", 1), ("x", 2), ("y", 1), ("y", 2)], strength) for strength in (0, 1)]
    [[0], [0, 3]]
    """
    columns = list(combinations(range(len(rows[0])), min(strength, len(rows[0]))))
    held = [{(of, tuple(row[column] for column in of)) for of in columns} for row in rows]
    missing, places = set().union(*held), []
    while missing:
        best = max(range(len(rows)), key=lambda place: len(held[place] & missing))
        places.append(best)
        missing -= held[best]
    return sorted(places)


def mark_uncovered(items):
    """Mark as slow what a covering array leaves out of the laws that are marked for one."""
    laws = {}
    for item in items:
        is_quick = item.get_closest_marker("slow") is None
        if is_quick and hasattr(item, "callspec") and item.get_closest_marker("covering") is not None:
            laws.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in laws.values():
        (strength,) = cases[0].get_closest_marker("covering").args
        names = sorted(set(cases[0].callspec.params) - {"seed"})
        rows = [tuple(_key(case.callspec.params[name]) for name in names) for case in cases]
        covered = set(covering_rows(rows, strength))
        for place, case in enumerate(cases):
            if place not in covered:
                case.add_marker(pytest.mark.slow)


def _key(value):
    """Return what tells a value of a parameter from the others of its list: itself, or which object it is."""
    return value if isinstance(value, str | int | float | None) else id(value)
