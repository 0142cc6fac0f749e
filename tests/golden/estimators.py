"""Golden fusions of every estimator that is fused by its sums, from rows of sites that lack classes.

Sums are taken of rows, so fits are not recorded; what is, are sums, files, and attributes without a free sign.
"""

import warnings

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, TweedieRegressor

import consilience as cs
from tests.estimators.estimators_zoo import KINDS, SPECIMENS
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


NEWTON = {"solver": "newton-cholesky", "tol": 1e-10}
"""A solver that ends at the mode to rounding, so that fits are the same elsewhere."""
GENERALISED_LINEAR = {
    "LogisticRegression": LogisticRegression(**NEWTON),
    "PoissonRegressor": PoissonRegressor(**NEWTON),
    "GammaRegressor": GammaRegressor(**NEWTON),
    "TweedieRegressor": TweedieRegressor(power=1.5, **NEWTON),
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
