"""What matching minimises: a divergence between fused and local components, and the average that goes with it.

Every divergence has its own objective, the sum of it over matched components, and its own average, which never raises
that objective. Kullback-Leibler divergences are those of Claici et al. 2020; the others are what their discussion asks
for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast, final

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction, Family, FixedSide
from consilience.families.wasserstein import WassersteinFamily
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.average import averaged_parameters, from_averaged

DivergenceName = Literal["kl", "renyi", "hellinger", "wasserstein"]

HELLINGER_ORDER = 0.5
"""The order of the Renyi divergence that the Hellinger distance is a function of."""

_STEPS = 200
_TOLERANCE = 1e-12
_ROUNDING = 1e-14
_CHUNK_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Geometry(ABC):
    """A divergence between centres that move and local components that do not.

    Parameters
    ----------
    family
        The family of both.
    natural
        Natural parameters of the local components (L, P).
    """

    family: Family
    natural: Array

    @abstractmethod
    def costs(self, centres: Array) -> Array:
        """Return the divergences (G, L) of the local components from `centres` (G, P)."""

    @abstractmethod
    def averages(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Return the centres (G, P) of groups that all have members; rows labelled -1 have no say."""


@final
@dataclass(frozen=True, eq=False)
class KLGeometry(Geometry):
    """Kullback-Leibler divergence of the local components from the centre, or the other way round.

    Averages are means of natural parameters, or of mean parameters in the reverse direction.
    """

    direction: Direction = "forward"

    @cached_property
    def _fixed(self) -> FixedSide:
        return FixedSide(self.family, self.natural, self.direction)

    @cached_property
    def averaged(self) -> Array:
        """Parameters (L, P) whose weighted mean is the average."""
        return averaged_parameters(self.family, self.natural, self.direction)

    def costs(self, centres: Array) -> Array:
        """One matrix product and two vectors."""
        return self._fixed.costs(centres)

    def averages(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Means in one set of parameters."""
        return self.centres(group_sums(self.averaged, labels, weights, n_groups))

    def centres(self, sums: GroupSums, fallback: Array | None = None) -> Array:
        """Return the averages (G, P) of groups given by sums; those without mass keep their row of `fallback`."""
        used = sums.mass >= 1e-12
        centres = np.empty_like(sums.sums) if fallback is None else fallback.copy()
        means = GroupSums(sums.sums[used], sums.mass[used]).means()
        centres[used] = from_averaged(self.family, means, self.direction)
        return centres

    def potential(self, averaged: Array) -> Array:
        """Return the convex function (n,) of averaged parameters (n, P) whose Bregman divergence this is.

        Forward it is the log normaliser, in the reverse direction its convex conjugate.
        """
        if self.direction == "forward":
            return self.family.log_normalizer(averaged)
        natural = self.family.from_mean(averaged)
        return np.einsum("np,np->n", natural, averaged) - self.family.log_normalizer(natural)


@final
@dataclass(frozen=True, eq=False)
class RenyiGeometry(Geometry):
    """Renyi divergence of order a in (0, 1) of the local components q from the centre p, by the log normaliser.

        D_a(p || q) = [a A(p) + (1 - a) A(q) - A(a p + (1 - a) q)] / (1 - a).

    The average is the fixed point of grad A(p) = mean of grad A(a p + (1 - a) q), of which every step lowers the sum
    (the concave part is replaced by its tangent; Nielsen & Boltz 2011). With ``bounded`` the divergence is the squared
    Hellinger distance, 1 - exp(-(1 - a) D_a) at a = 1/2, which no outlier can dominate; steps then weigh q by its
    affinity exp(-(1 - a) D_a), which keeps them descents, since 1 - exp(-x) is concave.
    """

    order: float = 0.5
    bounded: bool = False

    @cached_property
    def _levels(self) -> Array:
        return self.family.log_normalizer(self.natural)

    def costs(self, centres: Array) -> Array:
        """One log normaliser for each pair, in chunks of bounded memory."""
        gaps = np.empty((len(centres), len(self.natural)))
        for row, centre in enumerate(centres):
            gaps[row] = self._gaps(np.broadcast_to(centre, self.natural.shape), np.arange(len(self.natural)))
        return self._of_gap(gaps)

    def _gaps(self, centres: Array, rows: Labels) -> Array:
        """Return a A(p) + (1 - a) A(q) - A(a p + (1 - a) q) (n,) of pairs of centres (n, P) and rows (n,)."""
        result = np.empty(len(rows))
        step = max(1, _CHUNK_BYTES // (8 * self.family.size))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            left, own = centres[part], rows[part]
            between = self.order * left + (1.0 - self.order) * self.natural[own]
            level = self.order * self.family.log_normalizer(left) + (1.0 - self.order) * self._levels[own]
            result[part] = level - self.family.log_normalizer(between)
        return np.maximum(result, 0.0)

    def _of_gap(self, gaps: Array) -> Array:
        return -np.expm1(-gaps) if self.bounded else gaps / (1.0 - self.order)

    def averages(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Descend from the mean of natural parameters until no group gains."""
        rows = np.flatnonzero(labels >= 0)
        own = labels[rows]
        centres = group_sums(self.natural, labels, weights, n_groups).means()
        gaps = self._gaps(centres[own], rows)
        best = np.bincount(own, weights=weights[rows] * self._of_gap(gaps), minlength=n_groups)
        rounding = _ROUNDING * np.bincount(own, weights=weights[rows] * np.abs(self._levels[rows]), minlength=n_groups)
        for _ in range(_STEPS):
            share = weights[rows] * (np.exp(-gaps) if self.bounded else 1.0)
            between = self.order * centres[own] + (1.0 - self.order) * self.natural[rows]
            sums = group_sums(self.family.mean_parameters(between), own, share, n_groups)
            reached = sums.mass > 1e-300  # members that share nothing with their centre cannot move it
            moved = centres.copy()
            moved[reached] = self.family.from_mean(sums.sums[reached] / sums.mass[reached, None])
            moved_gaps = self._gaps(moved[own], rows)
            value = np.bincount(own, weights=weights[rows] * self._of_gap(moved_gaps), minlength=n_groups)
            better = value < best - rounding
            centres[better] = moved[better]
            gaps = np.where(better[own], moved_gaps, gaps)
            gained = np.where(better, best - value, 0.0)
            best = np.minimum(best, value)
            if np.all(gained <= _TOLERANCE * best):
                break
        return centres


@final
@dataclass(frozen=True, eq=False)
class WassersteinGeometry(Geometry):
    """Squared Wasserstein-2 distance of the Gaussians that the components stand for, and its barycenter."""

    def costs(self, centres: Array) -> Array:
        """Squared distances of means plus Bures distances of covariances."""
        return cast(WassersteinFamily, self.family).wasserstein(centres, self.natural)

    def averages(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Barycenters, group by group: means of means, and the Bures fixed point for full covariances."""
        family = cast(WassersteinFamily, self.family)
        members = [np.flatnonzero(labels == group) for group in range(n_groups)]
        return np.stack([family.wasserstein_barycenter(self.natural[rows], weights[rows]) for rows in members])


def make_geometry(name: DivergenceName, order: float, direction: Direction, family: Family, natural: Array) -> Geometry:
    """Return the geometry of a divergence, by its name, over local components (L, P)."""
    if name == "kl":
        return KLGeometry(family, natural, direction)
    if name == "wasserstein":
        return WassersteinGeometry(family, natural)
    return RenyiGeometry(family, natural, HELLINGER_ORDER if name == "hellinger" else order, name == "hellinger")


def refusals(name: DivergenceName, family: Family) -> list[str]:
    """Return why a divergence cannot be used with a family, a line each."""
    if name == "wasserstein" and not isinstance(family, WassersteinFamily):
        return [f"divergence='wasserstein' is for Gaussian components, found {family.name} components"]
    return []
