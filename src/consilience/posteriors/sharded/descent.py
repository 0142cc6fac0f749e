"""KL-fusion and k-means of very many sites: passes over all shards from the centres that a sample of sites gave.

A pass matches every site exactly, given the centres and the price of each, and adds up what the next centres are. Under
a price lambda sqrt(n_g) all sites move at once: the square root is concave, so that what the last user of a group
costs bounds what any number of them does, and no pass raises the objective (equation 9 of Claici et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.posteriors.sharded.passes import Work
from consilience.posteriors.sharded.shard_pass import Centres, Pass, add_passes, assign, assign_and_sum

_FAR = 8
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Descent:
    """Where passes ended.

    Parameters
    ----------
    labels
        Of the rows of every shard that take part, consecutive from 0.
    objective
        At the labels and the centres that they were found with.
    history
        After every pass.
    status
        How it ended.
    n_groups
        Number of groups G with members.
    centres
        Natural parameters (G, P) of these groups' averages.
    """

    labels: list[Labels]
    history: Array
    status: Status
    n_groups: int
    centres: Array


def descend(
    work: Work,
    natural: Array,
    strength: float,
    users: Array,
    *,
    exclusive: bool,
    limit: int,
    max_iterations: int,
    tolerance: float,
    progress: Progress,
) -> Descent:
    """Assign and average in turn, all shards in every pass.

    Parameters
    ----------
    work
        The shards.
    natural
        First centres (G, P).
    strength
        lambda; 0 for a number of components that is given.
    users
        About how many components each first centre will have (G,), for the price in the first pass.
    exclusive
        Whether components of one site go to different groups.
    limit
        Number of groups at most; where components have a price, groups are opened on the worst-matched ones up to it.
    max_iterations
        Passes at most.
    tolerance
        Relative decrease of the objective below which it has converged.
    progress
        Told (passes done, passes at most).
    """
    history: list[float] = []
    status = Status.MAX_ITERATIONS
    centres = _centres(work, natural, users, strength)
    spare = 0
    for number in range(max_iterations):
        progress(number, max_iterations)
        room = min(_FAR, limit - len(natural)) if strength > 0 else 0
        found: Pass = work.reduce(assign_and_sum, add_passes, centres, exclusive, max(room, 0))
        value = found.cost + strength * float(np.sqrt(found.users).sum())
        history.append(value)
        if number and history[-2] - value <= max(tolerance, _ROUNDING) * abs(value) and not spare_used(found, spare):
            status = Status.CONVERGED
            break
        if number + 1 == max_iterations:
            break
        used = found.groups.mass > 0
        natural = natural.copy()
        natural[used] = work.averaged(type(found.groups)(found.groups.sums[used], found.groups.mass[used]))
        members = found.users
        if strength > 0:  # groups that nobody uses make room for others
            natural, members = natural[members > 0], members[members > 0]
            spare = min(_FAR, limit - len(natural), len(found.far))
            natural = np.concatenate([natural, found.far[:spare]])
            members = np.concatenate([members, np.zeros(spare)])
        centres = _centres(work, natural, members, strength)
    return _finished(work, centres, found, exclusive, history, status)


def spare_used(found: Pass, spare: int) -> bool:
    """Return whether any of the last `spare` groups, opened for this pass, has members."""
    return bool(spare and np.any(found.users[-spare:] > 0))


def _centres(work: Work, natural: Array, users: Array, strength: float) -> Centres:
    last = np.where(users > 0, np.sqrt(users) - np.sqrt(np.maximum(users - 1.0, 0.0)), 1.0)
    return Centres.of(work.tangent, natural, work.direction, strength * last)


def _finished(
    work: Work, centres: Centres, found: Pass, exclusive: bool, history: list[float], status: Status
) -> Descent:
    """Return the labels of the last pass, which it did not keep, without gaps."""
    used = np.flatnonzero(found.users > 0)
    numbers = np.full(len(found.users), -1, dtype=np.int64)
    numbers[used] = np.arange(len(used))
    labels = [numbers[own] for own in work.map(assign, centres, exclusive)]
    groups = type(found.groups)(found.groups.sums[used], np.maximum(found.groups.mass[used], 1e-300))
    return Descent(labels, np.array(history), status, len(used), work.averaged(groups))
