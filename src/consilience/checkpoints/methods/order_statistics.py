"""Order statistics of magnitudes that no memory holds, exactly.

Where ranks are known beforehand, a sample gives a bracket around the answer, and one pass counts what lies above it and
keeps what lies in it. If the rank falls into the bracket, the answer is the one of all magnitudes, whatever the sample:
those above it are as many as were counted. Else, and where ranks depend on the magnitudes, two histograms find it.

Patterns of positive floats, as integers, have the order of the numbers. The upper bits of a magnitude in float32 say in
which bin the statistic lies, the lower bits which number of that bin it is. Rounding to float32 is monotone, so that no
order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWER_BITS = 15
"""A magnitude in float32 has 31 bits (the sign is 0): a histogram over the upper 16 of them finds the bin of the
threshold, and one over the lower 15 inside that bin the threshold itself. 512 kB of counts a query."""
N_LOWER = 2**LOWER_BITS
N_UPPER = 2 ** (31 - LOWER_BITS)
PASSES = 2
"""Surveys that histograms take."""
RANK_PASSES = 2 + PASSES
"""Surveys that known ranks take at most: a sample, a bracket, and histograms where the bracket missed."""
SAMPLE_RUNS, RUN_ENTRIES = 128, 1024
"""A sample of a tensor: so many runs of so many entries, evenly spaced; a bracket then holds some hundredths of all."""
_WIDTH = 12.0
"""Half the width of a bracket, in standard deviations of a random sample's ranks. A random sample would need 6 to miss
once in 1e9; entries of a run lie near one another and say less than random ones."""
_MAX_KEPT = 2**23
"""Magnitudes in a bracket that are kept; 32 MB."""

Query = tuple[int, int]
"""Number of a series of magnitudes, and the rank from the largest, 1, on."""


def magnitudes(values: NDArray[np.floating[Any]], out: NDArray[np.floating[Any]] | None = None) -> NDArray[np.float32]:
    """Return magnitudes in 32 bits (n,); `out` (n,), of the values' type, may be overwritten."""
    return np.abs(values, out=out).astype(np.float32, copy=False)


@dataclass(eq=False)
class _Gathered:
    """Magnitudes from blocks, and how many lie above their bracket, by series or query."""

    values: list[list[NDArray[np.float32]]]
    above: NDArray[np.int64]
    is_whole: bool = True  # whether all were kept

    def __add__(self, other: _Gathered) -> _Gathered:
        """Return both together; the lists are added to in place, and given up where they are too long to keep."""
        for mine, more in zip(self.values, other.values, strict=True):
            mine += more
        is_whole = self.is_whole and sum(len(part) for one in self.values for part in one) <= _MAX_KEPT
        return _Gathered(self.values if is_whole else [[] for _ in self.values], self.above + other.above, is_whole)


def sample_starts(size: int) -> list[int]:
    """Return the first entry of every run of a sample of a tensor; 0 alone for one that is no larger than a sample."""
    if size <= SAMPLE_RUNS * RUN_ENTRIES:
        return [0]
    return [number * (size - RUN_ENTRIES) // (SAMPLE_RUNS - 1) for number in range(SAMPLE_RUNS)]


def survey_ranks(number: int, series: Sequence[NDArray[np.float32]], facts: Mapping[str, Any]) -> Any:
    """Return what a pass finds in a block: a sample, then what lies in brackets, then histograms."""
    if number == 0:
        return _Gathered([[values.copy()] for values in series], np.zeros(len(series), dtype=np.int64))
    if number > 1:
        return count_patterns(number - 2, series, facts)
    kept, above = [], []
    for of, low, high in zip(facts["series"], facts["low"], facts["high"], strict=True):
        values = series[of]
        is_above = values > high
        above.append(np.count_nonzero(is_above))
        is_inside = np.greater_equal(values, low)
        is_inside ^= is_above
        kept.append([values[is_inside]])
    return _Gathered(kept, np.array(above, dtype=np.int64))


def settle_ranks(
    number: int, total: Any, facts: Mapping[str, Any], queries: Sequence[Query], size: int
) -> dict[str, Any]:
    """Return the facts after a pass; with "values" (Q,), float32, the answers are found and no pass is needed any more.

    `size` is the number of magnitudes of every series.
    """
    if number > 1:
        return conclude_ranks(number - 2, total, facts, lambda _: queries)
    found = [np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32) for parts in total.values]
    if number == 1:
        needed = [rank - int(above) for (_, rank), above in zip(queries, total.above, strict=True)]
        if total.is_whole and all(1 <= need <= len(kept) for need, kept in zip(needed, found, strict=True)):
            answers = [
                np.partition(kept, len(kept) - need)[len(kept) - need] for need, kept in zip(needed, found, strict=True)
            ]
            return {**facts, "values": np.array(answers, dtype=np.float32)}
        return dict(facts)
    low, high = [], []
    for of, rank in queries:
        count = len(found[of])
        place, spread = rank / size * count, _WIDTH * (rank / size * (1 - rank / size) * count) ** 0.5
        first, last = int(place - spread) - 1, int(place + spread)  # places from the largest, 0, on
        ends = [count - 1 - at for at in (first, last) if 0 <= at < count - 1]
        ordered = np.partition(found[of], ends) if ends else found[of]
        high.append(ordered[count - 1 - first] if first >= 0 else np.float32(np.inf))
        low.append(ordered[count - 1 - last] if last < count - 1 else np.float32(0))
    return {**facts, "series": [of for of, _ in queries], "low": low, "high": high}


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
