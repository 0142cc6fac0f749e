"""Every estimator of the table with data that it is fitted to: what the laws run on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.covariance import OAS, EmpiricalCovariance, ShrunkCovariance
from sklearn.decomposition import PCA, FactorAnalysis, IncrementalPCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import ARDRegression, BayesianRidge, LinearRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from sklearn.utils.fixes import parse_version

from consilience.estimators.adapters.table import ESTIMATORS
from tests.specimens import Specimens

N_ROWS = 420

OF_WEIGHTS = 1e-10 if parse_version(sklearn.__version__) >= parse_version("1.7") else 1e-2
"""Before, BayesianRidge started from a variance that is no function of sums, and stopped within its tolerance."""


def regression_rows(seed, targets=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, 5)) @ rng.normal(size=(5, 5)) + rng.normal(size=5) * 20.0
    B = rng.normal(size=(5, targets or 1))
    y = X @ B + rng.normal(size=(N_ROWS, targets or 1)) + 3.0
    return X, y if targets else y[:, 0]


def class_rows(seed, classes=("ash", "birch", "cedar", "elm")):
    rng = np.random.default_rng(seed)
    numbers = rng.choice(len(classes), N_ROWS, p=np.arange(1, len(classes) + 1) / sum(range(len(classes) + 1)))
    numbers[: 6 * len(classes)] = np.repeat(np.arange(len(classes)), 6)  # six of each at least
    mixing = np.eye(4) + 0.3 * rng.normal(size=(len(classes), 4, 4))
    X = rng.normal(size=(len(classes), 4))[numbers] * 3.0 + np.einsum(
        "nij,nj->ni", mixing[numbers], rng.normal(size=(N_ROWS, 4))
    )
    return X + 10.0, np.array(classes)[numbers]


def two_class_rows(seed):
    return class_rows(seed, classes=(3, 7))


def count_rows(seed):
    rng = np.random.default_rng(seed)
    rates = rng.gamma(1.0, 2.0, size=(3, 6))
    numbers = np.concatenate([np.repeat(np.arange(3), 6), rng.integers(0, 3, N_ROWS - 18)])
    return rng.poisson(rates[numbers]).astype(np.float64), numbers


def code_rows(seed):
    X, y = count_rows(seed)
    return np.minimum(X[:, :4], 9.0).astype(np.int64), y


def plain_rows(seed):
    return regression_rows(seed)[0], None


@dataclass(frozen=True)
class Case:
    """An estimator, its data, and how it is compared with ``fit`` on pooled rows."""

    make: Callable
    rows: Callable
    weighted: bool = False
    oracle: Callable | None = None
    relative: float = 1e-10
    ignored: tuple[str, ...] = ()
    label: str = ""
    min_count: float = 0.0

    def fit(self, X, y, weights=None, make=None):
        keywords = {} if weights is None else {"sample_weight": weights}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = (make or self.make)()
            return model.fit(X, **keywords) if y is None else model.fit(X, y, **keywords)

    def pooled(self, X, y, weights=None):
        """Return the oracle: ``fit`` on all rows, by the deterministic solver."""
        return self.fit(X, y, weights, self.oracle)


def _cases(*cases):
    return cases


SPECIMENS = Specimens(
    "SPECIMENS in tests/estimators/estimators_zoo.py",
    {
        # Laplace's approximation is not the fit of all rows, so these have laws of their own, in test_laplace.py.
        "sklearn.LogisticRegression": (),
        "sklearn.SGDClassifier": (),
        "sklearn.PoissonRegressor": (),
        "sklearn.GammaRegressor": (),
        "sklearn.TweedieRegressor": (),
        # Results of statsmodels have no fit; their laws are in test_statsmodels.py.
        "statsmodels.OLS": (),
        "statsmodels.WLS": (),
        "statsmodels.GLM": (),
        "statsmodels.Logit": (),
        "statsmodels.Poisson": (),
        "statsmodels.MNLogit": (),
        "statsmodels.PHReg": (),
        # Approximations of laplace-torch have networks; their laws are in test_laplace_torch.py.
        "laplace.FullLaplace": (),
        "laplace.FullLLLaplace": (),
        # Heads have features before them, and laws of their own, in test_heads.py.
        "consilience.RidgeHead": (),
        "consilience.LDAHead": (),
        "consilience.QDAHead": (),
        "consilience.GaussianNBHead": (),
        "consilience.BayesianHead": (),
        "consilience.RidgeRegressionHead": (),
        "consilience.BayesianRegressionHead": (),
        "sklearn.LinearRegression": _cases(
            Case(LinearRegression, regression_rows),
            Case(LinearRegression, regression_rows, weighted=True, label="weights"),
            Case(
                lambda: LinearRegression(fit_intercept=False),
                lambda seed: regression_rows(seed, 3),
                label="no intercept, three targets",
            ),
        ),
        "sklearn.Ridge": _cases(
            Case(Ridge, regression_rows),
            Case(
                lambda: Ridge(alpha=np.array([0.1, 5.0])),
                lambda seed: regression_rows(seed, 2),
                weighted=True,
                label="two penalties",
            ),
            Case(lambda: Ridge(alpha=3.0, fit_intercept=False), regression_rows, weighted=True, label="no intercept"),
        ),
        "sklearn.BayesianRidge": _cases(
            Case(lambda: BayesianRidge(compute_score=True), regression_rows),
            Case(BayesianRidge, regression_rows, weighted=True, label="weights", relative=OF_WEIGHTS),
            Case(lambda: BayesianRidge(fit_intercept=False), regression_rows, label="no intercept"),
        ),
        "sklearn.ARDRegression": _cases(
            Case(lambda: ARDRegression(compute_score=True), regression_rows, relative=1e-9),
            Case(
                lambda: ARDRegression(threshold_lambda=2.0, fit_intercept=False),
                regression_rows,
                relative=1e-9,
                label="pruned",
            ),
        ),
        "sklearn.GaussianNB": _cases(
            Case(GaussianNB, class_rows),
            Case(GaussianNB, class_rows, weighted=True, label="weights"),
            Case(lambda: GaussianNB(priors=[0.25, 0.75], var_smoothing=1e-3), two_class_rows, label="priors"),
        ),
        "sklearn.MultinomialNB": _cases(
            Case(MultinomialNB, count_rows), Case(MultinomialNB, count_rows, weighted=True, label="weights")
        ),
        "sklearn.ComplementNB": _cases(Case(lambda: ComplementNB(norm=True), count_rows)),
        "sklearn.BernoulliNB": _cases(
            Case(lambda: BernoulliNB(binarize=1.5, fit_prior=False), count_rows),
            Case(BernoulliNB, count_rows, weighted=True, label="weights"),
        ),
        "sklearn.CategoricalNB": _cases(
            Case(CategoricalNB, code_rows),
            Case(lambda: CategoricalNB(alpha=0.5, min_categories=12), code_rows, weighted=True, label="weights"),
        ),
        "sklearn.LinearDiscriminantAnalysis": _cases(
            Case(lambda: LinearDiscriminantAnalysis(store_covariance=True), class_rows, ignored=("scalings_",)),
            Case(
                lambda: LinearDiscriminantAnalysis(priors=[0.4, 0.6]),
                two_class_rows,
                ignored=("scalings_",),
                label="svd, priors",
            ),
            Case(lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3), class_rows, label="lsqr"),
            Case(
                lambda: LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=OAS()), class_rows, label="OAS"
            ),
            Case(
                lambda: LinearDiscriminantAnalysis(
                    solver="lsqr", covariance_estimator=ShrunkCovariance(shrinkage=0.2, assume_centered=True)
                ),
                class_rows,
                label="shrunk about zero",
            ),
            Case(
                lambda: LinearDiscriminantAnalysis(
                    solver="eigen", covariance_estimator=OAS(assume_centered=True), priors=[0.3, 0.7]
                ),
                two_class_rows,
                ignored=("scalings_",),
                label="eigen about zero",
            ),
            Case(
                lambda: LinearDiscriminantAnalysis(solver="eigen", n_components=2),
                class_rows,
                ignored=("scalings_",),
                label="eigen",
            ),
            Case(
                lambda: LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1, priors=[0.4, 0.6]),
                two_class_rows,
                ignored=("scalings_",),
                label="eigen, priors",
            ),
        ),
        "sklearn.QuadraticDiscriminantAnalysis": _cases(
            Case(lambda: QuadraticDiscriminantAnalysis(store_covariance=True), class_rows, ignored=("rotations_",)),
            Case(
                lambda: QuadraticDiscriminantAnalysis(reg_param=0.2, priors=[0.5, 0.5]),
                two_class_rows,
                ignored=("rotations_",),
                label="reg_param",
            ),
        ),
        "sklearn.NearestCentroid": _cases(
            Case(NearestCentroid, class_rows),
            Case(lambda: NearestCentroid(shrink_threshold=0.5), class_rows, label="shrunken"),
        ),
        "sklearn.RidgeClassifier": _cases(
            Case(RidgeClassifier, class_rows),
            Case(lambda: RidgeClassifier(class_weight="balanced"), two_class_rows, weighted=True, label="balanced"),
            Case(
                lambda: RidgeClassifier(class_weight={3: 2.0, 7: 0.5}, fit_intercept=False),
                two_class_rows,
                label="class weights",
            ),
        ),
        "sklearn.PCA": _cases(
            Case(PCA, plain_rows),
            Case(lambda: PCA(2, whiten=True, svd_solver="full"), plain_rows, label="two"),
            Case(lambda: PCA(0.9, svd_solver="full"), plain_rows, label="share"),
            Case(lambda: PCA("mle", svd_solver="full"), plain_rows, label="mle"),
            Case(lambda: PCA(3, svd_solver="arpack"), plain_rows, label="arpack"),
        ),
        "sklearn.IncrementalPCA": _cases(
            Case(IncrementalPCA, plain_rows),
            Case(
                lambda: IncrementalPCA(2),
                plain_rows,
                oracle=lambda: IncrementalPCA(2, batch_size=10**6),
                ignored=("batch_size_",),
                label="two",
            ),
        ),
        "sklearn.TruncatedSVD": _cases(
            Case(lambda: TruncatedSVD(3), plain_rows, oracle=lambda: TruncatedSVD(3, algorithm="arpack"))
        ),
        "sklearn.FactorAnalysis": _cases(
            Case(
                lambda: FactorAnalysis(2, tol=1e-4, max_iter=5000),
                plain_rows,
                oracle=lambda: FactorAnalysis(2, tol=1e-4, max_iter=5000, svd_method="lapack"),
                ignored=("components_",),
                relative=1e-8,
            )
        ),
        "sklearn.EmpiricalCovariance": _cases(
            Case(EmpiricalCovariance, plain_rows),
            Case(lambda: EmpiricalCovariance(assume_centered=True), plain_rows, label="centred"),
        ),
        "sklearn.ShrunkCovariance": _cases(Case(ShrunkCovariance, plain_rows)),
        "sklearn.OAS": _cases(Case(OAS, plain_rows)),
        # One message is not the fit of all rows, two are: its laws are in tests/federated/test_moments4.py.
        "sklearn.LedoitWolf": (),
        "sklearn.StandardScaler": _cases(
            Case(StandardScaler, plain_rows),
            Case(StandardScaler, plain_rows, weighted=True, label="weights"),
            Case(lambda: StandardScaler(with_mean=False), plain_rows, label="no mean"),
        ),
        "sklearn.MinMaxScaler": _cases(Case(MinMaxScaler, plain_rows)),
        "sklearn.MaxAbsScaler": _cases(Case(MaxAbsScaler, plain_rows)),
    },
)
"""Cases of every estimator by its kind; a new estimator is a new entry here."""


def columns_apart():
    return ColumnTransformer(
        [("scaled", StandardScaler(), [3, 0]), ("left out", "drop", [1]), ("as they are", "passthrough", slice(2, 3))],
        remainder="passthrough",
    )


APART = ("transformers_", "output_indices_", "sparse_output_")
"""Attributes of a ColumnTransformer that are structures of others; what it does is compared by what it predicts."""

PIPELINES = {
    "columns apart": Case(lambda: make_pipeline(columns_apart(), Ridge()), regression_rows, ignored=APART),
    "columns apart of classes": Case(lambda: make_pipeline(columns_apart(), GaussianNB()), class_rows, ignored=APART),
    "scaled ridge": Case(lambda: make_pipeline(StandardScaler(), Ridge()), regression_rows),
    "components of a regression": Case(
        lambda: make_pipeline(StandardScaler(), PCA(3, whiten=True, svd_solver="full"), LinearRegression()),
        regression_rows,
    ),
    "scaled Gaussian classes": Case(lambda: make_pipeline(StandardScaler(), GaussianNB()), class_rows),
    "components of Gaussian classes": Case(lambda: make_pipeline(PCA(3, svd_solver="full"), GaussianNB()), class_rows),
    "scaled discriminants": Case(
        lambda: make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()), class_rows, ignored=("scalings_",)
    ),
    "scaled components": Case(
        lambda: make_pipeline(StandardScaler(), "passthrough", PCA(svd_solver="full")), plain_rows
    ),
    "nothing before": Case(lambda: make_pipeline("passthrough", Ridge()), regression_rows),
    "scaled twice": Case(lambda: make_pipeline(StandardScaler(with_mean=False), StandardScaler()), plain_rows),
}
"""Pipelines whose steps are carried in the units of the data."""

KINDS = [adapter.kind for adapter in ESTIMATORS]
"""What the laws run over: the table itself."""

CASES = {
    f"{kind.rpartition('.')[2]}{', ' * bool(case.label)}{case.label}": case
    for kind in KINDS
    for case in SPECIMENS.get(kind, ())
} | PIPELINES
"""Every case by a name for reports."""
