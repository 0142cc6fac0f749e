"""One wave of SPAHM over a shard: its sites are matched one by one, among the groups of the other shards.

The log posterior of a matching with the atoms integrated out is a sum over groups of a value of their number and sum of
points (equations (6) and (7) of Yurochkin et al. 2019, with the Gaussian case of section 4.1). With all other sites
fixed it is linear in the matching of one site (their Proposition 1), so each site's step is one assignment with gains

    value(n_g + 1, t_g + v_l) - value(n_g, t_g)       of joining group g with n_g members of sum t_g,

and the value of a group of one for opening a group. Only sites that would gain by moving are visited.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import NO_NEW_GROUPS, Openings, assign_blocks
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_by_site import ascend_among
from consilience.posteriors.sharded.passes import PreparedShard

SMALL_GROUP = 5
"""Members of a group up to which sites with a component in it are always visited.

``_improvable_sites`` leaves a site's own components in the groups that it compares, which matters most in small groups.
Chosen by hand; nobody has measured other values.
"""

CHUNK_ROWS = 4096
"""Rows whose gains for all groups are computed at a time, about. A bound on memory, chosen by hand."""


@dataclass(frozen=True, eq=False)
class PointShard:
    """The points of the active rows of a shard.

    Parameters
    ----------
    points : Array of shape (n, D)
        The points less a centre that is common to all shards.
    offsets : Labels of shape (J + 1,)
        First row of each site among them, and n.
    """

    points: Array
    offsets: Labels


def points_of(shard: PreparedShard, centre: Array) -> PointShard:
    """Return the points of a shard less `centre` (D,)."""
    points = np.empty((len(shard.owner), len(centre)))
    for rows, _ in shard.chunks():
        natural = np.asarray(shard.natural(rows), dtype=np.float64)
        points[rows] = shard.tangent.family.points(natural) - centre
    return PointShard(points, shard.offsets)


@dataclass(frozen=True, eq=False)
class WaveState:
    """What is common to all shards in a wave: the law, and the groups as the wave found them.

    Parameters
    ----------
    law : Normal
        Law of atoms and of their copies at sites.
    sharing : Sharing
        The Beta-Bernoulli process, which says how many sites share an atom.
    marginal : bool
        Whether atoms are integrated out, as in ``GaussianAtoms``.
    groups : GroupSums
        Sums and numbers of points of the groups of all shards.
    openings : Openings
        Under what conditions the shards that may do so open groups.
    seed : int
        Seed of the orders in which sites move.
    """

    law: AtomLaw
    sharing: BetaBernoulliPrior
    marginal: bool
    groups: GroupSums
    openings: Openings
    seed: int

    def objective(self, shard: PointShard) -> GaussianAtoms:
        """Return the objective of the points of one shard."""
        return GaussianAtoms(shard.points, shard.offsets, self.law, self.sharing, self.marginal)


@dataclass(frozen=True, eq=False)
class ShardMove:
    """A shard after a wave.

    Parameters
    ----------
    labels : Labels of shape (n,)
        Labels of its rows.
    groups : GroupSums
        Sums and numbers of its own points in every group.
    opening_gain : float
        By how much the objective would rise, about, if one of its components opened a group; 0 where none would.
    """

    labels: Labels
    groups: GroupSums
    opening_gain: float = 0.0


ShardTurn = tuple[int, Labels, bool, bool]
"""Of one shard: its number, its labels (n,), whether its sites move, and whether they may open groups."""


def first_labels(shard: PointShard, state: WaveState) -> ShardMove:
    """Return a shard with every site matched to the given groups, regardless of all other sites."""
    objective = state.objective(shard)
    labels = np.empty(len(shard.points), dtype=np.int64)  # (n,)
    for first, rows in _chunks(shard.offsets):
        gains = objective.gains(rows, state.groups)
        labels[rows] = assign_blocks(-gains, shard.offsets[first] - rows[0])
    return ShardMove(labels, _sums(shard.points, labels, len(state.groups.mass)))


def move_sites(shard: PointShard, turn: ShardTurn, state: WaveState) -> ShardMove:
    """Return a shard after its sites were matched anew among the groups of the other shards.

    Parameters
    ----------
    shard : PointShard
        The shard.
    turn : ShardTurn
        Its number, its labels, whether its sites move, and whether they may open groups.
    state : WaveState
        What is common to all shards.
    """
    shard_number, labels, is_moving, may_open = turn
    n_groups = len(state.groups.mass)
    current = _sums(shard.points, labels, n_groups)
    if not is_moving or not len(labels):
        return ShardMove(labels, current)
    objective = state.objective(shard)
    # What components of other shards add to the groups, (G, D) and (G,).
    others = GroupSums(state.groups.sums - current.sums, state.groups.mass - current.mass)
    others.sums[others.mass == 0] = 0.0  # exactly empty, where differences leave rounding
    sites, opening_gain = _improvable_sites(objective, labels, state.groups, may_open)
    # A generator of its own for each wave and shard, so that the order does not depend on the engine.
    order = np.random.default_rng([state.seed, shard_number]).permutation(sites)
    moved = ascend_among(objective, labels, others, order, state.openings if may_open else NO_NEW_GROUPS)
    return ShardMove(moved, _sums(shard.points, moved, max(n_groups, int(moved.max(initial=-1)) + 1)), opening_gain)


def _improvable_sites(
    objective: GaussianAtoms, labels: Labels, groups: GroupSums, may_open: bool
) -> tuple[Labels, float]:
    """Return the sites whose best matching to the groups is not their own, and the largest gain of opening one.

    Groups count with the site's own components in them, so sites with components in small groups are returned too. A
    group that every site has takes in one more as if one site less had it, since the prior has no larger group.
    """
    offsets = objective.offsets
    improvable, opening_gain = [], 0.0
    used = np.flatnonzero(groups.mass)  # numbers of the G groups with members
    nonempty = GroupSums(groups.sums[used], groups.mass[used])
    joinable = GroupSums(nonempty.sums, np.minimum(nonempty.mass, objective.sharing.n_sites - 1.0))
    nonempty_labels = np.searchsorted(used, labels)  # (n,)
    values = objective.value(nonempty)
    for chunk, rows in _chunks(offsets):
        gains = objective.gains(rows, joinable)  # (k, G): of joining each group
        current, row_numbers = nonempty_labels[rows], np.arange(len(rows))
        remaining_mass = nonempty.mass[current] - 1.0
        # Staying gains what leaving would lose: the value of the group less that without the component. Alone in its
        # group, it gains what opening the group again would.
        remaining = GroupSums(nonempty.sums[current] - objective.pieces[rows], remaining_mass)
        stay_gains = np.where(remaining_mass > 0, values[current] - objective.value(remaining), objective.opening(rows))
        gains[row_numbers, current] = stay_gains
        best = assign_blocks(-gains, offsets[chunk] - rows[0])
        # Moves within the site and in small groups are judged exactly when the site is visited.
        is_improvable = (best != current) | (remaining_mass < SMALL_GROUP)
        opening_gains = objective.opening(rows) - stay_gains
        opening_gain = max(opening_gain, float(opening_gains[remaining_mass > 0].max(initial=0.0)))
        if may_open:
            is_improvable |= opening_gains > 0
        owner = np.repeat(chunk[:-1], np.diff(offsets[chunk]))
        improvable.append(np.unique(owner[is_improvable]))
    return np.concatenate(improvable) if improvable else np.zeros(0, dtype=np.int64), opening_gain


def _chunks(offsets: Labels) -> list[tuple[Labels, Labels]]:
    """Return runs of whole sites of about ``CHUNK_ROWS`` rows.

    Each is two arrays: the numbers of its sites and of the one after the last, and the numbers of its rows.
    """
    edges = np.searchsorted(offsets, np.arange(0, int(offsets[-1]) + CHUNK_ROWS, CHUNK_ROWS))
    # Sites at which runs begin; the last edge is the number of sites.
    edges = np.unique(np.append(np.minimum(edges, len(offsets) - 1), len(offsets) - 1))
    runs = [np.arange(first, end + 1) for first, end in pairwise(edges)]
    return [(run, np.arange(offsets[run[0]], offsets[run[-1]])) for run in runs if offsets[run[-1]] > offsets[run[0]]]


def _sums(points: Array, labels: Labels, n_groups: int) -> GroupSums:
    """Return sums and numbers of the points of each group, (G, D) and (G,)."""
    return group_sums(points, labels, np.ones(len(labels)), n_groups)


def sum_of_squares(shard: PointShard) -> Array:
    """Return the sum of the squared points of a shard (D,)."""
    squares: Array = np.einsum("nd,nd->d", shard.points, shard.points)
    return squares
