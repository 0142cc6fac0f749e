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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast, final

import numpy as np

from consilience.checks import Array, Labels, symmetric_part
from consilience.errors import Problem
from consilience.families import DiagonalGaussian, Direction, Family, FixedSide, Gaussian, SphericalGaussian
from consilience.families.wasserstein import WassersteinFamily, matrix_square_root
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
MAX_BURES_STEPS = 500
"""Fixed-point steps of a Wasserstein average: the bound of ``families.wasserstein.bures_barycenter``."""
BURES_TOLERANCE = 1e-12
"""Relative change of a covariance below which its Wasserstein average is reached: that of ``bures_barycenter``."""
MIN_GROUP_MASS = 1e-12
"""Weight below which a group counts as empty and keeps its centre: no division by zero in (4)."""
MIN_AFFINITY = 1e-300
"""Smallest sum of affinities to divide by; below it, no double precision is left."""


AskShards = Callable[..., Any]
"""Adds up sums over shards; see ``Geometry.averages_by_sums``."""


@dataclass(frozen=True, eq=False)
class Geometry(ABC):
    """A divergence between centres that move and local components (L, P) of the same family that do not."""

    family: Family
    natural: Array

    @abstractmethod
    def costs(self, centres: Array) -> Array:
        """Return the divergences (G, L) of the local components from `centres` (G, P)."""

    def matched_costs(self, centres: Array, labels: Labels) -> Array:
        """Return the divergence (L,) of each local component from the centre that it is matched with."""
        matched: Array = self.costs(centres)[labels, np.arange(len(labels))]
        return matched

    @abstractmethod
    def averages_by_sums(self, ask: AskShards, n_groups: int) -> Array:
        """Return the centres (G, P) of groups that all have members, of which sums over shards tell all that it takes.

        ``ask(function, *common)`` is the sum of ``function(geometry, labels, weights, *common)`` over all shards, each
        with a geometry of its own components. This geometry's own components are not looked at.
        """

    @final
    def averages(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Return the centres (G, P) of groups that all have members; rows labelled -1 have no say."""
        return self.averages_by_sums(
            lambda function, *common: function(self, labels, weights, *common), n_groups
        )  # memory is one shard


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

    def matched_costs(self, centres: Array, labels: Labels) -> Array:
        """Return the divergences of matched pairs, without those of all pairs at once."""
        return self._fixed.matched_costs(centres, labels)

    def averages_by_sums(self, ask: AskShards, n_groups: int) -> Array:
        """Means in one set of parameters."""
        return self.centres(ask(KLGeometry._sums, n_groups))

    def _sums(self, labels: Labels, weights: Array, n_groups: int) -> GroupSums:
        """Return the sums of the parameters whose mean is the average."""
        return group_sums(self.averaged, labels, weights, n_groups)

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

    def averages_by_sums(self, ask: AskShards, n_groups: int) -> Array:
        """Descend from the mean of natural parameters until no group gains."""
        centres = ask(RenyiGeometry._natural_sums, n_groups).means()  # (G, P): the KL barycenter
        current: RenyiSums = ask(RenyiGeometry._sums, centres)
        sums, mass, best, rounding = current.sums, current.mass, current.values, LOG_NORMALIZER_ROUNDING * current.sizes
        for _ in range(MAX_RENYI_STEPS):
            reached = mass > MIN_AFFINITY  # members that share nothing with their centre cannot move it
            proposal = centres.copy()
            proposal[reached] = self.family.from_mean(sums[reached] / mass[reached, None])
            proposed: RenyiSums = ask(RenyiGeometry._sums, proposal)
            better = proposed.values < best - rounding  # (G,): groups move one by one, each only if its own sum falls
            centres[better], sums[better], mass[better] = proposal[better], proposed.sums[better], proposed.mass[better]
            gain = np.where(better, best - proposed.values, 0.0)
            best = np.minimum(best, proposed.values)
            if np.all(gain <= RENYI_TOLERANCE * best):
                break
        return centres

    def _natural_sums(self, labels: Labels, weights: Array, n_groups: int) -> GroupSums:
        """Return the sums of natural parameters."""
        return group_sums(self.natural, labels, weights, n_groups)

    def _sums(self, labels: Labels, weights: Array, centres: Array) -> RenyiSums:
        """Return the sums of one step from `centres` (G, P)."""
        rows, n_groups = np.flatnonzero(labels >= 0), len(centres)
        groups = labels[rows]  # (n,): the group of each row that is matched
        gaps = self._gaps(centres[groups], rows)
        values, sizes = (
            np.bincount(groups, weights=weights[rows] * terms, minlength=n_groups).astype(np.float64, copy=False)
            for terms in (self._of_gap(gaps), np.abs(self._log_normalizers[rows]))
        )
        # 1 - exp(-x) lies below its tangent, so the step of the weighted sum of gaps lowers the bounded sum too.
        row_weights = weights[rows] * (np.exp(-gaps) if self.bounded else 1.0)
        between = self.order * centres[groups] + (1.0 - self.order) * self.natural[rows]  # (n, P)
        sums = group_sums(self.family.mean_parameters(between), groups, row_weights, n_groups)
        return RenyiSums(sums.sums, sums.mass, values, sizes)


@dataclass(frozen=True, eq=False)
class RenyiSums:
    """Sums of one step of a Renyi average, additive over shards."""

    # (G, P), mean parameters between the centre and each member, weighted by the affinity where the divergence is
    # bounded.
    sums: Array
    mass: Array  # (G,), their weights
    values: Array  # (G,), weighted divergences of the members from the centre
    sizes: Array  # (G,), weighted absolute values of the members' log normalisers, which the rounding is relative to

    def __add__(self, other: RenyiSums) -> RenyiSums:
        return RenyiSums(
            self.sums + other.sums, self.mass + other.mass, self.values + other.values, self.sizes + other.sizes
        )


@final
@dataclass(frozen=True, eq=False)
class WassersteinGeometry(Geometry):
    """Squared Wasserstein-2 distance of the Gaussians that the components stand for, and its barycenter."""

    def costs(self, centres: Array) -> Array:
        """Squared distances of means plus Bures distances of covariances."""
        return cast(WassersteinFamily, self.family).wasserstein(centres, self.natural)

    def averages_by_sums(self, ask: AskShards, n_groups: int) -> Array:
        """Barycenters: means of means, and of standard deviations or, for full covariances, the Bures fixed point.

        The fixed point is that of ``families.wasserstein.bures_barycenter``, each step a sum over members.
        """
        if not isinstance(self.family, Gaussian | DiagonalGaussian | SphericalGaussian):
            return self._averages_of_members(ask, n_groups)
        mass = ask(WassersteinGeometry._mass, n_groups)
        means, spreads = np.split(ask(WassersteinGeometry._moments, mass), [self._dim], axis=1)
        if not self._has_covariances:
            variances = spreads**2 if spreads.shape[1] > 1 or self._dim == 1 else spreads[:, 0] ** 2
            return self._to_natural(means, variances)
        covariances = spreads.reshape(n_groups, self._dim, self._dim)
        moving = np.arange(n_groups)
        for _ in range(MAX_BURES_STEPS):
            roots = np.zeros_like(covariances)  # groups that have arrived have none, and are not asked for
            for group in moving:
                roots[group] = matrix_square_root(covariances[group])
            middles = ask(WassersteinGeometry._bures_sums, mass, roots, moving)  # (G, D, D)
            still_moving = []
            for group in moving:
                inverse_root, middle = np.linalg.inv(roots[group]), middles[group]
                updated = symmetric_part(inverse_root @ middle @ middle @ inverse_root)
                change = np.linalg.norm(updated - covariances[group]) / np.linalg.norm(covariances[group])
                covariances[group] = updated
                if change >= BURES_TOLERANCE:
                    still_moving.append(group)
            moving = np.array(still_moving, dtype=np.int64)
            if not moving.size:
                break
        return self._to_natural(means, covariances)

    def _averages_of_members(self, ask: AskShards, n_groups: int) -> Array:
        """Return the averages of families whose Gaussians only they know, from all members in one place."""
        family = cast(WassersteinFamily, self.family)
        members: list[tuple[Array, Array, Labels]] = ask(WassersteinGeometry._rows)
        natural, weights, labels = (np.concatenate(column) for column in zip(*members, strict=True))
        groups = self._members(labels, n_groups)
        return np.stack([family.wasserstein_barycenter(natural[rows], weights[rows]) for rows in groups])

    def _rows(self, labels: Labels, weights: Array) -> list[tuple[Array, Array, Labels]]:
        """Return the members of all groups, in a list, so that sums of shards have all."""
        return [(self.natural, weights, labels)]

    @property
    def _has_covariances(self) -> bool:
        return isinstance(self.family, Gaussian)

    @property
    def _dim(self) -> int:
        return int(self.family.dim)  # type: ignore[attr-defined]  # all Gaussians have a dimension

    def _to_natural(self, means: Array, spreads: Array) -> Array:
        """Return natural parameters (G, P) of Gaussians with these means and variances or covariances."""
        name = "covariance" if self._has_covariances else "variance"
        pairs = zip(means, spreads, strict=True)
        return np.stack(
            [self.family.to_natural(**{"mean": mean[None], name: spread[None]})[0] for mean, spread in pairs]
        )

    def _members(self, labels: Labels, n_groups: int) -> list[Labels]:
        return [np.flatnonzero(labels == group) for group in range(n_groups)]  # a Bures fixed point takes no batch

    def _mass(self, labels: Labels, weights: Array, n_groups: int) -> Array:
        """Return the weight of every group (G,)."""
        return np.array([weights[rows].sum() for rows in self._members(labels, n_groups)])

    def _moments(self, labels: Labels, weights: Array, mass: Array) -> Array:
        """Return shares of the mean of means, and of covariances or standard deviations (G, D + ...), side by side."""
        parameters = self.family.from_natural(self.natural)
        shares = []
        for rows, total in zip(self._members(labels, len(mass)), mass, strict=True):
            row_shares = weights[rows] / total
            mean = row_shares @ parameters["mean"][rows]
            if self._has_covariances:
                spread = np.einsum("n,nij->ij", row_shares, parameters["covariance"][rows])
            else:
                spread = row_shares @ np.sqrt(parameters["variance"][rows])
            shares.append(np.concatenate([mean, np.ravel(spread)]))
        return np.stack(shares)

    def _bures_sums(self, labels: Labels, weights: Array, mass: Array, roots: Array, groups: Labels) -> Array:
        """Return shares of the mean of (S^1/2 S_i S^1/2)^1/2 of some groups (G, D, D), given their S^1/2."""
        covariances = self.family.from_natural(self.natural)["covariance"]
        middles = np.zeros_like(roots)
        for group in groups:
            rows = np.flatnonzero(labels == group)
            products = symmetric_part(roots[group] @ covariances[rows] @ roots[group])
            middles[group] = np.einsum("n,nij->ij", weights[rows] / mass[group], matrix_square_root(products))
        return middles


def make_geometry(name: DivergenceName, order: float, direction: Direction, family: Family, natural: Array) -> Geometry:
    """Return the geometry of a divergence between local components of these natural parameters (L, P).

    The order is the Renyi divergence's, the direction that of Kullback and Leibler's: KL(fused || local) or KL(local ||
    fused).
    """
    if name == "kl":
        return KLGeometry(family, natural, direction)
    if name == "wasserstein":
        return WassersteinGeometry(family, natural)
    return RenyiGeometry(family, natural, HELLINGER_ORDER if name == "hellinger" else order, name == "hellinger")


def refusals(name: DivergenceName, family: Family) -> list[Problem]:
    """Return why a divergence cannot be used with a family, a line each."""
    if name == "wasserstein" and not isinstance(family, WassersteinFamily):
        return [
            Problem(
                "",
                f"`divergence='wasserstein'` is for Gaussian components, found {family.name} components",
                code="E-TYPE",
            )
        ]
    return []
