"""KL-fusion as a function of the matching alone: Jensen gaps of the log normaliser, matched site by site.

Averages being barycenters, (9) of Claici et al. 2020 is a function of the matching alone: what group g costs is a
Jensen gap of the log normaliser A, and the price of its n_g members,

    sum_l w_l A(eta_l) - W A(sum_l w_l eta_l / W) + lambda sqrt(n_g),   W = sum_l w_l.

What a newcomer adds is exact for the groups nearest to it; for all others its divergence from their averages as they
stand bounds it from above, since the average that follows the newcomer costs no more. That takes one matrix product for
all groups and rows of a site.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Family
from consilience.matching.assignment import Openings
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_by_site import ascend, grow

EXACT_GROUPS = 4
"""Nearest groups for which what a newcomer adds is exact. Chosen by hand; nobody has measured other values."""
CACHE_ROWS = 32
"""Rows whose joined sums are held at once: few enough for the processor's cache. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class BregmanGroups:
    """Minus the objective above: a ``GroupObjective``, with lambda as its strength.

    `natural` (L, P) are the natural parameters of the local components, `offsets` (J + 1,) where each site starts, and
    the end, and `weights` (L,), positive, those of the components.
    """

    family: Family
    natural: Array
    offsets: Labels
    weights: Array
    strength: float

    @cached_property
    def pieces(self) -> Array:
        """Weighted natural parameters, weights and weighted log normalisers (L, P + 2)."""
        levels = self.family.log_normalizer(self.natural)  # A(eta_l): (L,)
        weights = self.weights[:, None]
        return np.concatenate([self.natural * weights, weights, (self.weights * levels)[:, None]], axis=1)

    @cached_property
    def _centre(self) -> Array:
        """The mean of all natural parameters, which leaves divergences as they are and makes the numbers smaller."""
        return np.asarray(self.natural.mean(axis=0))

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,): minus their cost."""
        mass = groups.sums[:, -2]
        averages = groups.sums[:, :-2] / mass[:, None]
        return mass * self.family.log_normalizer(averages) - groups.sums[:, -1] - self.strength * np.sqrt(groups.mass)

    def opening(self, rows: Labels) -> Array:
        """Return what each of some rows is worth as a group of its own (k,)."""
        return np.full(len(rows), -self.strength)

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return by how much each of some groups rises (k, G) when it takes in each of some rows."""
        if not groups.mass.size:
            return np.zeros((len(rows), 0))
        weights = self.weights[rows][:, None]
        price = self.strength * (np.sqrt(groups.mass + 1.0) - np.sqrt(groups.mass))  # of one more user (G,)
        gains: Array = -weights * np.maximum(self._divergences(rows, groups), 0.0) - price  # (k, G), lower bounds
        n_exact = min(EXACT_GROUPS, len(groups.mass))
        nearest = np.argpartition(-gains, n_exact - 1, axis=1)[:, :n_exact]
        used, position_in_used = np.unique(nearest, return_inverse=True)
        before = self.value(GroupSums(groups.sums[used], groups.mass[used]))
        after = np.empty(nearest.shape)
        for start in range(0, len(rows), CACHE_ROWS):
            chunk = slice(start, start + CACHE_ROWS)
            joined = groups.sums[nearest[chunk]]  # (rows, n_exact, P + 2)
            joined += self.pieces[rows[chunk]][:, None, :]
            candidates = GroupSums(joined.reshape(-1, joined.shape[2]), (groups.mass[nearest[chunk]] + 1.0).ravel())
            after[chunk] = self.value(candidates).reshape(-1, n_exact)
        gains[np.arange(len(rows))[:, None], nearest] = after - before[position_in_used.reshape(nearest.shape)]
        return gains

    def _divergences(self, rows: Labels, groups: GroupSums) -> Array:
        """Return the divergences (k, G) of some rows from the averages of groups."""
        averages = groups.sums[:, :-2] / groups.sums[:, -2:-1]
        # KL(eta_g || eta_l) = A(eta_l) - A(eta_g) + <grad A(eta_g), eta_g - eta_l>, centred against cancellation.
        moments = self.family.mean_parameters(averages)  # (G, P)
        inner_products = (self.natural[rows] - self._centre) @ moments.T
        group_terms = np.einsum("gp,gp->g", averages - self._centre, moments) - self.family.log_normalizer(averages)
        row_log_normalizers = self.pieces[rows, -1] / self.weights[rows]
        return row_log_normalizers[:, None] + group_terms - inner_products

    def total(self, labels: Labels) -> float:
        """Return what a matching with consecutive labels (L,) is worth."""
        sums = group_sums(self.pieces, labels, np.ones(len(labels)), int(labels.max()) + 1)
        return float(self.value(sums).sum())


def descend_groups(
    objective: BregmanGroups,
    order: Labels,
    rng: np.random.Generator,
    max_sweeps: int,
    openings: Openings,
    tolerance: float = 0.0,
) -> tuple[Labels, list[float], bool]:
    """Return labels (L,), the objective (9) after each sweep over the sites, and whether it has settled.

    Sites come to the groups in this order (J,), and in random orders in later sweeps, of which one that lowers the
    objective by no more than the share `tolerance` is the last.
    """
    labels = grow(objective, order, openings)
    history = [-objective.total(labels)]
    for _ in range(max_sweeps):
        proposal, is_settled = ascend(objective, labels, rng, 1, openings)
        value = -objective.total(proposal)
        if is_settled or value >= history[-1]:  # no site gains, or only by a bound
            return labels, history, True
        labels = proposal
        history.append(value)
        if history[-2] - value <= tolerance * abs(value):
            return labels, history, True
    return labels, history, False
