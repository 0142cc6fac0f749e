"""Coefficients by name, and inference of linear regression from its sums: standard errors, noise, log-likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from consilience.checks import Array
from consilience.core.scores import LEVEL
from consilience.errors import InputError
from consilience.estimators.adapters.linear_regression import RegressionMoments, solve_penalised
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.fused_results import FusedResults
from consilience.estimators.rebuild import rebuild
from consilience.estimators.statistics import Statistics

LINEAR_REGRESSION = "sklearn.LinearRegression"
"""The estimator whose coefficients have standard errors in closed form."""


@dataclass(frozen=True, eq=False)
class LinearInference:
    """Least-squares coefficients of one target with what is known of their errors.

    Parameters
    ----------
    coefficients : ndarray of shape (d,)
        Coefficients of the columns.
    standard_errors : ndarray of shape (d,)
        Their standard errors, sqrt(s^2 diag(S_xx^-1)).
    covariance : ndarray of shape (d, d)
        Their covariance.
    intercept, intercept_error : float
        The intercept and its standard error, sqrt(s^2 / w + m_x^T Cov m_x); both 0 without one.
    scale : float
        Variance of the noise, s^2 = RSS / df.
    degrees_of_freedom : float
        Rows less coefficients.
    log_likelihood : float
        -n/2 (log(2 pi RSS / n) + 1) + 1/2 sum log w.
    """

    coefficients: Array
    standard_errors: Array
    covariance: Array
    intercept: float
    intercept_error: float
    scale: float
    degrees_of_freedom: float
    log_likelihood: float

    def intervals(self, level: float = LEVEL) -> Array:
        """Return confidence intervals of the coefficients (d, 2), of Student's t."""
        margin = float(stdtrit(self.degrees_of_freedom, 0.5 + level / 2.0)) * self.standard_errors
        return np.stack([self.coefficients - margin, self.coefficients + margin], axis=1)


def linear_inference(statistics: Statistics) -> LinearInference:
    """Return coefficients of ordinary or weighted least squares with their standard errors, as of the rows themselves.

    Raises
    ------
    InputError
        For other estimators, several targets, a singular scatter, and as many coefficients as rows.
    """
    if statistics.kind != LINEAR_REGRESSION or statistics.last_step is not None or statistics.n_targets != 1:
        text = "are of a LinearRegression of one target"
        raise InputError("standard errors", text, "describe one for each target", "E-TYPE")
    fits_intercept = bool(statistics.parameters["fit_intercept"])
    moments = RegressionMoments(statistics, fits_intercept)
    d = len(moments.gram)
    freedom = moments.n - d - (1 if fits_intercept else 0)
    inverse = solve_penalised(moments.gram, np.eye(d), 0.0)
    if inverse is None or freedom < 1:
        text = f"of {d} columns need more than {moments.n:g} rows, or other columns"
        raise InputError("standard errors", text, code="E-FEW")
    coefficients = inverse @ moments.cross[:, 0]
    # Of data without noise the difference is rounding, of either sign; its likelihood has no bound.
    residual = max(float(moments.target_gram[0, 0] - coefficients @ moments.cross[:, 0]), 0.0)
    scale = residual / freedom
    covariance = scale * inverse
    # Of centred columns the intercept is the mean of y, which is independent of the coefficients.
    intercept_variance = scale / moments.weight + moments.x_mean @ covariance @ moments.x_mean
    n = moments.n
    log_variance = math.log(residual / n) if residual > 0.0 else -math.inf
    return LinearInference(
        coefficients,
        np.sqrt(np.diag(covariance)),
        covariance,
        float(moments.y_mean[0] - moments.x_mean @ coefficients) if fits_intercept else 0.0,
        float(np.sqrt(intercept_variance)) if fits_intercept else 0.0,
        scale,
        freedom,
        -n / 2.0 * (math.log(2.0 * math.pi) + log_variance + 1.0) + 0.5 * float(statistics.rows.log_weight),
    )


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of an estimator.

    Parameters
    ----------
    names : tuple of str of length p
        Names of the columns, with the output that they are for where there are several.
    values : ndarray of shape (p,)
        The coefficients.
    intervals : ndarray of shape (p, 2), optional
        Their intervals; None where neither least squares nor a fit's information gives them.
    errors : ndarray of shape (p,), optional
        Their standard errors, of results of statsmodels.
    """

    names: tuple[str, ...]
    values: Array
    intervals: Array | None
    errors: Array | None = None


def column_names(statistics: Statistics) -> tuple[str, ...]:
    """Return the names of the columns, by their number where they have none."""
    return statistics.features.names or tuple(f"column {number}" for number in range(statistics.n_columns))


def coefficients_of(statistics: Statistics, level: float = LEVEL) -> Coefficients | None:
    """Return the coefficients of the estimator that sums give; None for one without, or without its last step."""
    if statistics.last_step is not None or adapter_of_kind(statistics.kind).needs == "nothing":
        return None
    model = rebuild(statistics)
    if isinstance(model, FusedResults):
        values, errors = (of if of.ndim == 1 else of.T.ravel() for of in (model.params, model.bse))
        return Coefficients(tuple(model.coefficient_names), values, model.conf_int(1.0 - level), errors)
    if not hasattr(model, "coef_"):
        return None
    values = np.atleast_2d(model.coef_)  # (q, d)
    outputs = [""] if len(values) == 1 else [f" → {number}" for number in range(len(values))]
    if statistics.classes is not None and len(values) == len(statistics.classes):
        outputs = [f" → {name}" for name in statistics.classes.names]
    names = tuple(f"{name}{output}" for output in outputs for name in column_names(statistics))
    inference = inference_of(statistics)
    return Coefficients(names, values.ravel(), None if inference is None else inference.intervals(level))


def inference_of(statistics: Statistics) -> LinearInference | None:
    """Return least squares with its errors; None of another estimator, or of too few rows."""
    try:
        return linear_inference(statistics)
    except InputError:
        return None
