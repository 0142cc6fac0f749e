"""Densities of data under a mixture: posterior predictive, and plug-in at point estimates.

For components with conjugate posteriors and mixture weights w_g at their posterior means,

    predictive    p(x) = sum_g w_g t_g(x),    t_g a Student t: the Gaussian with its parameters integrated out,
    plug-in       p(x) = sum_g w_g N(x | m_g, S_g),    S_g a typical covariance.

Both are densities: they integrate to one, and can be compared between any two models of the same data. The predictive
one has wider tails the fewer observations a component has; where all have many, the two agree. scikit-learn's
``BayesianGaussianMixture.score`` is neither: it takes expected logarithms, a lower bound of the predictive density.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from consilience.checks import Array
from consilience.errors import InputError
from consilience.families import Family
from consilience.families.linalg import log_gaussians, log_student_ts, variances_of

CHUNK_BYTES = 2**26
"""Memory of the differences between points and centres that are held at once: 64 MiB, chosen by hand."""


@dataclass(frozen=True, eq=False)
class MixtureDensity:
    """The densities of data that posteriors over the components of a mixture give.

    Parameters
    ----------
    family : Family
        A conjugate family of Gaussian components, which gives ``predictive`` and ``plug_in``.
    natural : ndarray of shape (G, P)
        Natural parameters of the components' posteriors.
    weights : ndarray of shape (G,)
        Mixture weights w_g; scaled to sum to one.
    covariances : ndarray of shape (G, D, D) or (G, D), optional
        The covariances of the plug-in density. Default: those of ``family.plug_in``.
    knows_counts : bool, default True
        Whether the number of observations behind the components is known; else the predictive density is a guess.
    origin : ndarray of shape (D,) or float, default 0.0
        What the natural parameters are about: they are laws of rows less this.

    Raises
    ------
    InputError
        When the family gives no densities of data, or there are no weights that could sum to one.
    """

    family: Family
    natural: Array
    weights: Array
    covariances: Array | None = None
    knows_counts: bool = True
    origin: Array | float = 0.0

    def __post_init__(self) -> None:
        if self.family.predictive(self.natural[:1]) is None:
            raise InputError("family", f"{self.family} has no predictive density of data, expected Gaussian components")
        if self.weights.shape != (len(self.natural),) or not self.weights.sum() > 0:
            text = f"expected {len(self.natural)} that sum to more than 0, found {self.weights}"
            raise InputError("weights", text, code="E-NUMBER")
        object.__setattr__(self, "weights", self.weights / self.weights.sum())

    def log_predictive(self, points: Array) -> Array:
        """Return the log predictive density (n,) of every row of `points` (n, D), in nats."""
        students = self.family.predictive(self.natural)
        assert students is not None  # noqa: S101  (narrows the type; checked when made)
        return self._log_mixture(points, lambda chunk: log_student_ts(chunk, *students))

    def log_plug_in(self, points: Array) -> Array:
        """Return the log density (n,) of every row of `points` (n, D) at point estimates, in nats."""
        gaussians = self.family.plug_in(self.natural)
        assert gaussians is not None  # noqa: S101  (narrows the type; whoever gives one gives the other)
        means, covariances = gaussians
        used = covariances if self.covariances is None else self.covariances
        return self._log_mixture(points, lambda chunk: log_gaussians(chunk, means, used))

    def _log_mixture(self, points: Array, log_densities: Callable[[Array], Array]) -> Array:
        """Return log sum_g w_g p_g(x) (n,) from the components' log densities (n, G), chunk by chunk."""
        with np.errstate(divide="ignore"):  # a component of no weight has the logarithm minus infinity
            log_weights = np.log(self.weights)
        parts = [logsumexp(log_densities(chunk) + log_weights, axis=1) for chunk in self._chunks(points)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _chunks(self, points: Array) -> Iterator[Array]:
        """Yield rows of `points` (n, D) less the origin, so many that (G, D, rows) numbers fit into CHUNK_BYTES."""
        n_rows = max(1, CHUNK_BYTES // (8 * len(self.natural) * max(1, points.shape[1])))
        for start in range(0, len(points), n_rows):
            yield points[start : start + n_rows] - self.origin


def place_of(means: Array, covariances: Array, shares: Array) -> tuple[Array, Array]:
    """Return mean and deviation (D,) of a mixture, of means (L, D), covariances or their diagonals, and shares (L,)."""
    variances = variances_of(covariances)
    mean = shares @ means
    with np.errstate(over="ignore"):  # of means at the edge of what a float holds, whose deviation is infinite
        return mean, np.sqrt(shares @ (variances + (means - mean) ** 2))
