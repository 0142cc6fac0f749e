"""Agglomeration of a matching: the two groups that gain most become one, again and again, until no two may.

Groups may become one while no site has a component in both. F = sum_g f(t_g, m_g) as in ``site_by_site``; the gain of a
pair is f(t_a + t_b, m_a + m_b) - f(t_a, m_a) - f(t_b, m_b). The best pair is merged whether it gains or not, so that
one run passes every number of groups from L down to where all pairs share a site. It takes about L^2 values of f: the
gains of all pairs once, and one row of them after every merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.exchanges import ValuedObjective
from consilience.matching.groups import GroupSums, consecutive, group_sums

BITS_OF_ONE_WORD = 64
CHUNK_BYTES = 2**19
"""Memory of the sums of pairs of groups that are valued at once: half a MiB, which stays in the cache."""
MIN_RELATIVE_GAIN = 1e-9
"""Difference of two totals, in units of their size, below which it is rounding and the fewer groups are better."""


@dataclass(frozen=True, eq=False)
class AgglomerationPath:
    """The matchings that one agglomeration passed.

    Parameters
    ----------
    start : Labels of shape (L,)
        The groups it started from, consecutive; -1 for rows in none.
    merges : Labels of shape (n, 2)
        The groups of `start` that became one at each step: the second goes into the first.
    totals : Array of shape (n + 1,)
        F before the first merge, and after each.
    """

    start: Labels
    merges: Labels
    totals: Array

    @property
    def n_groups(self) -> Labels:
        """Number of groups before the first merge, and after each (n + 1,)."""
        counts: Labels = int(self.start.max(initial=-1)) + 1 - np.arange(len(self.totals))
        return counts

    def best(self, max_groups: int | None = None) -> int:
        """Return the step of the greatest F with at most `max_groups` groups; of equal ones that of fewest groups.

        Where no step has so few groups, the last one is returned.
        """
        first = 0 if max_groups is None else max(0, int(self.n_groups[0]) - max_groups)
        first = min(first, len(self.totals) - 1)
        totals = self.totals[first:]
        tolerance = MIN_RELATIVE_GAIN * (1.0 + abs(float(totals.max())))
        return first + int(np.flatnonzero(totals >= totals.max() - tolerance)[-1])

    def labels(self, step: int) -> Labels:
        """Return the matching after so many merges, consecutive labels (L,)."""
        becomes = np.arange(int(self.start.max(initial=-1)) + 1)
        for into, other in self.merges[:step][::-1]:  # backwards: what `into` became later is known by then
            becomes[other] = becomes[into]
        labels = np.where(self.start >= 0, becomes[self.start], -1)
        return consecutive(labels)


def pair_gains(objective: ValuedObjective, groups: GroupSums, sites: NDArray[np.uint64]) -> Array:
    """Return what every two groups would gain as one (G, G), symmetric; -inf where a site has a part in both.

    Parameters
    ----------
    objective : ValuedObjective
        What groups are worth.
    groups : GroupSums
        G groups.
    sites : ndarray of shape (G, words)
        Sites with a part in each group, from ``site_bits``.
    """
    n_groups = len(groups.mass)
    values = objective.value(groups)
    gains = np.full((n_groups, n_groups), -np.inf)
    starts = np.arange(n_groups) * (2 * n_groups - np.arange(n_groups) - 1) // 2  # pairs whose first is a lower group
    n_pairs = n_groups * (n_groups - 1) // 2
    chunk_rows = max(1, CHUNK_BYTES // (8 * groups.sums.shape[1]))
    for start in range(0, n_pairs, chunk_rows):
        pairs = np.arange(start, min(n_pairs, start + chunk_rows))
        a = np.searchsorted(starts, pairs, side="right") - 1
        b = pairs - starts[a] + a + 1
        is_allowed = ~(sites[a] & sites[b]).any(axis=1)
        a, b = a[is_allowed], b[is_allowed]
        joined = GroupSums(groups.sums[a] + groups.sums[b], groups.mass[a] + groups.mass[b])
        gains[a, b] = objective.value(joined) - values[b] - values[a]
        gains[b, a] = gains[a, b]  # a sum in two orders differs in the last bit
    return gains


def site_bits(owner: Labels, labels: Labels) -> NDArray[np.uint64]:
    """Return which sites have a part in each group, one bit (G, words) for each site that has one in any."""
    n_groups = int(labels.max(initial=-1)) + 1
    rows = np.flatnonzero(labels >= 0)
    sites, numbers = np.unique(owner[rows], return_inverse=True)  # all others would make every comparison longer
    bits = np.zeros((n_groups, -(-len(sites) // BITS_OF_ONE_WORD)), dtype=np.uint64)
    words, places = np.divmod(numbers, BITS_OF_ONE_WORD)
    np.bitwise_or.at(bits, (labels[rows], words), np.left_shift(np.uint64(1), places.astype(np.uint64)))
    return bits


class JoinedMarginals:
    """What pairs of groups are worth as one, the prior over matchings not counted, for agglomerations from one start.

    Under another prior most of the same groups are made, in another order. A group is known by the merges that made it,
    so that its sums are the same to the last bit.

    Parameters
    ----------
    n_groups : int
        Groups at the start.
    """

    def __init__(self, n_groups: int) -> None:
        self.n_groups = n_groups
        self._number: dict[tuple[int, int], int] = {}
        self._marginals = np.full((0, 0), np.nan)

    def merged(self, a: int, b: int) -> int:
        """Return the number of the group that two groups become."""
        number = self._number.setdefault((min(a, b), max(a, b)), self.n_groups + len(self._number))
        if number >= len(self._marginals):
            larger = np.full((number + self.n_groups, number + self.n_groups), np.nan)
            larger[: len(self._marginals), : len(self._marginals)] = self._marginals
            self._marginals = larger
        return number

    def of(self, number: int, partners: Labels, marginal: Callable[[NDArray[np.bool_]], Array]) -> Array:
        """Return what a group is worth with each of some others (n,); `marginal` computes those that are not known."""
        known = self._marginals[number, partners]
        is_missing = np.isnan(known)
        if is_missing.any():
            known[is_missing] = marginal(is_missing)
            self._marginals[number, partners] = self._marginals[partners, number] = known
        return known


def agglomerate(
    objective: ValuedObjective, start: Labels, gains: Array | None = None, joined: JoinedMarginals | None = None
) -> AgglomerationPath:
    """Merge groups two by two, the best pair first, until every two of them share a site.

    Of equally good pairs the first in the order of groups is taken.

    Parameters
    ----------
    objective : ValuedObjective
        What is raised.
    start : Labels of shape (L,)
        Consecutive labels to start from, ``arange(L)`` for every component by itself; -1 for rows that stay in none.
    gains : Array of shape (G, G), optional
        ``pair_gains`` of the start, where they are known. It is overwritten.
    joined : JoinedMarginals, optional
        What other agglomerations of conjugate groups from this start, under other priors, found. Default: nothing.
    """
    n_groups, n_sites = int(start.max(initial=-1)) + 1, len(objective.offsets) - 1
    owner = np.repeat(np.arange(n_sites), np.diff(objective.offsets))
    groups = group_sums(objective.pieces, start, np.ones(len(start)), n_groups)
    sums, mass = groups.sums, groups.mass
    sites = site_bits(owner, start)
    values = objective.value(groups)
    gains = pair_gains(objective, groups, sites) if gains is None else gains
    best_partner = gains.argmax(axis=1)  # (G,): for every group the best other one, and what it gains
    best_gain = gains[np.arange(n_groups), best_partner]
    is_left = np.ones(n_groups, dtype=np.bool_)
    totals, merges = [float(values.sum())], []
    numbers = np.arange(n_groups)  # of the groups in `joined`
    while True:
        into = int(best_gain.argmax()) if n_groups else 0
        if not n_groups or best_gain[into] == -np.inf:
            break
        other = int(best_partner[into])  # the greater number: `into` is the first of all rows with this gain
        totals.append(totals[-1] + float(best_gain[into]))
        merges.append((into, other))
        sums[into] += sums[other]
        mass[into] += mass[other]
        sites[into] |= sites[other]
        values[into] += values[other] + float(best_gain[into])  # what the gain says the two are worth together
        is_left[other] = False
        gains[:, other], best_gain[other] = -np.inf, -np.inf
        if joined is not None:
            numbers[into] = joined.merged(int(numbers[into]), int(numbers[other]))
        row = _gains(objective, GroupSums(sums, mass), values, sites, into, is_left, numbers, joined)
        gains[into], gains[:, into] = row, row
        # Groups whose best partner was one of the two, and the new one, look for another; all others only compare.
        lost = (is_left & ((best_partner == into) | (best_partner == other))).nonzero()[0]
        best_partner[lost] = gains[lost].argmax(axis=1)
        best_gain[lost] = gains[lost, best_partner[lost]]
        better = (row > best_gain).nonzero()[0]
        best_partner[better], best_gain[better] = into, row[better]
    return AgglomerationPath(start, np.array(merges, dtype=np.int64).reshape(-1, 2), np.array(totals))


def _gains(
    objective: ValuedObjective,
    groups: GroupSums,
    values: Array,
    sites: NDArray[np.uint64],
    group: int,
    is_left: NDArray[np.bool_],
    numbers: Labels,
    joined: JoinedMarginals | None,
) -> Array:
    """Return what a group would gain with each other one that is left (G,); -inf where a site has a part in both."""
    partners = (is_left & ~(sites & sites[group]).any(axis=1)).nonzero()[0]  # the group itself shares its sites
    mass = groups.mass[partners] + groups.mass[group]

    def sums_with(others: Labels) -> Array:
        sums = groups.sums[others]
        sums += groups.sums[group]
        return sums

    if joined is None or not isinstance(objective, ConjugateGroups):
        joined_values = objective.value(GroupSums(sums_with(partners), mass))
    else:
        marginals = joined.of(
            int(numbers[group]), numbers[partners], lambda some: objective.marginal(sums_with(partners[some]))
        )
        joined_values = marginals + objective.level[mass.astype(np.int64)]
    gains = np.full(len(is_left), -np.inf)
    gains[partners] = joined_values - values[partners] - values[group]
    return gains
