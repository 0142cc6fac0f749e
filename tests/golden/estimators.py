"""Golden fusions of every estimator that is fused by its sums, from rows of sites that lack classes.

Sums are taken of rows, so fits are not recorded; what is, are sums, files, and attributes without a free sign.
"""

import warnings

import numpy as np
import statsmodels.api as sm
import torch
from sklearn.base import clone, is_classifier
from sklearn.covariance import LedoitWolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, SGDClassifier, TweedieRegressor
from statsmodels.duration.hazard_regression import PHReg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import consilience as cs
from tests.estimators.estimators_zoo import KINDS, SPECIMENS
from tests.estimators.laplace_stand_ins import STAND_INS
from tests.estimators.sites import fitted, has_classes
from tests.golden.table import cases, saved

LEFT_OUT = ("scalings_", "rotations_", "components_", "loglike_")
"""Attributes with free signs, and a thousand steps of an iteration."""

FIRST_CASES = {
    kind.rpartition(".")[2]: (kind, SPECIMENS.get(kind, [None])[0]) for kind in KINDS if SPECIMENS.get(kind, [None])
}


def site_rows(y, n):
    """Return the rows of three sites, each of which lacks one class."""
    parts = np.array_split(np.arange(n), [60, 200])
    if not has_classes(y):
        return parts
    return [rows[y[rows] != label] for rows, label in zip(parts, np.unique(y), strict=False)]


@cases("estimators: {}", FIRST_CASES)
def estimators(folder, chosen):
    kind, case = chosen
    X, y = case.rows(0)
    paths = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a covariance of a site's few rows
        for number, rows in enumerate(site_rows(y, len(X))):
            data = X[rows] if y is None else (X[rows], y[rows])
            model = case.fit(X[rows], None if y is None else y[rows])
            paths.append(folder / f"site-{number}.safetensors")
            cs.save(model, paths[-1], data=data, min_count=0)
        fusion = cs.fuse(paths, min_count=0)
    attributes = {name: value for name, value in fitted(fusion.model).items() if name not in LEFT_OUT}
    numbers = {name: value for name, value in attributes.items() if not isinstance(value, str) and value is not None}
    found = {**saved(fusion, folder), "model": numbers}
    if kind not in ("sklearn.MinMaxScaler", "sklearn.MaxAbsScaler"):  # nothing is taken out of extremes
        found["removed"] = cs.remove(fusion, paths[2]).statistics
    return found


THIRDS = list(enumerate(np.array_split(np.arange(300), 3)))
SHRUNK = {
    "LedoitWolf": LedoitWolf(),
    "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
}


@cases("shrinkage by fourth moments: {}", SHRUNK)
def two_messages(folder, model):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300) if is_classifier(model) else None
    X = rng.standard_t(5, size=(300, 4)) + (0.0 if y is None else np.eye(3, 4)[y])
    data = {f"site-{number}": (X[rows], y[rows]) if is_classifier(model) else X[rows] for number, rows in THIRDS}
    for name, own in data.items():
        fit = clone(model).fit(*own) if isinstance(own, tuple) else clone(model).fit(own)
        cs.save(fit, folder / f"{name}.safetensors", data=own)
    first = cs.fuse({name: cs.load(folder / f"{name}.safetensors") for name in data})
    second = cs.federated.exchange("moments4", first, data)
    return {**saved(second, folder), "first": first.model.covariance_, "second": second.model.covariance_}


NEWTON = {"solver": "newton-cholesky", "tol": 1e-10}
"""A solver that ends at the mode to rounding, so that fits are the same elsewhere."""
GENERALISED_LINEAR = {
    "LogisticRegression": LogisticRegression(**NEWTON),
    "PoissonRegressor": PoissonRegressor(**NEWTON),
    "GammaRegressor": GammaRegressor(**NEWTON),
    "TweedieRegressor": TweedieRegressor(power=1.5, **NEWTON),
    "SGDClassifier": SGDClassifier(loss="log_loss", random_state=0),
}


@cases("products of Laplace approximations: {}", GENERALISED_LINEAR)
def laplace_products(folder, model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    rate = np.exp(X @ [0.3, -0.2, 0.1])
    y = (rate > 1).astype(int) ^ (rng.random(300) < 0.2) if is_classifier(model) else rng.gamma(2.0, rate)
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(300), 3)):
        paths.append(folder / f"site-{number}.safetensors")
        cs.save(clone(model).fit(X[rows], y[rows]), paths[-1], data=(X[rows], y[rows]))
    fusion = cs.fuse(paths)
    return {**saved(fusion, folder), "model": {"coef": fusion.model.coef_, "intercept": fusion.model.intercept_}}


STATSMODELS = {
    "OLS": lambda X, y: sm.OLS(y, X).fit(),
    "WLS": lambda X, y: sm.WLS(y, X, weights=1.0 + np.arange(len(y)) % 3).fit(),
    "GLM": lambda X, y: sm.GLM(y, X, family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-12),
    "Logit": lambda X, y: sm.Logit(y > 1.0, X).fit(disp=0, tol=1e-12),
    "Poisson": lambda X, y: sm.Poisson(np.floor(y), X).fit(disp=0, tol=1e-12),
    "MNLogit": lambda X, y: sm.MNLogit(np.minimum(np.floor(y), 2.0), X).fit(disp=0, tol=1e-12),
    "PHReg": lambda X, y: PHReg(y, X[:, 1:], status=np.arange(len(y)) % 4 > 0).fit(),
}


@cases("results of statsmodels: {}", STATSMODELS)
def results_of_statsmodels(folder, fit):
    rng = np.random.default_rng(0)
    X = sm.add_constant(rng.normal(size=(300, 2)))
    y = rng.gamma(2.0, np.exp(X @ [0.1, 0.3, -0.2]))
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(300), 3)):
        paths.append(folder / f"site-{number}.safetensors")
        cs.save(fit(X[rows], y[rows]), paths[-1])
    fusion = cs.fuse(paths)
    return {**saved(fusion, folder), "model": {"params": fusion.model.params, "covariance": fusion.model.cov_params()}}


@cases("approximations of laplace-torch: {}", {subset: subset for subset in STAND_INS})
def laplace_torch(folder, made):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(300, 2))
    paths = []
    for number, rows in THIRDS:
        mode = np.linalg.lstsq(X[rows], y[rows], rcond=None)[0]
        network = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
        with torch.no_grad():
            network[0].weight.copy_(torch.as_tensor(mode.T))
        loader = DataLoader(TensorDataset(torch.as_tensor(X[rows]), torch.as_tensor(y[rows])), batch_size=100)
        paths.append(folder / f"site-{number}.safetensors")
        cs.save(STAND_INS[made](network, "regression", sigma_noise=0.3).fit(loader), paths[-1])
    fusion = cs.fuse(paths)
    return {
        **saved(fusion, folder),
        "model": {"mean": fusion.model.mean, "precision": fusion.model.posterior_precision},
    }


@cases("refined: {}", {name: GENERALISED_LINEAR[name] for name in ("LogisticRegression", "GammaRegressor")})
def refinements(folder, model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    rate = np.exp(X @ [0.3, -0.2, 0.1])
    y = (rate > 1).astype(int) ^ (rng.random(300) < 0.2) if is_classifier(model) else rng.gamma(2.0, rate)
    data = {f"site-{k}": (X[rows], y[rows]) for k, rows in enumerate(np.array_split(np.arange(300), 3))}
    fusion = cs.fuse({name: cs.describe(clone(model).fit(*own), data=own) for name, own in data.items()})
    refined = cs.federated.exchange("refine", fusion, data, rounds=3)
    return {**saved(refined, folder), "model": {"coef": refined.model.coef_, "intercept": refined.model.intercept_}}


@cases("heads: {}", {kind: kind for kind in ("ridge", "lda", "qda", "gaussian_nb", "bayesian")})
def heads(folder, kind):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    X = rng.normal(size=(300, 4)) + np.eye(4)[y]
    features = cs.features.random_fourier(4, 8, seed=0)
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(300), 3)):
        paths.append(folder / f"site-{number}.safetensors")
        cs.save(cs.learners.Head(kind, features=features).fit(X[rows], y[rows], classes=3), paths[-1])
    fusion = cs.fuse(paths)
    return {**saved(fusion, folder), "model": {"predicted": fusion.model.predict(X[:20])}}


@cases("regression heads: {}", {kind: kind for kind in ("ridge_regression", "bayesian_regression")})
def regression_heads(folder, kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.sin(X[:, :2]) + 0.1 * rng.normal(size=(300, 2))
    features = cs.features.random_fourier(4, 8, seed=0)
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(300), 3)):
        paths.append(folder / f"site-{number}.safetensors")
        cs.save(cs.learners.Head(kind, features=features).fit(X[rows], y[rows]), paths[-1])
    fusion = cs.fuse(paths)
    return {**saved(fusion, folder), "model": {"predicted": fusion.model.predict(X[:20])}}
