"""Covariances as functions of a scatter and a number of rows: empirical, shrunk, and oracle approximating shrinkage."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError
from consilience.families.centred_moments import CentredMoments


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


def covariance_of(moments: CentredMoments, shrinkage: Any, estimator: Any) -> Array:
    """Return the covariance of rows of a class by the hyper-parameters of a discriminant analysis.

    Parameters
    ----------
    moments : CentredMoments
        Of the rows, with products of d columns.
    shrinkage : float or None
        Of the empirical covariance towards a multiple of the identity.
    estimator : OAS, ShrunkCovariance, EmpiricalCovariance or None
        In its place. With ``assume_centered`` its covariance is about zero, as rows are not centred before.

    Raises
    ------
    InputError
        For both at once.
    """
    n = float(moments.n)
    is_about_zero = bool(getattr(estimator, "assume_centered", False))
    covariance: Array = (moments.raw_scatter() if is_about_zero else moments.scatter) / n
    if estimator is None:
        return covariance if shrinkage is None else shrunk(covariance, float(shrinkage))
    if shrinkage:
        raise InputError("shrinkage", "and covariance_estimator are given, expected one of them")
    name = type(estimator).__name__
    if name == "OAS":
        return shrunk(covariance, oracle_approximating_shrinkage(covariance, n))
    return shrunk(covariance, float(estimator.shrinkage)) if name == "ShrunkCovariance" else covariance
