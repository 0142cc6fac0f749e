"""Categorical: a distribution over classes or words, as a point on the simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from consilience.checks import Array, as_rows
from consilience.errors import InputError
from consilience.families.base import Draws, Family
from consilience.families.dirichlet import Dirichlet
from consilience.families.evidence import POINT_VARIANCE_SHARE, EvidenceFamily
from consilience.families.special import u_minus_log1p

_FLOOR = 1e-12


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

    def config(self) -> dict[str, Any]:
        """Return what the constructor needs."""
        return {"dim": self.dim}

    def to_natural(self, *, probabilities: ArrayLike) -> Array:
        """Return eta (n, V - 1) from probabilities (n, V), each row summing to 1."""
        rows = as_rows("probabilities", probabilities, self.dim)
        if np.any(rows < 0) or not np.allclose(rows.sum(axis=1), 1.0, rtol=0, atol=1e-6):
            raise InputError("probabilities: expected rows that are not negative and sum to 1")
        logs = np.log(np.maximum(rows, _FLOOR))
        return logs[:, :-1] - logs[:, -1:]

    @staticmethod
    def _full(eta: Array) -> Array:
        """Log-odds against the last category, with that category: (n, V)."""
        return np.concatenate([eta, np.zeros((eta.shape[0], 1))], axis=1)

    def from_natural(self, eta: Array) -> Draws:
        """Return ``probabilities`` (n, V)."""
        return {"probabilities": softmax(self._full(eta), axis=1)}

    def log_normalizer(self, eta: Array) -> Array:
        """Return -log p_V."""
        result: Array = logsumexp(self._full(eta), axis=1)
        return result

    def mean_parameters(self, eta: Array) -> Array:
        """Return the first V - 1 probabilities."""
        result: Array = softmax(self._full(eta), axis=1)[:, :-1]
        return result

    def from_mean(self, mean: Array) -> Array:
        """Return eta of given probabilities."""
        last = np.maximum(1.0 - mean.sum(axis=1, keepdims=True), _FLOOR)
        return self.to_natural(probabilities=np.concatenate([mean, last], axis=1))

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return sum_v p_a h(p_b / p_a - 1) with h(u) = u - log(1 + u), from differences of log-odds."""
        change = self._full(eta_a - eta_b)
        p_a, p_b = softmax(self._full(eta_a), axis=1), softmax(self._full(eta_b), axis=1)
        close = np.abs(change).max(axis=1) < 1.0
        bounded = np.where(close[:, None], change, 0.0)
        near = np.log1p((p_b * np.expm1(bounded)).sum(axis=1))
        shift = np.where(close, near, self.log_normalizer(eta_a) - self.log_normalizer(eta_b))
        log_ratio = change - shift[:, None]
        small = np.abs(log_ratio) < 1.0
        series = p_a * u_minus_log1p(np.expm1(-np.where(small, log_ratio, 0.0)))
        result: Array = np.where(small, series, p_b - p_a + p_a * log_ratio).sum(axis=1)
        return result

    def points(self, eta: Array) -> Array:
        """Return square roots of the probabilities (n, V)."""
        roots: Array = np.sqrt(softmax(self._full(eta), axis=1))
        return roots

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return Dirichlet laws of the same mean probabilities, narrow against any spread."""
        family = Dirichlet(self.dim)
        return family, family.to_natural(concentration=softmax(self._full(eta), axis=1) / POINT_VARIANCE_SHARE)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Every finite row is a member."""
        return []

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, V): one-hot rows."""
        probabilities = self.from_natural(eta)["probabilities"]
        return {"value": rng.multinomial(1, probabilities, size=(size, eta.shape[0])).astype(np.float64)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return the first V - 1 indicators."""
        result: Array = draws["value"][..., :-1]
        return result
