"""One pass over a shard: assignment of every component to a centre, and the sums that move the centres.

For centres with factors h_g, levels b_g and prices c_g, the components l of a site of weight w are assigned by

    minimise_labels  sum_l  w (a_l + b_g - <f_l, h_g>) + c_g,   g = label of l,

over labels that differ within a site (a linear assignment problem), or for every component by itself. The pass returns
sums over the members of each group, from which the next centres follow (equation (4) of Claici et al. 2020); it keeps
no labels, so that a lost shard has nothing to restore. ``assign`` computes the labels once more at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction
from consilience.families.base import Tangent
from consilience.matching.assignment import assign_block, assign_blocks
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.sharded.passes import Divergence, PreparedShard


@dataclass(frozen=True, eq=False)
class Centres:
    """Centres of groups as the moving side of divergences, and what a match to each costs besides.

    Parameters
    ----------
    factors : Array of shape (G, P)
        h_g.
    levels : Array of shape (G,)
        b_g.
    prices : Array of shape (G,)
        c_g, what each match costs besides its divergence.
    natural : Array of shape (G, P)
        Natural parameters of the centres.
    divergence : Divergence, optional
        What replaces the Kullback-Leibler divergence, and then factors and levels.
    """

    factors: Array
    levels: Array
    prices: Array
    natural: Array
    divergence: Divergence | None = None

    @classmethod
    def from_natural(
        cls,
        tangent: Tangent,
        natural: Array,
        direction: Direction,
        prices: Array,
        divergence: Divergence | None = None,
    ) -> Centres:
        """Return the centres with natural parameters `natural` (G, P) and `prices` (G,)."""
        factors, levels = tangent.kl_factors(natural, tangent.kl_from_centre, first=direction == "forward")
        return cls(factors, levels, prices, natural, divergence)


@dataclass(frozen=True, eq=False)
class PassSums:
    """Sums of a pass over some sites, additive over shards.

    Parameters
    ----------
    groups : GroupSums
        Weighted sums of factors of every group, and the weight in it.
    users : Array of shape (G,)
        Number of components of every group.
    cost : float
        Weighted divergences of all components from the centres of their groups, without prices.
    farthest_costs : Array of shape (k,)
        Weighted divergences of the k components that are farthest from their centre, descending.
    farthest_natural : Array of shape (k, P)
        Their natural parameters.
    n_farthest : int
        How many of these were asked for; k is less where there are fewer components.
    """

    groups: GroupSums
    users: Array
    cost: float
    farthest_costs: Array
    farthest_natural: Array
    n_farthest: int = 0


def assign_and_sum(shard: PreparedShard, centres: Centres, exclusive: bool, n_farthest: int) -> PassSums:
    """Return the sums of one pass over a shard.

    Parameters
    ----------
    shard : PreparedShard
        The components.
    centres : Centres
        The G centres to which they are assigned.
    exclusive : bool
        Whether components of one site go to different centres.
    n_farthest : int
        Number of farthest components to return.
    """
    n_groups, width = centres.factors.shape
    sums, mass, users, cost = np.zeros((n_groups, width)), np.zeros(n_groups), np.zeros(n_groups), 0.0
    farthest_costs, farthest_natural = np.zeros(0), np.zeros((0, width))  # (k,) and (k, P)
    for rows, factors, labels, divergences in _assignments(shard, centres, exclusive):
        weights = shard.row_weights(rows)
        added = group_sums(factors, labels, weights, n_groups)
        sums += added.sums  # (G, P)
        mass += added.mass
        users += np.bincount(labels, minlength=n_groups)  # (G,): components, without weights
        cost += float(divergences.sum())
        if n_farthest:
            farthest = np.argsort(-divergences, kind="stable")[:n_farthest]
            natural = np.asarray(shard.natural(rows), dtype=np.float64)[farthest]
            farthest_costs, farthest_natural = _farthest(
                [farthest_costs, divergences[farthest]], [farthest_natural, natural], n_farthest
            )
    return PassSums(GroupSums(sums, mass), users, cost, farthest_costs, farthest_natural, n_farthest)


def assign(shard: PreparedShard, centres: Centres, exclusive: bool) -> Labels:
    """Return the labels (n,) of the active rows, as ``assign_and_sum`` assigns them."""
    labels = [labels for _, _, labels, _ in _assignments(shard, centres, exclusive)]
    return np.concatenate(labels) if labels else np.zeros(0, dtype=np.int64)


def site_costs(shard: PreparedShard, centres: Centres) -> Array:
    """Return the weighted divergences of each site's components from their centres, summed (J,)."""
    costs = np.zeros(len(shard.offsets) - 1)
    for rows, _, _, divergences in _assignments(shard, centres, exclusive=True):
        costs += np.bincount(shard.owner[rows], weights=divergences, minlength=len(costs))
    return costs


def _assignments(
    shard: PreparedShard, centres: Centres, exclusive: bool
) -> Iterator[tuple[slice, Array, Labels, Array]]:
    """Yield for each chunk its rows, factors (n, P), labels (n,) and weighted divergences without prices (n,)."""
    has_prices = bool(np.any(centres.prices))
    for rows, offsets in shard.chunks():
        factors = shard.factor(rows)  # (n, P)
        costs = _weighted_costs(shard, centres, rows, factors)
        if has_prices:
            costs += centres.prices  # a price is for a user of a group, whatever the weight of its site
        labels = assign_blocks(costs, offsets) if exclusive else costs.argmin(axis=1)
        divergences = costs[np.arange(len(labels)), labels]
        yield rows, factors, labels, divergences - centres.prices[labels] if has_prices else divergences


def _weighted_costs(shard: PreparedShard, centres: Centres, rows: slice, factors: Array) -> Array:
    """Return the weighted divergences of some rows with these factors from all centres (n, G)."""
    if centres.divergence is not None:
        natural = np.asarray(shard.natural(rows), dtype=np.float64)
        costs: Array = centres.divergence.geometry(shard.tangent.family, natural).costs(centres.natural).T.copy()
    else:
        costs = factors @ -centres.factors.T  # (n, G), in place from here on: this product is most of a pass
        costs += shard.levels[rows, None]
        costs += centres.levels
        # A divergence is not negative, but cancellation between its three terms may leave it slightly below zero.
        np.maximum(costs, 0.0, out=costs)
    if shard.weights is not None:
        costs *= shard.row_weights(rows)[:, None]
    return costs


def add_pass_sums(parts: Sequence[PassSums]) -> PassSums:
    """Return the sums of passes over several shards."""
    first, *others = parts
    if not others:
        return first
    farthest_costs, farthest_natural = _farthest(
        [part.farthest_costs for part in parts], [part.farthest_natural for part in parts], first.n_farthest
    )
    groups, users, cost = first.groups, first.users, first.cost
    for part in others:
        groups, users, cost = groups + part.groups, users + part.users, cost + part.cost
    return PassSums(groups, users, cost, farthest_costs, farthest_natural, first.n_farthest)


def _farthest(values: Sequence[Array], rows: Sequence[Array], count: int) -> tuple[Array, Array]:
    """Return the `count` largest costs of several arrays, descending, and their rows of parameters."""
    all_costs = np.concatenate(values)
    order = np.argsort(-all_costs, kind="stable")[:count]
    return all_costs[order], np.concatenate(rows)[order]


def label_all_rows(
    shard: PreparedShard, labels: Labels, natural: Array, direction: Direction, relabels: bool
) -> Labels:
    """Return the labels of all rows of a shard (L,), with sites without weight matched to the fused components.

    Such a site has no say in the fusion, but is told which of its components is which. Its assignment minimises the
    divergences from the fused components; where it has more components than these, the dearest get -1.

    Parameters
    ----------
    shard : PreparedShard
        The shard.
    labels : Labels of shape (n,)
        Labels of its active rows.
    natural : Array of shape (G, P)
        The fused components.
    direction : str
        Direction of the divergence, as in ``prepare``.
    relabels : bool
        Whether the method matches components; if not, those of a site without weight keep their own numbers.
    """
    all_labels = shard.scatter(labels)  # (L,)
    weightless = np.flatnonzero(shard.weights == 0).tolist() if shard.weights is not None else []
    centres = Centres.from_natural(shard.tangent, natural, direction, np.zeros(len(natural)))
    for site in weightless:
        rows = slice(int(shard.components.offsets[site]), int(shard.components.offsets[site + 1]))
        count = rows.stop - rows.start
        if not relabels:
            all_labels[rows] = np.arange(count)
            continue
        natural_of_site = np.asarray(shard.components.natural[rows], dtype=np.float64)
        factors, levels = shard.tangent.kl_factors(
            natural_of_site, shard.tangent.kl_from_centre, first=direction == "reverse"
        )
        # Divergences of the components of this site from all fused ones (count, G).
        costs = np.maximum(levels[:, None] + centres.levels - factors @ centres.factors.T, 0.0)
        # A site may have more components than there are fused ones. Columns dearer than any two matches together take
        # the rest, which stay unmatched.
        unmatched = np.full((count, max(0, count - len(natural))), 2.0 * float(costs.max()) + 1.0)
        columns = assign_block(np.concatenate([costs, unmatched], axis=1))
        all_labels[rows] = np.where(columns < len(natural), columns, -1)
    return all_labels
