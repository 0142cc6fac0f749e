"""Normal-Gamma: posteriors of Gaussian components with diagonal or spherical precision.

R precisions lambda_r ~ Gamma(a, b_r) of the D data dimensions, each shared by D / R of them, and means
mu_d | lambda ~ N(m_d, 1 / (kappa lambda_r(d))). With [x]_r the sum of x over the dimensions of precision r,

    T   = (lambda mu, sum_d lambda mu^2, lambda, sum_r log lambda_r)
    eta = (kappa m, -kappa / 2, -(b + kappa [m^2] / 2), a - 1 + D / (2 R))
    A   = (D / 2) log(2 pi / kappa) + sum_r log Gamma(a) - a log b_r
    mu  = (m a / b, D / kappa + sum_d m^2 a / b, a / b, sum_r psi(a) - log b_r)

R = D is the law of components with diagonal covariances, R = 1 that of spherical ones. kappa and a are shared by the
dimensions; otherwise the family would be the product of D laws of one dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, stdtrit

from consilience.checks import Array, as_rows, as_vector
from consilience.families.base import Draws, Parameters
from consilience.families.gaussian import DiagonalGaussian
from consilience.families.linalg import is_cancelled, isotropic_square, not_positive, scaled_columns
from consilience.families.random_effects import GaussianPosteriorFamily
from consilience.families.special import gamma_bregman, gamma_shape, itakura_saito, subtract_quotients

_LOG_TWO_PI = float(np.log(2.0 * np.pi))


class _NormalGammaFamily(GaussianPosteriorFamily):
    """The diagonal and the spherical form: R precisions, of which each data dimension uses one; see the module.

    A row of natural parameters has the blocks kappa m (D), -kappa / 2 (1), -(b + kappa [m^2] / 2) (R) and the exponent
    of the precisions (1). Rates b are (n, R).
    """

    _width: ClassVar[str] = "variance"

    @property
    def _gaussians(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.dim)

    @property
    @abstractmethod
    def n_rates(self) -> int:
        """Number R of precisions of a component."""

    @property
    def _dims_per_rate(self) -> int:
        """Number D / R of data dimensions that share a precision."""
        return self.dim // self.n_rates

    @property
    def size(self) -> int:
        """Length P = D + 1 + R + 1 of a row of natural parameters."""
        return self.dim + 2 + self.n_rates

    def to_natural(self, *, mean: ArrayLike, kappa: ArrayLike, shape: ArrayLike, rate: ArrayLike) -> Array:
        """Return eta (n, P) from mean (n, D), kappa and shape (n,), and rate: (n, D), or (n,) of a spherical form."""
        means = as_rows("mean", mean, self.dim)
        kappas, shapes = as_vector("kappa", kappa, means.shape[0]), as_vector("shape", shape, means.shape[0])
        return self._natural(means, kappas, shapes, self._rates(rate, means.shape[0]))

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` (n, D), ``kappa`` and ``shape`` (n,), and ``rate``: (n, D), or (n,) of a spherical form."""
        mean, kappa, shape, rate = self.standard(eta)
        return {"mean": mean, "kappa": kappa, "shape": shape, "rate": self._told(rate)}

    @abstractmethod
    def _rates(self, rate: ArrayLike, count: int) -> Array:
        """Return as many rates (n, R), or raise."""

    def _told(self, rates: Array) -> Array:
        """Return rates or precisions (..., R) in the form that parameters and draws have."""
        return rates

    def _sum_by_rate(self, values: Array) -> Array:
        """Sum (..., D) over the dimensions that share a precision: (..., R)."""
        return values.reshape(*values.shape[:-1], self.n_rates, self._dims_per_rate).sum(axis=-1)

    def _by_dimension(self, scatter: Array) -> Array:
        """Repeat (..., R) for each data dimension: (..., D)."""
        return np.repeat(scatter, self._dims_per_rate, axis=-1)

    def _common(self, covariance: Array) -> Array:
        """Return means (..., R) over the dimensions (..., D) that share a precision."""
        return self._sum_by_rate(covariance) / self._dims_per_rate

    def _squares(self, linear: Array) -> Array:
        """Return sums of squares (n, R) over the dimensions (n, D) that share a precision."""
        return self._sum_by_rate(linear**2)

    def _natural(self, mean: Array, kappa: Array, shape: Array, rate: Array) -> Array:
        """Return eta (n, P) of mean (n, D), kappa (n,), shape (n,) and rate (n, R)."""
        second = rate + 0.5 * kappa[:, None] * self._sum_by_rate(mean**2)  # b + kappa [m^2] / 2, (n, R)
        exponent = shape - 1.0 + 0.5 * self._dims_per_rate
        return np.concatenate([kappa[:, None] * mean, -0.5 * kappa[:, None], -second, exponent[:, None]], axis=1)

    def standard(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m (n, D), kappa (n,), shape (n,) and rates (n, R).

        The rates are what is left of the third block without kappa [m^2] / 2, which is nearly all of it where means
        are far from the origin: hence the compensated difference.
        """
        kappa = -2.0 * eta[:, self.dim]
        mean = eta[:, : self.dim] / kappa[:, None]
        linear = eta[:, : self.dim].reshape(-1, self.n_rates, self._dims_per_rate)  # kappa m (n, R, D / R)
        # (kappa m)^2 / (2 kappa), by factors
        squares = [(linear[:, :, d], linear[:, :, d]) for d in range(self._dims_per_rate)]
        rate = subtract_quotients(-eta[:, self.dim + 1 : -1], squares, 2.0 * kappa[:, None])
        return mean, kappa, self._shape(eta), rate

    def scatter_form(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m (n, D), kappa (n,), 2 b (n, R) and 2 a (n,)."""
        mean, kappa, shape, rate = self.standard(eta)
        return mean, kappa, 2.0 * rate, 2.0 * shape

    def from_scatter_form(self, mean: Array, kappa: Array, scatter: Array, dof: Array) -> Array:
        """Return the rows with b = scatter / 2 and a = dof / 2."""
        return self._natural(mean, kappa, 0.5 * dof, 0.5 * scatter)

    def _shape(self, eta: Array) -> Array:
        """Return the shape a (n,)."""
        return eta[:, -1] + 1.0 - 0.5 * self._dims_per_rate

    def _dof(self, eta: Array) -> Array:
        """Return 2 a (n,)."""
        return 2.0 * self._shape(eta)

    def log_normalizer(self, eta: Array) -> Array:
        """Return (D/2) log(2 pi / kappa) + sum over precisions of log Gamma(a) - a log b."""
        _, kappa, shape, rate = self.standard(eta)
        location = 0.5 * self.dim * (_LOG_TWO_PI - np.log(kappa))
        return np.asarray(location + self.n_rates * gammaln(shape) - shape * np.log(rate).sum(axis=1))

    def mean_parameters(self, eta: Array) -> Array:
        """Return (m a / b, D / kappa + sum m^2 a / b, a / b, sum of psi(a) - log b)."""
        mean, kappa, shape, rate = self.standard(eta)
        precision = shape[:, None] / rate  # E lambda = a / b, (n, R)
        square = self.dim / kappa + (self._sum_by_rate(mean**2) * precision).sum(axis=1)  # E sum_d lambda mu^2, (n,)
        log_precision = self.n_rates * digamma(shape) - np.log(rate).sum(axis=1)  # E sum_r log lambda_r, (n,)
        linear = mean * self._by_dimension(precision)  # E lambda mu, (n, D)
        return np.concatenate([linear, square[:, None], precision, log_precision[:, None]], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta from E[T]: all in closed form but the shape, the root of log a - psi(a) = a known gap."""
        precision = mean[:, self.dim + 1 : -1]  # (n, R)
        centre = mean[:, : self.dim] / self._by_dimension(precision)
        kappa = self.dim / (mean[:, self.dim] - (self._sum_by_rate(centre**2) * precision).sum(axis=1))
        # R log a - R psi(a) = sum_r log E lambda_r - E log lambda_r, since a / b_r = E lambda_r.
        shape = gamma_shape((np.log(precision).sum(axis=1) - mean[:, -1]) / self.n_rates)
        return self._natural(centre, kappa, shape, shape[:, None] / precision)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) as a sum of non-negative terms; rho is the ratio of mean precisions.

        D h(kappa_b / kappa_a - 1) / 2 + kappa_b sum_d lambda_a (m_a - m_b)^2 / 2 + a_b sum h(rho - 1)
        + R B(a_b, a_a), with h(u) = u - log(1 + u) and B the Bregman divergence of log Gamma(x) - x log x.
        """
        mean_a, kappa_a, shape_a, rate_a = self.standard(eta_a)
        mean_b, kappa_b, shape_b, rate_b = self.standard(eta_b)
        precision = shape_a[:, None] / rate_a  # E lambda under a, (n, R)
        location = 0.5 * self.dim * itakura_saito(kappa_b - kappa_a, kappa_b, kappa_a)
        location += 0.5 * kappa_b * (self._sum_by_rate((mean_b - mean_a) ** 2) * precision).sum(axis=1)
        typical_a, typical_b = rate_a / shape_a[:, None], rate_b / shape_b[:, None]  # typical variances b / a, (n, R)
        scale = shape_b * itakura_saito(typical_b - typical_a, typical_b, typical_a).sum(axis=1)
        return location + scale + self.n_rates * gamma_bregman(shape_b, shape_a)

    @property
    def flat(self) -> Array:
        """No observations: kappa, shape and rates are zero."""
        return np.append(np.zeros(self.size - 1), 0.5 * self._dims_per_rate - 1.0)

    @property
    def enough(self) -> Array:
        """Three degrees of freedom behind every precision: rougher ones are no ground for a comparison.

        Chosen by hand; nobody has measured other values.
        """
        return np.array([0.0, 3.0 * self._dims_per_rate])

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Multiply kappa and shape with means and shape / rate kept."""
        mean, kappa, shape, rate = self.standard(eta)
        return self._natural(mean, factors[:, 0] * kappa, factors[:, 1] * shape, factors[:, 1:] * rate)

    def with_spread(self, eta: Array, spread: Array) -> Array:
        """Return m of `eta` with a and b of `spread`; kappa is multiplied by the mean ratio of the variances b / a."""
        mean, kappa, inner_shape, inner_rate = self.standard(eta)
        _, _, shape, rate = self.standard(spread)
        ratio = np.mean((rate / shape[:, None]) / (inner_rate / inner_shape[:, None]), axis=1)
        return self._natural(mean, kappa * ratio, shape, rate)

    def mean_intervals(self, eta: Array, level: float) -> tuple[Array, Array, Array]:
        """Return m and Student's interval of mu: 2 a degrees of freedom, squared scale b / (a kappa)."""
        mean, kappa, shape, rate = self.standard(eta)
        variance = self._by_dimension(rate / shape[:, None]) / kappa[:, None]
        half_width = stdtrit(2.0 * shape, 0.5 + 0.5 * level)[:, None] * np.sqrt(variance)
        return mean, mean - half_width, mean + half_width

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the distribution of the mean A mu + b and the precisions of A z + b: rates times the squares of A."""
        if self.n_rates < self.dim:
            rates, squares = np.arange(self.n_rates), isotropic_square(matrix)[None]
        else:
            rates, factors = scaled_columns(matrix)
            squares = factors**2  # (R,)
        kappa = -2.0 * eta[:, self.dim]
        moved = eta[:, : self.dim] @ matrix.T  # kappa A m, (n, D)
        # b + kappa [m^2] / 2 becomes a^2 (b + kappa [m^2] / 2) + kappa [A m . s] + kappa [s^2] / 2 for a shift s.
        second = eta[:, self.dim + 1 : -1][:, rates] * squares
        second -= self._sum_by_rate(moved * shift) + 0.5 * kappa[:, None] * self._sum_by_rate(shift**2)
        return np.concatenate([moved + kappa[:, None] * shift, eta[:, self.dim, None], second, eta[:, -1:]], axis=1)

    def predictive(self, eta: Array) -> tuple[Array, Array, Array]:
        """Return locations m (n, D), scales b (kappa + 1) / (a kappa) of each precision (n, R), and dof 2 a (n,).

        Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 3, for each precision.
        """
        mean, kappa, shape, rate = self.standard(eta)
        return mean, rate * ((kappa + 1.0) / (kappa * shape))[:, None], 2.0 * shape

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with kappa, shape or a rate that is not positive."""
        kappa = -2.0 * eta[:, self.dim]
        problems = not_positive("kappa =", kappa) + not_positive("shape", self._shape(eta))
        has_means = np.flatnonzero(kappa > 0)  # without a positive kappa there is no mean to take off the rates
        bad = has_means[(self.standard(eta[has_means])[3] <= 0).any(axis=1)]
        return problems + [(int(i), "has a rate that is not positive") for i in bad]

    def offsets(self, eta: Array) -> tuple[Array, Array] | None:
        """Return m and kappa m^2 / (2 b), both (n, D), 0 where b is not small compared with it; None where none is."""
        second, squares = -eta[:, self.dim + 1 : -1], self._sum_by_rate(eta[:, : self.dim] ** 2)
        if not np.any(is_lost := is_cancelled(second, second + 0.25 * squares / eta[:, self.dim, None])):
            return None  # which is quick, and nearly always the answer
        mean, kappa, _, rate = self.standard(eta)
        left = self._by_dimension(np.where(is_lost, np.maximum(rate, 0.0), np.inf))
        with np.errstate(divide="ignore"):
            return mean, 0.5 * kappa[:, None] * mean**2 / left

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``mean`` (size, n, D) and ``precision``: (size, n, D), or (size, n) of a spherical form."""
        mean, kappa, shape, rate = self.standard(eta)
        precision = rng.gamma(shape[:, None], 1.0 / rate, size=(size, *rate.shape))
        noise = rng.standard_normal((size, *mean.shape))
        mean = mean + noise / np.sqrt(kappa[:, None] * self._by_dimension(precision))
        return {"mean": mean, "precision": self._told(precision)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (lambda mu, sum_d lambda mu^2, lambda, sum_r log lambda_r) (size, n, P)."""
        mean = draws["mean"]
        precision = draws["precision"].reshape(*mean.shape[:-1], self.n_rates)
        linear = mean * self._by_dimension(precision)
        square = (linear * mean).sum(axis=-1, keepdims=True)
        log_precision = np.log(precision).sum(axis=-1, keepdims=True)
        return np.concatenate([linear, square, precision, log_precision], axis=-1)


@dataclass(frozen=True)
class NormalGamma(_NormalGammaFamily):
    """One precision per dimension: lambda_d ~ Gamma(a, b_d), mu_d | lambda_d ~ N(m_d, 1 / (kappa lambda_d)).

    kappa and the shape a are shared by the dimensions, as in a mixture with diagonal covariances, so P = 2 D + 2 and
    both barycenters stay in the family. For a kappa and a shape per dimension use a Product of NormalGamma(1).

    Parameters
    ----------
    dim
        Data dimension D.
    """

    dim: int
    name: ClassVar[str] = "normal-gamma"

    @property
    def n_rates(self) -> int:
        """One precision per dimension."""
        return self.dim

    def _rates(self, rate: ArrayLike, count: int) -> Array:
        del count
        return as_rows("rate", rate, self.dim)


@dataclass(frozen=True)
class SphericalNormalGamma(_NormalGammaFamily):
    """One precision for all dimensions: lambda ~ Gamma(a, b), mu | lambda ~ N(m, I / (kappa lambda)); P = D + 3.

    Parameters
    ----------
    dim
        Data dimension D.
    """

    dim: int
    name: ClassVar[str] = "spherical-normal-gamma"

    @property
    def n_rates(self) -> int:
        """One precision."""
        return 1

    def _rates(self, rate: ArrayLike, count: int) -> Array:
        return as_vector("rate", rate, count)[:, None]

    def _told(self, rates: Array) -> Array:
        return rates[..., 0]
