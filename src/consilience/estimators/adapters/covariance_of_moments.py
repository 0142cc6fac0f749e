"""Covariances as functions of a scatter and a number of rows: empirical, shrunk, and oracle approximating shrinkage."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError


def shrunk(covariance: Array, shrinkage: float) -> Array:
    """Return (1 - s) C + s tr(C)/d I."""
    d = len(covariance)
    result: Array = (1.0 - shrinkage) * covariance
    result[np.diag_indices(d)] += shrinkage * np.trace(covariance) / d
    return result


def oracle_approximating_shrinkage(covariance: Array, n: float) -> float:
    """Return the shrinkage of Chen, Wiesel, Eldar and Hero (2010), equation (23), as scikit-learn computes it."""
    d = len(covariance)
    if d == 1:  # the result is the same whatever the shrinkage
        return 0.0
    mean_square = float(np.mean(covariance**2))
    mean_variance = float(np.trace(covariance)) / d
    numerator = mean_square + mean_variance**2
    denominator = (n + 1.0) * (mean_square - mean_variance**2 / d)
    return 1.0 if denominator == 0 else min(numerator / denominator, 1.0)


def covariance_of(scatter: Array, n: float, shrinkage: Any, estimator: Any) -> Array:
    """Return the covariance of rows of a class by the hyper-parameters of a discriminant analysis.

    Parameters
    ----------
    scatter : ndarray of shape (d, d)
        Sum of squares and products about the mean.
    n : float
        Number of rows.
    shrinkage : float or None
        Of the empirical covariance towards a multiple of the identity.
    estimator : OAS, ShrunkCovariance, EmpiricalCovariance or None
        In its place.

    Raises
    ------
    InputError
        For both at once.
    """
    covariance: Array = scatter / n
    if estimator is None:
        return covariance if shrinkage is None else shrunk(covariance, float(shrinkage))
    if shrinkage:
        raise InputError("shrinkage", "and covariance_estimator are given, expected one of them")
    name = type(estimator).__name__
    if name == "OAS":
        return shrunk(covariance, oracle_approximating_shrinkage(covariance, n))
    return shrunk(covariance, float(estimator.shrinkage)) if name == "ShrunkCovariance" else covariance
