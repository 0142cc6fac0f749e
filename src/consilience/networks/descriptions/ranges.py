"""Quantiles of the least and the greatest number of every observation, from a histogram of their leading bits.

One observation may have any number of numbers, so quantiles count observations. A float32 read as a whole number grows
with the number (its exponent stands before its mantissa), so the leading 20 bits (sign, exponent, 11 of the mantissa)
are bins whose edges differ by 2^-11 of their value: a quantile is found to 0.05 %, in any order of the blocks, and is
not a number of the data.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Statistic

TAIL = 0.001
"""Share of the observations that have a number outside the range, on either side."""

_SIGN = np.uint32(0x80000000)
_DROPPED_BITS = np.uint32(12)


class RangeAccumulator:
    """Range of observations that arrive in blocks; accumulators of several groups may be merged."""

    def __init__(self) -> None:
        """Start without observations."""
        # Observations by the bin of their least and of their greatest number: only bins that occur, as every class has
        # an accumulator of its own.
        self.least: Counter[int] = Counter()
        self.greatest: Counter[int] = Counter()

    def add(self, rows: Any) -> None:
        """Add observations (n, d) of real numbers."""
        rows = np.asarray(rows)
        self.least.update(_bins(rows.min(axis=1)).tolist())
        self.greatest.update(_bins(rows.max(axis=1)).tolist())

    def merge(self, other: RangeAccumulator) -> None:
        """Add the observations of another accumulator."""
        self.least.update(other.least)
        self.greatest.update(other.greatest)

    def range(self, min_count: float) -> tuple[float, float] | None:
        """Return numbers that a share `TAIL` of the observations, `min_count` at least, pass on either side.

        An observation passes the lower one when its least number is as low or lower, the upper one when its greatest is
        as high or higher. None where so many are half of all.
        """
        n = self.least.total()
        n_beyond = math.ceil(max(TAIL * n, min_count))
        if 2 * n_beyond >= n:
            return None
        low, high = _bin_after(self.least, n_beyond), _bin_after(self.greatest, n - 1 - n_beyond)
        return _edge(low), _edge(high)


class RangeStatistic(Statistic):
    """Ranges of the inputs of every class."""

    def __init__(self) -> None:
        """Start without observations."""
        self._by_group: dict[int, RangeAccumulator] = {}

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the observations of a batch."""
        del answer
        rows = batch.rows
        for group in np.unique(groups).tolist():
            self._by_group.setdefault(group, RangeAccumulator()).add(rows[groups == group])

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the range of all inputs that may leave."""
        if not leaving.is_enough:
            return described
        total = RangeAccumulator()
        for group, of_group in self._by_group.items():
            if group in leaving.said:
                total.merge(of_group)
        return replace(described, input_range=total.range(leaving.min_count))


def _bins(values: Array) -> Labels:
    """Return the bins of numbers (n,), which grow with them."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Negative numbers are stored by magnitude: with all bits flipped they grow too, and lie below the others.
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (ordered >> _DROPPED_BITS).astype(np.int64)


def _bin_after(counts: Counter[int], n: int) -> int:
    """Return the bin of the observation that `n` others come before, in the order of the bins."""
    bins = sorted(counts)
    place = np.searchsorted(np.cumsum([counts[number] for number in bins]), n, side="right")
    return bins[int(place)]


def _edge(number: int) -> float:
    """Return the edge of a bin that is nearer to zero."""
    first = np.uint32(number) << _DROPPED_BITS
    bits = first ^ _SIGN if first & _SIGN else ~(first | np.uint32((1 << int(_DROPPED_BITS)) - 1))
    return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])
