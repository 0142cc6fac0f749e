"""Coefficients by name, and inference of linear regression from its sums: standard errors, noise, log-likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from consilience.checks import Array
from consilience.core.scores import LEVEL
from consilience.errors import InputError
from consilience.estimators.adapters.laplace import LaplaceProductAdapter, solve_positive
from consilience.estimators.adapters.linear_regression import RegressionMoments, solve_penalised
from consilience.estimators.adapters.statsmodels import LeastSquaresAdapter
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
        Their standard errors.
    """

    names: tuple[str, ...]
    values: Array
    intervals: Array | None
    errors: Array | None = None


def column_names(statistics: Statistics) -> tuple[str, ...]:
    """Return the names of the columns, by their number where they have none."""
    return statistics.features.names or tuple(f"column {number}" for number in range(statistics.n_columns))


def site_estimate(statistics: Statistics) -> tuple[dict[str, float], Array]:
    """Return the coefficients of a site by name with their covariance, for a meta-analysis.

    Other estimators are refused, and more than two classes, whose coefficients are not determined one by one.
    """
    adapter = adapter_of_kind(statistics.kind)
    if statistics.kind == LINEAR_REGRESSION:
        inference = linear_inference(statistics)
        return dict(zip(column_names(statistics), inference.coefficients.tolist(), strict=True)), inference.covariance
    if isinstance(adapter, LeastSquaresAdapter):
        results = adapter.rebuild(statistics)
        return dict(zip(results.names, results.params.tolist(), strict=True)), results.covariance
    if not isinstance(adapter, LaplaceProductAdapter) or len(statistics.classes or (0, 1)) != 2:
        text = "has no coefficients with covariances here"
        raise InputError(f"a {adapter.class_name}", text, "give (estimate, covariance)")
    information, vector, precision, _ = adapter.natural(statistics)
    hessian = information + np.diag(precision)
    names = adapter.coefficient_names(statistics)
    estimate = solve_positive(hessian, vector + adapter.prior_shift(statistics), f"this {adapter.class_name}")
    covariance = adapter.dispersion(statistics) * np.linalg.inv(hessian)
    return dict(zip(names, estimate.tolist(), strict=True)), (covariance + covariance.T) / 2.0


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
    return _with_errors(statistics, level) or Coefficients(names, values.ravel(), None)


def _with_errors(statistics: Statistics, level: float) -> Coefficients | None:
    """Return coefficients and the intercept with their errors, as a fit's information gives them; None without."""
    inference = inference_of(statistics)
    if inference is not None:
        names, values, errors = column_names(statistics), inference.coefficients, inference.standard_errors
        if statistics.parameters["fit_intercept"]:
            names = (*names, "intercept")
            values, errors = np.append(values, inference.intercept), np.append(errors, inference.intercept_error)
        margin = float(stdtrit(inference.degrees_of_freedom, 0.5 + level / 2.0)) * errors
        return Coefficients(names, values, np.stack([values - margin, values + margin], axis=1), errors)
    adapter = adapter_of_kind(statistics.kind)
    if not isinstance(adapter, LaplaceProductAdapter) or len(statistics.classes or (0, 1)) != 2:
        return None
    information, _, _, prior = adapter.natural(statistics)
    try:
        covariance = np.linalg.inv(adapter.determined(information + np.diag(prior), statistics))
        values = adapter.coefficients(statistics)
    except (InputError, np.linalg.LinAlgError):  # of rows that determine less than all coefficients
        return None
    errors = np.sqrt(adapter.dispersion(statistics) * np.diag(covariance))
    margin = float(ndtri(0.5 + level / 2.0)) * errors
    return Coefficients(
        adapter.coefficient_names(statistics), values, np.stack([values - margin, values + margin], axis=1), errors
    )


_RATIOS = {
    "sklearn.LogisticRegression": "Odds ratio", "sklearn.SGDClassifier": "Odds ratio",
    "sklearn.PoissonRegressor": "Rate ratio", "sklearn.GammaRegressor": "Ratio of means",
    "statsmodels.Logit": "Odds ratio", "statsmodels.MNLogit": "Odds ratio", "statsmodels.Poisson": "Rate ratio",
    "statsmodels.PHReg": "Hazard ratio",
}  # fmt: skip
"""What exp(coefficient) is, by the kind of estimator."""


def ratio_of(statistics: Statistics) -> str | None:
    """Return what exp(coefficient) is called; None where it means nothing."""
    if statistics.kind != "statsmodels.GLM":
        return _RATIOS.get(statistics.kind)
    family, link = (str(statistics.parameters.get(name)) for name in ("family", "link"))
    if link == "Logit":
        return "Odds ratio"
    return ("Rate ratio" if family in ("Poisson", "NegativeBinomial") else "Ratio of means") if link == "Log" else None


def inference_of(statistics: Statistics) -> LinearInference | None:
    """Return least squares with its errors; None of another estimator, or of too few rows."""
    try:
        return linear_inference(statistics)
    except InputError:
        return None
