"""Moves of whole groups: agglomeration, where the two that gain most become one, and exchanges between two groups.

Groups may become one while no site has a component in both. F = sum_g f(t_g, m_g) as in ``site_by_site``; the gain of a
pair is f(t_a + t_b, m_a + m_b) - f(t_a, m_a) - f(t_b, m_b). The best pair is merged whether it gains or not, so that
one run passes every number of groups from L down to where all pairs share a site. It takes about L^2 values of f: the
gains of all pairs once, and one row of them after every merge.

Where very many merges are clear, pairs of which each is the best partner of the other are merged in rounds, all at once
(``min_gain_share``): reciprocal nearest neighbours, of which de Rham (1980) makes hierarchies. For a gain that no merge
raises the matchings are those of one pair after another. Evidence is no such gain, for a group tells better than one
component who belongs to it; so the weaker pairs of a round wait until the stronger ones are groups.

Site-by-site ascent ends where no site gains alone. A swap of two groups' members of two sites moves two sites together,
which leaves such optima.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.matching.groups import GroupSums, consecutive, group_sums
from consilience.matching.site_by_site import GroupObjective

BITS_OF_ONE_WORD = 64
CHUNK_BYTES = 2**19
"""Memory of the sums of pairs of groups that are valued at once: half a MiB, which stays in the cache."""
MIN_RELATIVE_GAIN = 1e-9
"""Difference of two totals, in units of their size, below which it is rounding: then the fewer groups are better, and
no swap is made."""


class ValuedObjective(GroupObjective, Protocol):
    """A sum over groups that says what any groups are worth."""

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""


@dataclass(frozen=True, eq=False)
class AgglomerationPath:
    """The matchings that one agglomeration passed."""

    start: Labels  # the groups it started from, consecutive; -1 for rows in none (L,)
    merges: Labels  # the groups of `start` that became one at each step: the second goes into the first (n, 2)
    totals: Array  # F before the first merge, and after each (n + 1,)

    @property
    def n_groups(self) -> Labels:
        """Number of groups before the first merge, and after each (n + 1,)."""
        return np.asarray(int(self.start.max(initial=-1)) + 1 - np.arange(len(self.totals)))

    def best(self, max_groups: int | None = None) -> int:
        """Return the step of the greatest F with at most `max_groups` groups; of equal ones that of fewest groups.

        Where no step has so few groups, the last one is returned.
        """
        first = 0 if max_groups is None else max(0, int(self.n_groups[0]) - max_groups)
        first = min(first, len(self.totals) - 1)
        totals = self.totals[first:]
        tolerance = MIN_RELATIVE_GAIN * (1.0 + abs(float(totals.max())))
        return first + int(np.flatnonzero(totals >= totals.max() - tolerance)[-1])

    def valued_by(self, objective: ValuedObjective) -> AgglomerationPath:
        """Return the same matchings with F of another objective."""
        n_groups = int(self.start.max(initial=-1)) + 1
        groups = group_sums(objective.pieces, self.start, np.ones(len(self.start)), n_groups)
        values, gains = objective.value(groups), np.empty(len(self.merges))
        totals_before = float(values.sum())
        chunk_rows = max(1, CHUNK_BYTES // (8 * groups.sums.shape[1]))
        for first in range(0, len(self.merges), chunk_rows):
            merges = self.merges[first : first + chunk_rows]
            joined = GroupSums(np.empty((len(merges), groups.sums.shape[1])), np.empty(len(merges)))
            for step, (into, other) in enumerate(merges.tolist()):
                groups.sums[into] += groups.sums[other]
                groups.mass[into] += groups.mass[other]
                joined.sums[step], joined.mass[step] = groups.sums[into], groups.mass[into]
            for step, ((into, other), value) in enumerate(
                zip(merges.tolist(), objective.value(joined).tolist(), strict=True), first
            ):
                gains[step] = value - values[into] - values[other]
                values[into] = value
        return replace(self, totals=totals_before + np.concatenate([[0.0], np.cumsum(gains)]))

    def labels(self, step: int) -> Labels:
        """Return the matching after so many merges, consecutive labels (L,)."""
        becomes = np.arange(int(self.start.max(initial=-1)) + 1)
        for into, other in self.merges[:step][::-1]:  # backwards: what `into` became later is known by then
            becomes[other] = becomes[into]
        labels = np.where(self.start >= 0, becomes[self.start], -1)
        return consecutive(labels)


def pair_gains(
    objective: ValuedObjective,
    groups: GroupSums,
    sites: NDArray[np.uint64],
    are_neighbours: NDArray[np.bool_] | None = None,
    values: Array | None = None,
) -> Array:
    """Return what every two groups would gain as one (G, G), symmetric; -inf where a site has a part in both.

    `sites` (G, words) are of ``site_bits``; `are_neighbours` (G, G), symmetric, are the pairs that are looked at, -inf
    for all others; `values` (G,) what the groups are worth, where that is known.
    """
    n_groups = len(groups.mass)
    values = objective.value(groups) if values is None else values
    gains = np.full((n_groups, n_groups), -np.inf)
    chunk_rows = max(1, CHUNK_BYTES // (8 * groups.sums.shape[1]))
    for a, b in _pairs(n_groups, are_neighbours, chunk_rows):
        is_allowed = ~(sites[a] & sites[b]).any(axis=1)
        a, b = a[is_allowed], b[is_allowed]
        joined = GroupSums(groups.sums[a] + groups.sums[b], groups.mass[a] + groups.mass[b])
        gains[a, b] = objective.value(joined) - values[b] - values[a]
        gains[b, a] = gains[a, b]  # a sum in two orders differs in the last bit
    return gains


def _pairs(n_groups: int, are_neighbours: NDArray[np.bool_] | None, chunk_rows: int) -> Iterator[tuple[Labels, Labels]]:
    """Yield so many pairs of groups that are looked at, after as many, the lower group first."""
    if are_neighbours is not None:
        first, second = np.triu(are_neighbours, 1).nonzero()
        for start in range(0, len(first), chunk_rows):
            yield first[start : start + chunk_rows], second[start : start + chunk_rows]
        return
    starts = np.arange(n_groups) * (2 * n_groups - np.arange(n_groups) - 1) // 2  # pairs whose first is a lower group
    n_pairs = n_groups * (n_groups - 1) // 2
    for start in range(0, n_pairs, chunk_rows):
        pairs = np.arange(start, min(n_pairs, start + chunk_rows))
        a = np.searchsorted(starts, pairs, side="right") - 1
        yield a, pairs - starts[a] + a + 1


def nearest_rows(divergences: Array, n_nearest: int) -> NDArray[np.bool_]:
    """Return which rows (L, L) are among the nearest of each other, one way or both, by divergences (L, L)."""
    are_neighbours = np.zeros(divergences.shape, dtype=np.bool_)
    nearest = np.argpartition(divergences, n_nearest, axis=1)[:, :n_nearest]
    np.put_along_axis(are_neighbours, nearest, True, axis=1)
    return are_neighbours | are_neighbours.T


def site_bits(owner: Labels, labels: Labels) -> NDArray[np.uint64]:
    """Return which sites have a part in each group, one bit (G, words) for each site that has one in any."""
    n_groups = int(labels.max(initial=-1)) + 1
    rows = np.flatnonzero(labels >= 0)
    sites, numbers = np.unique(owner[rows], return_inverse=True)  # all others would make every comparison longer
    bits = np.zeros((n_groups, -(-len(sites) // BITS_OF_ONE_WORD)), dtype=np.uint64)
    words, places = np.divmod(numbers, BITS_OF_ONE_WORD)
    np.bitwise_or.at(bits, (labels[rows], words), np.left_shift(np.uint64(1), places.astype(np.uint64)))
    return bits


def agglomerate(
    objective: ValuedObjective,
    start: Labels,
    *,
    min_gain_share: float = 1.0,
    are_neighbours: NDArray[np.bool_] | None = None,
    while_gaining: bool = False,
) -> AgglomerationPath:
    """Merge groups two by two, the best pair first, until every two of them share a site.

    Of equally good pairs the first in the order of groups is taken. It starts from consecutive labels (L,),
    ``arange(L)`` for every component by itself, -1 for rows that stay in none, and ends where no pair gains if
    `while_gaining`.

    All pairs that are the best of both of their groups and gain at least `min_gain_share` of the greatest gain so far
    are merged in one round, the best first; 1 merges one pair after another. While any pair of the start that is among
    `are_neighbours` (G, G) gains, only these are looked at; what becomes one group has the neighbours of both.
    """
    state = _Agglomeration.of(objective, start, are_neighbours)
    totals, merges = [float(state.values.sum())], list[tuple[int, int]]()
    while True:
        if state.are_neighbours is not None and state.best_gain.max() <= 0.0:
            state.look_at_all()
        into, other, of_merge = state.best_pairs(min_gain_share)
        if not into.size or (while_gaining and of_merge[0] <= 0.0):
            break
        state.merge(into, other, of_merge)
        merges += zip(into.tolist(), other.tolist(), strict=True)
        for gain in of_merge.tolist():
            totals.append(totals[-1] + gain)
    return AgglomerationPath(start, np.array(merges, dtype=np.int64).reshape(-1, 2), np.array(totals))


@dataclass(eq=False)
class _Agglomeration:
    """The groups of a running agglomeration: merged ones live on in their first part, the others are dead rows."""

    objective: ValuedObjective
    groups: GroupSums
    values: Array  # what the G groups are worth (G,)
    sites: NDArray[np.uint64]  # with a part in each (G, words)
    gains: Array  # of pairs (G, G); -inf for what cannot be merged
    is_left: NDArray[np.bool_]  # groups that are no part of another one (G,)
    best_partner: Labels  # of every group (G,)
    best_gain: Array  # and what it gains with it
    are_neighbours: NDArray[np.bool_] | None  # the pairs that are looked at (G, G); all without
    greatest_gain: float = 0.0  # of a merge so far

    @classmethod
    def of(cls, objective: ValuedObjective, start: Labels, are_neighbours: NDArray[np.bool_] | None) -> _Agglomeration:
        """Return the groups before any merge."""
        n_groups, n_sites = int(start.max(initial=-1)) + 1, len(objective.offsets) - 1
        owner = np.repeat(np.arange(n_sites), np.diff(objective.offsets))
        groups = group_sums(objective.pieces, start, np.ones(len(start)), n_groups)
        sites = site_bits(owner, start)
        values, is_left = objective.value(groups), np.ones(n_groups, dtype=np.bool_)
        gains = pair_gains(objective, groups, sites, are_neighbours, values)
        best_partner = gains.argmax(axis=1) if n_groups else np.zeros(0, dtype=np.int64)
        best_gain = gains[np.arange(n_groups), best_partner]
        known = None if are_neighbours is None else are_neighbours.copy()
        return cls(objective, groups, values, sites, gains, is_left, best_partner, best_gain, known)

    def look_at_all(self) -> None:
        """Compute the gains of all pairs that were not looked at."""
        assert self.are_neighbours is not None  # noqa: S101  (narrows the type)
        rows = self.is_left.nonzero()[0]
        among = np.ix_(rows, rows)
        missing = ~self.are_neighbours[among]
        groups = GroupSums(self.groups.sums[rows], self.groups.mass[rows])
        gains = pair_gains(self.objective, groups, self.sites[rows], missing)
        self.gains[among] = np.where(missing, gains, self.gains[among])
        self.are_neighbours = None
        self.best_partner[rows] = self.gains[rows].argmax(axis=1)
        self.best_gain[rows] = self.gains[rows, self.best_partner[rows]]

    def best_pairs(self, min_gain_share: float) -> tuple[Labels, Labels, Array]:
        """Return the pairs that are merged next, the first group of each, the second one, and what they gain (n,)."""
        first = int(self.best_gain.argmax()) if len(self.best_gain) else 0
        if not len(self.best_gain) or self.best_gain[first] == -np.inf:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        best = float(self.best_gain[first])
        rows = np.array([first])  # its partner has a greater number: it is the first of all rows with this gain
        self.greatest_gain = max(self.greatest_gain, best)
        if min_gain_share < 1.0 and best > min_gain_share * self.greatest_gain:
            clear = (self.best_gain >= min_gain_share * self.greatest_gain).nonzero()[0]
            partners = self.best_partner[clear]
            rows = clear[(self.best_partner[partners] == clear) & (clear < partners)]
            rows = rows[np.argsort(-self.best_gain[rows], kind="stable")]
        return rows, self.best_partner[rows], self.best_gain[rows]

    def merge(self, into: Labels, other: Labels, of_merge: Array) -> None:
        """Merge disjoint pairs: the groups `other` become part of the groups `into` (n,), which gains so much."""
        sums, mass = self.groups.sums, self.groups.mass
        for a, b, gain in zip(into.tolist(), other.tolist(), of_merge.tolist(), strict=True):
            sums[a] += sums[b]
            mass[a] += mass[b]
            self.sites[a] |= self.sites[b]
            self.values[a] += self.values[b] + gain  # what the gains say the two are worth together
            self.is_left[b], self.gains[:, b], self.best_gain[b] = False, -np.inf, -np.inf
            if self.are_neighbours is not None:
                self.are_neighbours[a] |= self.are_neighbours[b]
                self.are_neighbours[:, a] |= self.are_neighbours[:, b]
        rows = self._gains_of(into)
        self.gains[into], self.gains[:, into] = rows, rows.T
        # Groups whose best partner was merged, and the new ones, look for another; all others only compare.
        is_changed = np.zeros(len(self.is_left), dtype=np.bool_)
        is_changed[into] = is_changed[other] = True
        lost = (self.is_left & is_changed[self.best_partner] | (self.is_left & is_changed)).nonzero()[0]
        self.best_partner[lost] = self.gains[lost].argmax(axis=1)
        self.best_gain[lost] = self.gains[lost, self.best_partner[lost]]
        greatest = rows.max(axis=0) if len(rows) > 1 else rows[0]
        better = (greatest > self.best_gain).nonzero()[0]
        self.best_partner[better] = into[rows[:, better].argmax(axis=0)]
        self.best_gain[better] = greatest[better]

    def _gains_of(self, groups: Labels) -> Array:
        """Return what groups would gain with each other one that is left (n, G); -inf where a site has a part in both.

        Pairs of two of the groups are valued once, for a sum in two orders differs in the last bit.
        """
        sites, mass = self.sites, self.groups.mass
        is_allowed = self.is_left & ~(sites[groups, None] & sites).any(axis=2)  # a group shares its own sites
        if self.are_neighbours is not None:
            is_allowed &= self.are_neighbours[groups]
        if len(groups) > 1:
            is_allowed[:, groups] &= np.tri(len(groups), k=-1, dtype=np.bool_)
        which, partners = is_allowed.nonzero()
        first = groups[which]
        joined_mass = mass[partners] + mass[first]
        values = np.empty(len(first))
        chunk_rows = max(1, CHUNK_BYTES // (8 * self.groups.sums.shape[1]))
        for start in range(0, len(first), chunk_rows):
            rows = slice(start, start + chunk_rows)
            sums = self.groups.sums[partners[rows]]
            sums += self.groups.sums[first[rows]]
            values[rows] = self.objective.value(GroupSums(sums, joined_mass[rows]))
        gains = np.full(is_allowed.shape, -np.inf)
        gains[which, partners] = values - self.values[partners] - self.values[first]
        if len(groups) > 1:
            among = gains[:, groups]
            gains[:, groups] = np.maximum(among, among.T)
        return gains


MAX_EVALUATED_PARAMETERS = 2e8
"""Parameters of groups that one search may evaluate: some seconds' work. Chosen by hand."""


def improve_by_exchange(objective: ValuedObjective, labels: Labels) -> Labels | None:
    """Return a better matching (L,), the best swap of two sites' members between two groups; None where none helps.

    The search takes J^2 G^2 values of groups; where that is more than some seconds' work it is not made. Labels are
    consecutive.
    """
    n_groups, n_sites = int(labels.max()) + 1, len(objective.offsets) - 1
    pairs = np.array(list(combinations(range(n_sites), 2)), dtype=np.int64).reshape(-1, 2)
    width = objective.pieces.shape[1]
    if len(pairs) * n_groups * (n_groups - 1) * width > MAX_EVALUATED_PARAMETERS:
        return None
    site_sums = np.zeros((n_sites, n_groups, width + 1))  # each site's sum in each group, and its members there
    owner = np.repeat(np.arange(n_sites), np.diff(objective.offsets))
    assigned = labels >= 0
    site_sums[owner[assigned], labels[assigned], :width] = objective.pieces[assigned]
    site_sums[owner[assigned], labels[assigned], width] = 1.0
    sums = site_sums.sum(axis=0)  # (G, P + 1)
    values_now = objective.value(GroupSums(sums[:, :-1], sums[:, -1]))
    best_gain, swap = MIN_RELATIVE_GAIN * max(1.0, abs(float(values_now.sum()))), None
    # For two groups, all pairs of sites at once: (pairs, P + 1) for what the first group would be, then the second.
    for first, second in combinations(range(n_groups), 2):
        change = site_sums[:, second] - site_sums[:, first]  # by each site's swap, for the first group (J, P + 1)
        net_change = change[pairs[:, 0]] + change[pairs[:, 1]]
        swapped_sums = np.concatenate([sums[first] + net_change, sums[second] - net_change])
        is_occupied = swapped_sums[:, -1] > 0
        values = np.full(len(swapped_sums), -np.inf)
        values[is_occupied] = objective.value(GroupSums(swapped_sums[is_occupied, :-1], swapped_sums[is_occupied, -1]))
        gain = values[: len(pairs)] + values[len(pairs) :] - values_now[first] - values_now[second]
        if gain.max(initial=-np.inf) > best_gain:
            best_gain, swap = float(gain.max()), (first, second, pairs[int(gain.argmax())])
    if swap is None:
        return None
    first, second, sites = swap
    result, is_swapped = labels.copy(), np.isin(owner, sites)
    result[is_swapped & (labels == first)], result[is_swapped & (labels == second)] = second, first
    return result
