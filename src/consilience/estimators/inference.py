"""Inference of linear regression from its sums: standard errors, the scale of the noise, and the log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from consilience.checks import Array
from consilience.core.paired import LEVEL
from consilience.errors import InputError
from consilience.estimators.adapters.linear_regression import RegressionMoments, solve_penalised
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
    residual = float(moments.target_gram[0, 0] - coefficients @ moments.cross[:, 0])
    scale = residual / freedom
    covariance = scale * inverse
    intercept_variance = scale / moments.weight + moments.x_mean @ covariance @ moments.x_mean
    n = moments.n
    return LinearInference(
        coefficients,
        np.sqrt(np.diag(covariance)),
        covariance,
        float(moments.y_mean[0] - moments.x_mean @ coefficients) if fits_intercept else 0.0,
        float(np.sqrt(intercept_variance)) if fits_intercept else 0.0,
        scale,
        freedom,
        float(-n / 2.0 * (np.log(2.0 * np.pi * residual / n) + 1.0) + 0.5 * statistics.rows.log_weight),
    )
