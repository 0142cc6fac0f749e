"""Site-by-site matching: the components of one site are matched exactly, given all other sites.

Many objectives are a sum over groups, F = sum_g f(t_g, m_g), of what the m_g members of a group sum up to, t_g. The
subtraction trick (Yurochkin et al. 2019, Proposition 1) makes the step of one site linear. Take the site out. As it
puts at most one component v_l into a group, group g will be worth f(t_g + v_l, m_g + 1) or stay f(t_g, m_g), so that

    F = sum_g f(t_g, m_g) + sum_{l, g} B_lg [f(t_g + v_l, m_g + 1) - f(t_g, m_g)],

for any f whatever: one assignment problem, solved exactly. No step can lower F. ``grow`` makes a first matching,
``ascend`` raises F in sweeps over the sites until none gains, ``match_confidence`` reads off how sure each match is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.families.chunks import CHUNK_BYTES as BLOCK_BYTES
from consilience.families.chunks import LazyRows
from consilience.matching.assignment import UNLIMITED, Openings
from consilience.matching.groups import GroupSums, consecutive, group_sums

FORBIDDEN_GAIN = -1e12
"""Gain of a choice that is not allowed: below any log probability of a matching that is."""
CHUNK_BYTES = 2**26
"""Memory of the sums of newcomers with groups that are held at once: 64 MiB, chosen by hand."""
MAX_SCREENED_NUMBERS = 2_000_000
"""Numbers in the sums of all components with all groups, up to which all are looked at at once: 16 MB. With more
of them one site after another is as fast."""
MIN_RELATIVE_GAIN = 1e-9
"""Gain of a site's step, in units of its value, below which it is rounding and the site stays."""
MAX_TRUSTED_LOG_ODDS = 30.0
"""Log odds from which on a match is as sure as it gets; fitted together with the scale to simulations."""
LOG_ODDS_SCALE = 5.0
"""What log odds are divided by: those of a site's matching are this much too sure. Fitted as above."""


class GroupObjective(Protocol):
    """An objective F = sum_g f(t_g, m_g) over the groups of a matching, to be raised."""

    @property
    def pieces(self) -> Array:
        """v_l: what each component adds to the sum t_g of its group (L, P)."""

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
    gains = np.empty((len(pieces), n_groups))  # (k, G)
    values = np.empty(0)
    chunk_rows = max(1, CHUNK_BYTES // (8 * max(1, n_groups * width)))
    for start in range(0, len(pieces), chunk_rows):
        chunk = pieces[start : start + chunk_rows]
        # The groups as they are are valued together with the first newcomers: one call is faster than two.
        newcomers = chunk if start else np.concatenate([np.zeros((1, width)), chunk])
        joined_sums = (groups.sums[None] + newcomers[:, None]).reshape(-1, width)  # (n * G, P)
        joined_mass = np.concatenate([groups.mass] * (start == 0) + [groups.mass + 1.0] * len(chunk))
        joined = value(GroupSums(joined_sums, joined_mass)).reshape(len(newcomers), n_groups)
        if not start:
            values, joined = joined[0], joined[1:]
        np.subtract(joined, values, out=gains[start : start + chunk_rows])
    return gains


class ValuedGroups(ABC):
    """A ``GroupObjective`` whose groups are worth a value of their sums and members, each by itself."""

    if TYPE_CHECKING:

        @property
        def pieces(self) -> Array: ...  # noqa: D102

    @abstractmethod
    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""

    def opening(self, rows: Labels) -> Array:
        """Return what a group of its own is worth to each of some rows (k,)."""
        return self.value(GroupSums(self.pieces[rows], np.ones(len(rows))))

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return what each group would add (k, G) by taking in each of some rows that are in none."""
        return subtraction_gains(self.value, self.pieces[rows], groups)

    def total(self, labels: Labels) -> float:
        """Return what a matching with consecutive labels is worth."""
        return float(self.value(group_sums(self.pieces, labels, np.ones(len(labels)), int(labels.max()) + 1)).sum())


class MatchedGroups:
    """The groups of a matching, kept up to date while sites leave and come back.

    Labels (L,) are -1 for components in none; `others` is what components of other sites, which stay, add to the
    groups.
    """

    def __init__(self, objective: GroupObjective, labels: Labels, others: GroupSums | None = None) -> None:
        self.objective, self.labels = objective, labels.copy()
        n_others = 0 if others is None else len(others.mass)
        # Room for every row of the largest site to open a group; ``insert`` adds more where a process needs it.
        n_slots = max(int(labels.max()) + 1, n_others) + int(np.diff(objective.offsets).max())
        sums = group_sums(objective.pieces, labels, np.ones(len(labels)), n_slots)
        self._sums, self._mass = sums.sums, sums.mass
        if others is not None:
            self._sums[:n_others] += others.sums
            self._mass[:n_others] += others.mass

    def visits(self, order: Labels) -> Iterator[int]:
        """Yield sites in an order; pieces that are made when asked for are made for blocks of them."""
        pieces, offsets = self.objective.pieces, self.objective.offsets
        if not isinstance(pieces, LazyRows):
            yield from order.tolist()
            return
        ends = np.cumsum(np.diff(offsets)[order])  # of the sites in this order, in rows
        block_rows, first = BLOCK_BYTES // (8 * pieces.shape[1]), 0
        while first < len(order):
            start = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, start + block_rows, side="right")))
            sites = order[first:last].tolist()
            pieces.hold(np.concatenate([np.arange(offsets[site], offsets[site + 1]) for site in sites]))
            yield from sites
            first = last

    def rows(self, site: int) -> Labels:
        """Return the rows of a site that are in a group."""
        rows = np.arange(self.objective.offsets[site], self.objective.offsets[site + 1])
        return rows[self.labels[rows] >= 0]

    @property
    def n_choices(self) -> int:
        """Number of pairs of a component, or a site, and a group."""
        n_sites = len(self.objective.offsets) - 1
        return max(len(self.labels), n_sites) * int(np.count_nonzero(self._mass))

    def gains_of_all_rows(
        self, value: Callable[[GroupSums], Array], groups: Labels, neighbours: tuple[Labels, Labels] | None = None
    ) -> Array:
        """Return by how much some groups with members (n,) rise by each row (L, n), its site taken out of them.

        `value` returns what n groups are worth (n,). Neighbours are pairs of rows (m,) that are near each other: gains
        of groups without a neighbour of the row are then not computed, but ``FORBIDDEN_GAIN``.
        """
        pieces, offsets = np.asarray(self.objective.pieces), self.objective.offsets
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        position_of_group = np.full(len(self._mass), -1)
        position_of_group[groups] = np.arange(len(groups))
        positions = np.where(self.labels >= 0, position_of_group[self.labels], -1)
        matched = np.flatnonzero(positions >= 0)
        positions = positions[matched]
        sums, mass = self._sums[groups], self._mass[groups]
        values = value(GroupSums(sums, mass))
        # What groups are worth without their members of one site: only sites that have one differ.
        without = np.tile(values, (len(offsets) - 1, 1))  # (J, n)
        lone = mass[positions] == 1
        others = GroupSums(sums[positions] - pieces[matched], mass[positions] - 1.0)
        worth = np.zeros(len(matched))
        worth[~lone] = value(GroupSums(others.sums[~lone], others.mass[~lone]))
        without[owner[matched], positions] = np.where(lone, FORBIDDEN_GAIN, worth)  # nothing is left of those
        # The pairs of a row and a group that are looked at; with a row's own group they are the group as it is.
        is_near = np.full((len(owner), len(groups)), neighbours is None)
        if neighbours is not None:
            of_neighbour = np.where(self.labels >= 0, position_of_group[self.labels], -1)[neighbours[1]]
            is_near[neighbours[0][of_neighbour >= 0], of_neighbour[of_neighbour >= 0]] = True
        is_near[matched, positions] = False
        row_of_pair, group_of_pair = is_near.nonzero()
        joined_sums = sums[group_of_pair]  # (pairs, P)
        joined_sums += pieces[row_of_pair]
        joined_mass = mass[group_of_pair] + 1.0
        pair = np.full(is_near.shape, -1)
        pair[is_near] = np.arange(len(row_of_pair))
        # Every row of a site, with every other component of the site that is in one of the groups.
        sizes = np.diff(offsets)[owner[matched]]
        members = np.repeat(np.arange(len(matched)), sizes)
        rows = np.arange(len(members)) - np.repeat(np.cumsum(sizes) - sizes - offsets[owner[matched]], sizes)
        with_member = pair[rows, positions[members]]  # different ones
        members, with_member = members[with_member >= 0], with_member[with_member >= 0]
        joined_sums[with_member] -= pieces[matched[members]]
        joined_mass[with_member] -= 1.0
        gains = np.full(is_near.shape, FORBIDDEN_GAIN)
        before = without[owner[row_of_pair], group_of_pair]
        joined = value(GroupSums(joined_sums, joined_mass))
        gains[row_of_pair, group_of_pair] = np.where(before == FORBIDDEN_GAIN, FORBIDDEN_GAIN, joined - before)
        gains[matched, positions] = np.where(lone, FORBIDDEN_GAIN, values[positions] - worth)
        return gains

    @property
    def used(self) -> Labels:
        """The groups with members (G,)."""
        return np.flatnonzero(self._mass)

    def members(self, groups: Labels) -> Array:
        """Return how many members some groups have (n,)."""
        return self._mass[groups]

    def remove(self, rows: Labels) -> None:
        """Take the rows of one site out."""
        groups = self.labels[rows]
        self._sums[groups] -= self.objective.pieces[rows]
        self._mass[groups] -= 1.0
        empty = groups[self._mass[groups] == 0]
        self._sums[empty] = 0.0  # what subtraction leaves there is rounding

    def gains_of_choices(self, rows: Labels) -> tuple[Labels, Array, Array]:
        """Return the groups with members (G,), their gains by each row (k, G), and the worth of rows alone (k,)."""
        # Empty slots stay in place, so that groups keep their numbers while sites move.
        used = self._mass.nonzero()[0]
        groups = GroupSums(self._sums[used], self._mass[used])
        return used, self.objective.gains(rows, groups), self.objective.opening(rows)

    def insert(self, rows: Labels, used: Labels, chosen: Labels) -> None:
        """Put rows into the groups that they chose: 0 ... G - 1 of those in use, or a new one from G on."""
        is_new = chosen >= len(used)
        groups = used[np.where(is_new, 0, chosen)] if len(used) else np.zeros(len(rows), dtype=np.int64)
        if is_new.any():
            n_new = int(np.count_nonzero(is_new))
            empty_slots = np.flatnonzero(self._mass == 0)
            if len(empty_slots) < n_new:
                empty_slots = np.concatenate([empty_slots, len(self._mass) + np.arange(len(rows))])
                self._sums = np.concatenate([self._sums, np.zeros((len(rows), self._sums.shape[1]))])
                self._mass = np.concatenate([self._mass, np.zeros(len(rows))])
            groups[is_new] = empty_slots[:n_new]
        self.restore(rows, groups)

    def restore(self, rows: Labels, labels: Labels) -> None:
        """Put rows into groups by their number."""
        self.labels[rows] = labels
        self._sums[labels] += self.objective.pieces[rows]
        self._mass[labels] += 1.0


def grow(
    objective: GroupObjective, order: Labels, openings: Openings = UNLIMITED, labels: Labels | None = None
) -> Labels:
    """Return the matching (L,) that adds one site after another, each matched exactly to what is there.

    The sites (J,) come in this order. `labels` (L,) are groups that are there already, -1 for components of these
    sites.
    """
    unmatched = np.full(len(objective.pieces), -1, dtype=np.int64)
    groups = MatchedGroups(objective, unmatched if labels is None else labels)
    for site in groups.visits(order):
        rows = np.arange(objective.offsets[site], objective.offsets[site + 1])
        if rows.size:
            used, gains, opening = groups.gains_of_choices(rows)
            groups.insert(rows, used, openings.assign(gains, opening))
    return consecutive(groups.labels)


def scatter(offsets: Labels, n_groups: int, rng: np.random.Generator) -> Labels:
    """Return a random matching (L,): the components of every site in different ones of at most `n_groups` groups.

    From such starts ``ascend`` reaches optima that orders of sites do not lead to.
    """
    site_labels = [rng.permutation(n_groups)[:size] for size in np.diff(offsets)]  # distinct inside a site
    return consecutive(np.concatenate(site_labels))


def ascend(
    objective: GroupObjective,
    labels: Labels,
    rng: np.random.Generator,
    sweeps: int,
    openings: Openings = UNLIMITED,
    *,
    empties_groups: bool = True,
    screened_by: Callable[[GroupSums], Array] | None = None,
    neighbours: tuple[Labels, Labels] | None = None,
) -> tuple[Labels, bool]:
    """Raise the objective site by site, each matched exactly given the others, with new groups where they pay.

    Parameters
    ----------
    objective : GroupObjective
        What is raised.
    labels : Labels of shape (L,)
        Where to start; -1 for rows that are left out.
    rng : Generator
        Draws the order of sites.
    sweeps : int
        Rounds over all sites at most.
    openings : Openings, optional
        Which new groups are allowed. Default: as many as pay.
    empties_groups : bool, default True
        Whether a site may move that leaves a group without members.
    screened_by : callable, optional
        Values (n,) of n groups under the objective. A round then visits only sites that would move as things stand at
        its beginning, found for all sites at once. Default: it visits all.
    neighbours : tuple of (Labels, Labels), optional
        Pairs of rows (m,) that are near each other: a site would move that gains by groups with neighbours of its
        rows. Default: by any groups.

    Returns
    -------
    tuple
        Consecutive labels (L,) of no less value, and whether a whole round changed nothing.
    """
    groups = MatchedGroups(objective, labels)
    screen = None if screened_by is None else _Screen(groups, screened_by, neighbours)
    for _ in range(sweeps):
        has_changed = False
        sites = rng.permutation(len(objective.offsets) - 1)
        if screen is not None and groups.n_choices * objective.pieces.shape[1] <= MAX_SCREENED_NUMBERS:
            sites = sites[_would_move(groups, screen, openings)[sites]]
        for site in groups.visits(sites):
            rows = groups.rows(site)
            if rows.size:
                has_changed |= _step(groups, rows, openings, empties_groups=empties_groups)
        if not has_changed:
            return consecutive(groups.labels), True
    return consecutive(groups.labels), False


def ascend_among(
    objective: GroupObjective, labels: Labels, others: GroupSums, order: Labels, openings: Openings
) -> Labels:
    """Raise the objective as ``ascend`` does, once over some sites in this order, among what other sites have.

    Labels (L,) are in the numbering of `others`, which is kept.
    """
    groups = MatchedGroups(objective, labels, others)
    for site in order:
        rows = groups.rows(int(site))
        if rows.size:
            _step(groups, rows, openings)
    return groups.labels


def _step(groups: MatchedGroups, rows: Labels, openings: Openings, *, empties_groups: bool = True) -> bool:
    """Match the rows of one site anew and return whether that was better."""
    old_groups = groups.labels[rows]
    staying = old_groups[:0]
    if not empties_groups:
        # Components that are alone in their groups stay there, and nobody of their site may come to them.
        is_alone = groups.members(old_groups) == 1
        staying, rows, old_groups = old_groups[is_alone], rows[~is_alone], old_groups[~is_alone]
        if not rows.size:
            return False
    groups.remove(rows)
    used, gains, opening = groups.gains_of_choices(rows)
    if staying.size:
        gains[:, np.isin(used, staying)] = FORBIDDEN_GAIN
    new_choices, old_choices = openings.assign(gains, opening), choices_of_groups(used, old_groups)
    if not np.array_equal(new_choices, old_choices):
        before = openings.assigned_gain(gains, opening, old_choices)
        if openings.assigned_gain(gains, opening, new_choices) > before + MIN_RELATIVE_GAIN * abs(before):
            groups.insert(rows, used, new_choices)
            return True
    groups.restore(rows, old_groups)
    return False


class _Screen:
    """Gains of all groups by all rows, kept between rounds: those of groups that nobody has left or come to stay.

    `value` and `neighbours` are those of ``MatchedGroups.gains_of_all_rows``.
    """

    def __init__(
        self,
        groups: MatchedGroups,
        value: Callable[[GroupSums], Array],
        neighbours: tuple[Labels, Labels] | None = None,
    ) -> None:
        self._groups, self._value, self._neighbours = groups, value, neighbours
        self._labels: Labels | None = None
        self._gains = np.empty((len(groups.labels), 0))  # (L, slots)

    def gains(self) -> tuple[Labels, Array]:
        """Return the groups with members (G,), and their gains by each row (L, G), its site taken out of them."""
        labels, used = self._groups.labels, self._groups.used
        changed = used
        if self._labels is not None:
            has_moved = labels != self._labels
            changed = np.intersect1d(used, np.concatenate([labels[has_moved], self._labels[has_moved]]))
        n_new = int(used.max(initial=-1)) + 1 - self._gains.shape[1]
        if n_new > 0:
            self._gains = np.concatenate([self._gains, np.empty((len(labels), n_new))], axis=1)
        if changed.size:
            self._gains[:, changed] = self._groups.gains_of_all_rows(self._value, changed, self._neighbours)
        self._labels = labels.copy()
        return used, self._gains[:, used]

    @cached_property
    def openings(self) -> Array:
        """What each row is worth as a group of its own (L,)."""
        return self._groups.objective.opening(np.arange(len(self._groups.labels)))

    def gains_of_choices(self, rows: Labels, used: Labels, gains: Array) -> tuple[Labels, Array, Array]:
        """Return from all gains what ``MatchedGroups.gains_of_choices`` does for rows (k,) of a site taken out."""
        old_groups = self._groups.labels[rows]
        # Groups of the site alone are not there without it.
        is_left = ~np.isin(used, old_groups[self._groups.members(old_groups) == 1])
        return used[is_left], gains[rows][:, is_left], self.openings[rows]


def _would_move(groups: MatchedGroups, screen: _Screen, openings: Openings) -> NDArray[np.bool_]:
    """Return which sites (J,) would move as things stand."""
    used, gains = screen.gains()
    offsets, labels = groups.objective.offsets, groups.labels
    matched = np.flatnonzero(labels >= 0)
    every_opening = screen.openings
    current = np.full(len(labels), np.inf)
    current[matched] = gains[matched, np.searchsorted(used, labels[matched])]
    is_alone = np.zeros(len(labels), dtype=np.bool_)
    is_alone[matched] = groups.members(labels[matched]) == 1
    current[is_alone] = every_opening[is_alone]  # to stay in a group of one's own is to open it
    best = np.maximum(gains.max(axis=1, initial=FORBIDDEN_GAIN), every_opening)
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    # A site whose components are all where they gain most has nothing to choose.
    may_move = np.bincount(owner, weights=best > current, minlength=len(offsets) - 1) > 0
    moves = np.zeros(len(offsets) - 1, dtype=np.bool_)
    for site in np.flatnonzero(may_move).tolist():
        rows = groups.rows(site)
        if rows.size:
            old_groups = labels[rows]
            left, site_gains, opening = screen.gains_of_choices(rows, used, gains)
            old_choices = choices_of_groups(left, old_groups)
            new_choices = openings.assign(site_gains, opening)
            if not np.array_equal(new_choices, old_choices):
                before = openings.assigned_gain(site_gains, opening, old_choices)
                after = openings.assigned_gain(site_gains, opening, new_choices)
                moves[site] = after > before + MIN_RELATIVE_GAIN * abs(before)
    return moves


def choices_of_groups(used: Labels, groups: Labels) -> Labels:
    """Return which choices lead back to some groups (k,): their position among those in use (G,), or a new group."""
    positions = np.searchsorted(used, groups)
    is_used = positions < len(used)
    is_used[is_used] = used[positions[is_used]] == groups[is_used]
    return np.where(is_used, positions, len(used) + np.arange(len(groups)))


def match_log_odds(
    objective: GroupObjective, labels: Labels, value: Callable[[GroupSums], Array] | None = None
) -> Array:
    """Return the log odds of each match (L,), given what all other sites say; `objective` is a log probability.

    For each component its site's best matching without this match is compared with the one it has: the difference in
    the objective. Other sites are taken as they are matched, so a fit that went wrong before any matching is not
    foreseen. Components labelled -1 have none (NaN).

    With `value`, what n groups are worth (n,), the gains of all sites are computed at once, unless they are too many.
    """
    groups = MatchedGroups(objective, labels)
    log_odds = np.full(len(labels), np.nan)
    screen = None
    if value is not None and groups.n_choices * objective.pieces.shape[1] <= MAX_SCREENED_NUMBERS:
        screen = _Screen(groups, value)
        all_used, all_gains = screen.gains()
    for site in range(len(objective.offsets) - 1):
        rows = groups.rows(site)
        if not rows.size:
            continue
        old_groups, row_range = groups.labels[rows], np.arange(len(rows))
        if screen is not None:
            used, gains, opening = screen.gains_of_choices(rows, all_used, all_gains)
        else:
            groups.remove(rows)
            used, gains, opening = groups.gains_of_choices(rows)
            groups.restore(rows, old_groups)
        old_choices = choices_of_groups(used, old_groups)
        # (k, G + k): groups in use, then a new group for each row, which no other row may choose.
        choice_gains = np.concatenate([gains, np.full((len(rows), len(rows)), FORBIDDEN_GAIN)], axis=1)
        choice_gains[row_range, len(used) + row_range] = opening
        old_total = choice_gains[row_range, old_choices].sum()
        # One assignment per row: the site's best matching in which this row is anywhere else.
        for row in row_range:
            without_match = choice_gains.copy()
            # A row can open one new group only, since one is as good as another.
            without_match[row, old_choices[row]] = FORBIDDEN_GAIN
            best_other = without_match[row_range, linear_sum_assignment(without_match, maximize=True)[1]].sum()
            log_odds[rows[row]] = old_total - best_other
    return log_odds


def match_confidence(
    objective: GroupObjective, labels: Labels, value: Callable[[GroupSums], Array] | None = None
) -> Array:
    """Return the confidence of each match (L,), sigma(min(lambda, 30) / 5) with lambda its log odds; NaN for label -1.

    The log odds themselves are far too sure, since local fits go wrong before any matching: at odds of a thousand to
    one, two matches of three were right. Slope and bound are fitted to simulated mixtures (docs/concepts/number.md); on
    real classes they remain optimistic.
    """
    log_odds = np.maximum(match_log_odds(objective, labels, value), -MAX_TRUSTED_LOG_ODDS)
    return np.asarray(1.0 / (1.0 + np.exp(-np.minimum(log_odds, MAX_TRUSTED_LOG_ODDS) / LOG_ODDS_SCALE)))
