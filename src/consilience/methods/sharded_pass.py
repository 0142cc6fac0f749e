"""One pass over a shard: every component goes to a centre, and what moves the centres is added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction
from consilience.families.base import Tangent
from consilience.matching.assignment import assign_blocks
from consilience.matching.groups import GroupSums, group_sums
from consilience.methods.sharded import Shard


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
        return cls(*tangent.side(natural, tangent.above, first=direction == "forward"), price)


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
    """

    groups: GroupSums
    users: Array
    cost: float
    worst: Array
    far: Array


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
        users += np.bincount(labels[weights > 0], minlength=n_groups)
        cost += float(matched.sum())
        if far:
            last = np.argsort(-matched, kind="stable")[:far]
            natural = np.asarray(shard.natural(rows), dtype=np.float64)[last]
            worst, rows_of = _farthest([worst, matched[last]], [rows_of, natural], far)
    return Pass(GroupSums(sums, mass), users, cost, worst, rows_of)


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
    """Return for each chunk its rows, their factors (n, P), labels (n,) and weighted divergences without price (n,).

    Sites without weight go where they would with weight 1, and cost nothing.
    """
    priced = bool(np.any(centres.price))
    for rows, offsets in shard.chunks():
        factor = shard.factor(rows)
        costs: Array = factor @ -centres.factor.T
        costs += shard.fixed[rows, None]
        costs += centres.level
        np.maximum(costs, 0.0, out=costs)
        weights = None if shard.weights is None else shard.row_weights(rows)
        if weights is not None:
            costs *= np.where(weights > 0, weights, 1.0)[:, None]
        if priced:
            costs += centres.price
        labels = assign_blocks(costs, offsets) if exclusive else costs.argmin(axis=1)
        matched = costs[np.arange(len(labels)), labels]
        matched = matched - centres.price[labels] if priced else matched
        yield rows, factor, labels, matched if weights is None else np.where(weights > 0, matched, 0.0)


def add_passes(parts: Sequence[Pass]) -> Pass:
    """Return what passes over several shards add up to."""
    first, *others = parts
    if not others:
        return first
    worst, far = _farthest([one.worst for one in parts], [one.far for one in parts], max(len(p.worst) for p in parts))
    groups, users, cost = first.groups, first.users, first.cost
    for one in others:
        groups, users, cost = groups + one.groups, users + one.users, cost + one.cost
    return Pass(groups, users, cost, worst, far)


def _farthest(values: Sequence[Array], rows: Sequence[Array], count: int) -> tuple[Array, Array]:
    together = np.concatenate(values)
    order = np.argsort(-together, kind="stable")[:count]
    return together[order], np.concatenate(rows)[order]
