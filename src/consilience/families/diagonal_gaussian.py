"""Gaussians with diagonal covariance: a vector of independent Gaussians, such as the weights of a neuron.

    eta = (m / v, -1 / (2 v)),    T = (z, z^2),    A = sum_d m_d^2 / (2 v_d) + log(2 pi v_d) / 2,    mu = (m, m^2 + v)
    KL(a || b) = 1/2 sum_d [ v_a / v_b - 1 - log(v_a / v_b) + (m_a - m_b)^2 / v_b ]

The forward barycenter averages precisions, and means with them as weights; the reverse one averages first and second
moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Json, as_rows, as_weights
from consilience.families.base import Draws, Parameters
from consilience.families.linalg import diagonal_of
from consilience.families.random_effects import RandomEffectsPrecisionFamily
from consilience.families.special import itakura_saito
from consilience.families.wasserstein import squared_distances


@dataclass(frozen=True)
class DiagonalGaussian(RandomEffectsPrecisionFamily):
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

    def config(self) -> dict[str, Json]:
        """Return what the constructor needs."""
        return {"dim": self.dim}

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
        return 0.5 * (np.sum(terms, axis=1) + self.dim * np.log(2.0 * np.pi))

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

    def precisions(self, eta: Array) -> Array:
        """Return the precisions (n, D)."""
        return self._split(eta)[1]

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the Gaussians N(A m + b, A v A), A being diagonal."""
        linear, precision = self._split(eta)
        scale = diagonal_of(matrix)
        image = precision / scale**2
        return np.concatenate([linear / scale + image * shift, -0.5 * image], axis=1)

    def plug_in(self, eta: Array) -> tuple[Array, Array]:
        """Return means and variances (n, D)."""
        linear, precision = self._split(eta)
        return linear / precision, 1.0 / precision

    def moved(self, eta: Array, shift: Array) -> Array:
        """Return the rows with means moved by `shift` (D,)."""
        linear, precision = self._split(eta)
        return np.concatenate([linear + precision * shift, eta[:, self.dim :]], axis=1)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with a variance that is not positive."""
        is_bad = eta[:, self.dim :] >= 0
        return [
            (int(i), f"has a variance that is not positive (dimension {int(np.argmax(is_bad[i]))})")
            for i in np.flatnonzero(is_bad.any(axis=1))
        ]

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, D)."""
        p = self.from_natural(eta)
        return {"value": p["mean"] + np.sqrt(p["variance"]) * rng.standard_normal((size, *p["mean"].shape))}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (z, z^2)."""
        return np.concatenate([draws["value"], draws["value"] ** 2], axis=-1)

    def wasserstein(self, eta_a: Array, eta_b: Array) -> Array:
        """Return squared Wasserstein-2 distances (n_a, n_b): of means plus of standard deviations."""
        a, b = self.from_natural(eta_a), self.from_natural(eta_b)
        widths = squared_distances(np.sqrt(a["variance"]), np.sqrt(b["variance"]))
        return squared_distances(a["mean"], b["mean"]) + widths

    def wasserstein_barycenter(self, eta: Array, weights: Array | None = None) -> Array:
        """Return eta (P,) with the weighted mean of means and of standard deviations."""
        w = as_weights(weights, eta.shape[0])
        w = w / w.sum()
        p = self.from_natural(eta)
        return self.to_natural(mean=w @ p["mean"], variance=(w @ np.sqrt(p["variance"])) ** 2)[0]
