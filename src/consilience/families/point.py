"""Points in Euclidean geometry, and in the Mahalanobis geometry of a covariance S that all components share.

    points            eta = x,        T = z,    A = |x|^2 / 2,                           KL(x || y) = |x - y|^2 / 2
    known covariance  eta = S^-1 m,   T = z,    A = m^T S^-1 m / 2 + log|2 pi S| / 2,
                      KL(a || b) = (m_a - m_b)^T S^-1 (m_a - m_b) / 2

Both barycenters are the mean, and fusion by groups is k-means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Json, as_rows, symmetric_part
from consilience.errors import InputError, UnsupportedError
from consilience.families.base import Draws, Family, Parameters
from consilience.families.evidence import POINT_VARIANCE_SHARE, EvidenceFamily
from consilience.families.gaussian import SphericalGaussian
from consilience.families.linalg import cholesky, inverse, log_determinant

_COINCIDENT = 1e-8
"""Deviation, relative to the largest coordinate, below which points are taken to be all the same: half the digits of
float64. Chosen by hand."""

_MIN_SPREAD = 1e-100
"""Variance of points that are all zero. Against division by zero only."""


@dataclass(frozen=True)
class Point(Family):
    """Points in R^D; eta = x, A = |x|^2 / 2, so the divergence is |x - y|^2 / 2 and every barycenter is the mean.

    A point has no width: products and entropies are refused.

    Parameters
    ----------
    dim
        Dimension D.
    """

    dim: int
    name: ClassVar[str] = "point"
    has_width: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Length P = D of a row."""
        return self.dim

    def to_natural(self, *, value: ArrayLike) -> Array:
        """Return the points (n, D)."""
        return as_rows("value", value, self.dim)

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``value`` (n, D)."""
        return {"value": eta.copy()}

    def locations_and_spreads(self, eta: Array) -> tuple[Array, Array]:
        """Return the points, without spread."""
        return eta, np.zeros_like(eta)

    def points(self, eta: Array) -> Array:
        """Return the points themselves."""
        return eta

    def log_normalizer(self, eta: Array) -> Array:
        """Return |x|^2 / 2."""
        return 0.5 * np.einsum("nd,nd->n", eta, eta)

    def mean_parameters(self, eta: Array) -> Array:
        """Return x."""
        return eta.copy()

    def from_mean(self, mean: Array) -> Array:
        """Return x."""
        return mean.copy()

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return |x - y|^2 / 2."""
        return self.log_normalizer(eta_a - eta_b)

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return Gaussians at the points less their mean, narrow against their spread."""
        centred = eta - eta.mean(axis=0)  # far from the origin the natural parameters m / v would lose digits
        rounding = (_COINCIDENT * float(np.abs(eta).max())) ** 2  # points that are all the same have no spread
        variance = max(float(np.mean(centred**2)), rounding, _MIN_SPREAD)
        family = SphericalGaussian(self.dim)
        return family, family.to_natural(mean=centred, variance=np.full(len(eta), POINT_VARIANCE_SHARE * variance))

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, D): the points themselves."""
        return {"value": np.repeat(eta[None], size, axis=0)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return x."""
        return np.asarray(draws["value"], dtype=np.float64)

    def entropy(self, eta: Array) -> Array:
        """Refuse: a point has no entropy.

        Raises
        ------
        UnsupportedError
            Always.
        """
        text = "a point has no entropy"
        raise UnsupportedError("Point", text, "use a family with a width, such as SphericalGaussian")


_LOG_TWO_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class KnownCovarianceGaussian(Family):
    """Gaussian mean under a covariance S that all components share and that is known; eta = S^-1 m, T = z, P = D.

    The base measure is exp(-z^T S^-1 z / 2). Divergences are half squared Mahalanobis distances, so both barycenters
    are the mean of means: k-means geometry.

    Parameters
    ----------
    covariance
        The known covariance S (D, D).
    """

    covariance: Array
    precision: Array = field(init=False, repr=False)
    name: ClassVar[str] = "known-covariance-gaussian"

    def __post_init__(self) -> None:
        matrix = np.array(self.covariance, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
            text = f"expected a finite square matrix, found shape {matrix.shape}"
            raise InputError("covariance", text, code="E-NUMBER")
        matrix = symmetric_part(matrix)
        precision = inverse(matrix[None], "covariance")[0]
        for array in (matrix, precision):
            array.setflags(write=False)
        object.__setattr__(self, "covariance", matrix)
        object.__setattr__(self, "precision", precision)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownCovarianceGaussian) and np.array_equal(self.covariance, other.covariance)

    def __hash__(self) -> int:
        return hash((self.name, self.covariance.tobytes()))

    @property
    def dim(self) -> int:
        """Data dimension D."""
        return int(self.covariance.shape[0])

    @property
    def size(self) -> int:
        """Length P = D of a row of natural parameters."""
        return self.dim

    def config(self) -> dict[str, Json]:
        """Return what the constructor needs."""
        return {"covariance": cast("list[list[float]]", self.covariance.tolist())}

    def to_natural(self, *, mean: ArrayLike) -> Array:
        """Return eta (n, P) from means (n, D)."""
        return as_rows("mean", mean, self.dim) @ self.precision

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` (n, D)."""
        return {"mean": self.mean_parameters(eta)}

    def log_normalizer(self, eta: Array) -> Array:
        """Return m^T S^-1 m / 2 + log|2 pi S| / 2."""
        constant = self.dim * _LOG_TWO_PI + log_determinant(cholesky(self.covariance[None], "covariance"))[0]
        return 0.5 * (np.einsum("ni,ni->n", eta, self.mean_parameters(eta)) + constant)  # <S^-1 m, m>

    def locations_and_spreads(self, eta: Array) -> tuple[Array, Array]:
        """Return means (n, D) and the covariance (n, D, D)."""
        return self.mean_parameters(eta), np.broadcast_to(self.covariance, (len(eta), self.dim, self.dim))

    def mean_parameters(self, eta: Array) -> Array:
        """Return m."""
        return np.asarray(eta @ self.covariance)

    def from_mean(self, mean: Array) -> Array:
        """Return eta of these means."""
        return self.to_natural(mean=mean)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return half the squared Mahalanobis distance of the means."""
        change = eta_b - eta_a  # S^-1 (m_b - m_a), (n, D)
        return 0.5 * np.einsum("ni,ni->n", change, change @ self.covariance)

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return Gaussians of the same means in units of the known covariance, narrow against their spread."""
        whitened = eta @ cholesky(self.covariance[None], "covariance")[0]  # m^T S^-1 L = (L^-1 m)^T for S = L L^T
        return Point(self.dim).evidence_form(whitened)

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, D)."""
        factor = cholesky(self.covariance[None], "covariance")[0]
        return {"value": self.mean_parameters(eta) + rng.standard_normal((size, *eta.shape)) @ factor.T}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return z."""
        return np.asarray(draws["value"], dtype=np.float64)

    def log_base_measure(self, draws: Draws) -> Array:
        """Return -z^T S^-1 z / 2."""
        value = draws["value"]
        return np.asarray(-0.5 * np.einsum("...i,...i->...", value @ self.precision, value))

    def entropy(self, eta: Array) -> Array:
        """Return log|2 pi e S| / 2, the same for every component."""
        log_det = log_determinant(cholesky(self.covariance[None], "covariance"))[0]
        return np.full(eta.shape[0], 0.5 * (self.dim * (1.0 + _LOG_TWO_PI) + log_det))
