"""Points: parameters without a posterior, in Euclidean geometry.

    eta = x,    A = |x|^2 / 2,    KL(x || y) = |x - y|^2 / 2

so both barycenters are the mean, and fusion by groups is k-means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Json, as_rows
from consilience.errors import UnsupportedError
from consilience.families.base import Draws, Family, Parameters
from consilience.families.evidence import POINT_VARIANCE_SHARE, EvidenceFamily
from consilience.families.gaussian import SphericalGaussian

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

    def config(self) -> dict[str, Json]:
        """Return what the constructor needs."""
        return {"dim": self.dim}

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

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Every finite row is a member."""
        return []

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
        raise UnsupportedError(
            "Point", "a point has no entropy", "use a family with a width, such as SphericalGaussian"
        )
