"""Least squares and ridge regression: b = (S_xx + alpha I)^-1 S_xy, intercept = m_y - m_x b."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from consilience.checks import Array, Json
from consilience.core.caller import warn_caller
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import JointMomentsAdapter, RefittedAdapter
from consilience.estimators.statistics import Statistics

_EPS = float(np.finfo(np.float64).eps)


RIDGE_SOLVERS: Mapping[str, tuple[str, ...]] = {"solver": ("sag", "saga", "lsqr", "sparse_cg")}
"""Solvers of ridge regression that stop at a tolerance, by default 1e-4."""


class SingularMomentsWarning(UserWarning):
    """The columns of all rows together do not determine the coefficients: those of least norm are returned."""

    code = "W-SINGULAR"


class RegressionMoments:
    """The blocks of joint moments that a regression is solved from: about the mean, or about zero without intercept.

    The statistics have joint moments of d columns and q targets.
    """

    def __init__(self, statistics: Statistics, fit_intercept: bool) -> None:
        record, d = statistics.rows, statistics.rows.n_columns - statistics.n_targets
        products = record.scatter if fit_intercept else record.raw_scatter()
        self.n, self.weight = float(record.n), float(record.weight)
        self.gram: Array = products[:d, :d]  # (d, d)
        self.cross: Array = products[:d, d:]  # (d, q)
        self.target_gram: Array = products[d:, d:]  # (q, q)
        self.target_variance: Array = np.diagonal(record.scatter)[d:] / self.weight  # (q,), about the mean always
        self.x_mean: Array = record.mean[:d] if fit_intercept else np.zeros(d)
        self.y_mean: Array = record.mean[d:] if fit_intercept else np.zeros(statistics.n_targets)

    def set_on(self, model: Any, coefficients: Array, target_shape: tuple[int, ...], fit_intercept: bool) -> None:
        """Set coefficients (d, q) and intercepts in the shape that targets had."""
        intercepts = self.y_mean - self.x_mean @ coefficients  # (q,)
        model.coef_ = np.ascontiguousarray(coefficients.T) if target_shape else coefficients[:, 0].copy()
        if not fit_intercept:
            model.intercept_ = 0.0
        else:
            model.intercept_ = intercepts if target_shape else float(intercepts[0])


def solve_penalised(gram: Array, cross: Array, penalty: float) -> Array | None:
    """Return (G + penalty I)^-1 B by Cholesky, columns scaled to unit diagonals first; None where G is singular."""
    diagonal = np.diagonal(gram) + penalty
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = gram / np.outer(scale, scale)
    scaled[np.diag_indices_from(scaled)] = diagonal / scale**2
    try:
        factor = linalg.cho_factor(scaled)
    except linalg.LinAlgError:
        return None
    pivots = np.diagonal(factor[0])
    if len(pivots) and pivots.min() ** 2 < len(pivots) * _EPS:
        return None
    solved: Array = linalg.cho_solve(factor, cross / scale[:, None]) / scale[:, None]
    return solved


def least_norm(gram: Array, cross: Array, smallest: float) -> tuple[Array, int]:
    """Return the solution of least norm by eigenvalues above a part `smallest` of the largest, and their number."""
    values, vectors = linalg.eigh(gram)
    significant = values > smallest * max(values.max(initial=0.0), 0.0)
    solved: Array = (vectors[:, significant] / values[significant]) @ (vectors[:, significant].T @ cross)
    return solved, int(significant.sum())


def warn_singular(rank: int, d: int) -> None:
    """Warn that d columns have a smaller rank."""
    warn_caller(
        f"the {d} columns of all rows together have rank {rank}: of the coefficients that fit equally well, those of"
        " least norm are returned",
        SingularMomentsWarning,
    )


class RegressionAdapter(JointMomentsAdapter, RefittedAdapter):
    """What regressions of scikit-learn have in common."""

    module: ClassVar[str] = "sklearn.linear_model"

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse coefficients that are held positive."""
        return refuse_positive(parameters)


def refuse_positive(parameters: Mapping[str, Json]) -> Problem | None:
    """Return why coefficients that are held positive are refused: an inequality is no function of sums alone."""
    if parameters.get("positive"):
        return Problem("positive", "holds coefficients above zero, which is not fused", "fit with `positive=False`")
    return None


class LinearRegressionAdapter(RegressionAdapter):
    """Ordinary and weighted least squares."""

    kind: ClassVar[str] = "sklearn.LinearRegression"
    lacks: ClassVar[str | None] = "the sums of squares and products of its columns, only coefficients"

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set coefficients, intercept, rank and singular values."""
        moments = RegressionMoments(statistics, model.fit_intercept)
        d = len(moments.gram)
        values = np.maximum(linalg.eigvalsh(moments.gram)[::-1], 0.0)
        # scikit-learn counts singular values above `tol` of the largest; squares below rounding cannot be counted.
        smallest = max(float(getattr(model, "tol", 0.0)) ** 2, d * _EPS)
        model.rank_ = int(np.count_nonzero(values > smallest * values.max(initial=0.0)))
        model.singular_ = np.sqrt(values[: min(d, int(moments.n))])
        coefficients = solve_penalised(moments.gram, moments.cross, 0.0) if model.rank_ == d else None
        if coefficients is None:
            coefficients, model.rank_ = least_norm(moments.gram, moments.cross, smallest)
            warn_singular(model.rank_, d)
        moments.set_on(model, coefficients, statistics.target_shape or (), model.fit_intercept)


class RidgeAdapter(RegressionAdapter):
    """Ridge regression; alpha is not divided by the number of rows."""

    kind: ClassVar[str] = "sklearn.Ridge"
    lacks: ClassVar[str | None] = LinearRegressionAdapter.lacks
    loose_solvers: ClassVar[Mapping[str, tuple[str, ...]]] = RIDGE_SOLVERS

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set coefficients and intercept."""
        moments = RegressionMoments(statistics, model.fit_intercept)
        coefficients = ridge_coefficients(moments.gram, moments.cross, model.alpha)
        moments.set_on(model, coefficients, statistics.target_shape or (), model.fit_intercept)
        if coefficients.shape[1] == 1 and ridge_ravels_one_target():
            model.coef_ = model.coef_.ravel()
        model.n_iter_, model.solver_ = None, "cholesky" if model.solver == "auto" else model.solver


def ridge_coefficients(gram: Array, cross: Array, alpha: Any) -> Array:
    """Return (S_xx + alpha I)^-1 S_xy (d, q), with one alpha or one for each target."""
    alphas = np.asarray(alpha, dtype=np.float64).ravel()
    if len(alphas) not in (1, cross.shape[1]):
        text = f"has {len(alphas)} values, expected 1 or {cross.shape[1]}, one for each target"
        raise InputError("alpha", text, code="E-SHAPE")
    alphas = np.broadcast_to(alphas, cross.shape[1])
    coefficients = np.empty_like(cross)
    for penalty in np.unique(alphas):
        targets = alphas == penalty
        solved = solve_penalised(gram, cross[:, targets], float(penalty))
        if solved is None:
            shifted = gram + penalty * np.eye(len(gram))
            solved, rank = least_norm(shifted, cross[:, targets], len(gram) * _EPS)
            warn_singular(rank, len(gram))
        coefficients[:, targets] = solved
    return coefficients


@cache
def ridge_ravels_one_target() -> bool:
    """Return whether this version makes coefficients of a column of targets a vector; it has done either."""
    from sklearn.linear_model import Ridge

    return bool(Ridge().fit([[0.0], [1.0]], [[0.0], [1.0]]).coef_.ndim == 1)
