"""The matching problem of KL-fusion: costs, barycenters, seeds, and what a start ends with.

The objective is equation (9) of Claici et al. 2020, with theta_g for the G fused and theta_l for the L local
components, w_l the weight of a component's site and P the binary (or relaxed) matching:

    F(theta, P) = sum_l w_l sum_g P_lg KL(theta_g || theta_l) + lambda sum_g ||P_g||_2.

``KLProblem`` holds what is fixed in it and shared by every restart; ``KLFit`` is a matching with its barycenters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction
from consilience.matching.group_sparse import binary_penalty
from consilience.matching.seeding import greedy_plus_plus
from consilience.posteriors.ensemble import Stacked
from consilience.posteriors.methods.kl.divergences import Geometry, KLGeometry

SPREAD_SAMPLE_ROWS = 256
"""Components whose divergences from all others estimate the spread. Chosen by hand, no other value was measured."""
SPREAD_CHUNK_ROWS, SPREAD_CHUNK_BYTES = 8, 2**22
"""Components whose divergences are held at once while the spread is summed, and their memory, 4 MiB; at least one. They
bound memory; chosen by hand."""
MAX_CACHED_ROWS = 2048
"""Components up to which all pairwise divergences are kept between restarts: 32 MiB at most. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class KLProblem:
    """The data of one objective: fixed once and shared by every restart.

    Parameters
    ----------
    ensemble
        The stacked models, L components in all, with one weight per component.
    geometry
        The divergence between fused and local components, and its average.
    """

    ensemble: Stacked
    geometry: Geometry

    @classmethod
    def of(cls, ensemble: Stacked, direction: Direction = "forward") -> Self:
        """Return the problem with a Kullback-Leibler divergence."""
        return cls(ensemble, KLGeometry(ensemble.family, ensemble.natural, direction))

    def costs(self, centres: Array) -> Array:
        """Return the weighted divergences (L, G) of local components from centres (G, P)."""
        costs: Array = self.geometry.costs(centres).T  # (L, G): the geometry has centres as rows
        weights = self.ensemble.row_weights
        return costs if np.all(weights == 1.0) else costs * weights[:, None]  # (L, G)

    def barycenters(self, labels: Labels, n_groups: int, fallback: Array | None = None) -> Array:
        """Return the averages (G, P) of a binary matching; groups without members keep their row of `fallback`."""
        used = np.flatnonzero(np.bincount(labels[labels >= 0], minlength=n_groups))  # (U,)
        if len(used) == n_groups:
            return self.geometry.averages(labels, self.ensemble.row_weights, n_groups)
        if fallback is None:
            raise ValueError("a group without members has no average")
        # A barycenter needs members, so only groups in use are averaged; eta_bar of the others stays, as in step (4).
        number = np.full(n_groups + 1, -1)  # index -1 reads the last entry
        number[used] = np.arange(len(used))
        centres = fallback.copy()
        centres[used] = self.geometry.averages(number[labels], self.ensemble.row_weights, len(used))
        return centres

    def seeds(self, count: int, rng: np.random.Generator, *, spread_out: bool = True) -> Array:
        """Return local components drawn as first centres.

        Parameters
        ----------
        count : int
            Number of centres; fewer come back where there are fewer components.
        rng : Generator
            Draws them.
        spread_out : bool, optional
            By k-means++ on divergences (appendix E of Claici et al. 2020); False draws uniformly. Default: True.

        Returns
        -------
        Array of shape (count, P)
            Natural parameters.
        """
        natural = self.ensemble.natural
        if not spread_out:
            return natural[rng.choice(len(natural), size=min(count, len(natural)), replace=False)]
        return natural[greedy_plus_plus(self._divergences_from, self.ensemble.row_weights, count, rng)]

    def _divergences_from(self, rows: Labels) -> Array:
        """Return the divergences (k, L) of all local components from some of them, cached for few components."""
        if len(self.ensemble.natural) <= MAX_CACHED_ROWS:
            return self._pairwise[rows]
        return self.geometry.costs(self.ensemble.natural[rows])

    @cached_property
    def _pairwise(self) -> Array:
        return self.geometry.costs(self.ensemble.natural)

    @cached_property
    def spread(self) -> float:
        """Standard deviation of divergences between components of different sites, over a fixed sample of pairs.

        It is what ``regularization`` multiplies to give lambda. Claici et al. scale by the standard deviation of the
        divergences from the first centres instead. Here the sample depends on nothing random, so that every restart and
        every value of the multiplier has the same objective.
        """
        n_rows, owner = len(self.ensemble.natural), self.ensemble.owner
        sample = np.unique(np.linspace(0, n_rows - 1, min(n_rows, SPREAD_SAMPLE_ROWS)).astype(np.int64))
        n_values, mean, sum_of_squares = 0, 0.0, 0.0
        n_chunk = max(1, min(SPREAD_CHUNK_ROWS, SPREAD_CHUNK_BYTES // (8 * n_rows)))
        for start in range(0, len(sample), n_chunk):
            chunk = sample[start : start + n_chunk]
            # Pairs of one site are left out: no matching may join them, and a site's components lie far apart.
            values = self._divergences_from(chunk)[owner[chunk][:, None] != owner]
            if values.size:  # mean and sum of squares of this chunk are merged into those of the chunks before
                shift = float(values.mean()) - mean
                sum_of_squares += float(values.var()) * values.size + shift**2 * n_values * values.size / (
                    n_values + values.size
                )
                n_values += values.size
                mean += shift * values.size / n_values
        return float(np.sqrt(sum_of_squares / n_values)) if n_values else 0.0


@dataclass(frozen=True, eq=False)
class KLFit:
    """A matching and the averages that belong to it.

    Parameters
    ----------
    labels : Labels of shape (L,)
        Group of each local component, consecutive from 0.
    centres : Array of shape (G, P)
        Natural parameters of the barycenters.
    objective : float
        Value of (9).
    history : tuple of float
        The objective after each averaging step.
    converged : bool
        Whether the last step changed nothing, or less than the tolerance.
    gap : float, optional
        Relative certified gap of the last matching; None for a binary one.
    plan : Array of shape (L, G), optional
        The relaxed matching before rounding; None for a binary one.
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
    is_used = np.bincount(labels) > 0
    consecutive = (np.cumsum(is_used) - 1)[labels]
    return consecutive, problem.barycenters(consecutive, int(np.count_nonzero(is_used)))


def objective(problem: KLProblem, centres: Array, labels: Labels, strength: float) -> float:
    """Return (9) of a binary matching with consecutive labels at some centres."""
    costs = problem.geometry.matched_costs(centres, labels)
    weights = problem.ensemble.row_weights
    if np.any(weights != 1.0):
        costs = costs * weights
    return float(costs.sum()) + strength * binary_penalty(labels, len(centres))
