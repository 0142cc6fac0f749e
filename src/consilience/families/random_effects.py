"""Families with a random-effects average: how much the copies of a component differ, block by block of statistics.

Copies l of one component with information n_l about a block (observations behind a mean, or a precision) come from
sites that differ: copy l has the variance (1 / n_l + h) S, S that of one observation. With the weights
w_l = n_l / (1 + h n_l), the centre x* = sum_l w_l x_l / sum_l w_l and the squared length |.| that S gives,

    Q(h) = sum_l w_l |x_l - x*|^2

is Cochran's statistic. Its expectation at the true h is the number of degrees of freedom, which Paule and Mandel (1982)
solve for h. Site weights a_l multiply what a copy says: sums over l are sums of a_l w_l, and the expectation becomes
d (sum_l a_l - sum_l a_l^2 w_l / sum_l a_l w_l), with d the degrees of freedom of one copy; for equal weights d (n - 1).

Everything here is for all groups at once. Rows come sorted by group, and ``starts`` says where each group begins.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from consilience.checks import Array, Labels, as_weights
from consilience.families.evidence import EvidenceFamily, PrecisionFamily
from consilience.families.linalg import flatten, variances_of

if TYPE_CHECKING:
    from consilience.families.gaussian import DiagonalGaussian, Gaussian

MIN_INFORMATION_SHARE = 1e-9
"""Information beyond the prior, as a share of all, up to which a component says nothing: it differs from its prior by
rounding alone. Chosen by hand, between the rounding of float64 and any real count."""

MIN_EXPECTED_COUNT = 5.0
"""Expected count of a category from which on the squared difference over the expectation is nearly chi-squared: the
customary rule for Pearson's statistic."""


_CHUNK_BYTES = 2**26
"""Memory of the terms of some categories at a time, 64 MiB. Chosen by hand; it changes results by rounding alone."""


@dataclass(frozen=True, eq=False)
class CopyGroups:
    """Copies sorted by group, every group with at least one."""

    labels: Labels  # group of each copy, ascending from 0 (n,)
    weights: Array  # site weight a_l of each copy (n,)

    @cached_property
    def starts(self) -> Labels:
        """Where each group begins (G,)."""
        return np.searchsorted(self.labels, np.arange(int(self.labels[-1]) + 1))

    def sum(self, values: Array) -> Array:
        """Return sums (G, ...) of values (n, ...) over groups."""
        return np.asarray(np.add.reduceat(values, self.starts, axis=0))

    def sizes(self) -> Array:
        """Return the number of copies of each group (G,)."""
        return self.sum(np.ones(len(self.labels)))

    def expected(self, discounted: Array) -> Array:
        """Return sum a - sum a^2 w / sum a w (G,), for w (n,): the expected Q per degree of freedom of a copy."""
        weighted = self.weights * discounted
        return np.asarray(self.sum(self.weights) - self.sum(self.weights * weighted) / self.sum(weighted))


class Dispersion(Protocol):
    """How much the copies of each group differ in one block, against what their information admits."""

    @property
    def information(self) -> Array:
        """Information n_l of each copy (n,)."""

    @property
    def dof(self) -> Array:
        """Degrees of freedom of Q (G,); 0 for a group of one copy, and where the copies admit no comparison."""

    def excess(self, heterogeneity: Array) -> Array:
        """Return Q(h) less its expectation (G,) at a heterogeneity for each group (G,); 0 where `dof` is."""


@final
@dataclass(frozen=True, eq=False)
class LocationDispersion:
    """Means whose covariance is known but for a factor: S / n_l."""

    groups: CopyGroups
    information: Array  # observations kappa_l behind each mean (n,)
    whitened: Array  # L^-1 (m_l - c) for S = L L^T of the copy's group, about any point c of the group (n, D)
    dof: Array  # D (n - 1), or 0 where S of a group is not positive definite (G,)

    def excess(self, heterogeneity: Array) -> Array:
        """Return sum a w |z - z*|^2 less its expectation (G,)."""
        groups = self.groups
        discounted = self.information / (1.0 + heterogeneity[groups.labels] * self.information)  # w (n,)
        weighted = groups.weights * discounted
        centre = groups.sum(weighted[:, None] * self.whitened) / groups.sum(weighted)[:, None]  # (G, D)
        squares = np.sum((self.whitened - centre[groups.labels]) ** 2, axis=1)
        excess = groups.sum(weighted * squares) - self.whitened.shape[1] * groups.expected(discounted)
        return np.where(self.dof > 0, excess, 0.0)


@final
@dataclass(frozen=True, eq=False)
class PrecisionDispersion:
    """Means with precisions P_l of their own, whose shape may differ: (1 + h n_l) P_l^-1, n_l a mean precision.

    Cochran's statistic is that of means weighted by matrices, sum_l (m_l - m*)^T P_l(h) (m_l - m*); where all shapes
    are alike it is the one of ``LocationDispersion``.
    """

    groups: CopyGroups
    information: Array  # geometric mean of the eigenvalues of each precision (n,)
    centred: Array  # means less any point of the group (n, D)
    precision: Array  # P_l (n, D, D), or their diagonals (n, D)

    @property
    def dof(self) -> Array:
        """D (n - 1)."""
        return np.asarray(self.centred.shape[1] * (self.groups.sizes() - 1.0))

    def excess(self, heterogeneity: Array) -> Array:
        """Return Q less its expectation D sum a - tr[(sum a P)^-1 sum a^2 P] (G,)."""
        groups, is_full = self.groups, self.precision.ndim == 3
        factors = groups.weights / (1.0 + heterogeneity[groups.labels] * self.information)  # a / (1 + h n), (n,)
        weighted = factors.reshape(-1, *[1] * (self.precision.ndim - 1)) * self.precision
        linear = np.einsum("nij,nj->ni", weighted, self.centred) if is_full else weighted * self.centred
        total, again = groups.sum(weighted), groups.sum((weighted.T * groups.weights).T)
        if is_full:
            centre = np.linalg.solve(total, groups.sum(linear)[:, :, None])[:, :, 0]
            lost = np.trace(np.linalg.solve(total, again), axis1=1, axis2=2)
        else:
            centre = groups.sum(linear) / total
            lost = (again / total).sum(axis=1)
        offset = self.centred - centre[groups.labels]
        moved = np.einsum("nij,nj->ni", weighted, offset) if is_full else weighted * offset
        statistic = groups.sum(np.sum(offset * moved, axis=1))
        excess = statistic - (self.centred.shape[1] * groups.sum(groups.weights) - lost)
        return np.where(self.dof > 0, excess, 0.0)


@final
@dataclass(frozen=True, eq=False)
class CovarianceDispersion:
    """Covariances S_l with nu_l degrees of freedom: w_l / 2 |S*^-1/2 S_l S*^-1/2 - I|^2 for each copy."""

    groups: CopyGroups
    information: Array  # degrees of freedom nu_l (n,)
    covariance: Array  # S_l (n, D, D), or R variances (n, R)
    is_known: NDArray[np.bool_]  # whether the group's pooled covariance is positive definite (G,)

    @property
    def _dof_of_copy(self) -> float:
        size = self.covariance.shape[1]
        return 0.5 * size * (size + 1) if self.covariance.ndim == 3 else float(size)

    @property
    def dof(self) -> Array:
        """D (D + 1) (n - 1) / 2, or R (n - 1) for variances alone."""
        return np.where(self.is_known, self._dof_of_copy * (self.groups.sizes() - 1.0), 0.0)

    def excess(self, heterogeneity: Array) -> Array:
        """Return Q less its expectation (G,)."""
        groups, is_full = self.groups, self.covariance.ndim == 3
        discounted = self.information / (1.0 + heterogeneity[groups.labels] * self.information)
        weighted = groups.weights * discounted
        shaped = weighted.reshape(-1, *[1] * (self.covariance.ndim - 1))
        total = groups.sum(weighted).reshape(-1, *[1] * (self.covariance.ndim - 1))
        centre = groups.sum(shaped * self.covariance) / total  # S* (G, D, D) or (G, R)
        usable = self.is_known.reshape(-1, *[1] * (self.covariance.ndim - 1))
        if is_full:
            size = self.covariance.shape[1]
            # One inverse for each group: to solve for every copy takes five times as long.
            ratio = np.linalg.inv(np.where(usable, centre, np.eye(size)))[groups.labels] @ self.covariance
            deviation = ratio - np.eye(size)  # similar to S*^-1/2 S_l S*^-1/2 - I
            squares = np.einsum("nij,nji->n", deviation, deviation)
        else:
            deviation = self.covariance / np.where(usable, centre, 1.0)[groups.labels] - 1.0
            squares = np.sum(deviation**2, axis=1)
        excess = groups.sum(0.5 * weighted * squares) - self._dof_of_copy * groups.expected(discounted)
        return np.where(self.dof > 0, excess, 0.0)


@final
class ProportionDispersion:
    """Proportions p_l of n_l draws: Pearson's statistic, w_l sum_v (p_lv - p*_v)^2 / p*_v, from counts (n, V).

    Categories whose expected count is below ``MIN_EXPECTED_COUNT`` in a group are left out of its statistic.
    """

    def __init__(self, groups: CopyGroups, counts: Array) -> None:
        self.groups = groups
        self.information = counts.sum(axis=1)
        self._shares = counts / self.information[:, None]
        self._has_category = groups.sum(counts) >= MIN_EXPECTED_COUNT  # (G, V)

    @property
    def _dof_of_copy(self) -> Array:
        return np.maximum(self._has_category.sum(axis=1) - 1.0, 0.0)

    @property
    def dof(self) -> Array:
        """(V - 1) (n - 1), V the number of categories that are common enough."""
        return np.asarray(self._dof_of_copy * (self.groups.sizes() - 1.0))

    def excess(self, heterogeneity: Array) -> Array:
        """Return Q less its expectation (G,)."""
        groups = self.groups
        discounted = self.information / (1.0 + heterogeneity[groups.labels] * self.information)
        weighted = groups.weights * discounted
        total = groups.sum(weighted)
        statistic = np.zeros(len(total))
        step = max(1, _CHUNK_BYTES // (8 * len(weighted)))
        for first in range(0, self._shares.shape[1], step):
            shares, has_category = self._shares[:, first : first + step], self._has_category[:, first : first + step]
            terms = weighted[:, None] * shares
            centre = groups.sum(terms) / total[:, None]  # p* (G, V)
            # sum w (p - p*)^2 / p* = sum w p^2 / p* - p* sum w, category by category.
            second = groups.sum(terms * shares) / np.where(has_category, centre, 1.0)
            statistic += np.where(has_category, second - centre * total[:, None], 0.0).sum(axis=1)
        excess = statistic - self._dof_of_copy * groups.expected(discounted)
        return np.where(self.dof > 0, excess, 0.0)


class RandomEffectsFamily(EvidenceFamily):
    """An evidence family whose copies have a random-effects average. The first of its ``parts`` is what is averaged.

    That block is the location, or the concentration of a law of proportions: natural parameters are linear in its
    information n, eta = rest + n part, ``location_part`` being the second term.
    """

    separates_spread: ClassVar[bool] = True
    """Whether ``with_spread`` keeps the width of the location. A Dirichlet cannot: one number, its total, is both how
    surely the proportions are known and what predictions are made of."""

    @abstractmethod
    def location_part(self, eta: Array) -> Array:
        """Return what the location adds to the natural parameters (n, P): a term proportional to its information.

        It is zero for rows that know nothing of the location, such as a flat prior.
        """

    @abstractmethod
    def location_information(self, eta: Array) -> Array:
        """Return the information behind the location (n,); zero or less for rows that are no members of the family."""

    @abstractmethod
    def dispersions(self, eta: Array, groups: CopyGroups) -> tuple[Dispersion, ...]:
        """Return how much copies differ, for each of ``parts``, by what their data say (n, P): ``flat`` of no data."""

    @abstractmethod
    def mean_intervals(self, eta: Array, level: float) -> tuple[Array, Array, Array]:
        """Return posterior mean and central interval of this probability (n, D) of what data average to, by column."""

    def with_spread(self, eta: Array, spread: Array) -> Array:
        """Return the distributions with the location of `eta` and all else of `spread`, both (n, P).

        For families of one block, `eta` itself.
        """
        del spread
        return eta

    def saying_nothing(self, eta: Array, total: Array) -> NDArray[np.bool_]:
        """Return which rows say nothing (n,): what data say, `eta`, against all that was known, `total` (n, P)."""
        floor = MIN_INFORMATION_SHARE * self.location_information(total)
        return np.asarray(~(self.location_information(eta) > floor))

    @final
    def rescaled_location(self, eta: Array, factors: Array) -> Array:
        """Return rows whose location has `factors` (n,) times the information, about the same centre."""
        return np.asarray(eta + (factors - 1.0)[:, None] * self.location_part(eta))


class RandomEffectsPrecisionFamily(RandomEffectsFamily, PrecisionFamily):
    """A Gaussian family, all of whose natural parameters are proportional to its precision."""

    @abstractmethod
    def precisions(self, eta: Array) -> Array:
        """Return precisions (n, D, D), or their diagonals (n, D), without a check."""

    @final
    def location_part(self, eta: Array) -> Array:
        """Return the rows themselves."""
        return eta

    @final
    def location_information(self, eta: Array) -> Array:
        """Return the geometric mean of the precisions (n,), 0 for rows without a positive definite one."""
        is_member = np.ones(len(eta), dtype=np.bool_)
        is_member[[row for row, _ in self.faults(eta)]] = False
        information = np.zeros(len(eta))
        information[is_member] = self.information(eta[is_member])[:, 0]
        return information

    @final
    def dispersions(self, eta: Array, groups: CopyGroups) -> tuple[Dispersion, ...]:
        """Return how much means differ, each in units of its own precision."""
        means = self.plug_in(eta)[0]
        centred = means - (groups.sum(means) / groups.sizes()[:, None])[groups.labels]
        return (PrecisionDispersion(groups, self.information(eta)[:, 0], centred, self.precisions(eta)),)

    @final
    def mean_intervals(self, eta: Array, level: float) -> tuple[Array, Array, Array]:
        """Return means and normal intervals."""
        means, widths = self.plug_in(eta)
        variances = variances_of(widths)
        half_width = float(ndtri(0.5 + 0.5 * level)) * np.sqrt(variances)
        return means, means - half_width, means + half_width


def with_common_covariance(
    groups: CopyGroups, information: Array, means: Array, scatter: Array, dof: Array
) -> tuple[LocationDispersion, NDArray[np.bool_]]:
    """Return the dispersion of means under their pooled within-site covariance, and which groups have one.

    Never the covariance of the merged copies, which holds the differences between sites and so drives h to zero. The
    means (n, D) are of so many observations (n,); sums of squares within each copy, W_l^-1 (n, D, D) or their diagonals
    (n, D), of so many degrees of freedom nu_l (n,).
    """
    shape = (-1, *[1] * (scatter.ndim - 1))
    pooled = groups.sum(groups.weights.reshape(shape) * scatter) / groups.sum(groups.weights * dof).reshape(shape)
    centred = means - (groups.sum(means) / groups.sizes()[:, None])[groups.labels]
    if scatter.ndim == 3:
        eigenvalues = np.linalg.eigvalsh(pooled)
        is_known = eigenvalues[:, 0] > np.finfo(np.float64).eps * eigenvalues[:, -1]
        pooled = np.where(is_known[:, None, None], pooled, np.eye(means.shape[1]))
        factors = np.asarray(np.linalg.cholesky(pooled), dtype=np.float64)
        whitened = np.linalg.solve(factors[groups.labels], centred[:, :, None])[:, :, 0]
    else:
        is_known = np.all(pooled > 0, axis=1)
        whitened = centred / np.sqrt(np.where(is_known[:, None], pooled, 1.0))[groups.labels]
    degrees = np.where(is_known, means.shape[1] * (groups.sizes() - 1.0), 0.0)
    return LocationDispersion(groups, information, np.asarray(whitened, dtype=np.float64), degrees), is_known


class GaussianPosteriorFamily(RandomEffectsFamily):
    """Posteriors of a Gaussian's mean, of kappa observations, and of its precisions, of nu: see ``scatter_form``.

    Natural parameters begin with kappa m (D) and -kappa / 2, and have second moments about zero next.
    """

    dim: int
    describes_data: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ("location", "scale")
    _width: ClassVar[str]  # what the Gaussians call their width, "covariance" or "variance"

    @property
    @abstractmethod
    def _gaussians(self) -> Gaussian | DiagonalGaussian:
        """The Gaussians that rows stand for."""

    @abstractmethod
    def _dof(self, eta: Array) -> Array:
        """Return nu (n,)."""

    @abstractmethod
    def scatter_form(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m (n, D), kappa (n,), the scatter (n, D, D) or (n, R), and nu (n,)."""

    def _squares(self, linear: Array) -> Array:
        """Return x x^T (n, S) of rows (n, D) in the form of the second moments."""
        return flatten(linear[:, :, None] * linear[:, None, :])

    def _by_dimension(self, scatter: Array) -> Array:
        """Return scatters in the form of the Gaussians' covariances, (n, D, D) or (n, D)."""
        return scatter

    def _common(self, covariance: Array) -> Array:
        """Return the inverse of ``_by_dimension``: means over dimensions that share a variance."""
        return covariance

    @staticmethod
    def _typical(scatter: Array, dof: Array) -> Array:
        """Return scatter / nu, the typical covariances."""
        return scatter / dof.reshape(-1, *[1] * (scatter.ndim - 1))

    def information(self, eta: Array) -> Array:
        """Return kappa and nu (n, 2)."""
        return np.stack([-2.0 * eta[:, self.dim], self._dof(eta)], axis=1)

    def location_part(self, eta: Array) -> Array:
        """Return (kappa m, -kappa / 2, -kappa m m^T / 2, 0)."""
        linear, kappa = eta[:, : self.dim], -2.0 * eta[:, self.dim]
        squares = self._squares(linear) / np.where(kappa == 0.0, 1.0, kappa)[:, None]
        return np.concatenate([linear, -0.5 * kappa[:, None], -0.5 * squares, np.zeros((len(eta), 1))], axis=1)

    def location_information(self, eta: Array) -> Array:
        """Return kappa (n,)."""
        return np.asarray(-2.0 * eta[:, self.dim])

    def saying_nothing(self, eta: Array, total: Array) -> NDArray[np.bool_]:
        """Rows without observations behind the mean, or behind the precisions."""
        return super().saying_nothing(eta, total) | ~(self._dof(eta) > 0.0)

    def dispersions(self, eta: Array, groups: CopyGroups) -> tuple[Dispersion, ...]:
        """Return how much means differ in units of the pooled scatter / nu, and how much these do."""
        mean, kappa, scatter, dof = self.scatter_form(eta)
        location, is_known = with_common_covariance(groups, kappa, mean, self._by_dimension(scatter), dof)
        return location, CovarianceDispersion(groups, dof, self._typical(scatter, dof), is_known)

    def plug_in(self, eta: Array) -> tuple[Array, Array]:
        """Return means m (n, D) and scatter / nu: covariances (n, D, D), or variances (n, D)."""
        mean, _, scatter, dof = self.scatter_form(eta)
        return mean, self._by_dimension(self._typical(scatter, dof))

    def _plug_in_gaussians(self, eta: Array) -> Array:
        """Return natural parameters of the Gaussians that the rows stand for."""
        mean, width = self.plug_in(eta)
        return self._gaussians.to_natural(mean=mean, **{self._width: width})

    def wasserstein(self, eta_a: Array, eta_b: Array) -> Array:
        """Return squared Wasserstein-2 distances (n_a, n_b) of the Gaussians that the rows stand for."""
        return self._gaussians.wasserstein(self._plug_in_gaussians(eta_a), self._plug_in_gaussians(eta_b))

    def wasserstein_barycenter(self, eta: Array, weights: Array | None = None) -> Array:
        """Return eta (P,) whose Gaussian is the barycenter of the rows', with the mean kappa and nu."""
        w = as_weights(weights, eta.shape[0])
        centre = self._gaussians.wasserstein_barycenter(self._plug_in_gaussians(eta), w)
        mean, width = self._gaussians.plug_in(centre[None])
        kappa, dof = (w / w.sum()) @ self.information(eta)
        return self.from_scatter_form(mean, np.array([kappa]), dof * self._common(width), np.array([dof]))[0]
