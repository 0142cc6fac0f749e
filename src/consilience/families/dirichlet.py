"""Dirichlet and Beta: posteriors of topics, of mixture weights and of proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, polygamma

from consilience.checks import Array, as_rows, as_vector
from consilience.families.base import Draws
from consilience.families.evidence import EvidenceFamily
from consilience.families.special import decreasing_root, gamma_bregman, inverse_digamma, itakura_saito

_FLOOR = 1e-8  # psi(alpha) is about -1 / alpha: a smaller concentration carries no information, only overflow
_LEAST_TOTAL = 0.01


class _SimplexFamily(EvidenceFamily):
    """A law on probability vectors pi with concentrations alpha: eta = alpha - 1, T = log pi."""

    parts: ClassVar[tuple[str, ...]] = ("concentration",)

    def log_normalizer(self, eta: Array) -> Array:
        """Return sum_v log Gamma(alpha_v) - log Gamma(sum_v alpha_v)."""
        alpha = eta + 1.0
        result: Array = gammaln(alpha).sum(axis=1) - gammaln(alpha.sum(axis=1))
        return result

    def mean_parameters(self, eta: Array) -> Array:
        """Return psi(alpha_v) - psi(sum_v alpha_v)."""
        alpha = eta + 1.0
        result: Array = digamma(alpha) - digamma(alpha.sum(axis=1, keepdims=True))
        return result

    def from_mean(self, mean: Array) -> Array:
        """Return eta of given E log pi.

        The total t solves sum_v psi^-1(mean_v + psi(t)) = t, one decreasing function of log t per row.
        """

        def function(z: Array) -> tuple[Array, Array]:
            total = np.exp(z)
            alpha = inverse_digamma(mean + digamma(total)[:, None])
            slope = polygamma(1, total) * (1.0 / polygamma(1, alpha)).sum(axis=1)
            whole = alpha.sum(axis=1)
            return np.log(whole) - z, total * slope / whole - 1.0

        slack = np.maximum(-np.expm1(np.log(np.exp(mean).sum(axis=1))), 1e-300)
        root = decreasing_root(function, np.log((self.size - 1) / (2.0 * slack)))
        return inverse_digamma(mean + digamma(np.exp(root))[:, None]) - 1.0

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) with nothing of the size of alpha log alpha to cancel.

        sum_v b_v h(u_v) + sum_v B(b_v, a_v) - B(b_0, a_0): u_v compares the mean probabilities, h(u) = u - log(1 + u),
        B is the Bregman divergence of log Gamma(x) - x log x, and the last term is at most 1 / V of the sum before it
        plus what the first pays for.
        """
        a, b = eta_a + 1.0, eta_b + 1.0
        change = eta_b - eta_a
        total_a, total_b = a.sum(axis=1), b.sum(axis=1)
        total_change = change.sum(axis=1)
        scale = (total_b / total_a)[:, None]
        apart = a * (total_change / total_a)[:, None] - change
        direction: Array = (b * itakura_saito(apart, a * scale, b)).sum(axis=1)
        return direction + gamma_bregman(b, a).sum(axis=1) - gamma_bregman(total_b, total_a)

    def points(self, eta: Array) -> Array:
        """Return square roots of the mean probabilities (n, V)."""
        alpha = eta + 1.0
        return np.sqrt(alpha / alpha.sum(axis=1, keepdims=True))

    @property
    def flat(self) -> Array:
        """Concentrations of zero."""
        return np.full(self.size, -1.0)

    def information(self, eta: Array) -> Array:
        """Return the total concentration (n, 1)."""
        return (eta + 1.0).sum(axis=1, keepdims=True)

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Multiply the concentrations; their total does not fall below 1."""
        total = self.information(eta)
        scaled: Array = np.maximum(factors, 1.0 / np.maximum(total, 1.0)) * (eta + 1.0) - 1.0
        return scaled

    def observed(self, eta: Array, heterogeneity: Array) -> Array:
        """Return the normaliser that gives each row, at its own mean p, the Dirichlet-multinomial probability.

        A site's probabilities are Dirichlet around the common ones with concentration c = 1 / h, its n observations
        are draws from them. Categories that are hardly seen make a density of p meaningless, not this probability.
        """
        total = self.information(eta)[:, 0]
        means = (eta + 1.0) / total[:, None]
        width = 1.0 / float(heterogeneity[0])
        discounted = np.maximum(total / (1.0 + total / width), 1.0)
        drawn = gammaln((width + total)[:, None] * means) - gammaln(width * means)
        likelihood = gammaln(width) - gammaln(width + total) + drawn.sum(axis=1)
        result: Array = discounted * np.sum(means * np.log(means), axis=1) - likelihood
        return result

    def law_of(self, eta: Array) -> Array:
        """Return the law with the mean and the total variance of the rows' probabilities.

        Their logarithms, which are the family's own moments, are dominated by what a row has hardly seen.
        """
        total = self.information(eta)
        means = (eta + 1.0) / total
        centre = means.mean(axis=0)
        single = np.sum(centre * (1.0 - centre))
        within = np.mean(np.sum(means * (1.0 - means), axis=1) / (1.0 + total[:, 0]))
        spread = np.mean(np.sum((means - centre) ** 2, axis=1)) + within
        result: Array = centre * max(single / spread - 1.0, _LEAST_TOTAL) - 1.0
        return result

    def without_prior(self, eta: Array, prior: Array) -> Array:
        """Return the rows as they are: categories that a site has not seen say something only through its prior."""
        return eta

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with a concentration that is not positive."""
        bad = eta <= -1.0
        return [
            (int(i), f"has a concentration that is not positive (category {int(np.argmax(bad[i]))})")
            for i in np.flatnonzero(bad.any(axis=1))
        ]

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, V): probability vectors."""
        draws = rng.gamma(eta + 1.0, size=(size, *eta.shape))
        return {"value": draws / draws.sum(axis=-1, keepdims=True)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return log pi."""
        result: Array = np.log(draws["value"])
        return result


@dataclass(frozen=True)
class Dirichlet(_SimplexFamily):
    """Dirichlet on V categories; eta = alpha - 1, T = log pi, P = V. Concentrations below 1e-8 are raised to it.

    Parameters
    ----------
    dim
        Number of categories V (the size of the vocabulary, for a topic).

    Examples
    --------
    >>> family = Dirichlet(dim=3)
    >>> eta = family.to_natural(concentration=[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    >>> family.kl(eta, eta).round(4)
    array([[0.    , 0.3713],
           [0.2261, 0.    ]])
    """

    dim: int
    name: ClassVar[str] = "dirichlet"

    @property
    def size(self) -> int:
        """Length P = V of a row of natural parameters."""
        return self.dim

    def config(self) -> dict[str, Any]:
        """Return what the constructor needs."""
        return {"dim": self.dim}

    def to_natural(self, *, concentration: ArrayLike) -> Array:
        """Return eta (n, V) from concentrations (n, V)."""
        return np.maximum(as_rows("concentration", concentration, self.dim), _FLOOR) - 1.0

    def from_natural(self, eta: Array) -> Draws:
        """Return ``concentration`` (n, V)."""
        return {"concentration": eta + 1.0}


@dataclass(frozen=True)
class Beta(_SimplexFamily):
    """Beta law of a proportion, the Dirichlet of two categories; eta = (a - 1, b - 1)."""

    name: ClassVar[str] = "beta"

    @property
    def size(self) -> int:
        """Length P = 2 of a row of natural parameters."""
        return 2

    def config(self) -> dict[str, Any]:
        """Return nothing: there is nothing to configure."""
        return {}

    def to_natural(self, *, a: ArrayLike, b: ArrayLike) -> Array:
        """Return eta (n, 2) from a and b (n,)."""
        return np.maximum(np.stack([as_vector("a", a), as_vector("b", b)], axis=1), _FLOOR) - 1.0

    def from_natural(self, eta: Array) -> Draws:
        """Return ``a`` and ``b`` (n,)."""
        return {"a": eta[:, 0] + 1.0, "b": eta[:, 1] + 1.0}
