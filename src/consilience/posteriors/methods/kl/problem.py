"""What every start of KL-fusion shares: the data of its objective, and what a start ends with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction
from consilience.matching.group_sparse import binary_penalty
from consilience.matching.seeding import greedy_plus_plus
from consilience.posteriors.ensemble import Stacked
from consilience.posteriors.methods.kl.divergences import Geometry, KLGeometry

_SPREAD_ROWS = 256
_SPREAD_CHUNK = 8
_REMEMBER_ROWS = 2048


@dataclass(frozen=True, eq=False)
class KLProblem:
    """The data of one objective: fixed once and shared by every restart.

    Parameters
    ----------
    ensemble
        The stacked models, L components in all.
    geometry
        The divergence between fused and local components, and its average.
    """

    ensemble: Stacked
    geometry: Geometry

    @classmethod
    def of(cls, ensemble: Stacked, direction: Direction = "forward") -> KLProblem:
        """Return the problem with a Kullback-Leibler divergence."""
        return cls(ensemble, KLGeometry(ensemble.family, ensemble.natural, direction))

    def costs(self, centres: Array) -> Array:
        """Return the weighted divergences (L, G) of local components from centres (G, P)."""
        costs: Array = self.geometry.costs(centres).T
        weights = self.ensemble.row_weights
        return costs if np.all(weights == 1.0) else costs * weights[:, None]

    def barycenters(self, labels: Labels, n_groups: int, fallback: Array | None = None) -> Array:
        """Return the averages (G, P) of a binary matching; groups without members keep their row of `fallback`."""
        used, consecutive = np.unique(labels[labels >= 0], return_inverse=True)
        if len(used) == n_groups:
            return self.geometry.averages(labels, self.ensemble.row_weights, n_groups)
        if fallback is None:
            raise ValueError("a group without members has no average")
        packed = np.full(len(labels), -1)
        packed[labels >= 0] = consecutive
        centres = fallback.copy()
        centres[used] = self.geometry.averages(packed, self.ensemble.row_weights, len(used))
        return centres

    def seeds(self, count: int, rng: np.random.Generator, *, spread_out: bool = True) -> Array:
        """Return local components (`count`, P) drawn as first centres: by k-means++, or else uniformly."""
        natural = self.ensemble.natural
        if not spread_out:
            return natural[rng.choice(len(natural), size=min(count, len(natural)), replace=False)]
        return natural[greedy_plus_plus(self._divergences_from, self.ensemble.row_weights, count, rng)]

    def _divergences_from(self, rows: Labels) -> Array:
        """Return the divergences (k, L) of all local components from some of them; remembered for few components."""
        if len(self.ensemble.natural) <= _REMEMBER_ROWS:
            return self._pairwise[rows]
        return self.geometry.costs(self.ensemble.natural[rows])

    @cached_property
    def _pairwise(self) -> Array:
        return self.geometry.costs(self.ensemble.natural)

    @cached_property
    def spread(self) -> float:
        """Standard deviation of divergences between components of different sites, over a fixed sample of pairs.

        It is what ``regularization`` multiplies. The sample depends on nothing random, so that every restart and every
        value of the multiplier has the same objective.
        """
        total, owner = len(self.ensemble.natural), self.ensemble.owner
        sample = np.unique(np.linspace(0, total - 1, min(total, _SPREAD_ROWS)).astype(np.int64))
        count, mean, scatter = 0, 0.0, 0.0
        for start in range(0, len(sample), _SPREAD_CHUNK):  # means and variances of the chunks are merged
            part = sample[start : start + _SPREAD_CHUNK]
            values = self._divergences_from(part)[owner[part][:, None] != owner]
            if values.size:
                shift = float(values.mean()) - mean
                scatter += float(values.var()) * values.size + shift**2 * count * values.size / (count + values.size)
                count += values.size
                mean += shift * values.size / count
        return float(np.sqrt(scatter / count)) if count else 0.0


@dataclass(frozen=True, eq=False)
class KLFit:
    """A matching and the averages that belong to it.

    Parameters
    ----------
    labels
        Group of each local component (L,), consecutive from 0.
    centres
        Barycenters (G, P).
    objective
        Value of (9).
    history
        The objective after each averaging step.
    converged
        Whether the last step changed nothing.
    gap
        Relative certified gap of the last relaxed matching, for the relaxed objective.
    plan
        The relaxed matching (L, G) before rounding.
    """

    labels: Labels
    centres: Array
    objective: float
    history: tuple[float, ...]
    converged: bool
    gap: float | None = None
    plan: Array | None = None

    @property
    def n_groups(self) -> int:
        """Number G of groups."""
        return int(self.centres.shape[0])


def matched_cost(costs: Array, labels: Labels) -> float:
    """Return the total cost of a binary matching."""
    return float(costs[np.arange(len(labels)), labels].sum())


def compact(problem: KLProblem, labels: Labels) -> tuple[Labels, Array]:
    """Return labels without gaps and the barycenters of the groups that are left."""
    used, consecutive = np.unique(labels, return_inverse=True)
    return consecutive, problem.barycenters(consecutive, len(used))


def objective(problem: KLProblem, centres: Array, labels: Labels, strength: float) -> float:
    """Return (9) of a binary matching with consecutive labels at some centres."""
    return matched_cost(problem.costs(centres), labels) + strength * binary_penalty(labels, len(centres))
