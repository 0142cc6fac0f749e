"""The table of estimators that are fused by their sums, and those that are refused by name, with what to do instead."""

from __future__ import annotations

from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import EstimatorAdapter, kind_name
from consilience.estimators.adapters.bayesian_regression import ARDRegressionAdapter, BayesianRidgeAdapter
from consilience.estimators.adapters.discriminant import (
    LinearDiscriminantAnalysisAdapter,
    QuadraticDiscriminantAnalysisAdapter,
)
from consilience.estimators.adapters.heads import (
    BayesianHeadAdapter,
    BayesianRegressionHeadAdapter,
    GaussianNBHeadAdapter,
    LDAHeadAdapter,
    QDAHeadAdapter,
    RidgeHeadAdapter,
    RidgeRegressionHeadAdapter,
)
from consilience.estimators.adapters.laplace import (
    GammaRegressorAdapter,
    LogisticRegressionAdapter,
    PoissonRegressorAdapter,
    SGDClassifierAdapter,
    TweedieRegressorAdapter,
)
from consilience.estimators.adapters.laplace_torch import FullLaplaceAdapter, FullLLLaplaceAdapter
from consilience.estimators.adapters.linear_regression import LinearRegressionAdapter, RidgeAdapter
from consilience.estimators.adapters.naive_bayes import (
    BernoulliNBAdapter,
    CategoricalNBAdapter,
    ComplementNBAdapter,
    GaussianNBAdapter,
    MultinomialNBAdapter,
)
from consilience.estimators.adapters.nearest_centroid import NearestCentroidAdapter
from consilience.estimators.adapters.ridge_classifier import RidgeClassifierAdapter
from consilience.estimators.adapters.scalers import MaxAbsScalerAdapter, MinMaxScalerAdapter, StandardScalerAdapter
from consilience.estimators.adapters.second_moments import (
    EmpiricalCovarianceAdapter,
    FactorAnalysisAdapter,
    IncrementalPCAAdapter,
    LedoitWolfAdapter,
    OASAdapter,
    PCAAdapter,
    ShrunkCovarianceAdapter,
    TruncatedSVDAdapter,
)
from consilience.estimators.adapters.statsmodels import (
    DiscretePoissonAdapter,
    GLMAdapter,
    LogitAdapter,
    MNLogitAdapter,
    OLSAdapter,
    PHRegAdapter,
    WLSAdapter,
    statsmodels_refusal,
)

ESTIMATORS: tuple[EstimatorAdapter, ...] = (
    LinearRegressionAdapter(),
    RidgeAdapter(),
    BayesianRidgeAdapter(),
    ARDRegressionAdapter(),
    GaussianNBAdapter(),
    MultinomialNBAdapter(),
    ComplementNBAdapter(),
    BernoulliNBAdapter(),
    CategoricalNBAdapter(),
    LinearDiscriminantAnalysisAdapter(),
    QuadraticDiscriminantAnalysisAdapter(),
    NearestCentroidAdapter(),
    RidgeClassifierAdapter(),
    PCAAdapter(),
    IncrementalPCAAdapter(),
    TruncatedSVDAdapter(),
    FactorAnalysisAdapter(),
    EmpiricalCovarianceAdapter(),
    ShrunkCovarianceAdapter(),
    OASAdapter(),
    LedoitWolfAdapter(),
    StandardScalerAdapter(),
    MinMaxScalerAdapter(),
    MaxAbsScalerAdapter(),
    LogisticRegressionAdapter(),
    SGDClassifierAdapter(),
    PoissonRegressorAdapter(),
    GammaRegressorAdapter(),
    TweedieRegressorAdapter(),
    OLSAdapter(),
    WLSAdapter(),
    GLMAdapter(),
    LogitAdapter(),
    DiscretePoissonAdapter(),
    MNLogitAdapter(),
    PHRegAdapter(),
    FullLaplaceAdapter(),
    FullLLLaplaceAdapter(),
    RidgeHeadAdapter(),
    LDAHeadAdapter(),
    QDAHeadAdapter(),
    GaussianNBHeadAdapter(),
    BayesianHeadAdapter(),
    RidgeRegressionHeadAdapter(),
    BayesianRegressionHeadAdapter(),
)
"""Every estimator that is fused by its sums; a new one is one file and one line here."""

_BY_KIND = {adapter.kind: adapter for adapter in ESTIMATORS}

_CHOSEN = "was chosen by cross-validation on a site's rows, which sums do not repeat"
_ORDERED = "is made of medians and quantiles, which do not add up"
_KRONECKER = "has a Kronecker-factored curvature, and the sum of several has no such factors"
_SUBNETWORK = "covers weights that each site chooses, so that the others of two sites differ"
_FUNCTIONAL = "is a distribution of functions at a site's inputs, which do not leave it"
_FULL = 'fit `subset_of_weights="last_layer"` on one network of all sites, with `hessian_structure="full"`'

REFUSED: dict[str, tuple[str, str]] = {
    "MinCovDet": ("chooses rows by their order, which does not add up", "fit EmpiricalCovariance or OAS in its place"),
    "RobustScaler": (_ORDERED, "fit StandardScaler in its place"),
    "QuantileTransformer": (_ORDERED, "fit StandardScaler in its place"),
    "PowerTransformer": ("is no function of sums of its columns", "fit StandardScaler in its place"),
    "RidgeCV": (_CHOSEN, "fit Ridge with `alpha=model.alpha_`"),
    "RidgeClassifierCV": (_CHOSEN, "fit RidgeClassifier with `alpha=model.alpha_`"),
    "KronLaplace": (_KRONECKER, f'{_FULL}, or "diag" of all weights'),
    "KronLLLaplace": (_KRONECKER, _FULL),
    "LowRankLaplace": ("has a curvature of low rank, and the sum of several is of none", _FULL),
    "DiagLLLaplace": ("has independent weights in one layer, whose covariances the product needs", _FULL),
    "FullSubnetLaplace": (_SUBNETWORK, _FULL),
    "DiagSubnetLaplace": (_SUBNETWORK, _FULL),
    "FunctionalLaplace": (_FUNCTIONAL, _FULL),
    "FunctionalLLLaplace": (_FUNCTIONAL, _FULL),
    "ELLA": (_FUNCTIONAL, _FULL),
    "VaLLA": (_FUNCTIONAL, _FULL),
}
"""Estimators of scikit-learn and laplace-torch near those of the table that are refused: why, and what to do."""


def adapter_for(model: object) -> EstimatorAdapter | None:
    """Return the adapter of a fitted estimator; None for what is none of the table."""
    return _BY_KIND.get(kind_name(model) or "")


def refusal_of(model: object) -> Problem | None:
    """Return why an object near the estimators of the table is refused, and what to do instead; None of all others."""
    name, module = type(model).__name__, type(model).__module__
    if name in REFUSED and module.startswith(("sklearn.", "laplace.")):
        return Problem(f"a {name}", *REFUSED[name])
    return statsmodels_refusal(model) if module.startswith("statsmodels.") and adapter_for(model) is None else None


def adapter_of_kind(kind: str) -> EstimatorAdapter:
    """Return the adapter of a class by its name."""
    if (adapter := _BY_KIND.get(kind)) is not None:
        return adapter
    known = ", ".join(adapter.kind for adapter in ESTIMATORS)
    raise InputError("estimator", f"{kind!r:.80} is not known; there are {known}", "update consilience")
