"""One pass over a shard: every component goes to a centre, and what moves the centres is added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction
from consilience.families.base import Tangent
from consilience.matching.assignment import assign_block, assign_blocks
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.sharded.passes import Shard


@dataclass(frozen=True, eq=False)
class Centres:
    """The moving side of a pass.

    Parameters
    ----------
    factor
        h_g (G, P).
    level
        b_g (G,).
    price
        What each match costs besides (G,).
    """

    factor: Array
    level: Array
    price: Array

    @classmethod
    def of(cls, tangent: Tangent, natural: Array, direction: Direction, price: Array) -> Centres:
        """Return centres given by natural parameters (G, P)."""
        return cls(*tangent.kl_factors(natural, tangent.kl_from_centre, first=direction == "forward"), price)


@dataclass(frozen=True, eq=False)
class Pass:
    """What a pass over some sites adds up to.

    Parameters
    ----------
    groups
        Weighted sums of factors of every group, and the weight in it.
    users
        Number of components of every group (G,).
    cost
        Weighted divergences of all components from the centres of their groups, without prices.
    worst
        The components that are farthest from their centre: weighted divergence (k,), descending.
    far
        Their natural parameters (k, P).
    room
        Number of these that were asked for.
    """

    groups: GroupSums
    users: Array
    cost: float
    worst: Array
    far: Array
    room: int = 0


def assign_and_sum(shard: Shard, centres: Centres, exclusive: bool, far: int) -> Pass:
    """Return one pass over a shard.

    Parameters
    ----------
    shard
        The components.
    centres
        What they are assigned to.
    exclusive
        Whether those of one site go to different centres.
    far
        Number of farthest components to return.
    """
    n_groups, width = centres.factor.shape
    sums, mass, users, cost = np.zeros((n_groups, width)), np.zeros(n_groups), np.zeros(n_groups), 0.0
    worst, rows_of = np.zeros(0), np.zeros((0, width))
    for rows, factor, labels, matched in _assigned(shard, centres, exclusive):
        weights = shard.row_weights(rows)
        added = group_sums(factor, labels, weights, n_groups)
        sums += added.sums
        mass += added.mass
        users += np.bincount(labels, minlength=n_groups)
        cost += float(matched.sum())
        if far:
            last = np.argsort(-matched, kind="stable")[:far]
            natural = np.asarray(shard.natural(rows), dtype=np.float64)[last]
            worst, rows_of = _farthest([worst, matched[last]], [rows_of, natural], far)
    return Pass(GroupSums(sums, mass), users, cost, worst, rows_of, far)


def assign(shard: Shard, centres: Centres, exclusive: bool) -> Labels:
    """Return the labels (n,) of the rows that take part, as ``assign_and_sum`` assigns them."""
    labels = [labels for _, _, labels, _ in _assigned(shard, centres, exclusive)]
    return np.concatenate(labels) if labels else np.zeros(0, dtype=np.int64)


def site_costs(shard: Shard, centres: Centres) -> Array:
    """Return the weighted divergences of each site's components from their centres, summed (J,)."""
    costs = np.zeros(len(shard.offsets) - 1)
    for rows, _, _, matched in _assigned(shard, centres, exclusive=True):
        costs += np.bincount(shard.owner[rows], weights=matched, minlength=len(costs))
    return costs


def _assigned(shard: Shard, centres: Centres, exclusive: bool) -> Iterator[tuple[slice, Array, Labels, Array]]:
    """Return for each chunk its rows, their factors (n, P), labels (n,) and weighted divergences without price (n,)."""
    priced = bool(np.any(centres.price))
    for rows, offsets in shard.chunks():
        factor = shard.factor(rows)
        costs: Array = factor @ -centres.factor.T
        costs += shard.fixed[rows, None]
        costs += centres.level
        np.maximum(costs, 0.0, out=costs)
        if shard.weights is not None:
            costs *= shard.row_weights(rows)[:, None]
        if priced:
            costs += centres.price
        labels = assign_blocks(costs, offsets) if exclusive else costs.argmin(axis=1)
        matched = costs[np.arange(len(labels)), labels]
        yield rows, factor, labels, matched - centres.price[labels] if priced else matched


def add_passes(parts: Sequence[Pass]) -> Pass:
    """Return what passes over several shards add up to."""
    first, *others = parts
    if not others:
        return first
    worst, far = _farthest([one.worst for one in parts], [one.far for one in parts], first.room)
    groups, users, cost = first.groups, first.users, first.cost
    for one in others:
        groups, users, cost = groups + one.groups, users + one.users, cost + one.cost
    return Pass(groups, users, cost, worst, far, first.room)


def _farthest(values: Sequence[Array], rows: Sequence[Array], count: int) -> tuple[Array, Array]:
    together = np.concatenate(values)
    order = np.argsort(-together, kind="stable")[:count]
    return together[order], np.concatenate(rows)[order]


def tell(shard: Shard, labels: Labels, natural: Array, direction: Direction, relabels: bool) -> Labels:
    """Return the labels of all rows of the block, those of sites without weight by what is nearest to them.

    Parameters
    ----------
    shard, labels
        The shard, and labels of the rows that take part (n,).
    natural
        The fused components (G, P).
    direction
        Of the divergence that says which is nearest.
    relabels
        Whether the numbering of local components is without meaning; if not, theirs is kept.
    """
    everywhere = shard.placed(labels)
    silent = np.flatnonzero(shard.weights == 0).tolist() if shard.weights is not None else []
    centres = Centres.of(shard.tangent, natural, direction, np.zeros(len(natural)))
    for site in silent:
        rows = slice(int(shard.block.offsets[site]), int(shard.block.offsets[site + 1]))
        count = rows.stop - rows.start
        if not relabels:
            everywhere[rows] = np.arange(count)
            continue
        own = np.asarray(shard.block.natural[rows], dtype=np.float64)
        factor, fixed = shard.tangent.kl_factors(own, shard.tangent.kl_from_centre, first=direction == "reverse")
        costs = np.maximum(fixed[:, None] + centres.level - factor @ centres.factor.T, 0.0)
        spare = np.full((count, max(0, count - len(natural))), 2.0 * float(costs.max()) + 1.0)
        chosen = assign_block(np.concatenate([costs, spare], axis=1))
        everywhere[rows] = np.where(chosen < len(natural), chosen, -1)
    return everywhere
