"""Matching site by site: the components of one are matched exactly, given all other sites.

Many objectives are a sum over groups, F = sum_g f(t_g, m_g), of what the m_g members of a group sum up to, t_g. The
subtraction trick (Yurochkin et al. 2019, Proposition 1) makes the step of one site linear. Take the site out. As it
puts at most one component v_l into a group, group g will be worth f(t_g + v_l, m_g + 1) or stay f(t_g, m_g), so that

    F = sum_g f(t_g, m_g) + sum_{l, g} B_lg [f(t_g + v_l, m_g + 1) - f(t_g, m_g)],

for any f whatever: one assignment problem, solved exactly. No step can lower F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.matching.groups import GroupSums, consecutive, group_sums
from consilience.matching.site_step import UNLIMITED, Openings

_IMPOSSIBLE = -1e12
_CHUNK_BYTES = 2**26


class GroupObjective(Protocol):
    """A sum over groups, to be raised."""

    @property
    def pieces(self) -> Array:
        """What each component adds to the sum of its group (L, P)."""

    @property
    def offsets(self) -> Labels:
        """Where each site starts among the components, and the end (J + 1,)."""

    def opening(self, rows: Labels) -> Array:
        """Return what each of some rows is worth as a group of its own (k,)."""

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return by how much each of some groups rises (k, G) when it takes in each of some rows."""

    def total(self, labels: Labels) -> float:
        """Return what a matching with consecutive labels (L,) is worth."""


def subtraction_gains(value: Callable[[GroupSums], Array], pieces: Array, groups: GroupSums) -> Array:
    """Return f(t_g + v_l, m_g + 1) - f(t_g, m_g) (k, G) for any value f of groups: the subtraction trick.

    Parameters
    ----------
    value
        Returns f (n,) of n groups.
    pieces
        What each newcomer adds (k, P).
    groups
        Sums and members of the groups, without the newcomers' site.

    Examples
    --------
    >>> groups = GroupSums(np.array([[1.0], [2.0]]), np.array([1.0, 2.0]))
    >>> subtraction_gains(lambda g: g.sums[:, 0] ** 2 / g.mass, np.array([[3.0]]), groups)
    array([[7.        , 6.33333333]])
    """
    n_groups, width = groups.sums.shape
    gains = np.empty((len(pieces), n_groups))
    step = max(1, _CHUNK_BYTES // (8 * max(1, n_groups * width)))
    for start in range(0, len(pieces), step):
        part = pieces[start : start + step]
        together = (groups.sums[None] + part[:, None]).reshape(-1, width)
        joined = value(GroupSums(together, np.tile(groups.mass + 1.0, len(part))))
        gains[start : start + step] = joined.reshape(len(part), n_groups)
    gains -= value(groups)
    return gains


class MatchedGroups:
    """The groups of a matching, kept up to date while sites leave and come back.

    Parameters
    ----------
    objective
        What the groups are worth.
    labels
        Group of each component (L,), -1 for one that is nowhere.
    others
        What components of other sites, which stay where they are, add to the groups.
    """

    def __init__(self, objective: GroupObjective, labels: Labels, others: GroupSums | None = None) -> None:
        self.objective, self.labels = objective, labels.copy()
        known = 0 if others is None else len(others.mass)
        room = max(int(labels.max()) + 1, known) + int(np.diff(objective.offsets).max())
        sums = group_sums(objective.pieces, labels, np.ones(len(labels)), room)
        self._sums, self._mass = sums.sums, sums.mass
        if others is not None:
            self._sums[:known] += others.sums
            self._mass[:known] += others.mass

    def rows(self, site: int) -> Labels:
        """Return the rows of a site that are somewhere."""
        rows = np.arange(self.objective.offsets[site], self.objective.offsets[site + 1])
        return rows[self.labels[rows] >= 0]

    def leave(self, rows: Labels) -> None:
        """Take the rows of one site out."""
        own = self.labels[rows]
        self._sums[own] -= self.objective.pieces[rows]
        self._mass[own] -= 1.0
        empty = own[self._mass[own] == 0]
        self._sums[empty] = 0.0

    def choices(self, rows: Labels) -> tuple[Labels, Array, Array]:
        """Return the groups with members (G,), what each would gain by each row (k, G), and what rows open (k,)."""
        used = np.flatnonzero(self._mass)
        groups = GroupSums(self._sums[used], self._mass[used])
        return used, self.objective.gains(rows, groups), self.objective.opening(rows)

    def enter(self, rows: Labels, used: Labels, chosen: Labels) -> None:
        """Put rows into the groups that they chose, new ones where they opened one."""
        opens = chosen >= len(used)
        own = used[np.where(opens, 0, chosen)] if len(used) else np.zeros(len(rows), dtype=np.int64)
        if opens.any():
            count = int(np.count_nonzero(opens))
            free = np.flatnonzero(self._mass == 0)
            if len(free) < count:
                free = np.concatenate([free, len(self._mass) + np.arange(len(rows))])
                self._sums = np.concatenate([self._sums, np.zeros((len(rows), self._sums.shape[1]))])
                self._mass = np.concatenate([self._mass, np.zeros(len(rows))])
            own[opens] = free[:count]
        self.come_back(rows, own)

    def come_back(self, rows: Labels, labels: Labels) -> None:
        """Put rows into groups by their number."""
        self.labels[rows] = labels
        self._sums[labels] += self.objective.pieces[rows]
        self._mass[labels] += 1.0


def grow(objective: GroupObjective, order: Labels, openings: Openings = UNLIMITED) -> Labels:
    """Return the matching (L,) that adds one site after another, each matched exactly to what is there.

    Parameters
    ----------
    objective
        What is raised.
    order
        The sites (J,) in the order in which they come.
    openings
        What it takes to open new groups.
    """
    nowhere = np.full(len(objective.pieces), -1, dtype=np.int64)
    places = MatchedGroups(objective, nowhere)
    for site in order:
        rows = np.arange(objective.offsets[site], objective.offsets[site + 1])
        if rows.size:
            used, gains, opening = places.choices(rows)
            places.enter(rows, used, openings.best(gains, opening))
    return consecutive(places.labels)


def scatter(offsets: Labels, n_groups: int, rng: np.random.Generator) -> Labels:
    """Return a random matching (L,): the components of every site in different ones of at most `n_groups` groups.

    From such starts ``ascend`` reaches optima that orders of sites do not lead to.
    """
    drawn = [rng.permutation(n_groups)[:size] for size in np.diff(offsets)]
    return consecutive(np.concatenate(drawn))


def ascend(
    objective: GroupObjective, labels: Labels, rng: np.random.Generator, sweeps: int, openings: Openings = UNLIMITED
) -> tuple[Labels, bool]:
    """Raise the objective site by site, each matched exactly given the others, with new groups where they pay.

    Parameters
    ----------
    objective
        What is raised.
    labels
        Where to start (L,); -1 for rows that are left out.
    rng
        Draws the order of sites.
    sweeps
        Rounds over all sites at most.
    openings
        What it takes to open new groups.

    Returns
    -------
    tuple
        Consecutive labels (L,) of no less value, and whether a whole round changed nothing.
    """
    places = MatchedGroups(objective, labels)
    for _ in range(sweeps):
        changed = False
        for site in rng.permutation(len(objective.offsets) - 1):
            rows = places.rows(site)
            if rows.size:
                changed |= _step(places, rows, openings)
        if not changed:
            return consecutive(places.labels), True
    return consecutive(places.labels), False


def ascend_among(
    objective: GroupObjective, labels: Labels, others: GroupSums, order: Labels, openings: Openings
) -> Labels:
    """Raise the objective as ``ascend`` does, once over some sites, among what other sites have.

    Parameters
    ----------
    objective
        What is raised.
    labels
        Where to start (L,), in the numbering of `others`, which is kept.
    others
        What components of other sites add to the groups.
    order
        The sites that move, in the order in which they do.
    openings
        What it takes to open new groups.
    """
    places = MatchedGroups(objective, labels, others)
    for site in order:
        rows = places.rows(int(site))
        if rows.size:
            _step(places, rows, openings)
    return places.labels


def _step(places: MatchedGroups, rows: Labels, openings: Openings) -> bool:
    """Match the rows of one site anew and return whether that was better."""
    own = places.labels[rows]
    places.leave(rows)
    used, gains, opening = places.choices(rows)
    chosen, had = openings.best(gains, opening), own_choices(used, own)
    if not np.array_equal(chosen, had):
        before = openings.worth(gains, opening, had)
        if openings.worth(gains, opening, chosen) > before + 1e-9 * abs(before):
            places.enter(rows, used, chosen)
            return True
    places.come_back(rows, own)
    return False


def own_choices(used: Labels, own: Labels) -> Labels:
    """Return which choices lead back to groups `own` (k,): their place in `used` (G,), or a new group."""
    place = np.searchsorted(used, own)
    there = place < len(used)
    there[there] = used[place[there]] == own[there]
    return np.where(there, place, len(used) + np.arange(len(own)))


def match_probabilities(objective: GroupObjective, labels: Labels) -> Array:
    """Return the probability of each match (L,), given what all other sites say; `objective` is a log probability.

    For each component its site's best matching without this match is compared with the one it has: the odds are
    exp(difference in the objective). Components labelled -1 have none (NaN).
    """
    places = MatchedGroups(objective, labels)
    sure = np.full(len(labels), np.nan)
    for site in range(len(objective.offsets) - 1):
        rows = places.rows(site)
        if not rows.size:
            continue
        own, here = places.labels[rows], np.arange(len(rows))
        places.leave(rows)
        used, gains, opening = places.choices(rows)
        places.come_back(rows, own)
        had = own_choices(used, own)
        worth = np.concatenate([gains, np.full((len(rows), len(rows)), _IMPOSSIBLE)], axis=1)
        worth[here, len(used) + here] = opening
        has = worth[here, had].sum()
        for row in here:
            barred = worth.copy()
            barred[row, had[row]] = _IMPOSSIBLE  # a row can open one new group only: one is as good as another
            other = barred[here, linear_sum_assignment(barred, maximize=True)[1]].sum()
            sure[rows[row]] = 1.0 / (1.0 + np.exp(np.clip(other - has, -700.0, 700.0)))
    return sure
