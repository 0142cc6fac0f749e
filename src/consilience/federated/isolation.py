"""Fault isolation: which sites keep a round from having a result, found by growing a set that fuses.

A *fault* of a set of sites is whatever keeps their fusion from being a valid model: an exception, or a result that the
readers refuse. Leaving out one site at a time finds no fault that two share, so the search starts from three sites that
fuse, near the median site, and adds the others in halves (group testing, as delta debugging does it; Zeller and
Hildebrandt, IEEE Transactions on Software Engineering 28, 2002):

    base = first triple that passes, among windows of the nearest sites, then among random ones
    stack = [all others]
    while stack: T = pop; if base + T passes: base += T; elif T is one site: it is guilty; else push both halves

then guilty sites are tried again as long as one fits, for faults that more sites make good. What is returned was fused
and passed; every guilty site has a certificate: the base passes and the base with it fails. Where supersets of a
failing set fail, the base is maximal. The result is a function of the set of contributions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

MIN_SITES = 3
"""Sites of a base; two where there are three in all. Of two sites nothing tells which is at fault: no search begins."""
N_WINDOWS = 8
"""Triples of sites next to each other that are tried as a base, from the median site on."""
N_RANDOM_TRIPLES = 100
"""Random triples after these: with 3 of 4 sites guilty, one of 108 triples has none in all but a fifth of the cases;
with half of them guilty, in all but one of a million."""

Result = TypeVar("Result")


class FusionFaultError(Exception):
    """A set of sites has no valid fusion; the text says why."""


@dataclass(frozen=True, eq=False)
class Isolation(Generic[Result]):
    """The outcome of a search for the sites at fault."""

    sites: tuple[str, ...]  # sites that were fused, in the order of the search; empty where no set passed
    result: Result | None  # what fusing them gave; None where no set passed
    guilty: dict[str, str]  # why each site was left out. Where no set passed: why all together failed, for each.
    n_fusions: int  # number of fusions that were tried


def isolate(order: Sequence[str], fuse: Callable[[tuple[str, ...]], Result]) -> Isolation[Result]:
    """Return a set of sites that fuses, its fusion, and the sites that were left out.

    `order` has all sites, nearest to the median site first; `fuse` raises `FusionFaultError` where there is no valid
    result. With d guilty of n sites this takes at most 1 + 108 + (d + 1)(1 + ceil(log2 n)) + d rounds of d fusions.
    """
    attempts = _Attempts(fuse)
    result, reason = attempts.fusion_of(order)
    if result is not None:
        return Isolation(tuple(order), result, {}, attempts.count)
    tried = ((triple, attempts.fusion_of(triple)[0]) for triple in _triples(order))
    base, result = next((one for one in tried if one[1] is not None), ((), None))
    if result is None:
        return Isolation((), None, dict.fromkeys(order, reason), attempts.count)
    base, result, guilty = attempts.grown(base, result, tuple(site for site in order if site not in base))
    # Faults that are not monotone: a site that failed among few may fit among more.
    is_growing = bool(guilty)
    while is_growing:
        is_growing = False
        for site in [site for site in order if site in guilty]:
            grown, guilty[site] = attempts.fusion_of((*base, site))
            if grown is not None:
                base, result, is_growing = (*base, site), grown, True
                del guilty[site]
    return Isolation(tuple(site for site in order if site in base), result, guilty, attempts.count)


@dataclass
class _Attempts(Generic[Result]):
    """Fusions that were tried, counted."""

    fuse: Callable[[tuple[str, ...]], Result]
    count: int = 0

    def fusion_of(self, sites: Sequence[str]) -> tuple[Result | None, str]:
        """Return the fusion of some sites, or None and why there is none."""
        self.count += 1
        try:
            return self.fuse(tuple(sites)), ""
        except FusionFaultError as fault:
            return None, str(fault)

    def grown(
        self, base: tuple[str, ...], result: Result, others: tuple[str, ...]
    ) -> tuple[tuple[str, ...], Result, dict[str, str]]:
        """Return a base with all others that fuse with it, found by halving, and why each of the rest does not."""
        guilty: dict[str, str] = {}
        stack = [others]
        while stack:
            candidates = stack.pop()
            if not candidates:
                continue
            grown, reason = self.fusion_of((*base, *candidates))
            if grown is not None:
                base, result = (*base, *candidates), grown
            elif len(candidates) == 1:
                guilty[candidates[0]] = reason
            else:
                middle = len(candidates) // 2
                stack += [candidates[middle:], candidates[:middle]]
        return base, result, guilty


def _triples(order: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the triples (pairs of three) that are tried as a base: windows of the order, then a fixed sample."""
    if len(order) < MIN_SITES:
        return []
    size = min(MIN_SITES, len(order) - 1)
    windows = [tuple(order[start : start + size]) for start in range(min(N_WINDOWS, len(order) - size + 1))]
    if len(order) < N_WINDOWS:  # no more triples than are tried anyway: 35 of seven sites
        return list(dict.fromkeys([*windows, *itertools.combinations(order, size)]))
    rng = np.random.default_rng(0)
    drawn = (np.sort(rng.choice(len(order), MIN_SITES, replace=False)) for _ in range(N_RANDOM_TRIPLES))
    return list(dict.fromkeys([*windows, *(tuple(order[i] for i in rows) for rows in drawn)]))
