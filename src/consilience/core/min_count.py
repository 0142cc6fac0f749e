"""Disclosure control: the least number of observations that anything tells of, and counts as they are shown to people.

Counts in reports, inspections and ``round.json`` are rounded to the nearest multiple of `SHOWN_MULTIPLE`, so that no
two of them differ by one to four people (random rounding and its limits: Willenborg and de Waal, Elements of
Statistical Disclosure Control, 2001, chapter 9). The messages that fusion reads stay exact, since their sums must be.
"""

from __future__ import annotations

import sys
from math import inf
from typing import cast

from consilience.checks import is_number
from consilience.errors import OptionError

MIN_COUNT = 5.0
"""Effective observations from which on something of them leaves a site, and takes part in a fusion.

A usual smallest cell of published statistics on people; nobody has measured other values."""

MAX_NAMED = 20
"""Components that a warning, or the record of a fusion over shards, names at most; more are counted."""

SHOWN_MULTIPLE = 5
"""Counts are shown to people as multiples of this."""

MIN_SITES = 3
"""Sites of a fusion below which each can compute the other's contribution from the result and its own."""

TWO_SITES = "each of the two sites can compute the other's file from the fused one and its own"
"""What is said of a fusion of two."""


def shown_count(count: float) -> float:
    """Return a count as reports show it: the nearest multiple of five, and never 0 or 5 for one to four.

    Examples
    --------
    >>> [shown_count(count) for count in (0, 7, 8, 101.3)]
    [0, 5, 10, 100]
    """
    if not abs(count) <= sys.float_info.max:  # of a file that its reader refuses; JSON has integers of any size
        return inf if count > 0 else count
    return SHOWN_MULTIPLE * int(count / SHOWN_MULTIPLE + 0.5)


def shown_text(count: float) -> str:
    """Return a count as text: "fewer than 5" of one to four, else "about" the nearest multiple of five.

    Examples
    --------
    >>> [shown_text(count) for count in (0, 3, 5, 1201)]
    ['0', 'fewer than 5', 'about 5', 'about 1,200']
    """
    if count <= 0:
        return "0"
    return f"fewer than {MIN_COUNT:g}" if count < MIN_COUNT else f"about {shown_count(count):,}"


def checked_min_count(min_count: object) -> float:
    """Return the effective observations that a component needs, or raise OptionError."""
    if not is_number(min_count):
        raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
    return float(cast(float, min_count))
