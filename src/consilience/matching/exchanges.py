"""Exchanges: two groups swap their members of two sites at once, which no step of one site alone can do."""

from __future__ import annotations

from itertools import combinations
from typing import Protocol

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.groups import GroupSums
from consilience.matching.site_by_site import GroupObjective

_NUMBERS_AT_MOST = 2e8  # parameters that one search may evaluate


class ValuedObjective(GroupObjective, Protocol):
    """A sum over groups that says what any groups are worth."""

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""


def improve_by_exchange(objective: ValuedObjective, labels: Labels) -> Labels | None:
    """Return a better matching (L,), the best swap of two sites' members between two groups; None where none helps.

    The search takes J^2 G^2 values of groups; where that is more than some seconds' work it is not made.

    Parameters
    ----------
    objective
        What is raised.
    labels
        Consecutive labels (L,).
    """
    n_groups, n_sites = int(labels.max()) + 1, len(objective.offsets) - 1
    pairs = np.array(list(combinations(range(n_sites), 2)), dtype=np.int64).reshape(-1, 2)
    width = objective.pieces.shape[1]
    if len(pairs) * n_groups * (n_groups - 1) * width > _NUMBERS_AT_MOST:
        return None
    held = np.zeros((n_sites, n_groups, width + 1))  # what each site has in each group, and how many
    owner = np.repeat(np.arange(n_sites), np.diff(objective.offsets))
    kept = labels >= 0
    held[owner[kept], labels[kept], :width] = objective.pieces[kept]
    held[owner[kept], labels[kept], width] = 1.0
    sums = held.sum(axis=0)
    worth = objective.value(GroupSums(sums[:, :-1], sums[:, -1]))
    best, found = 1e-9 * max(1.0, abs(float(worth.sum()))), None
    for one, other in combinations(range(n_groups), 2):
        change = held[:, other] - held[:, one]
        moved = change[pairs[:, 0]] + change[pairs[:, 1]]
        joined = np.concatenate([sums[one] + moved, sums[other] - moved])
        possible = joined[:, -1] > 0
        values = np.full(len(joined), -np.inf)
        values[possible] = objective.value(GroupSums(joined[possible, :-1], joined[possible, -1]))
        gain = values[: len(pairs)] + values[len(pairs) :] - worth[one] - worth[other]
        if gain.max(initial=-np.inf) > best:
            best, found = float(gain.max()), (one, other, pairs[int(gain.argmax())])
    if found is None:
        return None
    one, other, sites = found
    result, ours = labels.copy(), np.isin(owner, sites)
    result[ours & (labels == one)], result[ours & (labels == other)] = other, one
    return result
