"""Covariances as functions of a scatter and a number of rows: empirical, shrunk, oracle approximating, Ledoit-Wolf."""

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


def ledoit_wolf_shrinkage(covariance: Array, n: float, fourth: float) -> float:
    """Return the shrinkage of Ledoit and Wolf (2004), lemmas 3.2 to 3.5, as scikit-learn computes it.

    It is that of a covariance C (d, d) of n rows z, divided by n; `fourth` is the mean of |z|^4.
    """
    d = len(covariance)
    if d == 1:  # the result is the same whatever the shrinkage
        return 0.0
    square = float(np.sum(covariance**2))
    spread = square - float(np.trace(covariance)) ** 2 / d  # d times delta
    error = min((fourth - square) / n, spread)  # d times beta
    return error / spread if error > 0.0 else 0.0


def column_scales(moments: CentredMoments) -> Array:
    """Return standard deviations of columns (d,), divided by n; 1 for columns that rounding alone tells from constants.

    They are the scales by which scikit-learn's discriminant analysis standardises the rows of a class.
    """
    n = max(float(moments.n), 1.0)
    variances = moments.variances / n
    eps = float(np.finfo(np.float64).eps)
    # As in StandardScaler (Chan, Golub and LeVeque 1983).
    is_constant = variances <= n * eps * variances + (n * moments.mean * eps) ** 2
    scales: Array = np.where(is_constant, 1.0, np.sqrt(variances))
    return scales


def _shrunk_standardised(moments: CentredMoments, fourth: float | None) -> Array:
    """Return D (1 - s) R D + s tr(R)/d D^2, R the correlations and D the scales; s is OAS's without fourth moments."""
    n = float(moments.n)
    scales = column_scales(moments)
    correlation = moments.scatter / n / np.outer(scales, scales)
    s = ledoit_wolf_shrinkage(correlation, n, fourth) if fourth else oracle_approximating_shrinkage(correlation, n)
    result: Array = np.outer(scales, scales) * shrunk(correlation, s)
    return result


def covariance_of(moments: CentredMoments, shrinkage: Any, estimator: Any, fourth: float | None = None) -> Array:
    """Return the covariance of rows of a class by the hyper-parameters of a discriminant analysis.

    Shrinkage is that of the empirical covariance towards a multiple of the identity; "auto" is Ledoit's and Wolf's, of
    standardised columns, by the fourth moment as in `ledoit_wolf_shrinkage`; where that is None or 0, the oracle
    approximating shrinkage stands in its place. An estimator, OAS, ShrunkCovariance or EmpiricalCovariance, goes in
    place of shrinkage; with ``assume_centered`` its covariance is about zero, as rows are not centred before.
    """
    n = float(moments.n)
    is_about_zero = bool(getattr(estimator, "assume_centered", False))
    covariance: Array = (moments.raw_scatter() if is_about_zero else moments.scatter) / n
    if estimator is None:
        if shrinkage == "auto":
            return _shrunk_standardised(moments, fourth)
        return covariance if shrinkage is None else shrunk(covariance, float(shrinkage))
    if shrinkage:
        raise InputError("shrinkage", "and covariance_estimator are given, expected one of them")
    name = type(estimator).__name__
    if name == "OAS":
        return shrunk(covariance, oracle_approximating_shrinkage(covariance, n))
    return shrunk(covariance, float(estimator.shrinkage)) if name == "ShrunkCovariance" else covariance
