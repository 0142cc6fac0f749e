"""Does a round of federated EM improve the fused mixture? Held-out log density after 1, 2, 3 and 5 requests.

    python experiments/federated/em_rounds.py [--seeds 10]

Five sites, classes (of simulations: components) skewed by Dirichlet(0.5), mixtures with full covariances and one prior
that all sites share. Rounds start from the fused mixture, or from that of the best site: the one with the highest
held-out score, which no real server could choose. *Pooled* is the best of five fits to all rows. The score is the mean
log predictive density of a held-out row, a mixture of Student t, in nats. Settings are the first ones tried, but for
what a withheld component does, which was chosen on seeds 0 to 4: the tables are of seeds 5 to 9. Writes
``em_rounds.json`` beside this file; what is in it already is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_t
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import versions

HERE = Path(__file__).parent
SITES = ("a", "b", "c", "d", "e")
ROUNDS = (1, 2, 3, 5)
SKEW, HELD_OUT, MIN_ROWS = 0.5, 0.3, 12


def projected(data, dim):
    """Return rows on their first principal components, in units of the first one's deviation, with their classes."""
    rows = (data.data - data.data.mean(axis=0)) / np.maximum(data.data.std(axis=0), 1e-9)
    rows = PCA(dim, random_state=0).fit_transform(rows)
    return rows / rows[:, 0].std(), data.target


def blobs(seed, count=8, dim=2, spread=5.0, n_rows=900, shape=False):
    """Return rows of Gaussian components and their numbers; with `shape` each has a covariance of its own."""
    rng = np.random.default_rng([seed, count, dim])
    centres = rng.uniform(-spread, spread, size=(count, dim))
    labels = rng.integers(count, size=n_rows)
    noise = rng.normal(size=(n_rows, dim))
    if shape:
        factors = rng.normal(size=(count, dim, dim)) / np.sqrt(dim)
        noise = np.einsum("nij,nj->ni", factors[labels], noise)
    return centres[labels] + noise, labels


DATA = {
    "digits, 10 principal components": (lambda seed: projected(load_digits(), 10), 10),
    "breast cancer, 5 principal components": (lambda seed: projected(load_breast_cancer(), 5), 4),
    "wine, 5 principal components": (lambda seed: projected(load_wine(), 5), 3),
    "simulation: 8 overlapping blobs in the plane": (lambda seed: blobs(seed), 8),
    "simulation: 6 shapes in 6 dimensions": (lambda seed: blobs(seed, 6, 6, 2.0, 1500, shape=True), 6),
}
"""Rows and classes by seed, and the components that every model may have."""


def split(labels, rng):
    """Return the rows of every site and the held-out rows."""
    while True:
        held_out = rng.random(len(labels)) < HELD_OUT
        shares = rng.dirichlet([SKEW] * len(SITES), size=labels.max() + 1).cumsum(axis=1)
        owner = (rng.random((len(labels), 1)) > shares[labels]).sum(axis=1)
        parts = [np.flatnonzero(~held_out & (owner == site)) for site in range(len(SITES))]
        if min(map(len, parts)) >= MIN_ROWS:
            return parts, np.flatnonzero(held_out)


def density(posterior, rows):
    """Return the mean log predictive density of rows under a Normal-Wishart mixture, in nats."""
    parameters, dim = posterior.parameters(), posterior.family.dim
    logs = []
    for mean, kappa, scale, dof in zip(*(parameters[name] for name in ("mean", "kappa", "scale", "dof")), strict=True):
        free = dof - dim + 1.0
        shape = np.linalg.inv(scale) * (kappa + 1.0) / (kappa * free)
        logs.append(multivariate_t(mean, shape, df=free).logpdf(rows))
    weights = posterior.weights / posterior.weights.sum()
    return float(logsumexp(np.array(logs).T + np.log(weights), axis=1).mean())


def answers_of(message, data, min_count):
    """Return the answers of sites; one whose components all have fewer rows than `min_count` does not answer."""
    answers = {}
    for site, rows in data.items():
        with suppress(cs.errors.InputError):
            answers[site] = cs.federated.answer(message, rows, min_count=min_count)
    return answers


def scores_of_rounds(start, data, held_out, min_count=5.0):
    """Return the score of a start, and after each number of requests in `ROUNDS`; raise where the objective falls."""
    message, done = cs.federated.request("em", start, rounds=max(ROUNDS)), []
    standing, scores = {}, {0: density(getattr(start, "posterior", start), held_out)}
    while message is not None:
        answers = answers_of(message, data, min_count)
        done.append(cs.federated.reduce(message, answers, standing))
        message, standing = done[-1].next_request, done[-1].reduction.standing
        if len(done) in ROUNDS:
            finished = cs.federated.finish(start, done)
            scores[len(done)] = density(getattr(finished, "posterior", finished), held_out)
    objective = [done[0].reduction.objective_before, *(one.objective for one in done)]
    if np.any(np.diff(objective) < -1e-9 * np.abs(objective[0])):
        raise ValueError(f"the objective fell: {objective}")
    return {"scores": scores, "objective": objective}


def run(make, n_components, seed):
    """Return the scores of one seed."""
    rows, labels = make(seed)
    rng = np.random.default_rng([seed, 7])
    parts, held_out = split(labels, rng)
    dim = rows.shape[1]
    prior = {"mean_prior": np.zeros(dim), "covariance_prior": 0.2 * np.eye(dim), "mean_precision_prior": 0.05}
    prior |= {"degrees_of_freedom_prior": dim + 2.0, "max_iter": 500, "random_state": seed}
    data = {site: rows[part] for site, part in zip(SITES, parts, strict=True)}
    fitted = {
        site: BayesianGaussianMixture(n_components=min(n_components, len(own) // 4), **prior).fit(own)
        for site, own in data.items()
    }
    pooled_rows = np.vstack(list(data.values()))
    pooled = BayesianGaussianMixture(n_components=n_components, n_init=5, **prior).fit(pooled_rows)
    alone = {site: density(cs.describe(model), rows[held_out]) for site, model in fitted.items()}
    best = max(alone, key=alone.get)
    fused = cs.fuse(fitted)
    return {
        "sizes": [len(part) for part in parts],
        "components": fused.n_components,
        "best site": alone[best],
        "pooled": density(cs.describe(pooled), rows[held_out]),
        "from fused": scores_of_rounds(fused, data, rows[held_out]),
        "from fused, nothing withheld": scores_of_rounds(fused, data, rows[held_out], min_count=0.0),
        "from best site": scores_of_rounds(cs.describe(fitted[best]), data, rows[held_out]),
    }


def main():
    """Run what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    path = HERE / "em_rounds.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name, (make, n_components) in DATA.items():
        runs = results.setdefault(name, [])
        for seed in range(len(runs), seeds):
            runs.append(run(make, n_components, seed) | {"library_source": versions()["library_source"]})
            path.write_text(json.dumps(results, indent=1) + "\n")
            scores = runs[-1]["from fused"]["scores"]
            print(name, seed, runs[-1]["best site"], runs[-1]["pooled"], scores, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
