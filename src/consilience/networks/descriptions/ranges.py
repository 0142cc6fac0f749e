"""Quantiles of numbers that arrive in blocks, from a histogram of their leading bits.

A float32 read as a whole number grows with the number (its exponent stands before its mantissa), so the leading 20 bits
(sign, exponent, 11 of the mantissa) are bins whose edges differ by 2^-11 of their value: a quantile is found to 0.05 %,
in any order of the blocks, and is not a number of the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.checks import Labels

TAIL = 0.001
"""Share of the numbers outside the range, on either side."""

_SIGN = np.uint32(0x80000000)
_DROPPED_BITS = np.uint32(12)
_N_BINS = 1 << 20


class RangeAccumulator:
    """Range of numbers that arrive in blocks."""

    def __init__(self) -> None:
        """Start without numbers."""
        self.counts: Labels = np.zeros(_N_BINS, dtype=np.int64)

    def add(self, values: Any) -> None:
        """Add an array of real numbers."""
        bits = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32)
        # Negative numbers are stored by magnitude: with all bits flipped they grow too, and lie below the others.
        ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        self.counts += np.bincount(ordered >> _DROPPED_BITS, minlength=_N_BINS)

    def range(self, min_count: float) -> tuple[float, float]:
        """Return numbers outside of which a share `TAIL` lies on either side, and `min_count` numbers at least."""
        outside = max(TAIL * int(self.counts.sum()), min_count, 1.0)
        low = int(np.searchsorted(np.cumsum(self.counts), outside))
        high = _N_BINS - 1 - int(np.searchsorted(np.cumsum(self.counts[::-1]), outside))
        return _edge(min(low, high)), _edge(max(low, high))


def _edge(number: int) -> float:
    """Return the edge of a bin that is nearer to zero."""
    first = np.uint32(number) << _DROPPED_BITS
    bits = first ^ _SIGN if first & _SIGN else ~(first | np.uint32((1 << int(_DROPPED_BITS)) - 1))
    return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])
