"""Heads on shared features as estimators that are fused by their sums: seven kinds, from three layouts of sums.

Ridge, linear discriminants and Bayesian regression are solved from counts, sums by class and the moments of all rows
(``heads/sums``). Gaussian naive Bayes and quadratic discriminants take the moments of each class. Regression heads take
the moments of features and real targets together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import linalg
from scipy.special import gammaln

from consilience.checks import Array, Json, is_number, symmetric_part
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import ClassMomentsAdapter, EstimatorAdapter, JointMomentsAdapter, SiteSums
from consilience.estimators.adapters.discriminant import QuadraticDiscriminantAnalysisAdapter
from consilience.estimators.adapters.linear_regression import least_norm, solve_penalised, warn_singular
from consilience.estimators.adapters.naive_bayes import GaussianNBAdapter
from consilience.estimators.heads.feature_maps import COLUMNS, Columns, FeatureMap, map_of_record
from consilience.estimators.heads.model import (
    BayesianLinearHead,
    BayesianRegressionHead,
    DelegatedHead,
    DiscriminantHead,
    FittedHead,
    LinearHead,
    RealTargets,
    RegressionHead,
)
from consilience.estimators.heads.random_features import random_convolutions, random_fourier
from consilience.estimators.heads.sums import FeatureMoments, HeadMoments, TargetMoments, clipped, sums_of_features
from consilience.estimators.site_rows import Needs, SiteRows
from consilience.estimators.statistics import NOISE, ROWS, SUMS, TOTAL, Statistics

FEATURES, NORM_BOUND = "features", "norm_bound"
"""Hyper-parameters of every head that its sums depend on: the record of the feature map, and a bound of norms."""

MAKERS: Mapping[str, Callable[..., FeatureMap]] = {
    COLUMNS: Columns,
    "random_convolutions": random_convolutions,
    "random_fourier": random_fourier,
}
"""What makes the maps that files hold a recipe of, by kind."""

RIDGE = 1e-4
"""Ridge of each row of unit variance. On Fashion-MNIST and CIFAR-10 with 1,800 random convolutions 1e-5 to 1e-3 are
alike (5,000 training images that were not fitted)."""
SHRINKAGE = 0.05
"""Of linear discriminants towards tr(W) / d: that of the heads of GH-OFL (ICLR 2026)."""
REG_PARAM = 0.05
"""Of quadratic discriminants. Chosen by hand, as the shrinkage of linear ones."""

EVIDENCE_RIDGES = np.geomspace(1e-7, 1.0, 22)
"""Ridges of each row among which the evidence chooses: three a decade."""

_EPS = float(np.finfo(np.float64).eps)


class HeadAdapter(EstimatorAdapter):
    """What heads have in common."""

    module: ClassVar[str] = "consilience.estimators.heads.model"
    needs: ClassVar[Needs] = "classes"
    sum_parameters: ClassVar[tuple[str, ...]] = (FEATURES, NORM_BOUND)
    made: ClassVar[type[FittedHead]]
    """The class of the fitted head."""
    defaults: ClassVar[Mapping[str, Json]] = {}
    """Hyper-parameters of the head itself."""
    follows_units: ClassVar[bool] = False
    sent_as: ClassVar[str | None] = "`cs.learners.Head(kind, features=...).fit(X, y)`"

    def is_fitted(self, model: Any) -> bool:
        """Return whether there are sums, or rows of a head."""
        return getattr(model, "statistics", None) is not None or isinstance(model, FittedHead)

    def kept_statistics(self, model: Any) -> Statistics | None:
        """Return the sums that a site's head keeps."""
        if isinstance(model, FittedHead):
            text = "has no sums, only what was made of them"
            raise InputError(f"a {self.class_name}", text, "give the fusion, or its file", "E-NEEDED")
        if model.statistics is None:
            raise InputError("", f"this {self.class_name} is not fitted yet; call fit first", code="E-UNFITTED")
        statistics: Statistics = model.statistics
        return statistics

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse hyper-parameters that are no numbers in their range."""
        for name in self.defaults:
            value: Any = parameters.get(name)
            if not is_number(value) or (name in ("shrinkage", "reg_param") and value > 1.0):
                expected = "from 0 to 1" if name in ("shrinkage", "reg_param") else "that is not negative"
                return Problem(name, f"expected a number {expected}, found {str(value)[:40]}", code="E-NUMBER")
        return None

    def rebuild(self, statistics: Statistics) -> Any:
        """Return the fitted head of its sums, with its classes or the shape of its targets, and its features."""
        record = str(statistics.parameters[FEATURES])
        features: FeatureMap | None = map_of_record(record, MAKERS)
        classes = np.array([]) if statistics.classes is None else statistics.classes.array()
        bound = statistics.parameters.get(NORM_BOUND)
        head = self.made(self.kind, classes, statistics.n_columns, record, features, bound)
        if isinstance(head, RealTargets):
            head.target_shape_ = statistics.target_shape or ()
        self.solve(head, statistics)
        return head

    @abstractmethod
    def solve(self, head: Any, statistics: Statistics) -> None:
        """Set on a head without rows what sums give."""


class PooledHeadAdapter(HeadAdapter):
    """Heads from counts and sums by class and the moments of all rows together."""

    pools_classes: ClassVar[bool] = True

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its arrays."""
        n_classes = len(statistics.classes or ())
        shapes: dict[str, tuple[int, ...]] = {
            f"moments {TOTAL!r}": (),
            f"counts {ROWS!r}": (n_classes,),
            f"counts {SUMS!r}": (n_classes, statistics.n_columns),
        }
        return shapes | ({f"counts {NOISE!r}": ()} if NOISE in statistics.counts else {})

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return counts and sums by class, and the moments of all rows."""
        counts, sums, total = sums_of_features(rows.X, rows.numbers, rows.n_classes)
        return SiteSums({TOTAL: total}, {ROWS: counts, SUMS: sums})

    def moments_of(self, statistics: Statistics) -> FeatureMoments:
        """Return the moments that a linear head is solved from."""
        return FeatureMoments.of(statistics)


class RidgeHeadAdapter(PooledHeadAdapter):
    """Ridge regression of indicators of classes on features of unit variance, the intercept free of penalty."""

    kind: ClassVar[str] = "consilience.RidgeHead"
    made: ClassVar[type[FittedHead]] = LinearHead
    defaults: ClassVar[Mapping[str, Json]] = {"ridge": RIDGE}

    def solve(self, head: LinearHead, statistics: Statistics) -> None:
        """Set the ridge solution of all sums."""
        set_ridge_rows(head, self.moments_of(statistics), float(statistics.parameters["ridge"]))


class LDAHeadAdapter(PooledHeadAdapter):
    """Linear discriminants: one covariance within classes, shrunk towards tr(W) / d, priors by counts."""

    kind: ClassVar[str] = "consilience.LDAHead"
    made: ClassVar[type[FittedHead]] = DiscriminantHead
    defaults: ClassVar[Mapping[str, Json]] = {"shrinkage": SHRINKAGE}

    def solve(self, head: DiscriminantHead, statistics: Statistics) -> None:
        """Set coefficients Sigma^-1 m_c and intercepts -m_c . coef_c / 2 + log prior_c."""
        moments = self.moments_of(statistics)
        shrinkage, d = float(statistics.parameters["shrinkage"]), statistics.n_columns
        if moments.n <= len(moments.n_by_class) and shrinkage == 0:
            text = f"has {moments.n:g} rows of {len(moments.n_by_class)} classes; a covariance takes more"
            raise InputError("", text, code="E-FEW")
        within = moments.within
        if moments.noise_variance:
            within = clipped(within) + moments.noise_ridge * np.eye(d)
        covariance = within / moments.n
        scale = float(np.trace(covariance)) / d
        covariance = (1.0 - shrinkage) * covariance + shrinkage * scale * np.eye(d)
        solved = solve_penalised(covariance, moments.means.T, 0.0)
        if solved is None:
            solved, rank = least_norm(covariance, moments.means.T, d * _EPS)
            warn_singular(rank, d)
        coefficients = solved.T
        with np.errstate(divide="ignore"):
            intercepts = np.log(moments.shares) - 0.5 * np.einsum("cd,cd->c", coefficients, moments.means)
        head.set_rows(coefficients, intercepts)


class BayesianHeadAdapter(PooledHeadAdapter):
    """Bayesian regression of indicators of classes with unknown noise; the evidence chooses the prior precision.

    For each class y = w . phi + e with w | s ~ N(0, s / (ridge n) I), s ~ inverse gamma (1/2, v_c / 2), where v_c is
    the variance of its indicator: a prior worth one row. The intercept has a flat prior, which costs one row.
    """

    kind: ClassVar[str] = "consilience.BayesianHead"
    made: ClassVar[type[FittedHead]] = BayesianLinearHead

    def solve(self, head: BayesianLinearHead, statistics: Statistics) -> None:
        """Set posterior means, and what their predictive distributions are made of."""
        set_posterior_rows(head, self.moments_of(statistics))


class RegressionHeadAdapter(JointMomentsAdapter, HeadAdapter):
    """Heads for real targets, from the moments of features and targets together."""

    def moments_of(self, statistics: Statistics) -> TargetMoments:
        """Return the moments that a linear head is solved from."""
        return TargetMoments.of(statistics)


class RidgeRegressionHeadAdapter(RegressionHeadAdapter):
    """Ridge regression of real targets on features of unit variance, the intercept free of penalty."""

    kind: ClassVar[str] = "consilience.RidgeRegressionHead"
    made: ClassVar[type[FittedHead]] = RegressionHead
    defaults: ClassVar[Mapping[str, Json]] = {"ridge": RIDGE}

    def solve(self, head: RegressionHead, statistics: Statistics) -> None:
        """Set the ridge solution of all sums."""
        set_ridge_rows(head, self.moments_of(statistics), float(statistics.parameters["ridge"]))


class BayesianRegressionHeadAdapter(RegressionHeadAdapter):
    """Bayesian regression of real targets with unknown noise; the evidence chooses the prior precision.

    As `BayesianHeadAdapter`, with each target in the place of the indicator of a class.
    """

    kind: ClassVar[str] = "consilience.BayesianRegressionHead"
    made: ClassVar[type[FittedHead]] = BayesianRegressionHead

    def solve(self, head: BayesianRegressionHead, statistics: Statistics) -> None:
        """Set posterior means, and what their predictive distributions are made of."""
        set_posterior_rows(head, self.moments_of(statistics))


class ClassHeadAdapter(ClassMomentsAdapter, HeadAdapter):
    """Heads from the moments of each class, which classifiers of scikit-learn judge."""

    made: ClassVar[type[FittedHead]] = DelegatedHead
    inner: ClassVar[EstimatorAdapter]
    """Adapter of the classifier."""
    fixed: ClassVar[Mapping[str, Json]] = {}
    """Hyper-parameters of the classifier that the head does not have."""

    def solve(self, head: DelegatedHead, statistics: Statistics) -> None:
        """Set scikit-learn's classifier of all sums."""
        parameters = {**self.fixed, **{name: statistics.parameters[name] for name in self.defaults}}
        inner = Statistics(
            self.inner.kind, parameters, statistics.n_columns, statistics.moments, classes=statistics.classes
        )
        head.set_estimator(self.inner.rebuild(inner))


class GaussianNBHeadAdapter(ClassHeadAdapter):
    """Gaussian naive Bayes: a variance of each feature and class."""

    kind: ClassVar[str] = "consilience.GaussianNBHead"
    is_diagonal: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Json]] = {"var_smoothing": 1e-9}
    inner: ClassVar[EstimatorAdapter] = GaussianNBAdapter()
    fixed: ClassVar[Mapping[str, Json]] = {"priors": None}


class QDAHeadAdapter(ClassHeadAdapter):
    """Quadratic discriminants: a covariance of each class, C times as many numbers as linear ones."""

    kind: ClassVar[str] = "consilience.QDAHead"
    defaults: ClassVar[Mapping[str, Json]] = {"reg_param": REG_PARAM}
    inner: ClassVar[EstimatorAdapter] = QuadraticDiscriminantAnalysisAdapter()


def set_ridge_rows(head: LinearHead, moments: HeadMoments, ridge: float) -> None:
    """Set the ridge solution of these moments on a head."""
    coefficients = ridge_rows(moments, ridge)
    head.set_rows(coefficients, moments.target_means - coefficients @ moments.mean)


def set_posterior_rows(head: BayesianLinearHead, moments: HeadMoments) -> None:
    """Set on a head the posterior of its rows, with the ridge of the greatest evidence."""
    if moments.n < 3:
        raise InputError("", f"has {moments.n:g} rows, expected three or more", code="E-FEW")
    deviations = column_deviations(moments)
    gram, cross = scaled_system(moments, deviations)
    values, vectors = linalg.eigh(gram)
    values = np.maximum(values, 0.0)
    projected = vectors.T @ cross  # (d, q)
    squares = moments.target_squares  # (q,)
    prior = np.maximum(squares / moments.n, moments.target_rounding)

    def residuals(penalty: float) -> Array:
        return np.maximum(squares - (projected**2 / (values + penalty)[:, None]).sum(axis=0), 0.0) + prior

    def evidence(penalty: float) -> float:
        """Return the log marginal likelihood, summed over targets."""
        rows = moments.n - 1.0
        log_determinant = 0.5 * float((np.log(penalty) - np.log(values + penalty)).sum())
        of_target = (
            log_determinant
            - 0.5 * rows * np.log(np.pi)
            + 0.5 * np.log(prior)
            - 0.5 * (1.0 + rows) * np.log(residuals(penalty))
            + gammaln(0.5 * (1.0 + rows))
            - gammaln(0.5)
        )
        return float(of_target.sum())

    penalties = EVIDENCE_RIDGES * moments.n + moments.noise_ridge
    log_evidence = np.array([evidence(penalty) for penalty in penalties])
    penalty = float(penalties[log_evidence.argmax()])
    coefficients = ((vectors / (values + penalty)) @ projected / deviations[:, None]).T
    covariance = symmetric_part((vectors / (values + penalty)) @ vectors.T) / np.outer(deviations, deviations)
    head.set_rows(coefficients, moments.target_means - coefficients @ moments.mean)
    head.set_posterior(covariance, moments.mean, moments.n, moments.n, residuals(penalty) / moments.n)
    head.set_evidence(float(EVIDENCE_RIDGES[log_evidence.argmax()]), float(log_evidence.max()))


def column_deviations(moments: HeadMoments) -> Array:
    """Return the deviation of each feature over all rows (d,), 1 for constant ones, and all 1 with noise."""
    if moments.noise_variance:
        return np.ones(len(moments.mean))
    deviations = np.sqrt(np.maximum(np.diagonal(moments.scatter), 0.0) / moments.n)
    return np.where(deviations > _EPS * np.abs(moments.mean), deviations, 1.0)


def scaled_system(moments: HeadMoments, deviations: Array) -> tuple[Array, Array]:
    """Return the products (d, d) and cross products (d, q) of centred features in units of their deviations."""
    scatter = clipped(moments.scatter) if moments.noise_variance else moments.scatter
    return scatter / np.outer(deviations, deviations), moments.cross / deviations[:, None]


def ridge_rows(moments: HeadMoments, ridge: float) -> Array:
    """Return the rows (q, d) of the ridge regression of targets, or indicators of classes, with `ridge` of each row."""
    deviations = column_deviations(moments)
    gram, cross = scaled_system(moments, deviations)
    penalty = ridge * moments.n + moments.noise_ridge
    solved = solve_penalised(gram, cross, penalty)
    if solved is None:
        gram[np.diag_indices_from(gram)] += penalty
        solved, rank = least_norm(gram, cross, len(gram) * _EPS)
        warn_singular(rank, len(gram))
    rows: Array = (solved / deviations[:, None]).T
    return rows
