"""Linear and quadratic discriminant analysis from the moments of every class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from consilience.checks import Array, Json
from consilience.errors import InputError
from consilience.estimators.adapters.base import ClassMomentsAdapter, RefittedAdapter, class_priors, require_two_classes
from consilience.estimators.adapters.covariance_of_moments import covariance_of
from consilience.estimators.statistics import FOURTH, FOURTH_TOTAL, Statistics


class DiscriminantAdapter(ClassMomentsAdapter, RefittedAdapter):
    """What both discriminant analyses refuse."""

    module: ClassVar[str] = "sklearn.discriminant_analysis"
    lacks: ClassVar[str | None] = "the number of rows and the scatter of every class"

    def needs_fourth_moments(self, parameters: Mapping[str, Json]) -> bool:
        """Return whether shrinkage is "auto": Ledoit's and Wolf's, of the standardised rows of each class."""
        return parameters.get("shrinkage") == "auto"


def _fourth_of(statistics: Statistics, c: int) -> float | None:
    """Return the fourth moment of a class; None before a second message."""
    return float(statistics.counts[FOURTH][c]) if FOURTH in statistics.counts else None


class LinearDiscriminantAnalysisAdapter(DiscriminantAdapter):
    """Linear discriminant analysis, by each of its solvers."""

    kind: ClassVar[str] = "sklearn.LinearDiscriminantAnalysis"

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set means, scalings, coefficients and intercepts."""
        record = statistics.rows
        n, n_classes, d = float(record.n.sum()), len(record.n), record.n_columns
        require_two_classes(statistics)
        if n <= n_classes:
            text = f"has {n:g} rows of {n_classes} classes; a covariance takes more rows than classes"
            raise InputError("", text, code="E-FEW")
        priors = class_priors(statistics)
        model.priors_ = priors / priors.sum()
        most = min(n_classes - 1, d)
        if model.n_components is not None and model.n_components > most:
            raise InputError("n_components", f"is {model.n_components}, expected at most {most}", code="E-NUMBER")
        model._max_components = model._n_features_out = most if model.n_components is None else model.n_components
        model.means_ = record.mean.copy()
        if model.solver == "svd":
            if model.shrinkage is not None or model.covariance_estimator is not None:
                raise InputError("shrinkage", "is not for `solver='svd'`", "give `solver='lsqr'` or 'eigen'")
            _fit_svd(model, statistics, n)
        else:
            model.covariance_ = _within_covariance(model, statistics)
            if model.solver == "lsqr":
                model.coef_ = linalg.lstsq(model.covariance_, model.means_.T)[0].T
            else:
                _fit_eigen(model, statistics)
            # log p(c | x) = x^T S^-1 m_c - m_c^T S^-1 m_c / 2 + log prior_c, up to a constant
            with np.errstate(divide="ignore"):
                model.intercept_ = -0.5 * np.diag(model.means_ @ model.coef_.T) + np.log(model.priors_)
        if n_classes == 2:  # of which scikit-learn keeps the difference
            model.coef_ = model.coef_[1:] - model.coef_[:1]
            model.intercept_ = model.intercept_[1:] - model.intercept_[:1]


def _within_covariance(model: Any, statistics: Statistics) -> Array:
    """Return the covariances of classes, averaged by their priors (d, d); shrinkage is of each class by itself."""
    record = statistics.rows
    return np.asarray(
        sum(
            prior * covariance_of(record.at(c), model.shrinkage, model.covariance_estimator, _fourth_of(statistics, c))
            for c, prior in enumerate(model.priors_)
        )
    )


def _fit_svd(model: Any, statistics: Statistics, n: float) -> None:
    """Set scalings, coefficients and intercepts from eigenvalues of the pooled within-class scatter.

    The first step is of that scatter whatever the priors are, so that with priors of one's own "svd" is not "lsqr".
    """
    record = statistics.rows
    within = record.scatter.sum(axis=0)  # (d, d)
    n_classes = len(record.n)
    if model.store_covariance:
        model.covariance_ = _within_covariance(model, statistics)
    model.xbar_ = model.priors_ @ model.means_
    deviations = np.sqrt(np.diagonal(within) / n)
    deviations[deviations == 0] = 1.0
    divisor = n - n_classes if _divides_by_degrees_of_freedom() else n
    values, vectors = linalg.eigh(within / divisor / np.outer(deviations, deviations))
    singular, rows = np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1].T
    kept = singular > model.tol
    scalings = (rows[kept] / deviations).T / singular[kept]  # (d, r)
    factor = 1.0 if n_classes == 1 else 1.0 / (n_classes - 1)
    between = (np.sqrt(n * model.priors_ * factor)[:, None] * (model.means_ - model.xbar_)) @ scalings
    _, spread, directions = linalg.svd(between, full_matrices=False)
    components = model._max_components
    model.explained_variance_ratio_ = np.empty(0) if components == 0 else (spread**2 / np.sum(spread**2))[:components]
    rank = int(np.sum(spread > model.tol * spread[0])) if len(spread) else 0
    model.scalings_ = scalings @ directions.T[:, :rank]
    coefficients = (model.means_ - model.xbar_) @ model.scalings_
    with np.errstate(divide="ignore"):
        model.intercept_ = -0.5 * np.sum(coefficients**2, axis=1) + np.log(model.priors_)
    model.coef_ = coefficients @ model.scalings_.T
    model.intercept_ -= model.xbar_ @ model.coef_.T


def _fit_eigen(model: Any, statistics: Statistics) -> None:
    """Set scalings and coefficients from the Rayleigh quotient of scatters between and within classes."""
    within = model.covariance_
    told = statistics.counts.get(FOURTH_TOTAL)
    fourth = None if told is None else float(told)
    total = covariance_of(statistics.rows.total(), model.shrinkage, model.covariance_estimator, fourth)
    try:
        values, vectors = linalg.eigh(total - within, within)
    except linalg.LinAlgError:
        text = "the covariance within classes of all rows is singular"
        raise InputError("", text, "give shrinkage, or leave columns out", "E-NUMBER") from None
    model.explained_variance_ratio_ = np.sort(values / np.sum(values))[::-1][: model._max_components]
    model.scalings_ = vectors[:, np.argsort(values)[::-1]]
    model.coef_ = model.means_ @ model.scalings_ @ model.scalings_.T


_ASKED = np.array([[0.0], [1.0], [3.0], [10.0], [12.0], [17.0]]), np.array([0, 0, 0, 1, 1, 1])
"""Rows of two classes by which a version of scikit-learn is asked what it divides by; versions have done either."""


@cache
def _divides_by_degrees_of_freedom() -> bool:
    """Return whether this version's solver "svd" divides the within-class scatter by N - C and not by N.

    Of one column its scaling is the root of that divisor over the scatter.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y = _ASKED
    scatter = sum(float(((x[y == c] - x[y == c].mean()) ** 2).sum()) for c in (0, 1))
    scaling = float(LinearDiscriminantAnalysis(solver="svd").fit(x, y).scalings_[0, 0])
    return bool(scaling**2 * scatter < len(x) - 1)  # 4 of 6 rows and 2 classes, or 6


@cache
def _loses_a_degree_of_freedom() -> bool:
    """Return whether this version's quadratic discriminant analysis divides scatters by n - 1 and not by n.

    Of one column its scaling is the variance.
    """
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    variance = float(QuadraticDiscriminantAnalysis().fit(*_ASKED).scalings_[0][0])
    return bool(variance > 1.25 * float(np.var(_ASKED[0][:3])))  # 1.5 times, or once


class QuadraticDiscriminantAnalysisAdapter(DiscriminantAdapter):
    """Quadratic discriminant analysis: a covariance of every class."""

    kind: ClassVar[str] = "sklearn.QuadraticDiscriminantAnalysis"

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set means, rotations and variances of every class."""
        record = statistics.rows
        d = record.n_columns
        shrinkage, estimator = getattr(model, "shrinkage", None), getattr(model, "covariance_estimator", None)
        is_eigen = getattr(model, "solver", "svd") == "eigen"
        require_two_classes(statistics)
        model.priors_ = class_priors(statistics)
        model.means_ = record.mean.copy()
        model.rotations_, model.scalings_, covariances = [], [], []
        for c, name in enumerate(statistics.classes.names if statistics.classes else ()):
            n = float(record.n[c])
            if n < 2:
                text = f"has {n:g} rows in all, of which there is no covariance"
                raise InputError(f"class {name}", text, code="E-FEW")
            covariance = covariance_of(record.at(c), shrinkage, estimator, _fourth_of(statistics, c))
            if _loses_a_degree_of_freedom():
                covariance *= n / (n - 1.0)
            values, vectors = linalg.eigh(covariance)
            values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
            if not is_eigen:  # S_c <- (1 - r) S_c + r I
                values = (1.0 - model.reg_param) * values + model.reg_param
                covariance = (vectors * values) @ vectors.T
            rank = int(np.count_nonzero(values > model.tol))
            if rank < d:
                remedy = "give `solver='eigen'` and shrinkage" if is_eigen else "give reg_param"
                text = f"has a covariance of rank {rank} in {d} columns, of {n:g} rows in all"
                raise InputError(f"class {name}", text, remedy, "E-FEW")
            model.scalings_.append(values)
            model.rotations_.append(vectors)
            covariances.append(covariance)
        if model.store_covariance:
            model.covariance_ = covariances
