"""KL-fusion and k-means of very many sites: block coordinate descent in passes over all shards.

The objective is that of equation (9) of Claici et al. 2020 with binary assignments, where the norm of a group with n_g
users is sqrt(n_g):

    minimise over labels and centres   sum_l w_l KL(centre of l's group || l)  +  lambda sum_g sqrt(n_g).

A pass assigns every site exactly given the centres and a price of each, and adds up the next centres, equation (4). It
starts from the centres that a sample of sites gave.

Under lambda > 0 all sites move at once, where the paper's blocks are one site at a time: the square root is concave, so
its chord through n_g - 1 and n_g lies above it at all integers. We price a match to group g by the slope of that chord,
what its last user costs, lambda (sqrt(n_g) - sqrt(n_g - 1)) with n_g from the pass before; whatever number of users
then come or go, the objective does not rise. New groups are opened at the worst-matched components, up to a limit.
Passes end at the first relative decrease below the tolerance, or at their limit with the status MAX_ITERATIONS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.matching.groups import GroupSums
from consilience.posteriors.sharded.passes import PreparedShards
from consilience.posteriors.sharded.shard_pass import Centres, PassSums, add_pass_sums, assign, assign_and_sum

MAX_NEW_GROUPS = 8
"""Groups that a pass opens at most. Chosen by hand; nobody has measured other values."""

OBJECTIVE_ROUNDING = 1e-12
"""Relative change of the objective that counts as rounding, some 5,000 units in the last place. Chosen by hand."""

MIN_MASS = 1e-300
"""Least mass that sums are divided by. A bound that is not reached: every active row has a positive weight."""


@dataclass(frozen=True, eq=False)
class ShardDescent:
    """Labels and centres at the end of a descent.

    Parameters
    ----------
    labels : list of Labels of shape (n,)
        Labels of the active rows of every shard, consecutive from 0.
    history : Array of shape (passes,)
        The objective after every pass.
    status : Status
        How the descent ended.
    n_groups : int
        Number G of groups with members.
    centres : Array of shape (G, P)
        Natural parameters of the averages of these groups.
    """

    labels: list[Labels]
    history: Array
    status: Status
    n_groups: int
    centres: Array


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
    """Assign and average in turn, all shards in every pass.

    Parameters
    ----------
    shards : PreparedShards
        The shards.
    natural : Array of shape (G, P)
        First centres.
    strength : float
        lambda; 0 where the number of components is given.
    users : Array of shape (G,)
        About how many components each first centre will have, for its price in the first pass.
    exclusive : bool
        Whether components of one site go to different groups.
    limit : int
        Number of groups at most; where lambda > 0, groups are opened at the worst-matched components up to it.
    max_iterations : int
        Passes at most.
    tolerance : float
        Relative decrease of the objective at or below which the descent has converged.
    progress : callable
        Called with (passes done, passes at most).

    Returns
    -------
    ShardDescent
        The labels and centres of the last pass.
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
