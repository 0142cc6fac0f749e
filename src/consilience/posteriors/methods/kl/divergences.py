"""Divergences between fused and local components, and the average that belongs to each.

A geometry pairs a divergence D with the average that minimises the sum of it over a group,

    c_g = argmin_c sum_{l in g} w_l D(c, theta_l),

so that matching and averaging descend one objective. For Kullback-Leibler divergences (Claici et al. 2020) the average
is closed, equation (4): the mean of natural parameters for KL(c || theta), of mean parameters for KL(theta || c).
Renyi, Hellinger and Wasserstein divergences are what the discussion of that paper asks for; where their averages are
iterations, a step that would raise the sum is rejected.
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

MAX_RENYI_STEPS = 200
"""Fixed-point steps of a Renyi average: a bound, for the steps end where no group gains any more."""
RENYI_TOLERANCE = 1e-12
"""Relative decrease of a group's sum below which its Renyi average is reached. Chosen by hand."""
LOG_NORMALIZER_ROUNDING = 1e-14
"""Relative error of a log normaliser: a smaller fall of a group's sum may be rounding and moves no average."""
CHUNK_BYTES = 2**26
"""Memory of the natural parameters between pairs: 64 MiB, chosen by hand."""
MIN_GROUP_MASS = 1e-12
"""Weight below which a group counts as empty and keeps its centre: no division by zero in (4)."""
MIN_AFFINITY = 1e-300
"""Smallest sum of affinities to divide by; below it, no double precision is left."""


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
        # The log normalisers (or mean parameters) of the local components are computed once for all centres.
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
        used = sums.mass >= MIN_GROUP_MASS
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
        natural = self.family.from_mean(averaged)  # A*(mu) = <eta(mu), mu> - A(eta(mu))
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
    def _log_normalizers(self) -> Array:
        return self.family.log_normalizer(self.natural)

    def costs(self, centres: Array) -> Array:
        """One log normaliser for each pair, in chunks of bounded memory."""
        gaps = np.empty((len(centres), len(self.natural)))  # (G, L)
        for row, centre in enumerate(centres):
            gaps[row] = self._gaps(np.broadcast_to(centre, self.natural.shape), np.arange(len(self.natural)))
        return self._of_gap(gaps)

    def _gaps(self, centres: Array, rows: Labels) -> Array:
        """Return a A(p) + (1 - a) A(q) - A(a p + (1 - a) q) (n,) of pairs of centres (n, P) and rows (n,)."""
        result = np.empty(len(rows))
        step = max(1, CHUNK_BYTES // (8 * self.family.size))
        for start in range(0, len(rows), step):
            chunk = slice(start, start + step)
            centre_rows, local_rows = centres[chunk], rows[chunk]  # (n, P), (n,)
            between = self.order * centre_rows + (1.0 - self.order) * self.natural[local_rows]
            ends = (
                self.order * self.family.log_normalizer(centre_rows)
                + (1.0 - self.order) * self._log_normalizers[local_rows]
            )
            result[chunk] = ends - self.family.log_normalizer(between)
        return np.maximum(result, 0.0)

    def _of_gap(self, gaps: Array) -> Array:
        """Return the divergences that go with gaps: D_a, or 1 - exp(-(1 - a) D_a)."""
        return -np.expm1(-gaps) if self.bounded else gaps / (1.0 - self.order)

    def averages(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Descend from the mean of natural parameters until no group gains."""
        rows = np.flatnonzero(labels >= 0)
        groups = labels[rows]  # (n,): the group of each row that is matched
        centres = group_sums(self.natural, labels, weights, n_groups).means()  # (G, P): the KL barycenter
        gaps = self._gaps(centres[groups], rows)
        best = np.bincount(groups, weights=weights[rows] * self._of_gap(gaps), minlength=n_groups)
        rounding = LOG_NORMALIZER_ROUNDING * np.bincount(
            groups, weights=weights[rows] * np.abs(self._log_normalizers[rows]), minlength=n_groups
        )
        for _ in range(MAX_RENYI_STEPS):
            # 1 - exp(-x) lies below its tangent, so the step of the weighted sum of gaps lowers the bounded sum too.
            row_weights = weights[rows] * (np.exp(-gaps) if self.bounded else 1.0)
            between = self.order * centres[groups] + (1.0 - self.order) * self.natural[rows]  # (n, P)
            sums = group_sums(self.family.mean_parameters(between), groups, row_weights, n_groups)
            reached = sums.mass > MIN_AFFINITY  # members that share nothing with their centre cannot move it
            proposal = centres.copy()
            proposal[reached] = self.family.from_mean(sums.sums[reached] / sums.mass[reached, None])
            proposal_gaps = self._gaps(proposal[groups], rows)
            value = np.bincount(groups, weights=weights[rows] * self._of_gap(proposal_gaps), minlength=n_groups)
            better = value < best - rounding  # (G,): groups move one by one, each only if its own sum falls
            centres[better] = proposal[better]
            gaps = np.where(better[groups], proposal_gaps, gaps)
            gain = np.where(better, best - value, 0.0)
            best = np.minimum(best, value)
            if np.all(gain <= RENYI_TOLERANCE * best):
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
        members = [np.flatnonzero(labels == group) for group in range(n_groups)]  # a Bures fixed point takes no batch
        return np.stack([family.wasserstein_barycenter(self.natural[rows], weights[rows]) for rows in members])


def make_geometry(name: DivergenceName, order: float, direction: Direction, family: Family, natural: Array) -> Geometry:
    """Return the geometry of a divergence by its name.

    Parameters
    ----------
    name : {"kl", "renyi", "hellinger", "wasserstein"}
        The divergence.
    order : float
        Order of the Renyi divergence; without effect on the others.
    direction : {"forward", "reverse"}
        KL(fused || local) or KL(local || fused); without effect on the others.
    family : Family
        The family of all components.
    natural : Array of shape (L, P)
        Natural parameters of the local components.
    """
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
