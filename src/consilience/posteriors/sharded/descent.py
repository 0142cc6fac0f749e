"""KL-fusion and k-means of very many sites: block coordinate descent in passes over all shards.

The objective is that of equation (9) of Claici et al. 2020 with binary assignments, where the norm of a group with n_g
users is sqrt(n_g):

    minimise over labels and centres   sum_l w_l KL(centre of l's group || l)  +  lambda sum_g sqrt(n_g).

A pass assigns every site exactly given the centres and a price of each. For centres with factors h_g, levels b_g and
prices c_g, the components l of a site of weight w are assigned by

    minimise_labels  sum_l  w (a_l + b_g - <f_l, h_g>) + c_g,   g = label of l,

over labels that differ within a site (a linear assignment problem), or for every component by itself. The pass returns
sums over the members of each group, from which the next centres follow, equation (4); it keeps no labels, so that a
lost shard has nothing to restore. ``assign`` computes the labels once more at the end. The first centres are those that
a sample of sites gave.

Under lambda > 0 all sites move at once, where the paper's blocks are one site at a time: the square root is concave, so
its chord through n_g - 1 and n_g lies above it at all integers. We price a match to group g by the slope of that chord,
what its last user costs, lambda (sqrt(n_g) - sqrt(n_g - 1)) with n_g from the pass before; whatever number of users
then come or go, the objective does not rise. New groups are opened at the worst-matched components, up to a limit.
Passes end at the first relative decrease below the tolerance, or at their limit with the status MAX_ITERATIONS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.details import Status
from consilience.core.progress import Progress
from consilience.families import Direction
from consilience.families.base import Tangent
from consilience.matching.assignment import assign_blocks
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.method import assign_or_leave
from consilience.posteriors.sharded.passes import Divergence, PreparedShard, PreparedShards


@dataclass(frozen=True, eq=False)
class Centres:
    """Centres of groups as the moving side of divergences, and what a match to each costs besides."""

    factors: Array  # h_g (G, P)
    levels: Array  # b_g (G,)
    prices: Array  # c_g, what each match costs besides its divergence (G,)
    natural: Array  # natural parameters (G, P)
    divergence: Divergence | None = None  # in place of that of Kullback and Leibler

    @classmethod
    def from_natural(
        cls, tangent: Tangent, natural: Array, direction: Direction, prices: Array, divergence: Divergence | None = None
    ) -> Centres:
        """Return the centres with natural parameters `natural` (G, P) and `prices` (G,)."""
        factors, levels = tangent.kl_factors(natural, tangent.kl_from_centre, first=direction == "forward")
        return cls(factors, levels, prices, natural, divergence)


@dataclass(frozen=True, eq=False)
class PassSums:
    """Sums of a pass over some sites, additive over shards."""

    groups: GroupSums  # weighted sums of factors of every group, and the weight in it
    users: Array  # components of every group (G,)
    cost: float  # weighted divergences of all components from their centres, without prices
    farthest_costs: Array  # those of the k components farthest from their centre, descending (k,)
    farthest_natural: Array  # their natural parameters (k, P)
    n_farthest: int = 0  # how many were asked for; k is less where there are fewer


def assign_and_sum(shard: PreparedShard, centres: Centres, exclusive: bool, n_farthest: int) -> PassSums:
    """Return the sums of one pass over a shard, and of its components the `n_farthest` from their centres."""
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

    `labels` (n,) are those of its active rows, `natural` (G, P) the fused components. A site without weight has no say
    in the fusion, but is told which of its components is which. Its assignment minimises the divergences from the fused
    components; where it has more than these, the dearest get -1. Methods that match nothing leave its own numbers.
    """
    all_labels = shard.scatter(labels)  # (L,)
    weightless = np.flatnonzero(shard.weights == 0).tolist() if shard.weights is not None else []
    centres = Centres.from_natural(shard.tangent, natural, direction, np.zeros(len(natural)))
    for site in weightless:
        rows = shard.components.rows_of(slice(site, site + 1))
        if not relabels:
            all_labels[rows] = np.arange(rows.stop - rows.start)
            continue
        natural_of_site = np.asarray(shard.components.natural[rows], dtype=np.float64)
        factors, levels = shard.tangent.kl_factors(
            natural_of_site, shard.tangent.kl_from_centre, first=direction == "reverse"
        )
        # Divergences of the components of this site from all fused ones (k, G).
        costs = np.maximum(levels[:, None] + centres.levels - factors @ centres.factors.T, 0.0)
        all_labels[rows] = assign_or_leave(costs)
    return all_labels


MAX_NEW_GROUPS = 8
"""Groups that a pass opens at most. Chosen by hand; nobody has measured other values."""

OBJECTIVE_ROUNDING = 1e-12
"""Relative change of the objective that counts as rounding, some 5,000 units in the last place. Chosen by hand."""

MIN_MASS = 1e-300
"""Least mass that sums are divided by. A bound that is not reached: every active row has a positive weight."""


@dataclass(frozen=True, eq=False)
class ShardDescent:
    """Labels and centres at the end of a descent."""

    labels: list[Labels]  # of the active rows of every shard (n,), consecutive from 0
    history: Array  # the objective after every pass
    status: Status
    n_groups: int  # groups G with members
    centres: Array  # natural parameters of the averages of these groups (G, P)


def descend(
    shards: PreparedShards,
    natural: Array,
    strength: float,
    users: Array,
    *,
    exclusive: bool,
    limit: int,
    max_iterations: int,
    tolerance: float,
    progress: Progress,
) -> ShardDescent:
    """Assign and average in turn, all shards in every pass; return the labels and centres of the last.

    From centres `natural` (G, P), which have about `users` (G,) components each, for their prices in the first pass.
    `strength` is lambda, 0 where the number of components is given; else groups are opened at the worst-matched
    components up to the `limit`. `exclusive` puts components of one site into different groups. The descent has
    converged at a relative decrease of the objective of at most the `tolerance`.
    """
    history: list[float] = []
    status = Status.MAX_ITERATIONS
    centres = _priced_centres(shards, natural, users, strength)
    n_spare = n_unused = 0
    moves_unused = exclusive and strength == 0
    for iteration in range(max_iterations):
        progress(iteration, max_iterations)
        # Without a price, groups that nobody used are moved to the worst-matched components, as in memory.
        n_farthest = min(MAX_NEW_GROUPS, limit - len(natural)) if strength > 0 else n_unused
        sums: PassSums = shards.reduce(assign_and_sum, add_pass_sums, centres, exclusive, max(n_farthest, 0))
        # The objective at the labels of this pass and the centres that they were assigned to.
        objective = sums.cost + strength * float(np.sqrt(sums.users).sum())
        history.append(objective)
        # A pass in which a new group found members goes on, though opening it at a price can cost what it gains.
        is_stationary = iteration and history[-2] - objective <= max(tolerance, OBJECTIVE_ROUNDING) * abs(objective)
        n_unused_before, n_unused = n_unused, int(np.count_nonzero(sums.users == 0)) if moves_unused else 0
        # The farthest components are asked for one pass after a group was seen to be unused.
        is_moving_unused = n_unused > 0 and n_unused != n_unused_before
        if is_stationary and not is_moving_unused and not has_used_spare(sums, n_spare):
            status = Status.CONVERGED
            break
        if iteration + 1 == max_iterations:
            break
        used = np.flatnonzero(sums.groups.mass > 0)
        labels = None if shards.divergence is None else shards.map(assign, centres, exclusive)
        natural = natural.copy()  # centres without mass stay where they are
        natural[used] = _averages(shards, sums, used, labels)
        users_of_group = sums.users  # (G,)
        if moves_unused and len(sums.farthest_natural):
            unused = np.flatnonzero(users_of_group == 0)[: len(sums.farthest_natural)]
            natural[unused] = sums.farthest_natural[: len(unused)]
        if strength > 0:  # groups that nobody uses make room for others
            natural, users_of_group, n_spare = _with_spare_groups(natural, users_of_group, sums, limit)
        centres = _priced_centres(shards, natural, users_of_group, strength)
    return _finish(shards, centres, sums, exclusive, history, status)


def _with_spare_groups(natural: Array, users: Array, sums: PassSums, limit: int) -> tuple[Array, Array, int]:
    """Return centres in use and new ones at the worst-matched components, their users, and how many are new.

    A new group has no users yet, so its first one pays lambda: opening never raises the next objective.
    """
    natural, users = natural[users > 0], users[users > 0]
    n_spare = min(MAX_NEW_GROUPS, limit - len(natural), len(sums.farthest_natural))
    centres = np.concatenate([natural, sums.farthest_natural[:n_spare]])
    return centres, np.concatenate([users, np.zeros(n_spare)]), n_spare


def has_used_spare(sums: PassSums, n_spare: int) -> bool:
    """Return whether any of the last `n_spare` groups, those opened for this pass, has members."""
    return bool(n_spare and np.any(sums.users[-n_spare:] > 0))


def _priced_centres(shards: PreparedShards, natural: Array, users: Array, strength: float) -> Centres:
    """Return centres with natural parameters (G, P), each priced by the cost of its last user."""
    # A group without users is priced as for its first one, lambda.
    last_user_cost = np.where(users > 0, np.sqrt(users) - np.sqrt(np.maximum(users - 1.0, 0.0)), 1.0)
    prices = strength * last_user_cost
    return Centres.from_natural(shards.tangent, natural, shards.direction, prices, shards.divergence)


def _averages(shards: PreparedShards, sums: PassSums, used: Labels, labels: list[Labels] | None) -> Array:
    """Return the averages (U, P) of the groups in use; other divergences than KL ask for the labels of all rows."""
    if labels is None:
        mass = np.maximum(sums.groups.mass[used], MIN_MASS)
        return shards.group_averages(GroupSums(sums.groups.sums[used], mass))
    new_labels = _numbers(used, len(sums.users))
    return shards.averages_of([new_labels[labels_of_shard] for labels_of_shard in labels], len(used))


def _numbers(used: Labels, n_groups: int) -> Labels:
    """Return the number of each group among those in use (G,), -1 for the others."""
    new_labels = np.full(n_groups, -1, dtype=np.int64)
    new_labels[used] = np.arange(len(used))
    return new_labels


def _finish(
    shards: PreparedShards, centres: Centres, sums: PassSums, exclusive: bool, history: list[float], status: Status
) -> ShardDescent:
    """Return the result, with the labels of the last pass, which kept none, numbered without gaps."""
    used = np.flatnonzero(sums.users > 0)
    last_labels: list[Labels] = shards.map(assign, centres, exclusive)
    natural = _averages(shards, sums, used, None if shards.divergence is None else last_labels)
    new_labels = _numbers(used, len(sums.users))
    labels = [new_labels[labels_of_shard] for labels_of_shard in last_labels]
    return ShardDescent(labels, np.array(history), status, len(used), natural)
