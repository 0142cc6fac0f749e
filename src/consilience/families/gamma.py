"""Gamma: posteriors of rates and precisions.

With shape a and rate b,

    eta = (a - 1, -b),    T = (log x, x),    A = log Gamma(a) - a log b,    mu = (psi(a) - log b, a / b)
    KL(a || b) = a_b h(rho - 1) + B(a_b, a_a),    rho = (a_a / b_a) / (a_b / b_b)

with rho the ratio of the means, h(u) = u - log(1 + u), and B the Bregman divergence of log Gamma(x) - x log x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln

from consilience.checks import Array, as_vector
from consilience.families.base import Draws, Parameters
from consilience.families.evidence import EvidenceFamily
from consilience.families.linalg import not_positive
from consilience.families.special import gamma_bregman, gamma_shape, itakura_saito


@dataclass(frozen=True)
class Gamma(EvidenceFamily):
    """Gamma distribution with shape a and rate b; eta = (a - 1, -b), T = (log x, x), P = 2."""

    name: ClassVar[str] = "gamma"
    parts: ClassVar[tuple[str, ...]] = ("shape",)

    @property
    def size(self) -> int:
        """Length P = 2 of a row of natural parameters."""
        return 2

    def to_natural(self, *, shape: ArrayLike, rate: ArrayLike) -> Array:
        """Return eta (n, 2) from shape and rate (n,)."""
        return np.stack([as_vector("shape", shape) - 1.0, -as_vector("rate", rate)], axis=1)

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``shape`` and ``rate`` (n,)."""
        return {"shape": eta[:, 0] + 1.0, "rate": -eta[:, 1]}

    def log_normalizer(self, eta: Array) -> Array:
        """Return log Gamma(a) - a log b."""
        a, b = eta[:, 0] + 1.0, -eta[:, 1]
        return np.asarray(gammaln(a) - a * np.log(b))

    def points(self, eta: Array) -> Array:
        """Return the logarithm of the mean (n, 1)."""
        return (np.log(eta[:, 0] + 1.0) - np.log(-eta[:, 1]))[:, None]

    def mean_parameters(self, eta: Array) -> Array:
        """Return (psi(a) - log b, a / b)."""
        a, b = eta[:, 0] + 1.0, -eta[:, 1]
        return np.stack([digamma(a) - np.log(b), a / b], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta from E log x and E x: the rate in closed form, the shape as the root of a decreasing function."""
        shape = gamma_shape(np.log(mean[:, 1]) - mean[:, 0])
        return self.to_natural(shape=shape, rate=shape / mean[:, 1])

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return a_b h(rho - 1) + B(a_b, a_a), rho the ratio of means: two non-negative terms."""
        shape_a, shape_b = eta_a[:, 0] + 1.0, eta_b[:, 0] + 1.0
        change = eta_b - eta_a  # (n, 2)
        # rho = cross_b / cross_a, and cross_b - cross_a = b_b a_a - b_a a_b follows from the differences of both
        # parameters without forming either product: b_a (a_a - a_b) + (b_b - b_a) a_a.
        cross_a, cross_b = -eta_a[:, 1] * shape_b, -eta_b[:, 1] * shape_a
        mean_term = itakura_saito(eta_a[:, 1] * change[:, 0] - change[:, 1] * shape_a, cross_b, cross_a)
        return shape_b * mean_term + gamma_bregman(shape_b, shape_a)

    @property
    def flat(self) -> Array:
        """Shape and rate zero."""
        return np.array([-1.0, 0.0])

    def information(self, eta: Array) -> Array:
        """Return the shape (n, 1): half the degrees of freedom, for a precision."""
        return eta[:, :1] + 1.0

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with a shape or rate that is not positive."""
        return not_positive("shape", eta[:, 0] + 1.0) + not_positive("rate", -eta[:, 1])

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n)."""
        return {"value": rng.gamma(eta[:, 0] + 1.0, -1.0 / eta[:, 1], size=(size, eta.shape[0]))}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (log x, x)."""
        return np.stack([np.log(draws["value"]), draws["value"]], axis=-1)
