"""One wave of SPAHM over a shard: its sites are matched one by one, among what other shards have."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import assign_blocks
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_by_site import ascend_among
from consilience.matching.site_step import NO_NEW_GROUPS, Openings
from consilience.posteriors.sharded.passes import Shard

_FEW = 5  # sites with a component in a group of no more members are always visited: there own members count
_CHUNK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class PointShard:
    """The points of the rows of a shard that take part.

    Parameters
    ----------
    points
        Less a common centre (n, D).
    offsets
        Where each site starts among them, and the end (J + 1,).
    """

    points: Array
    offsets: Labels


def points_of(shard: Shard, centre: Array) -> PointShard:
    """Return the points of a shard."""
    points = np.empty((len(shard.owner), len(centre)))
    for rows, _ in shard.chunks():
        natural = np.asarray(shard.natural(rows), dtype=np.float64)
        points[rows] = shard.tangent.family.points(natural) - centre
    return PointShard(points, shard.offsets)


@dataclass(frozen=True, eq=False)
class Told:
    """What every shard is told before a wave.

    Parameters
    ----------
    law, sharing, marginal
        As in ``GaussianAtoms``.
    groups
        Of all shards.
    openings
        For the shard whose turn it is.
    seed
        Of the orders of sites.
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
class Moved:
    """A shard after a wave.

    Parameters
    ----------
    labels
        Of its rows.
    groups
        Its own share of the groups.
    wish
        By how much the objective would rise, about, if one of its components opened a group; 0 where none would.
    """

    labels: Labels
    groups: GroupSums
    wish: float = 0.0


Turn = tuple[int, Labels, bool, bool]
"""Of one shard: its number, its labels, whether it moves, and whether it may open groups."""


def first_labels(shard: PointShard, told: Told) -> Moved:
    """Return every site matched to groups that are there, regardless of all others."""
    objective = told.objective(shard)
    labels = np.empty(len(shard.points), dtype=np.int64)
    for first, rows in _chunks(shard.offsets):
        gains = objective.gains(rows, told.groups)
        labels[rows] = assign_blocks(-gains, shard.offsets[first] - rows[0])
    return Moved(labels, _sums(shard.points, labels, len(told.groups.mass)))


def move(shard: PointShard, turn: Turn, told: Told) -> Moved:
    """Return a shard after its sites were matched anew among what other shards have."""
    number, labels, moves, opens = turn
    n_groups = len(told.groups.mass)
    own = _sums(shard.points, labels, n_groups)
    if not moves:
        return Moved(labels, own)
    objective = told.objective(shard)
    others = GroupSums(told.groups.sums - own.sums, told.groups.mass - own.mass)
    others.sums[others.mass == 0] = 0.0
    sites, wish = _gaining(objective, labels, told.groups, opens)
    order = np.random.default_rng([told.seed, number]).permutation(sites)
    moved = ascend_among(objective, labels, others, order, told.openings if opens else NO_NEW_GROUPS)
    return Moved(moved, _sums(shard.points, moved, max(n_groups, int(moved.max(initial=-1)) + 1)), wish)


def _gaining(objective: GaussianAtoms, labels: Labels, groups: GroupSums, opens: bool) -> tuple[Labels, float]:
    """Return the sites whose best matching to the groups is another than theirs, and what opening would gain.

    Groups count with the site's own components in them, so sites with components in small groups are returned too. A
    group that every site has, takes in one more as if one site less had it.
    """
    offsets = objective.offsets
    found, wish = [], 0.0
    used = np.flatnonzero(groups.mass)
    there = GroupSums(groups.sums[used], groups.mass[used])
    open_to = GroupSums(there.sums, np.minimum(there.mass, objective.sharing.n_sites - 1.0))
    place = np.searchsorted(used, labels)
    values = objective.value(there)
    for chunk, rows in _chunks(offsets):
        gains = objective.gains(rows, open_to)
        own, here = place[rows], np.arange(len(rows))
        left = there.mass[own] - 1.0
        without = GroupSums(there.sums[own] - objective.pieces[rows], left)
        stays = np.where(left > 0, values[own] - objective.value(without), objective.opening(rows))
        gains[here, own] = stays
        best = assign_blocks(-gains, offsets[chunk] - rows[0])
        restless = (best != own) | (left < _FEW)
        gained = objective.opening(rows) - stays
        wish = max(wish, float(gained[left > 0].max(initial=0.0)))
        if opens:
            restless |= gained > 0
        owner = np.repeat(chunk[:-1], np.diff(offsets[chunk]))
        found.append(np.unique(owner[restless]))
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64), wish


def _chunks(offsets: Labels) -> list[tuple[Labels, Labels]]:
    """Return runs of sites: the numbers of their first and of the one after the last, all between; and their rows."""
    edges = np.searchsorted(offsets, np.arange(0, int(offsets[-1]) + _CHUNK_ROWS, _CHUNK_ROWS))
    edges = np.unique(np.append(np.minimum(edges, len(offsets) - 1), len(offsets) - 1))
    runs = [np.arange(first, end + 1) for first, end in pairwise(edges)]
    return [(run, np.arange(offsets[run[0]], offsets[run[-1]])) for run in runs if offsets[run[-1]] > offsets[run[0]]]


def _sums(points: Array, labels: Labels, n_groups: int) -> GroupSums:
    return group_sums(points, labels, np.ones(len(labels)), n_groups)


def sum_of_squares(shard: PointShard) -> Array:
    """Return the sum of the squared points of a shard (D,)."""
    squares: Array = np.einsum("nd,nd->d", shard.points, shard.points)
    return squares
