"""Gaussians with full, with diagonal and with spherical covariance.

With the precision Lambda = S^-1 of the covariance S,

    eta = (Lambda m, -Lambda / 2),    T = (z, z z^T),    mu = (m, S + m m^T)
    A = m^T Lambda m / 2 - log|Lambda| / 2 + D log(2 pi) / 2
    KL(a || b) = 1/2 [ tr(S_a Lambda_b) - D - log|S_a Lambda_b| + (m_b - m_a)^T Lambda_b (m_b - m_a) ]

and of independent dimensions, such as the weights of a neuron, sums of these over the dimensions. The forward
barycenter averages precisions, and means with them as weights; the reverse one averages first and second moments, so
that the covariance gains the scatter of the means. What posteriors of their parameters share is here too.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, as_matrices, as_rows, as_vector, as_weights, symmetric_part
from consilience.families.base import Draws, Parameters
from consilience.families.linalg import (
    cholesky,
    flatten,
    half_solve,
    inverse,
    isotropic_square,
    log_det_divergence,
    log_determinant,
    not_positive_definite,
    scaled_columns,
    unflatten,
)
from consilience.families.random_effects import (
    RandomEffectsPrecisionFamily,
)
from consilience.families.special import itakura_saito
from consilience.families.wasserstein import bures_barycenter, bures_distances, squared_distances

_LOG_TWO_PI = float(np.log(2.0 * np.pi))


class _GaussianFamily(RandomEffectsPrecisionFamily):
    """What Gaussians with all kinds of covariance share."""

    dim: int

    @abstractmethod
    def _split(self, eta: Array) -> tuple[Array, Array]:
        """Return precision times mean (n, D), which comes first, and precision."""

    def precisions(self, eta: Array) -> Array:
        """Return precisions (n, D, D), or their diagonals (n, D)."""
        return self._split(eta)[1]

    def plug_in(self, eta: Array) -> tuple[Array, Array]:
        """Return means (n, D) and covariances (n, D, D), or variances (n, D)."""
        mean, width = self.from_natural(eta).values()
        return mean, width

    def moved(self, eta: Array, shift: Array) -> Array:
        """Return the rows with means moved by `shift` (D,)."""
        precision = self.precisions(eta)
        change = precision @ shift if precision.ndim == 3 else precision * shift
        return np.concatenate([eta[:, : self.dim] + change, eta[:, self.dim :]], axis=1)


class _IndependentGaussian(_GaussianFamily):
    """Gaussians of independent dimensions, by means and variances."""

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, D)."""
        mean, variance = self.plug_in(eta)
        return {"value": mean + np.sqrt(variance) * rng.standard_normal((size, *mean.shape))}

    def wasserstein_barycenter(self, eta: Array, weights: Array | None = None) -> Array:
        """Return eta (P,) with the weighted mean of means and of standard deviations."""
        w = as_weights(weights, eta.shape[0])
        w = w / w.sum()
        p = self.from_natural(eta)
        natural: Array = self.to_natural(mean=w @ p["mean"], variance=(w @ np.sqrt(p["variance"])) ** 2)[0]
        return natural


@dataclass(frozen=True)
class Gaussian(_GaussianFamily):
    """Gaussian with full covariance; eta = (Lambda m, -Lambda / 2), T = (z, z z^T), P = D + D^2.

    Parameters
    ----------
    dim
        Data dimension D.

    Examples
    --------
    >>> family = Gaussian(dim=2)
    >>> eta = family.to_natural(mean=[[1.0, 2.0]], covariance=[[[2.0, 0.0], [0.0, 4.0]]])
    >>> family.from_natural(eta)["mean"]
    array([[1., 2.]])
    """

    dim: int
    name: ClassVar[str] = "gaussian"

    @property
    def size(self) -> int:
        """Length P = D + D^2 of a row of natural parameters."""
        return self.dim + self.dim**2

    def to_natural(self, *, mean: ArrayLike, covariance: ArrayLike) -> Array:
        """Return eta (n, P) from means (n, D) and covariances (n, D, D)."""
        precision = inverse(as_matrices("covariance", covariance, self.dim), "covariance")
        means = as_rows("mean", mean, self.dim)
        return np.concatenate([np.einsum("nij,nj->ni", precision, means), flatten(-0.5 * precision)], axis=1)

    def _split(self, eta: Array) -> tuple[Array, Array]:
        """Precision times mean (n, D), and precision (n, D, D)."""
        return eta[:, : self.dim], -2.0 * unflatten(eta[:, self.dim :], self.dim)

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` (n, D) and ``covariance`` (n, D, D)."""
        linear, precision = self._split(eta)
        covariance = inverse(precision, "precision")
        return {"mean": np.einsum("nij,nj->ni", covariance, linear), "covariance": covariance}

    def log_normalizer(self, eta: Array) -> Array:
        """Return m^T Lambda m / 2 - log|Lambda| / 2 + D log(2 pi) / 2."""
        linear, precision = self._split(eta)
        factor = cholesky(precision, "precision")
        quadratic = np.sum(half_solve(factor, linear) ** 2, axis=1)  # |L^-1 Lambda m|^2 = m^T Lambda m, (n,)
        return 0.5 * (quadratic - log_determinant(factor) + self.dim * _LOG_TWO_PI)

    def mean_parameters(self, eta: Array) -> Array:
        """Return (m, S + m m^T)."""
        parameters = self.from_natural(eta)
        mean, covariance = parameters["mean"], parameters["covariance"]
        return np.concatenate([mean, flatten(covariance + mean[:, :, None] * mean[:, None, :])], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta of the Gaussian with these first and second moments."""
        first, second = mean[:, : self.dim], unflatten(mean[:, self.dim :], self.dim)
        return self.to_natural(mean=first, covariance=second - first[:, :, None] * first[:, None, :])

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) from differences of natural parameters, with r = Lambda_b (m_b - m_a).

        It is half of tr(S_a Lambda_b) - D - log|S_a Lambda_b| plus r^T S_b r, and r = (Lambda_b m_b - Lambda_a m_a)
        - (Lambda_b - Lambda_a) m_a needs no m_b, whose rounding it would carry.
        """
        linear_a, precision_a = self._split(eta_a)
        linear_b, precision_b = self._split(eta_b)
        change = precision_b - precision_a  # (n, D, D)
        factor_a = cholesky(precision_a, "precision")
        mean_a = np.linalg.solve(precision_a, linear_a[:, :, None])[:, :, 0]  # (n, D)
        shift = (linear_b - linear_a) - np.einsum("nij,nj->ni", change, mean_a)  # r (n, D)
        factor_b = cholesky(precision_b, "precision")
        return 0.5 * (log_det_divergence(factor_a, factor_b, change) + np.sum(half_solve(factor_b, shift) ** 2, axis=1))

    def information(self, eta: Array) -> Array:
        """Return the geometric mean of the precisions (n, 1): the D-th root of |Lambda|."""
        return np.exp(log_determinant(cholesky(self._split(eta)[1], "precision")) / self.dim)[:, None]

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the Gaussians N(A m + b, A S A^T): the precision is A^-T Lambda A^-1."""
        linear, precision = self._split(eta)
        back = np.linalg.inv(matrix)
        image = symmetric_part(back.T @ precision @ back)
        return np.concatenate([linear @ back + image @ shift, flatten(-0.5 * image)], axis=1)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows whose precision is not symmetric positive definite."""
        return not_positive_definite(self._split(eta)[1], "covariance")

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, D)."""
        linear, precision = self._split(eta)
        factor = cholesky(precision, "precision")
        noise = rng.standard_normal((size, eta.shape[0], self.dim, 1))
        offset = np.linalg.solve(np.swapaxes(factor, 1, 2), noise)[..., 0]  # L^-T e has covariance Lambda^-1
        return {"value": np.linalg.solve(precision, linear[:, :, None])[:, :, 0] + offset}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (z, z z^T)."""
        value = draws["value"]
        outer = value[..., :, None] * value[..., None, :]  # (size, n, D, D)
        return np.concatenate([value, outer.reshape(*value.shape[:-1], -1)], axis=-1)

    def wasserstein(self, eta_a: Array, eta_b: Array) -> Array:
        """Return squared Wasserstein-2 distances (n_a, n_b): |m_a - m_b|^2 plus the Bures distance of covariances."""
        a, b = self.from_natural(eta_a), self.from_natural(eta_b)
        return squared_distances(a["mean"], b["mean"]) + bures_distances(a["covariance"], b["covariance"])

    def wasserstein_barycenter(self, eta: Array, weights: Array | None = None) -> Array:
        """Return eta (P,) of the Gaussian that minimises sum_i w_i W2^2(q, q_i), by ``bures_barycenter``."""
        w = as_weights(weights, eta.shape[0])
        w = w / w.sum()
        parameters = self.from_natural(eta)
        covariance = bures_barycenter(parameters["covariance"], w)
        return self.to_natural(mean=w @ parameters["mean"], covariance=covariance)[0]


@dataclass(frozen=True)
class SphericalGaussian(_IndependentGaussian):
    """Gaussian with covariance v I; eta = (m / v, -1 / (2 v)), T = (z, |z|^2), P = D + 1.

    Parameters
    ----------
    dim
        Data dimension D.
    """

    dim: int
    name: ClassVar[str] = "spherical-gaussian"

    @property
    def size(self) -> int:
        """Length P = D + 1 of a row of natural parameters."""
        return self.dim + 1

    def to_natural(self, *, mean: ArrayLike, variance: ArrayLike) -> Array:
        """Return eta (n, P) from means (n, D) and variances (n,)."""
        means = as_rows("mean", mean, self.dim)
        precision = 1.0 / as_vector("variance", variance, means.shape[0])
        return np.concatenate([means * precision[:, None], -0.5 * precision[:, None]], axis=1)

    def _split(self, eta: Array) -> tuple[Array, Array]:
        """Precision times mean, m / v (n, D), and precision, 1 / v (n,)."""
        return eta[:, : self.dim], -2.0 * eta[:, self.dim]

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` (n, D) and ``variance`` (n,)."""
        linear, precision = self._split(eta)
        return {"mean": linear / precision[:, None], "variance": 1.0 / precision}

    def log_normalizer(self, eta: Array) -> Array:
        """Return |m|^2 / (2 v) + D log(2 pi v) / 2."""
        linear, precision = self._split(eta)
        quadratic = np.sum(linear**2, axis=1) / precision
        return 0.5 * (quadratic + self.dim * (_LOG_TWO_PI - np.log(precision)))

    def mean_parameters(self, eta: Array) -> Array:
        """Return (m, |m|^2 + D v)."""
        linear, precision = self._split(eta)
        mean = linear / precision[:, None]
        return np.concatenate([mean, (np.sum(mean**2, axis=1) + self.dim / precision)[:, None]], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta of the spherical Gaussian with this mean and mean square norm."""
        first, second = mean[:, : self.dim], mean[:, self.dim]
        return self.to_natural(mean=first, variance=(second - np.sum(first**2, axis=1)) / self.dim)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b), half of D h(v_a / v_b - 1) + |m_b - m_a|^2 / v_b, h(u) = u - log(1 + u).

        As for a full covariance, from differences of natural parameters.
        """
        linear_a, precision_a = self._split(eta_a)
        linear_b, precision_b = self._split(eta_b)
        change = precision_b - precision_a  # (n,)
        shift = (linear_b - linear_a) - (change / precision_a)[:, None] * linear_a  # (m_b - m_a) / v_b, (n, D)
        width_term = self.dim * itakura_saito(change, precision_b, precision_a)
        return 0.5 * (width_term + np.sum(shift**2, axis=1) / precision_b)

    def information(self, eta: Array) -> Array:
        """Return the precision (n, 1)."""
        return self._split(eta)[1][:, None]

    def precisions(self, eta: Array) -> Array:
        """Return the one precision for every dimension (n, D)."""
        return np.repeat(self._split(eta)[1][:, None], self.dim, axis=1)

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the Gaussians N(A m + b, c^2 v I), A being c times an orthogonal matrix."""
        linear, precision = self._split(eta)
        square = isotropic_square(matrix)
        image = precision / square
        return np.concatenate([linear @ matrix.T / square + image[:, None] * shift, -0.5 * image[:, None]], axis=1)

    def plug_in(self, eta: Array) -> tuple[Array, Array]:
        """Return means and variances (n, D)."""
        linear, precision = self._split(eta)
        return linear / precision[:, None], np.repeat(1.0 / precision[:, None], self.dim, axis=1)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows whose variance is not positive."""
        return [(int(i), "has a variance that is not positive") for i in np.flatnonzero(eta[:, self.dim] >= 0)]

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (z, |z|^2)."""
        value = draws["value"]
        return np.concatenate([value, np.sum(value**2, axis=-1, keepdims=True)], axis=-1)

    def wasserstein(self, eta_a: Array, eta_b: Array) -> Array:
        """Return squared Wasserstein-2 distances (n_a, n_b), |m_a - m_b|^2 + D (s_a - s_b)^2 with s = v^1/2."""
        a, b = self.from_natural(eta_a), self.from_natural(eta_b)
        width_differences = np.sqrt(a["variance"])[:, None] - np.sqrt(b["variance"])
        return squared_distances(a["mean"], b["mean"]) + self.dim * width_differences**2


@dataclass(frozen=True)
class DiagonalGaussian(_IndependentGaussian):
    """Gaussian with variances v; eta = (m / v, -1 / (2 v)), T = (z, z^2), P = 2 D.

    Parameters
    ----------
    dim
        Data dimension D.
    """

    dim: int
    name: ClassVar[str] = "diagonal-gaussian"

    @property
    def size(self) -> int:
        """Length P = 2 D of a row of natural parameters."""
        return 2 * self.dim

    def to_natural(self, *, mean: ArrayLike, variance: ArrayLike) -> Array:
        """Return eta (n, P) from means and variances (n, D)."""
        precision = 1.0 / as_rows("variance", variance, self.dim)
        return np.concatenate([as_rows("mean", mean, self.dim) * precision, -0.5 * precision], axis=1)

    def _split(self, eta: Array) -> tuple[Array, Array]:
        """Precision times mean, m / v, and precision, 1 / v: (n, D) each."""
        return eta[:, : self.dim], -2.0 * eta[:, self.dim :]

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` and ``variance`` (n, D)."""
        linear, precision = self._split(eta)
        return {"mean": linear / precision, "variance": 1.0 / precision}

    def log_normalizer(self, eta: Array) -> Array:
        """Return sum_d m^2 / (2 v) + log(2 pi v) / 2."""
        linear, precision = self._split(eta)
        terms = linear**2 / precision
        terms -= np.log(precision)
        return 0.5 * (np.sum(terms, axis=1) + self.dim * _LOG_TWO_PI)

    def mean_parameters(self, eta: Array) -> Array:
        """Return (m, m^2 + v)."""
        p = self.from_natural(eta)
        return np.concatenate([p["mean"], p["mean"] ** 2 + p["variance"]], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta of the Gaussian with these first and second moments."""
        first, second = mean[:, : self.dim], mean[:, self.dim :]
        return self.to_natural(mean=first, variance=second - first**2)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) from differences of natural parameters.

        Per dimension half of h(v_a / v_b - 1) + (m_b - m_a)^2 / v_b, with h(u) = u - log(1 + u): both non-negative.
        """
        linear_a, precision_a = self._split(eta_a)
        linear_b, precision_b = self._split(eta_b)
        change = precision_b - precision_a  # (n, D)
        # (m_b - m_a) / v_b, which the difference of the means, each a quotient, would know less well
        shift = (linear_b - linear_a) - change / precision_a * linear_a
        return 0.5 * np.sum(itakura_saito(change, precision_b, precision_a) + shift**2 / precision_b, axis=1)

    def information(self, eta: Array) -> Array:
        """Return the geometric mean of the precisions (n, 1)."""
        return np.exp(np.log(self._split(eta)[1]).mean(axis=1, keepdims=True))

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the Gaussians N(A m + b, A v A^T), A taking one column in each row."""
        linear, precision = self._split(eta)
        order, scale = scaled_columns(matrix)
        image = precision[:, order] / scale**2
        return np.concatenate([linear[:, order] / scale + image * shift, -0.5 * image], axis=1)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with a variance that is not positive."""
        is_bad = eta[:, self.dim :] >= 0
        bad = np.flatnonzero(is_bad.any(axis=1))
        return [(int(i), f"has a variance that is not positive (dimension {int(np.argmax(is_bad[i]))})") for i in bad]

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (z, z^2)."""
        return np.concatenate([draws["value"], draws["value"] ** 2], axis=-1)

    def wasserstein(self, eta_a: Array, eta_b: Array) -> Array:
        """Return squared Wasserstein-2 distances (n_a, n_b): of means plus of standard deviations."""
        a, b = self.from_natural(eta_a), self.from_natural(eta_b)
        widths = squared_distances(np.sqrt(a["variance"]), np.sqrt(b["variance"]))
        return squared_distances(a["mean"], b["mean"]) + widths
