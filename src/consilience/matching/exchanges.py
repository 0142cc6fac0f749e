"""Pairwise exchanges in a matching: two groups swap their members of two sites at once.

Site-by-site ascent ends where no site gains alone. A swap moves two sites together, which leaves such optima.
"""

from __future__ import annotations

from itertools import combinations
from typing import Protocol

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.groups import GroupSums
from consilience.matching.site_by_site import GroupObjective

MAX_EVALUATED_PARAMETERS = 2e8
"""Parameters of groups that one search may evaluate: some seconds' work. Chosen by hand."""
MIN_RELATIVE_GAIN = 1e-9
"""Gain of a swap in units of the objective below which it is rounding."""


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
    if len(pairs) * n_groups * (n_groups - 1) * width > MAX_EVALUATED_PARAMETERS:
        return None
    site_sums = np.zeros((n_sites, n_groups, width + 1))  # each site's sum in each group, and its members there
    owner = np.repeat(np.arange(n_sites), np.diff(objective.offsets))
    assigned = labels >= 0
    site_sums[owner[assigned], labels[assigned], :width] = objective.pieces[assigned]
    site_sums[owner[assigned], labels[assigned], width] = 1.0
    sums = site_sums.sum(axis=0)  # (G, P + 1)
    values_now = objective.value(GroupSums(sums[:, :-1], sums[:, -1]))
    best_gain, swap = MIN_RELATIVE_GAIN * max(1.0, abs(float(values_now.sum()))), None
    # For two groups, all pairs of sites at once: (pairs, P + 1) for what the first group would be, then the second.
    for first, second in combinations(range(n_groups), 2):
        change = site_sums[:, second] - site_sums[:, first]  # by each site's swap, for the first group (J, P + 1)
        net_change = change[pairs[:, 0]] + change[pairs[:, 1]]
        swapped_sums = np.concatenate([sums[first] + net_change, sums[second] - net_change])
        is_occupied = swapped_sums[:, -1] > 0
        values = np.full(len(swapped_sums), -np.inf)
        values[is_occupied] = objective.value(GroupSums(swapped_sums[is_occupied, :-1], swapped_sums[is_occupied, -1]))
        gain = values[: len(pairs)] + values[len(pairs) :] - values_now[first] - values_now[second]
        if gain.max(initial=-np.inf) > best_gain:
            best_gain, swap = float(gain.max()), (first, second, pairs[int(gain.argmax())])
    if swap is None:
        return None
    first, second, sites = swap
    result, is_swapped = labels.copy(), np.isin(owner, sites)
    result[is_swapped & (labels == first)], result[is_swapped & (labels == second)] = second, first
    return result
