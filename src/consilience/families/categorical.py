"""Categorical: a distribution over classes or words, as a point on the simplex.

With probabilities p of V categories and the last one as reference,

    eta_v = log p_v - log p_V  (v < V),    T = the first V - 1 indicators,    A = -log p_V,    mu = the first V - 1 p_v
    KL(a || b) = sum_v p_a log(p_a / p_b) = sum_v p_a h(p_b / p_a - 1),    h(u) = u - log(1 + u)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from consilience.checks import Array, as_rows
from consilience.errors import InputError
from consilience.families.base import Draws, Family, Parameters
from consilience.families.dirichlet import Dirichlet
from consilience.families.evidence import POINT_VARIANCE_SHARE, EvidenceFamily
from consilience.families.special import u_minus_log1p

_MIN_PROBABILITY = 1e-12
"""Smaller probabilities, zero above all, are raised to it, so that log-odds stay finite. Chosen by hand."""


@dataclass(frozen=True)
class Categorical(Family):
    """One draw out of V categories; eta_v = log p_v - log p_V for v < V, P = V - 1, T = the first V - 1 indicators.

    The forward barycenter is the normalised geometric mean of the probabilities, the reverse one their mean.
    Probabilities below 1e-12 are raised to it.

    Parameters
    ----------
    dim
        Number of categories V, at least 2.
    """

    dim: int
    name: ClassVar[str] = "categorical"

    @property
    def size(self) -> int:
        """Length P = V - 1 of a row of natural parameters."""
        return self.dim - 1

    def to_natural(self, *, probabilities: ArrayLike) -> Array:
        """Return eta (n, V - 1) from probabilities (n, V), each row summing to 1."""
        rows = as_rows("probabilities", probabilities, self.dim)
        if np.any(rows < 0) or not np.allclose(rows.sum(axis=1), 1.0, rtol=0, atol=1e-6):
            raise InputError("probabilities", "expected rows that are not negative and sum to 1", code="E-NUMBER")
        logs = np.log(np.maximum(rows, _MIN_PROBABILITY))
        return logs[:, :-1] - logs[:, -1:]

    @staticmethod
    def _log_odds(eta: Array) -> Array:
        """Return log-odds against the last category, with that category: (n, V)."""
        return np.concatenate([eta, np.zeros((eta.shape[0], 1))], axis=1)

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``probabilities`` (n, V)."""
        return {"probabilities": softmax(self._log_odds(eta), axis=1)}

    def log_normalizer(self, eta: Array) -> Array:
        """Return -log p_V."""
        return np.asarray(logsumexp(self._log_odds(eta), axis=1))

    def mean_parameters(self, eta: Array) -> Array:
        """Return the first V - 1 probabilities."""
        return np.asarray(softmax(self._log_odds(eta), axis=1)[:, :-1])

    def from_mean(self, mean: Array) -> Array:
        """Return eta from the first V - 1 probabilities."""
        last = np.maximum(1.0 - mean.sum(axis=1, keepdims=True), _MIN_PROBABILITY)
        return self.to_natural(probabilities=np.concatenate([mean, last], axis=1))

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return sum_v p_a h(p_b / p_a - 1) with h(u) = u - log(1 + u), from differences of log-odds."""
        change = self._log_odds(eta_a - eta_b)  # (n, V)
        p_a, p_b = softmax(self._log_odds(eta_a), axis=1), softmax(self._log_odds(eta_b), axis=1)
        # log(p_a / p_b) = change - (A(a) - A(b)). For rows near each other the difference of log normalisers is taken
        # from the change itself: A(a) - A(b) = log sum_v p_b exp(change_v) = log(1 + sum_v p_b expm1(change_v)).
        is_near = np.abs(change).max(axis=1) < 1.0
        bounded_change = np.where(is_near[:, None], change, 0.0)
        near_difference = np.log1p((p_b * np.expm1(bounded_change)).sum(axis=1))
        difference = np.where(is_near, near_difference, self.log_normalizer(eta_a) - self.log_normalizer(eta_b))
        log_ratio = change - difference[:, None]  # log(p_a / p_b), (n, V)
        is_small = np.abs(log_ratio) < 1.0
        near_terms = p_a * u_minus_log1p(np.expm1(-np.where(is_small, log_ratio, 0.0)))  # p_a h(p_b / p_a - 1)
        # Far apart h is expanded, so that p_a = 0 does not divide: p_a h(u) = p_b - p_a + p_a log(p_a / p_b).
        return np.asarray(np.where(is_small, near_terms, p_b - p_a + p_a * log_ratio).sum(axis=1))

    def points(self, eta: Array) -> Array:
        """Return square roots of the probabilities (n, V), whose Euclidean distance is Hellinger's."""
        return np.asarray(np.sqrt(softmax(self._log_odds(eta), axis=1)))

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return Dirichlet distributions of the same mean probabilities, narrow against any spread."""
        family = Dirichlet(self.dim)
        return family, family.to_natural(concentration=softmax(self._log_odds(eta), axis=1) / POINT_VARIANCE_SHARE)

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, V): one-hot rows."""
        probabilities = self.from_natural(eta)["probabilities"]
        return {"value": rng.multinomial(1, probabilities, size=(size, eta.shape[0])).astype(np.float64)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return the first V - 1 indicators."""
        return np.asarray(draws["value"][..., :-1])
