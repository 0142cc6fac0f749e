"""Order statistics of magnitudes that no memory holds, exactly: two histograms of bit patterns a query.

Patterns of positive floats, as integers, have the order of the numbers. The upper bits of a magnitude in float32 say in
which bin the statistic lies, the lower bits which number of that bin it is. Rounding to float32 is monotone, so that no
order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWER_BITS = 15
"""A magnitude in float32 has 31 bits (the sign is 0): a histogram over the upper 16 of them finds the bin of the
threshold, and one over the lower 15 inside that bin the threshold itself. 512 kB of counts a query."""
N_LOWER = 2**LOWER_BITS
N_UPPER = 2 ** (31 - LOWER_BITS)
PASSES = 2
"""Surveys that it takes."""

Query = tuple[int, int]
"""Number of a series of magnitudes, and the rank from the largest, 1, on."""


def magnitudes(values: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return magnitudes in 32 bits (n,)."""
    return np.abs(values).astype(np.float32, copy=False)


def count_patterns(number: int, series: Sequence[NDArray[np.float32]], facts: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return what a survey counts in a block.

    In pass 0, by series, magnitudes by their upper bits, and last those that are 0 (S, N_UPPER + 1). In pass 1, by
    query, magnitudes by the lower bits, of those whose upper bits are those of the answer (Q, N_LOWER).
    """
    counts = []
    if number == 0:
        for values in series:
            bits = values.view(np.uint32)
            upper = np.bincount((bits >> LOWER_BITS).astype(np.intp), minlength=N_UPPER)
            counts.append(np.append(upper, np.count_nonzero(bits == 0)))
        return np.stack(counts)
    for of, bin_of_answer in zip(facts["series"], facts["bins"], strict=True):
        bits = series[of].view(np.uint32)
        lower = bits[(bits >> LOWER_BITS) == bin_of_answer].astype(np.intp) % N_LOWER
        counts.append(np.bincount(lower, minlength=N_LOWER))
    return np.stack(counts)


def conclude_ranks(
    number: int, total: NDArray[Any], facts: Mapping[str, Any], queries: Callable[[NDArray[Any]], Sequence[Query]]
) -> dict[str, Any]:
    """Return the facts after a pass: the bins of the answers, then in "values" the answers (Q,), float32.

    `queries` says from the numbers of magnitudes that are not 0 (S,) what is asked.
    """
    if number == 0:
        n_present = total[:, :-1].sum(axis=1) - total[:, -1]
        asked = list(queries(n_present))
        bins, ranks = [], []
        for of, rank in asked:
            found, rest = _bin_of_rank(total[of, :-1], rank)
            bins.append(found)
            ranks.append(rest)
        return {**facts, "series": [of for of, _ in asked], "bins": bins, "ranks in bins": ranks, "present": n_present}
    values = []
    for counts, rank, upper in zip(total, facts["ranks in bins"], facts["bins"], strict=True):
        lower, _ = _bin_of_rank(counts, rank)
        values.append(np.array(upper * N_LOWER + lower, dtype=np.uint32).view(np.float32))
    return {**facts, "values": np.array(values, dtype=np.float32)}


def _bin_of_rank(counts: NDArray[Any], rank: int) -> tuple[int, int]:
    """Return the highest bin at which the count from above reaches a rank, and the rank inside that bin."""
    n_at_least = counts[::-1].cumsum()  # entries in the bins from the last one down
    n_bins_above = min(int(np.searchsorted(n_at_least, rank)), len(counts) - 1)
    above = int(n_at_least[n_bins_above - 1]) if n_bins_above else 0
    return len(counts) - 1 - n_bins_above, rank - above
