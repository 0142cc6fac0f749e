"""Exact fusion over skewed sites: distance to the fit on all rows, held-out loss, coverage of intervals.

``python experiments/exact/run.py`` runs what is missing and prints the results; ``--write`` also writes
``results.json`` beside this file. Results of single cells are files in ``exact`` of ``CONSILIENCE_CACHE`` (default
``experiments/.cache``), so that the run may be stopped and started again. Parts:

fits        medical regressions over 5 to 50 sites that differ in a column and in size: distance to the pooled fit in
            its standard errors, and held-out loss above that of the pooled fit
coverage    drawn targets of known coefficients on the same rows: coverage of 90 % intervals
estimators  every estimator of the table: equal to the pooled fit to what digit, and the bytes that a site sends; of
            clusterings, which no pooled fit equals, the sum of squares within clusters above that of the pooled fit
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels.api as sm
from safetensors.numpy import load_file
from scipy.special import expit
from sklearn.cluster import Birch, BisectingKMeans, MiniBatchKMeans
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression
from sklearn.preprocessing import scale

sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

import consilience as cs
from consilience.errors import ConsilienceError
from consilience.estimators.adapters.table import ESTIMATORS, adapter_of_kind
from consilience.estimators.inference import linear_inference

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "exact"
SITES = (5, 20, 50)
SEEDS, REPLICATIONS = 10, 20
HELD_OUT, LEVEL, ROUNDS = 0.3, 0.9, 12
NOISE = 1.0
"""Noise added to the column by which rows go to sites, in its deviations."""
LEAST_ROWS = 6
"""Rows of a site at least."""
PRECISION = 0.1
"""Prior precision of the pooled fits; sites have one J-th of it."""
TIGHT = {"tol": 1e-10, "max_iter": 10_000}

N_CLUSTERS, CLUSTERING_SITES = 4, 5
CLUSTERINGS: dict[str, Callable[[], Any]] = {
    "sklearn.MiniBatchKMeans": lambda: MiniBatchKMeans(N_CLUSTERS, n_init=10, random_state=0),
    "sklearn.BisectingKMeans": lambda: BisectingKMeans(N_CLUSTERS, n_init=5, random_state=0),
    "sklearn.Birch": lambda: Birch(threshold=1.0, n_clusters=N_CLUSTERS),
}
"""Clusterings of breast cancer's columns, which are fused as posteriors of centres."""


def cancer() -> tuple[Any, Any]:
    """Return four columns of breast cancer, standardised, and malignancy."""
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X)[:, [0, 1, 4, 8]], y


def diabetes() -> tuple[Any, Any]:
    """Return three columns of diabetes (body mass, blood pressure, s5), standardised, and its progression."""
    X, y = load_diabetes(return_X_y=True)
    return scale(X)[:, [2, 3, 8]], y


class Logistic:
    """Logistic regression of breast cancer."""

    rows = staticmethod(cancer)

    @staticmethod
    def make(n_sites: int) -> Any:
        """Return the estimator of one of so many sites."""
        return LogisticRegression(C=n_sites / PRECISION, solver="newton-cg", **TIGHT)

    @staticmethod
    def loss(model: Any, X: Any, y: Any) -> float:
        """Return the mean loss of rows."""
        margin = (2 * y - 1) * (X @ np.ravel(model.coef_) + np.ravel(model.intercept_)[0])
        return float(np.mean(np.logaddexp(0.0, -margin)))

    @staticmethod
    def draw(rng: np.random.Generator, X: Any, theta: Any) -> Any:
        """Return targets of rows with coefficients of their own (n, p)."""
        return (rng.random(len(X)) < expit(np.einsum("ij,ij->i", X, theta[:, :-1]) + theta[:, -1])).astype(int)


class Gamma:
    """Gamma regression of the progression of diabetes."""

    rows = staticmethod(diabetes)
    shape = 4.0

    @staticmethod
    def make(n_sites: int) -> Any:
        """Return the estimator of one of so many sites."""
        return GammaRegressor(alpha=1e-4, solver="newton-cholesky", **TIGHT)  # per row, so alike at sites of any number

    @staticmethod
    def loss(model: Any, X: Any, y: Any) -> float:
        """Return the mean loss of rows."""
        eta = X @ model.coef_ + model.intercept_
        return float(np.mean(eta + y * np.exp(-eta)))

    @staticmethod
    def draw(rng: np.random.Generator, X: Any, theta: Any) -> Any:
        """Return targets of rows with coefficients of their own (n, p)."""
        mean = np.exp(np.einsum("ij,ij->i", X, theta[:, :-1]) + theta[:, -1])
        return rng.gamma(Gamma.shape, mean / Gamma.shape)


class Linear:
    """Least squares of the progression of diabetes."""

    rows = staticmethod(diabetes)
    deviation = 54.0

    @staticmethod
    def make(n_sites: int) -> Any:
        """Return the estimator of one of so many sites."""
        return LinearRegression()

    @staticmethod
    def loss(model: Any, X: Any, y: Any) -> float:
        """Return the mean loss of rows."""
        return float(np.mean((X @ model.coef_ + model.intercept_ - y) ** 2))

    @staticmethod
    def draw(rng: np.random.Generator, X: Any, theta: Any) -> Any:
        """Return targets of rows with coefficients of their own (n, p)."""
        return np.einsum("ij,ij->i", X, theta[:, :-1]) + theta[:, -1] + Linear.deviation * rng.normal(size=len(X))


MODELS = {"logistic": Logistic, "gamma": Gamma, "least squares": Linear}


def skewed_sites(X: Any, n_sites: int, rng: np.random.Generator) -> list[Any]:
    """Return the rows of every site: quantiles of a noisy first column, of unequal sizes."""
    order = np.argsort(X[:, 0] + NOISE * rng.normal(size=len(X)))
    shares = rng.dirichlet(np.full(n_sites, 2.0))
    sizes = LEAST_ROWS + np.floor(shares * (len(X) - n_sites * LEAST_ROWS)).astype(int)
    return list(np.split(order, np.cumsum(sizes)[:-1]))


def coefficients(model: Any) -> Any:
    """Return the coefficients and the intercept."""
    return np.append(np.ravel(model.coef_), np.ravel(model.intercept_)[0])


def covariance(statistics: Any) -> Any:
    """Return the covariance of coefficients and intercept of some statistics."""
    if statistics.kind == "sklearn.LinearRegression":
        found = linear_inference(statistics)
        mean = statistics.rows.mean[: len(found.coefficients)]
        corner = -found.covariance @ mean
        return np.block([[found.covariance, corner[:, None]], [corner[None], np.array([[found.intercept_error**2]])]])
    adapter = adapter_of_kind(statistics.kind)
    information, _, _, prior = adapter.natural(statistics)
    return adapter.dispersion(statistics) * np.linalg.inv(information + np.diag(prior))


class Fusions:
    """All models of some rows over sites: what each method makes, with covariances where it has one."""

    def __init__(self, kind: Any, X: Any, y: Any, parts: list[Any]) -> None:
        self.models: dict[str, Any] = {}
        self.laws: dict[str, tuple[Any, Any]] = {}
        self.intervals: dict[str, Any] = {}
        n_sites = len(parts)
        sent, estimates, self.own, own_statistics = {}, {}, [], []
        for number, rows in enumerate(parts):
            try:
                model = kind.make(n_sites).fit(X[rows], y[rows])
                statistics = cs.describe(model, data=(X[rows], y[rows]), min_count=0)
                law = (coefficients(model), covariance(statistics))
                np.linalg.cholesky(law[1])
            except (ConsilienceError, ValueError, np.linalg.LinAlgError):
                continue  # one class, or fewer rows than coefficients: the site has no model of its own
            sent[f"site {number}"] = statistics
            estimates[f"site {number}"] = law
            self.own.append(model)
            own_statistics.append(statistics)
        self.site_laws = list(estimates.values())
        self.n_models = len(sent)
        data = {f"site {number}": (X[rows], y[rows]) for number, rows in enumerate(parts)}
        pooled = kind.make(1).fit(X, y)
        self.models["pooled"] = pooled
        self.laws["pooled"] = (coefficients(pooled), covariance(cs.describe(pooled, data=(X, y), min_count=0)))
        if len(sent) < 2:
            return
        self._add("naive average", kind, np.mean([coefficients(model) for model in self.own], axis=0), None)
        analysis = cs.meta_analysis(estimates, level=LEVEL)
        self._add("meta-analysis, fixed", kind, analysis.fixed.mean, analysis.fixed.covariance)
        self._add("meta-analysis, random", kind, analysis.random.mean, None)
        self.intervals = {"meta-analysis, random": analysis.random.intervals}
        options = {"C": 1.0 / PRECISION} if kind is Logistic else {}
        fusion = cs.fuse(sent, min_count=0, **options)
        self._take("product", fusion)
        if kind is not Linear:
            self._take("one refinement", cs.federated.exchange("refine", fusion, data, rounds=1, min_count=0))
            refined = cs.federated.exchange("refine", fusion, data, rounds=ROUNDS, min_count=0)
            self._take("refined", refined)
            self.rounds = len(refined.history) - 1

    def _take(self, name: str, fusion: Any) -> None:
        self.models[name] = fusion.model
        self.laws[name] = (coefficients(fusion.model), covariance(fusion.statistics))

    def _add(self, name: str, kind: Any, theta: Any, law: Any) -> None:
        model = kind.make(1)
        model.coef_, model.intercept_ = theta[:-1], theta[-1]
        self.models[name] = model
        if law is not None:
            self.laws[name] = (theta, law)


def fits_cell(name: str, n_sites: int, seed: int) -> dict[str, Any]:
    """Return errors and losses of one split."""
    kind, rng = MODELS[name], np.random.default_rng([seed, n_sites])
    X, y = kind.rows()
    order = rng.permutation(len(X))
    held, train = order[: int(HELD_OUT * len(X))], order[int(HELD_OUT * len(X)) :]
    parts = skewed_sites(X[train], n_sites, rng)
    fusions = Fusions(kind, X[train], y[train], parts)
    best, law = fusions.laws["pooled"]
    deviations = np.sqrt(np.diag(law))

    def error(model: Any) -> float:
        return float(np.max(np.abs(coefficients(model) - best) / deviations))

    base = kind.loss(fusions.models["pooled"], X[held], y[held])
    found = {
        method: {"error": error(model), "excess": kind.loss(model, X[held], y[held]) - base}
        for method, model in fusions.models.items()
    }
    if not fusions.own:
        return {"methods": found, "loss": base, "models": 0, "rounds": 0}
    own = [{"error": error(model), "excess": kind.loss(model, X[held], y[held]) - base} for model in fusions.own]
    found["site"] = {key: float(np.median([one[key] for one in own])) for key in ("error", "excess")}
    return {"methods": found, "loss": base, "models": fusions.n_models, "rounds": getattr(fusions, "rounds", 0)}


def coverage_cell(name: str, n_sites: int, deviation: float, seed: int) -> dict[str, Any]:
    """Return how many slopes the 90 % intervals of drawn data cover.

    Coefficients of sites are those of the fit on real rows, with deviations between sites in its standard errors.
    """
    kind, rng = MODELS[name], np.random.default_rng([seed, n_sites, int(10 * deviation), 1])
    X, y = kind.rows()
    pooled = kind.make(1).fit(X, y)
    truth = coefficients(pooled)
    errors = np.sqrt(np.diag(covariance(cs.describe(pooled, data=(X, y), min_count=0))))
    parts = skewed_sites(X, n_sites, rng)
    theta = np.zeros((len(X), len(truth)))
    for rows in parts:
        theta[rows] = truth + deviation * errors * rng.normal(size=len(truth))
    drawn = kind.draw(rng, X, theta)
    fusions = Fusions(kind, X, drawn, parts)
    quantile = 1.6448536269514722  # of the normal law, at 95 %

    def covered(law: tuple[Any, Any]) -> int:
        margin = quantile * np.sqrt(np.diag(law[1]))
        return int(np.sum(np.abs(law[0] - truth)[:-1] <= margin[:-1]))

    found = {method: covered(law) for method, law in fusions.laws.items()}
    if not fusions.intervals:
        return {"covered": found, "intervals": len(truth) - 1}
    intervals = fusions.intervals["meta-analysis, random"][:-1]
    found["meta-analysis, random"] = int(np.sum((intervals[:, 0] <= truth[:-1]) & (truth[:-1] <= intervals[:, 1])))
    found["site"] = float(np.mean([covered(law) for law in fusions.site_laws]))
    return {"covered": found, "intervals": len(truth) - 1}


def estimators_cell(kind: str) -> dict[str, Any]:
    """Return how far a fused estimator is from the pooled one, its mark, and the bytes of a site."""
    if kind in CLUSTERINGS:
        return _clustering(kind)
    adapter = adapter_of_kind(kind)
    if kind.startswith("sklearn.") and adapter.mark != "approximate":
        from tests.estimators.table import measure

        difference, n_bytes = measure(adapter)
        return {"mark": adapter.mark, "difference": difference, "bytes": n_bytes}
    if kind in ("statsmodels.OLS", "statsmodels.WLS"):
        return _least_squares(kind)
    if kind == "sklearn.LedoitWolf":
        return _second_message()
    if kind.startswith("laplace."):
        return _laplace_torch(kind)
    return _laplace(kind)


def _clustering(kind: str) -> dict[str, Any]:
    """Return the sum of squares within clusters over that of the pooled fit, less 1: medians over splits.

    All models predict the cluster of every row; squares are about the means of the rows of each cluster. Sites have
    as many clusters as the pooled fit, and so has the fused model.
    """
    X = cancer()[0]
    make = CLUSTERINGS[kind]

    def within(model: Any) -> float:
        labels = model.predict(X)
        return float(sum(((X[labels == k] - X[labels == k].mean(axis=0)) ** 2).sum() for k in np.unique(labels)))

    options = {} if kind == "sklearn.Birch" else {"n_components": N_CLUSTERS}  # of Birch, components are subclusters
    pooled = within(make().fit(X))
    found, n_bytes = [], 0
    for seed in range(SEEDS):
        parts = skewed_sites(X, CLUSTERING_SITES, np.random.default_rng(seed))
        sites = {f"site {k}": make().fit(X[rows]) for k, rows in enumerate(parts)}
        fusion = cs.fuse(sites, min_count=0, **options)
        own = np.median([within(model) for model in sites.values()])
        found.append([within(fusion.model) / pooled - 1.0, own / pooled - 1.0])
        n_bytes = max(n_bytes, *(_bytes_of_file(cs.describe(model, min_count=0)) for model in sites.values()))
    excess, of_site = np.median(found, axis=0).tolist()
    return {"mark": "approximate", "excess": excess, "site": of_site, "largest": max(found)[0], "bytes": n_bytes}


def _bytes_of_file(posterior: Any) -> int:
    """Return the bytes of the numbers of a posterior, as its file has them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.safetensors"
        cs.save(posterior, path)
        return sum(values.nbytes for values in load_file(path).values())


def _least_squares(kind: str) -> dict[str, Any]:
    X, y = diabetes()
    X = sm.add_constant(X)
    weights = np.random.default_rng(0).uniform(0.2, 3.0, len(y)) if kind.endswith("WLS") else np.ones(len(y))
    parts = skewed_sites(X[:, 1:], 20, np.random.default_rng(0))
    fit = {
        "statsmodels.OLS": lambda r: sm.OLS(y[r], X[r]).fit(),
        "statsmodels.WLS": lambda r: sm.WLS(y[r], X[r], weights=weights[r]).fit(),
    }[kind]
    statistics = [cs.describe(fit(rows)) for rows in parts]
    ours, its = cs.fuse(statistics).model, fit(slice(None))
    pairs = [
        (ours.params, its.params),
        (ours.cov_params(), its.cov_params()),
        (ours.llf, its.llf),
        (ours.scale, its.scale),
    ]
    difference = max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)
    return {"mark": "exact", "difference": difference, "bytes": _bytes(statistics[0])}


def _second_message() -> dict[str, Any]:
    """Return how far LedoitWolf is from the fit on all rows after its second message."""
    X = diabetes()[0]
    data = {f"site {k}": X[rows] for k, rows in enumerate(skewed_sites(X, 20, np.random.default_rng(0)))}
    sent = {name: cs.describe(LedoitWolf().fit(rows), rows, min_count=0) for name, rows in data.items()}
    ours = cs.federated.exchange("moments4", cs.fuse(sent, min_count=0), data, min_count=0).model.covariance_
    its = LedoitWolf().fit(X).covariance_
    n_bytes = _bytes(sent["site 0"]) + 2 * 8
    return {"mark": "exact", "difference": float(np.max(np.abs(ours - its)) / np.max(np.abs(its))), "bytes": n_bytes}


def _laplace_torch(kind: str) -> dict[str, Any]:
    """Return how far the product is from the mode on all rows, in its posterior's deviations.

    The network is linear in what it trains: breast cancer's columns, or 16 hyperbolic tangents of them that sites
    share.
    """
    import torch
    from torch import nn

    from tests.estimators.laplace_stand_ins import fitted, installed

    library, subset = installed(), {"FullLaplace": "all", "FullLLLaplace": "last_layer"}[kind.rpartition(".")[2]]
    torch.set_default_dtype(torch.float64)
    X, y = cancer()

    def approximation(rows: Any, n_sites: int) -> Any:
        torch.manual_seed(0)
        last = nn.Linear(4 if subset == "all" else 16, 2)
        network = nn.Sequential(last) if subset == "all" else nn.Sequential(nn.Linear(4, 16), nn.Tanh(), last)
        inputs, labels = torch.as_tensor(X[rows]), torch.as_tensor(y[rows])
        optimiser = torch.optim.LBFGS(
            last.parameters(), max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
        )

        def objective() -> Any:
            optimiser.zero_grad()
            penalty = sum((values**2).sum() for values in last.parameters()) * 0.5 / n_sites
            loss = nn.functional.cross_entropy(network(inputs), labels, reduction="sum") + penalty
            loss.backward()
            return loss

        optimiser.step(objective)
        return fitted(library, network, X[rows], y[rows], subset, prior_precision=1.0 / n_sites)

    parts = skewed_sites(X, 5, np.random.default_rng(0))
    sites = [approximation(rows, len(parts)) for rows in parts]
    fused, pooled = cs.fuse(sites, prior_precision=1.0).model, approximation(np.arange(len(y)), 1)
    deviations = np.sqrt(np.diag(np.linalg.inv(pooled.posterior_precision.numpy())))
    error = float(np.max(np.abs(fused.mean.numpy() - pooled.mean.numpy()) / deviations))
    torch.set_default_dtype(torch.float32)
    n_bytes = _bytes(cs.describe(sites[0]))
    return {"mark": "approximate", "product": error, "refined": None, "rounds": 0, "bytes": n_bytes}


def _bytes(statistics: Any) -> int:
    return sum(values.nbytes for _, values in statistics.tensors())


def _laplace(kind: str) -> dict[str, Any]:
    """Return the distance of product and refined model to the pooled fit, in its standard errors."""
    from tests.estimators import test_laplace, test_statsmodels
    from tests.estimators.test_refinement import errors_in_standard_errors, rows_of

    called = kind.rpartition(".")[2]
    if kind.startswith("statsmodels."):
        name = {"GLM": "GLM Poisson"}.get(called, called)
        sites, data, owner, X, y = test_statsmodels.sites_of(name)
        fusion = cs.fuse(sites)
        refined = cs.federated.exchange("refine", fusion, data, rounds=ROUNDS)
        pooled = test_statsmodels.pooled_fit(name, owner, X, y)
        flat = test_statsmodels.flat

        def error(model: Any) -> float:
            return float(np.max(np.abs(flat(model.params) - flat(pooled.params)) / flat(pooled.bse)))

        return _approximate(fusion, error(fusion.model), error(refined.model), refined, cs.describe(sites["site 0"]))
    name = {
        "LogisticRegression": "logistic, three classes",
        "PoissonRegressor": "Poisson",
        "GammaRegressor": "gamma",
        "TweedieRegressor": "Tweedie",
    }[called]
    make, rows = test_laplace.MODELS[name]
    X, y = rows()
    sent, owner = test_laplace.sites_of(make, X, y, 4)
    fusion, pooled = cs.fuse(sent), make().fit(X, y)
    refined = cs.federated.exchange("refine", fusion, rows_of(owner, X, y), rounds=ROUNDS)
    product, after = (float(errors_in_standard_errors(one.model, pooled, X, y).max()) for one in (fusion, refined))
    return _approximate(fusion, product, after, refined, sent["site 0"])


def _approximate(fusion: Any, product: float, after: float, refined: Any, site: Any) -> dict[str, Any]:
    del fusion
    return {
        "mark": "approximate",
        "product": product,
        "refined": after,
        "rounds": len(refined.history) - 1,
        "bytes": _bytes(site),
    }


def cells() -> dict[str, list[tuple[str, Callable[[], dict[str, Any]]]]]:
    """Return the cells of every part, by name."""
    fits = [
        (f"{name}, {sites}, {seed}", lambda name=name, sites=sites, seed=seed: fits_cell(name, sites, seed))
        for seed in range(SEEDS)
        for name in MODELS
        for sites in SITES
    ]
    coverage = [
        (
            f"{name}, {sites}, {deviation}, {seed}",
            lambda name=name, sites=sites, deviation=deviation, seed=seed: coverage_cell(name, sites, deviation, seed),
        )
        for seed in range(REPLICATIONS)
        for name in MODELS
        for sites in SITES[:2]
        for deviation in (0.0, 3.0)
    ]
    kinds = [adapter.kind for adapter in ESTIMATORS if not adapter.kind.startswith("consilience.")]  # heads: ../heads
    kinds += CLUSTERINGS
    table = [(kind, lambda kind=kind: estimators_cell(kind)) for kind in kinds]
    return {"estimators": table, "fits": fits, "coverage": coverage}


def run(part: str, only: str = "") -> dict[str, Any]:
    """Return the results of a part by cell, of those whose names begin as told, running what is missing."""
    path = CACHE / f"{part}.json"
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name, work in cells()[part]:
        if name in stored or not name.startswith(only):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stored[name] = work()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(stored))
        partial.replace(path)
    return {name: found for name, found in stored.items() if name.startswith(only)}


def summary(part: str, stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a part's table: means over seeds, or the cells as they are."""
    if part == "estimators":
        return [{"estimator": name, **stored[name]} for name, _ in cells()[part] if name in stored]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for name, found in stored.items():
        groups.setdefault(tuple(name.split(", ")[:-1]), []).append(found)
    rows = []
    for key, all_found in groups.items():
        # Of splits in which fewer than two sites have a model of their own there is nothing to compare.
        found = [one for one in all_found if len(one["methods" if part == "fits" else "covered"]) > 1]
        if not found:
            continue
        row: dict[str, Any] = {"model": key[0], "sites": int(key[1]), "seeds": len(found)}
        if part == "coverage":
            total = sum(one["intervals"] for one in found)
            row |= {
                "deviation": float(key[2]),
                "intervals": total,
                "coverage": {m: sum(one["covered"][m] for one in found) / total for m in found[0]["covered"]},
            }
        else:
            row |= {
                "splits": len(all_found),
                "models": float(np.mean([one["models"] for one in found])),
                "rounds": max(one["rounds"] for one in found),
                "loss": float(np.mean([one["loss"] for one in found])),
                "methods": {
                    method: {
                        "error": float(np.median([one["methods"][method]["error"] for one in found])),
                        "largest": float(np.max([one["methods"][method]["error"] for one in found])),
                        "excess": float(np.mean([one["methods"][method]["excess"] for one in found])),
                        "deviation": float(np.std([one["methods"][method]["excess"] for one in found], ddof=1)),
                    }
                    for method in found[0]["methods"]
                },
            }
        rows.append(row)
    return rows


SETTINGS = {
    "sites": SITES,
    "seeds": SEEDS,
    "replications": REPLICATIONS,
    "held_out": HELD_OUT,
    "level": LEVEL,
    "noise": NOISE,
    "least_rows": LEAST_ROWS,
    "precision": PRECISION,
    "refinement_rounds": ROUNDS,
    "clusters": N_CLUSTERS,
    "clustering_sites": CLUSTERING_SITES,
    "chosen": "before the run, but for the number of replications, which time decided; nothing by these results",
}


def merged(part: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of results.json with new ones in their places, in the order of the cells."""
    path = HERE / "results.json"
    known = json.loads(path.read_text()).get(part, []) if path.exists() else []

    def key(row: dict[str, Any]) -> str:
        parts = [row["estimator"]] if part == "estimators" else [row["model"], row["sites"]]
        return ", ".join(map(str, [*parts, *([row["deviation"]] if part == "coverage" else [])]))

    by_key = {key(row): row for row in [*known, *rows]}
    order = list(dict.fromkeys(name if part == "estimators" else name.rpartition(", ")[0] for name, _ in cells()[part]))
    return [by_key[name] for name in order if name in by_key]


def main() -> None:
    """Run what is missing, print it, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write results.json")
    parser.add_argument("--part", choices=list(cells()), action="append", help="parts to run; default all")
    parser.add_argument("--only", default="", help="cells whose names begin so, such as 'logistic, 50'")
    arguments = parser.parse_args()
    asked = arguments.part or list(cells())
    new = {part: summary(part, run(part, arguments.only)) if part in asked else [] for part in cells()}
    results = {part: merged(part, rows) for part, rows in new.items()}
    text = as_text({"settings": SETTINGS, "versions": versions(), **results})
    sys.stdout.write(text)
    if arguments.write:
        (HERE / "results.json").write_text(text)


if __name__ == "__main__":
    main()
