"""Barycenter, product and hierarchical average: coverage of their intervals, and how well the fused models predict.

``python experiments/average/run.py`` runs what is missing and prints the tables; ``--write`` also writes
``results.json`` beside this file. Results of single cells are files in ``average`` of ``CONSILIENCE_CACHE`` (default
``experiments/.cache``), so that the run may be stopped and started again. Parts:

formulas    exact posteriors of drawn statistics, matched as they are: what the average itself does
pipeline    scikit-learn's fits and the library's matching: what a user gets
predictions medical data over five hospitals: plug-in and predictive density of held-out data
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln, logsumexp
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

import consilience as cs
from consilience.posteriors.average import combine, kl_average
from consilience.posteriors.describe import describe
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.intervals import overlapping_components

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "average"
AVERAGES = ("barycenter", "product", "hierarchical")
LEVEL = 0.9
SITES, DEVIATIONS = (3, 5, 20), (0.0, 0.1, 0.3, 1.0)
FORMULAS = {"dim": 5, "observations": 133, "groups": 500, "prior": 1e-3}
PIPELINE = {"components": 4, "per_site": 3, "observations": 400}
REPLICATIONS = {2: {3: 50, 5: 50, 20: 25}, 5: {3: 20, 5: 20, 20: 10}}
"""By dimension and number of sites: a component has as many intervals as dimensions."""
SEPARATIONS = {"separated": 6.0, "overlapping": 2.5}
HOSPITALS, SEEDS, DIRECTIONS, LOCAL_COMPONENTS = 5, 20, 4, 3
HELD_OUT = 0.3
SKEWS = ("label", "feature")
LABEL_CONCENTRATION = 0.5
"""Of the Dirichlet law of each class over hospitals."""
FEATURE_NOISE = 1.0
"""Noise that is added to the first principal component, in its deviations, before hospitals take quantiles of it."""
DATA = {"breast cancer": load_breast_cancer, "wine": load_wine, "iris": load_iris}
CHOSEN = {
    "formulas": "first shape: covariance I, as many observations everywhere; second: condition up to 10, isotropic "
    "shifts, sizes Dirichlet(1), at least 20",
    "pipeline": "4 true components, 3 of them at each site, 400 observations a site, scikit-learn's variational "
    "mixtures told 3, one start, default prior; an interval counts as missed where a true component was not found",
    "predictions": "standardised, first 4 principal components (iris: all 4); 30 % held out; 5 hospitals, 3 components "
    "each; pooled: the same fit on all training data, told the fused number, 2 starts; the best site is the best on "
    "the test set",
}


def averages_of(posteriors: list[cs.Posterior], labels: np.ndarray, n_groups: int) -> dict[str, cs.Posterior]:
    """Return the fused posterior under every average, for one matching."""
    ensemble = Ensemble.of(posteriors)

    def barycenters(ensemble: Ensemble, labels: np.ndarray, n_groups: int) -> np.ndarray:
        return kl_average(ensemble, labels, n_groups, "forward")

    return {name: combine(ensemble, labels, n_groups, name, barycenters)[0] for name in AVERAGES}


def wisharts(rng: np.random.Generator, dof: np.ndarray, dim: int) -> np.ndarray:
    """Draw Wishart matrices of scale I (..., D, D) by Bartlett's decomposition."""
    lower = np.tril(rng.standard_normal((*dof.shape, dim, dim)), -1)
    lower = lower + np.sqrt(rng.chisquare(dof[..., None] - np.arange(dim)))[..., None] * np.eye(dim)
    return lower @ np.swapaxes(lower, -1, -2)


def formulas(shape: str, sites: int, deviation: float) -> dict[str, Any]:
    """Return coverage and half widths over independent groups whose statistics are drawn."""
    dim, n_groups = int(FORMULAS["dim"]), int(FORMULAS["groups"])
    rng = np.random.default_rng([sites, round(100 * deviation), shape == "second"])
    family = cs.families.NormalWishart(dim)
    truth = 10.0 * rng.standard_normal((n_groups, dim))
    counts = np.full((sites, n_groups), float(FORMULAS["observations"]))
    factor = np.tile(np.eye(dim), (n_groups, 1, 1))
    if shape == "second":
        shares = rng.dirichlet(np.ones(sites), n_groups).T
        counts = np.maximum(np.rint(shares * counts.sum(axis=0)), 20.0)
        orthogonal = np.linalg.qr(rng.standard_normal((n_groups, dim, dim)))[0]
        factor = orthogonal * 10.0 ** rng.uniform(0.0, 0.5, (n_groups, 1, dim))  # variances from 1 to 10
    noise = np.einsum("gij,sgj->sgi", factor, rng.standard_normal((sites, n_groups, dim)))
    means = truth + deviation * rng.standard_normal((sites, n_groups, dim)) + noise / np.sqrt(counts)[..., None]
    scatter = factor @ wisharts(rng, counts - 1.0, dim) @ np.swapaxes(factor, -1, -2)
    prior = family.to_natural(
        mean=np.zeros((1, dim)),
        kappa=[FORMULAS["prior"]],
        inverse_scale=FORMULAS["prior"] * np.eye(dim)[None],
        dof=[dim],
    )
    posteriors = []
    for site in range(sites):
        data = family.to_natural(
            mean=means[site], kappa=counts[site], inverse_scale=scatter[site], dof=counts[site] + dim
        )
        data[:, -1] = 0.5 * (counts[site] - dim)
        posteriors.append(cs.Posterior(family, prior + data - family.flat, prior=prior[0], counts=counts[site]))
    found: dict[str, Any] = {}
    for name, fused in averages_of(posteriors, np.tile(np.arange(n_groups), sites), n_groups).items():
        _, low, high = family.mean_intervals(fused.natural, LEVEL)
        found[name] = {
            "covered": int(((low < truth) & (truth < high)).sum()),
            "intervals": truth.size,
            "half_width": float((high - low).mean() / 2),
        }
    return found


def centres(dim: int, separation: float) -> np.ndarray:
    """Return 4 means (4, D): the corners of a square in the plane, of a tetrahedron in five dimensions."""
    if dim == 2:
        return separation * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    return separation / np.sqrt(2.0) * np.eye(4, dim)


def fit(x: np.ndarray, n_components: int, seed: int, starts: int = 1) -> BayesianGaussianMixture:
    """Return scikit-learn's variational mixture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return BayesianGaussianMixture(n_components=n_components, n_init=starts, max_iter=200, random_state=seed).fit(x)


def pipeline(dim: int, name: str, sites: int, deviation: float) -> dict[str, Any]:
    """Return coverage and half widths through fits and matching, over replications."""
    n_true, per_site = int(PIPELINE["components"]), int(PIPELINE["per_site"])
    replications = REPLICATIONS[dim][sites]
    sums = {
        average: {"covered": 0, "intervals": 0, "half_width": [], "marked": [0, 0], "unmarked": [0, 0]}
        for average in AVERAGES
    }
    numbers = []
    for replication in range(replications):
        rng = np.random.default_rng([dim, sites, round(100 * deviation), name == "separated", replication])
        truth = centres(dim, SEPARATIONS[name])
        posteriors, present = [], set()
        for site in range(sites):
            chosen = rng.permutation(n_true)[:per_site]
            present |= set(chosen.tolist())
            own = truth + deviation * rng.standard_normal((n_true, dim))
            labels = rng.choice(chosen, int(PIPELINE["observations"]))
            x = own[labels] + rng.standard_normal((len(labels), dim))
            posteriors.append(describe(fit(x, per_site, site)))
        fusion = cs.fuse(posteriors)
        numbers.append(fusion.n_components)
        known = np.array(sorted(present))
        for average, fused in averages_of(posteriors, fusion.matching.labels, fusion.n_components).items():
            mean, low, high = fused.family.mean_intervals(fused.natural, LEVEL)
            rows, columns = linear_sum_assignment(((truth[known, None] - mean) ** 2).sum(axis=2))
            is_inside = (low[columns] < truth[known[rows]]) & (truth[known[rows]] < high[columns])
            is_marked = overlapping_components(fused)[columns]
            total = sums[average]
            total["covered"] += int(is_inside.sum())
            total["intervals"] += len(known) * dim
            total["half_width"].append(float((high - low)[columns].mean() / 2))
            for key, chosen_rows in (("marked", is_marked), ("unmarked", ~is_marked)):
                total[key][0] += int(is_inside[chosen_rows].sum())
                total[key][1] += int(is_inside[chosen_rows].size)
    for total in sums.values():
        total["half_width"] = float(np.median(total["half_width"]))
    return {**sums, "replications": replications, "components": float(np.mean(numbers))}


def hospitals(x: np.ndarray, y: np.ndarray, skew: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each hospital."""
    if skew == "feature":
        first = x[:, 0] / x[:, 0].std() + FEATURE_NOISE * rng.standard_normal(len(x))
        return np.array_split(np.argsort(first), HOSPITALS)
    while True:
        owner = np.empty(len(y), dtype=np.int64)
        for label in np.unique(y):
            rows = np.flatnonzero(y == label)
            owner[rows] = rng.choice(HOSPITALS, len(rows), p=rng.dirichlet(np.full(HOSPITALS, LABEL_CONCENTRATION)))
        parts = [np.flatnonzero(owner == hospital) for hospital in range(HOSPITALS)]
        if min(map(len, parts)) >= 2 * LOCAL_COMPONENTS:
            return parts


def scores(posterior: cs.Posterior, x: np.ndarray) -> dict[str, float]:
    """Return mean log densities of data: plug-in Gaussians at the posterior means, and Student's t predictive."""
    mean, kappa, inverse_scale, dof = posterior.family.standard(posterior.natural)
    weights = np.log(np.maximum(posterior.weights, 1e-300) / posterior.weights.sum())
    dim = x.shape[1]
    offset = x[:, None] - mean  # (n, G, D)
    squares = np.einsum("ngi,gij,ngj->ng", offset, np.linalg.inv(inverse_scale), offset)  # about W^-1
    log_det = np.linalg.slogdet(inverse_scale)[1]
    plug_in = -0.5 * (dim * np.log(2 * np.pi) + log_det - dim * np.log(dof) + dof * squares)
    student = dof - dim + 1.0
    widening = (kappa + 1.0) / kappa
    predictive = gammaln(0.5 * (student + dim)) - gammaln(0.5 * student) - 0.5 * dim * np.log(np.pi * widening)
    predictive = predictive - 0.5 * log_det - 0.5 * (student + dim) * np.log1p(squares / widening)
    return {
        "plug-in": float(logsumexp(plug_in + weights, axis=1).mean()),
        "predictive": float(logsumexp(predictive + weights, axis=1).mean()),
    }


def predictions(data: str, skew: str, seed: int) -> dict[str, Any]:
    """Return mean log densities of held-out data under sites, fused models and the pooled fit."""
    rng = np.random.default_rng([seed, SKEWS.index(skew), list(DATA).index(data)])
    x, y = DATA[data](return_X_y=True)
    x = PCA(DIRECTIONS).fit_transform(StandardScaler().fit_transform(x))
    order = rng.permutation(len(x))
    test, train = np.split(order, [int(HELD_OUT * len(x))])
    parts = hospitals(x[train], y[train], skew, rng)
    local = [describe(fit(x[train][rows], LOCAL_COMPONENTS, seed)) for rows in parts]
    fusion = cs.fuse(local)
    found = {f"site {number}": scores(posterior, x[test]) for number, posterior in enumerate(local)}
    for name, fused in averages_of(local, fusion.matching.labels, fusion.n_components).items():
        found[name] = scores(fused, x[test])
    pooled = fit(x[train], fusion.n_components, seed, starts=2)
    return {**found, "pooled": scores(describe(pooled), x[test]), "components": fusion.n_components}


def remembered(name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a cell, from its file where that is there."""
    path = CACHE / f"{name}.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored
    start = time.process_time()
    result = {**work(), "seconds": time.process_time() - start}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(result))
    partial.replace(path)
    sys.stdout.write(f"{name}: {result['seconds']:.1f} s\n")
    sys.stdout.flush()
    return result


def main() -> None:
    """Run what is missing, print the tables, and write the results if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="write results.json")
    options = parser.parse_args()
    ran = versions()
    record: dict[str, Any] = {
        "settings": {
            "chosen": CHOSEN, "formulas": FORMULAS, "pipeline": PIPELINE, "replications": REPLICATIONS,
            "separations": SEPARATIONS,
            "hospitals": HOSPITALS, "seeds": SEEDS, "directions": DIRECTIONS, "local_components": LOCAL_COMPONENTS,
            "held_out": HELD_OUT, "label_concentration": LABEL_CONCENTRATION, "feature_noise": FEATURE_NOISE,
            "level": LEVEL,
        },
        "versions": ran,
        "formulas": [],
        "pipeline": [],
        "predictions": [],
    }  # fmt: skip
    with threadpool_limits(1):
        for shape in ("first", "second"):
            for sites in SITES:
                for deviation in DEVIATIONS:
                    cell = {"shape": shape, "sites": sites, "deviation": deviation}
                    name = f"formulas-{shape}-{sites}-{deviation}"
                    record["formulas"].append(
                        cell | remembered(name, lambda c=cell: formulas(**c))  # type: ignore[misc]
                    )
        for data in DATA:
            for skew in SKEWS:
                for seed in range(SEEDS):
                    name = f"predictions-{data.replace(' ', '-')}-{skew}-{seed}"
                    result = remembered(name, lambda d=data, k=skew, s=seed: predictions(d, k, s))  # type: ignore[misc]
                    record["predictions"].append({"data": data, "skew": skew, "seed": seed} | result)
        for dim in (2, 5):
            for separation in SEPARATIONS:
                for sites in SITES:
                    for deviation in DEVIATIONS:
                        name = f"pipeline-{dim}-{separation}-{sites}-{deviation}"
                        result = remembered(
                            name,
                            lambda d=dim, p=separation, n=sites, v=deviation: pipeline(d, p, n, v),  # type: ignore[misc]
                        )
                        cell = {"dim": dim, "separation": separation, "sites": sites, "deviation": deviation}
                        record["pipeline"].append(cell | result)
    text = as_text(record)
    if options.write:
        (HERE / "results.json").write_text(text)
    from average.tables import TABLES  # after the results are there, which it reads

    if (HERE / "results.json").exists():
        sys.stdout.write("\n".join(f"{name}\n\n{table()}" for name, table in TABLES.items()))


if __name__ == "__main__":
    main()
