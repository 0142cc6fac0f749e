"""Models that cannot be fused as they are: why not, and what to hand in instead, by the class of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy import sparse

from consilience.core.fusion import Fusion
from consilience.core.inputs import training_state_problem
from consilience.errors import FileFormatError, Problem
from consilience.files.safetensors_file import SafetensorsFile
from consilience.files.tables import is_frame

_TREES = (
    "it is made of splits that its own rows chose: trees of two sites have no parts in common that could be averaged",
    "average what the models predict, or fit a regression, a naive Bayes classifier or a network at the sites",
)
_KEEPS_ROWS = ("it keeps rows of its site, which may not leave", "fit a model of few parameters at the sites")
_EXACT_PROCESS = (
    "an exact Gaussian process keeps all rows of its site",
    "fit one with inducing points: `consilience.learners.SparseGP`, or ApproximateGP of gpytorch",
)
_CHOOSES = (
    "it chooses its penalty by cross-validation at every site, so that no two sites solve the same problem",
    "agree on one penalty, and fit {plain} with it at all sites",
)
_NO_LIKELIHOOD = (
    "its loss is no sum of squares and no log-likelihood, so no sums over sites give its fit",
    "pool its coefficients: `cs.meta_analysis({site: (estimate, covariance), ...})`, covariances by a bootstrap",
)

_BY_NAME: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("Lasso", "ElasticNet", "MultiTaskLasso", "MultiTaskElasticNet", "Lars", "LassoLars"), (
        "its penalty is on absolute values, and no adapter here solves that for sums",
        "fit Ridge at the sites, whose fusion is exact, or pool coefficients by cs.meta_analysis",
    )),
    **dict.fromkeys(("QuantileRegressor", "QuantReg", "HuberRegressor", "RANSACRegressor", "TheilSenRegressor"),
                    _NO_LIKELIHOOD),
    **dict.fromkeys(("GaussianProcessRegressor", "GaussianProcessClassifier", "ExactGP"), _EXACT_PROCESS),
    **dict.fromkeys(("SVC", "SVR", "NuSVC", "NuSVR", "OneClassSVM", "KernelRidge"), _KEEPS_ROWS),
    **dict.fromkeys(("KNeighborsClassifier", "KNeighborsRegressor", "RadiusNeighborsClassifier"), _KEEPS_ROWS),
    **dict.fromkeys(("SGDRegressor", "Perceptron", "PassiveAggressiveClassifier", "LinearSVC"), (
        "it keeps coefficients alone, without how sure they are",
        "fit LogisticRegression or Ridge at the sites, and describe it with its data",
    )),
    **dict.fromkeys(("MLPClassifier", "MLPRegressor"), (
        "networks of scikit-learn are not traced here",
        "train the same layers as a torch module",
    )),
    **dict.fromkeys(("CoxPHFitter", "CoxTimeVaryingFitter"), (
        "its partial likelihood does not add up over sites",
        "pool it: `cs.meta_analysis({site: (model.params_, model.variance_matrix_), ...})`; PHReg of statsmodels is"
        " fused as the Cox model that is stratified by site",
    )),
    "BERTopic": (
        "its topics are clusters of embedded texts, named by words",
        "describe the clusters: the means of each as a mixture, with the same embedding at all sites",
    ),
    "MiniBatchNMF": (
        "it is fitted in batches, and not read here",
        "fit NMF, whose components are fused as topics",
    ),
    "GMMHMM": (
        "its emissions are mixtures, whose components no two sites number alike in every state",
        "fit GaussianHMM with more states",
    ),
}  # fmt: skip
"""Why models of a class cannot be fused, and what to do instead, by the name of the class."""

_TREE_NAMES = ("Tree", "Forest", "Boosting", "Boost", "XGB", "LGBM", "CatBoost", "Bagging", "Booster")
_PLAIN_OF_CHOOSING = {
    "LogisticRegressionCV": "LogisticRegression", "RidgeCV": "Ridge", "RidgeClassifierCV": "RidgeClassifier",
    "LassoCV": "Ridge", "ElasticNetCV": "Ridge", "LassoLarsCV": "Ridge", "GraphicalLassoCV": "EmpiricalCovariance",
}  # fmt: skip
"""The class to fit with a penalty that is agreed on, by the class that chooses its own."""


def unsupported_model(model: Any) -> Problem:
    """Return why an object is no model that can be fused, and what to hand in instead; its subject is the caller's."""
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    if (of_training := training_state_problem(model)) is not None:
        return of_training
    if isinstance(model, str | Path):
        return _path_problem(Path(model))
    if isinstance(model, type):
        text = f"is the class {model.__name__}, expected a model that was fitted"
        return Problem("", text, f"make one and fit it: {model.__name__}(...).fit(data)", "E-MODEL")
    if isinstance(model, Fusion):
        text = f"is a {type(model).__name__}, expected one model"
        return Problem(
            "", text, "take fusion.model or fusion.posterior, or write it with `fusion.save(path)`", "E-MODEL"
        )
    if (known := _of_class(model)) is not None:
        return Problem("", *known, "E-MODEL")
    return _of_data(model, name) or Problem(
        "",
        f"no adapter for {name}; there are some for mixtures, topics and hidden Markov models; linear, ridge and"
        " Bayesian regressions, logistic and other generalised linear models; naive Bayes, discriminant and ridge"
        " classifiers; PCA, covariances and scalers; posterior draws; torch modules (`consilience methods` lists them)",
        "hand in a consilience.Posterior of its components, the last step of a pipeline, or a torch module",
        "E-MODEL",
    )


def _of_class(model: object) -> tuple[str, str] | None:
    """Return why models of a class that is known cannot be fused, and what to do instead."""
    names = [base.__name__ for base in type(model).__mro__]
    own = names[0]
    if hasattr(model, "best_estimator_"):
        return f"is a {own}: a search over models", "hand in the model that it found, `search.best_estimator_`"
    if (plain := _PLAIN_OF_CHOOSING.get(own)) is not None:
        why, remedy = _CHOOSES
        return f"is a {own}: {why}", remedy.format(plain=plain)
    is_of_trees = any(part in name for name in names for part in _TREE_NAMES)
    found = _TREES if is_of_trees else next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    return None if found is None else (f"is a {own}: {found[0]}", found[1])


def _of_data(model: Any, name: str) -> Problem | None:
    """Return that an object is data, or arrays that could be anything; None for any other."""
    if isinstance(model, Mapping) and model and all(hasattr(value, "__array__") for value in model.values()):
        text = f"is a mapping of arrays ({', '.join(map(str, model)):.80}), which could be anything"
        remedy = (
            "of posterior draws, say so: `consilience.Draws(mapping, prior=1 / number of sites)`; of a network, give"
            " `module=`"
        )
        return Problem("", text, remedy, "E-MODEL")
    is_table = is_frame(model)
    if not (is_table or hasattr(model, "__array__") or sparse.issparse(model)):
        return None
    remedy = "fit a model at the site, and describe it: `consilience.describe(model, data)`"
    if is_table:
        remedy += "; a table of posterior draws is `consilience.Draws(table, prior=1 / number of sites)`"
    return Problem("", f"is data ({name}), expected a model that was fitted to them", remedy, "E-DATA")


def _path_problem(path: Path) -> Problem:
    """Return that a path stands where a model in memory is expected, and what is wrong with its file, if anything."""
    try:
        SafetensorsFile(path).header()
    except FileFormatError as error:
        return error.problems[0].with_parts(subject="", text=f"{path}: {error.problems[0].text}")
    return Problem(
        "", f"is the path of a file ({path}), expected a model", "load it: `consilience.load(path)`", "E-MODEL"
    )
