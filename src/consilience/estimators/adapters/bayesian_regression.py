"""Bayesian ridge and automatic relevance determination: evidence maximisation from sums (MacKay 1992; Tipping 2001).

Both iterations see rows only through n, sum w, S_xx, S_xy and S_yy. Their stopping rules are scikit-learn's: they stop
early by design, so that another rule would give another model.
"""

from __future__ import annotations

from functools import cache
from math import log, pi
from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from consilience.checks import Array
from consilience.errors import InputError
from consilience.estimators.adapters.base import Mark
from consilience.estimators.adapters.linear_regression import RegressionAdapter, RegressionMoments
from consilience.estimators.statistics import Statistics

_EPS = float(np.finfo(np.float64).eps)


def _moments_of(model: Any, statistics: Statistics) -> tuple[RegressionMoments, Array, Array, float]:
    """Return the moments of one target, with S_xx (d, d), S_xy (d,) and S_yy."""
    if statistics.target_shape:
        text = f"expected one target, found {statistics.n_targets}"
        raise InputError("y", text, "fit one model for each target", "E-SHAPE")
    moments = RegressionMoments(statistics, model.fit_intercept)
    return moments, moments.gram, moments.cross[:, 0], float(moments.target_gram[0, 0])


@cache
def _counts_weights() -> bool:
    """Return whether this version's Bayesian ridge counts the sum of weights as its rows, or the rows.

    It has done either (1.9 and 1.5). The older one starts its iteration from the variance of targets times the roots of
    weights, which is no function of sums, so that it is repeated to its tolerance only.
    """
    from sklearn.linear_model import BayesianRidge

    x, y = np.arange(6.0)[:, None], np.array([0.0, 1.5, 1.0, 3.0, 5.0, 4.0])
    weighted = BayesianRidge(tol=1e-9).fit(x, y, sample_weight=np.full(6, 2.0))
    twice = BayesianRidge(tol=1e-9).fit(np.vstack([x, x]), np.concatenate([y, y]))
    return bool(abs(weighted.alpha_ - twice.alpha_) < 1e-3 * twice.alpha_)


class BayesianRidgeAdapter(RegressionAdapter):
    """Bayesian ridge regression.

    What a fitted object lacks are n and S_yy; S_xx = (sigma^-1 - lambda I) / alpha it would give.
    """

    kind: ClassVar[str] = "sklearn.BayesianRidge"
    mark: ClassVar[Mark] = "iterative"
    lacks: ClassVar[str | None] = "the number of rows and the variance of its target"

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Iterate on the precisions of noise and coefficients, as ``fit`` does."""
        moments, gram, cross, total = _moments_of(model, statistics)
        d = len(gram)
        weight = moments.weight if _counts_weights() else moments.n
        values, vectors = linalg.eigh(gram)
        values = np.maximum(values, 0.0)
        projected = vectors.T @ cross  # (d,)
        variance = float(moments.target_variance[0]) * moments.weight / weight
        alpha = 1.0 / (variance + _EPS) if model.alpha_init is None else float(model.alpha_init)
        precision = 1.0 if model.lambda_init is None else float(model.lambda_init)

        def coefficients() -> tuple[Array, float]:
            coef: Array = vectors @ (projected / (values + precision / alpha))
            return coef, float(total - 2.0 * coef @ cross + coef @ gram @ coef)

        def score(coef: Array, residual: float) -> float:
            """Return the log marginal likelihood."""
            result = model.lambda_1 * log(precision) - model.lambda_2 * precision
            result += model.alpha_1 * log(alpha) - model.alpha_2 * alpha
            log_determinant = -float(np.log(precision + alpha * values).sum())
            fit = d * log(precision) + weight * log(alpha) - alpha * residual - precision * float(coef @ coef)
            return float(result + 0.5 * (fit + log_determinant - weight * log(2 * pi)))

        scores: list[float] = []
        previous: Array | None = None
        for iteration in range(1, model.max_iter + 1):
            model.n_iter_ = iteration
            coef, residual = coefficients()
            if model.compute_score:
                scores.append(score(coef, residual))
            # MacKay's fixed point: gamma = sum_i alpha s_i / (lambda + alpha s_i), the number of coefficients that data
            # determine; then lambda = gamma / |w|^2 and 1 / alpha = |y - X w|^2 / (n - gamma), each with its prior.
            effective = float((alpha * values / (precision + alpha * values)).sum())
            precision = (effective + 2 * model.lambda_1) / (float(coef @ coef) + 2 * model.lambda_2)
            alpha = (weight - effective + 2 * model.alpha_1) / (residual + 2 * model.alpha_2)
            if previous is not None and float(np.abs(previous - coef).sum()) < model.tol:
                break
            previous = coef
        of_last_pass = coef
        coef, residual = coefficients()
        if model.compute_score:  # scikit-learn takes the coefficients of the pass before, with the new residual
            scores.append(score(of_last_pass, residual))
        model.alpha_, model.lambda_ = np.float64(alpha), np.float64(precision)
        model.scores_ = np.array(scores) if model.compute_score else []
        model.sigma_ = (vectors / (alpha * values + precision)) @ vectors.T
        model.X_offset_, model.X_scale_ = moments.x_mean.copy(), np.ones(d)
        moments.set_on(model, coef[:, None], (), model.fit_intercept)


class ARDRegressionAdapter(RegressionAdapter):
    """Automatic relevance determination: a precision for each coefficient, pruned where it grows beyond a threshold."""

    kind: ClassVar[str] = "sklearn.ARDRegression"
    mark: ClassVar[Mark] = "iterative"
    lacks: ClassVar[str | None] = "the covariance of coefficients that it pruned"

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Iterate on all precisions, as ``fit`` does."""
        moments, gram, cross, total = _moments_of(model, statistics)
        d, n = len(gram), moments.n
        coef = np.zeros(d)
        alpha = 1.0 / (float(moments.target_variance[0]) + _EPS)
        precisions, kept = np.ones(d), np.ones(d, dtype=bool)

        def covariance() -> Array:
            inverse: Array = linalg.pinvh(np.diag(precisions[kept]) + alpha * gram[np.ix_(kept, kept)])
            return inverse

        scores: list[float] = []
        previous: Array | None = None
        for iteration in range(1, model.max_iter + 1):
            model.n_iter_ = iteration
            sigma = covariance()
            coef[kept] = alpha * sigma @ cross[kept]
            residual = float(total - 2.0 * coef @ cross + coef @ gram @ coef)
            # The same for each coefficient: gamma_i = 1 - lambda_i Sigma_ii is 1 where data determine it, 0 where the
            # prior does, whose precision then grows without bound and prunes it.
            effective = 1.0 - precisions[kept] * np.diag(sigma)
            precisions[kept] = (effective + 2.0 * model.lambda_1) / (coef[kept] ** 2 + 2.0 * model.lambda_2)
            alpha = (n - effective.sum() + 2.0 * model.alpha_1) / (residual + 2.0 * model.alpha_2)
            kept = precisions < model.threshold_lambda
            coef[~kept] = 0.0
            if model.compute_score:
                scores.append(_ard_score(model, precisions, alpha, sigma, n, residual, coef))
            if previous is not None and float(np.abs(previous - coef).sum()) < model.tol:
                break
            previous = coef.copy()
            if not kept.any():
                break
        if kept.any():
            sigma = covariance()
            coef[kept] = alpha * sigma @ cross[kept]
        else:
            sigma = np.zeros((0, 0))
        model.alpha_, model.lambda_, model.sigma_, model.scores_ = np.float64(alpha), precisions, sigma, scores
        model.X_offset_, model.X_scale_ = moments.x_mean.copy(), np.ones(d)
        moments.set_on(model, coef[:, None], (), model.fit_intercept)


def _ard_score(
    model: Any, precisions: Array, alpha: float, sigma: Array, n: float, residual: float, coef: Array
) -> float:
    """Return the objective that scikit-learn records."""
    sign, log_determinant = np.linalg.slogdet(sigma)
    result = float((model.lambda_1 * np.log(precisions) - model.lambda_2 * precisions).sum())
    result += model.alpha_1 * log(alpha) - model.alpha_2 * alpha
    result += 0.5 * ((log_determinant if sign > 0 else -np.inf) + n * log(alpha) + float(np.log(precisions).sum()))
    return float(result - 0.5 * (alpha * residual + float((precisions * coef**2).sum())))
