"""Sparse Gaussian processes of 49 states, table 1 of Yurochkin et al. 2019: ``experiments/spahm/temperatures.py``.

Every state fits a sparse Gaussian process to daily temperatures of its stations; the inducing points of all states are
matched. Scored on test rows of the own state ("self") and of the whole country ("across"). Writes ``temperatures.json``
beside this file. Fits and scores are kept in the cache folder (``CONSILIENCE_CACHE``, default ``experiments/.cache``),
so that the run may be stopped and started again; ``--again METHOD ...`` scores these methods anew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from temperature_data import FEATURES, SCALE, SHIFT, Temperatures, load_temperatures, split
from temperature_fits import FITS, MANY_POINTS, MASS, POINTS, Trial, parameters_of
from threadpoolctl import threadpool_limits

import consilience as cs
from consilience.core.scores import paired_difference
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.sparse_gp.learner import TitsiasGP
from consilience.posteriors.sparse_gp.model import SparseGP

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, remembered, versions

HERE = Path(__file__).parent
SEEDS, CHOICE_SEED = 10, 1000
ROWS = {"train": 2000, "validation": 200, "test": 200, "across": 2000}
KERNELS = ("rbf", "matern32")
REFERENCE = "local, 50 points"
CHOSEN = {
    "data": "the same kind of daily station data as the paper's extract, which was not published: stations of cities,"
    " 2015 to January 2019, whose state is told by their code; Delaware has no data in these years",
    "rows": "the paper does not say; at most 2,000 of a state's rows to train on, 200 to validate, 200 to test; across:"
    " a random 2,000 of all states' test rows; a new random split for every seed",
    "standardisation": "by public constants, the same for all states: we chose, beforehand",
    "kernel": "by the mean error of local fits on the states' own validation rows, on a split used for nothing else",
    "mass": "50, as in the paper; alpha 1; all other options the library's defaults",
    "shared kernel": "one round before the last local fit: geometric means of all states' parameters, then every state"
    " fits q and its inducing inputs with these; the Bayes product needs it, as local kernels differ beyond reason",
    "paper's variant": "every state predicts with its own kernel from the fused inducing inputs and values as they are",
    "300 points": "kernel and noise of the state's fit with 50 points, inducing inputs where they start, for time; two"
    " rows for each point at least",
    "error": "root mean square in degrees Fahrenheit for every state's model, averaged over states",
}
Predict = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def one_by_one(models: Sequence[SparseGP]) -> list[Predict]:
    """Return what each state predicts with a model of its own."""
    return [lambda X, gp=gp: gp.predict(X, noise=True) for gp in models]


def by_pairs(models: Sequence[SparseGP], pairs: np.ndarray) -> list[Predict]:
    """Return what each state predicts from inducing inputs and values (G, 8) with its own kernel."""
    inputs, values = pairs[:, :-1], pairs[:, -1]
    nothing, common = np.zeros((len(pairs), len(pairs))), {"shift": SHIFT, "scale": SCALE}
    return one_by_one(
        [SparseGP(inputs, values, nothing, gp.kernel, noise=gp.noise, constant=gp.constant, **common) for gp in models]
    )


def together(models: Sequence[SparseGP], *, product: bool) -> Predict:
    """Return the mean of all states' predictions as a mixture, or their product of experts."""

    def predict(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means, variances = (
            np.stack(parts) for parts in zip(*(gp.predict(X, noise=True) for gp in models), strict=True)
        )
        if product:
            precision = (1.0 / variances).sum(axis=0)
            return (means / variances).sum(axis=0) / precision, 1.0 / precision
        return means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)

    return predict


def matched(models: Sequence[SparseGP], method: cs.methods.SPAHM | cs.methods.KMeans, seed: int) -> np.ndarray:
    """Return fused inducing inputs and values (G, 8) as the method averages them."""
    ensemble = Ensemble.of([cs.describe(gp) for gp in models])
    return method.fuse(ensemble, np.random.default_rng(seed)).posterior.natural


def pooled(trial: Trial) -> SparseGP:
    """Return the posterior of all states' training rows at the fused inducing inputs, which no site could compute."""
    fused, rows = trial.fused()[0].model, np.concatenate(trial.rows.train)
    inputs = fused.inducing_inputs * np.array(SCALE[:-1]) + np.array(SHIFT[:-1])
    fixed = {"learn_parameters": False, "learn_inducing": False, "inducing_inputs": inputs}
    learner = TitsiasGP(shift=SHIFT, scale=SCALE, **fixed, **parameters_of(fused))
    return learner.fit(trial.data.X[rows], trial.data.y[rows])


def predictors(name: str, trial: Trial) -> tuple[list[Predict] | Predict, int, float | None]:
    """Return what a method predicts (a function for every state, or one for all), its points, and seconds of fusing."""
    if name == REFERENCE:
        return one_by_one(trial.local()), POINTS, None
    if name == "local, 300 points":
        return one_by_one(trial.local_many()), MANY_POINTS, None
    if name == "local, 50 points, shared kernel":
        return one_by_one(trial.shared()), POINTS, None
    if name in ("ensemble mean", "product of experts"):
        return together(trial.local(), product=name.startswith("product")), POINTS * len(trial.local()), None
    if name == "pooled data at SPAHM's points":
        model = pooled(trial)
        return one_by_one([model])[0], model.n_inducing, None
    start = time.perf_counter()
    if name == "SPAHM, paper's variant":
        pairs = matched(trial.local(), cs.methods.SPAHM(mass=MASS), trial.seed)
        return by_pairs(trial.local(), pairs), len(pairs), time.perf_counter() - start
    if name == "k-means, paper's variant":
        count = len(matched(trial.local(), cs.methods.SPAHM(mass=MASS), trial.seed))
        start = time.perf_counter()
        pairs = matched(trial.local(), cs.methods.KMeans(n_components=count), trial.seed)
        return by_pairs(trial.local(), pairs), len(pairs), time.perf_counter() - start
    if name == "SPAHM, Bayes product":
        fusion, seconds = trial.fused()
    elif name == "k-means, Bayes product":
        count = trial.fused()[0].n_components
        start = time.perf_counter()
        fusion = cs.fuse(trial.shared(), method="kmeans", n_components=count, rng=trial.seed)
        seconds = time.perf_counter() - start
    else:
        fusion = cs.fuse(trial.shared(), method="concatenate")
        seconds = time.perf_counter() - start
    return one_by_one([fusion.model])[0], fusion.n_components, seconds


METHODS = (
    REFERENCE,
    "local, 300 points",
    "local, 50 points, shared kernel",
    "SPAHM, paper's variant",
    "SPAHM, Bayes product",
    "k-means, paper's variant",
    "k-means, Bayes product",
    "all points, Bayes product",
    "ensemble mean",
    "product of experts",
    "pooled data at SPAHM's points",
)


def measures(predict: Predict, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return root mean square error, mean negative log density in nats, and the part of rows within 95 % intervals."""
    means, variances = predict(X)
    density = 0.5 * (np.log(2.0 * np.pi * variances) + (y - means) ** 2 / variances)
    inside = np.abs(y - means) <= 1.959964 * np.sqrt(variances)
    return np.array([np.sqrt(np.mean((y - means) ** 2)), density.mean(), inside.mean()])


def score(name: str, trial: Trial) -> dict[str, Any]:
    """Return a method's measures on own rows and on those of the whole country, averaged over states."""
    found, points, seconds = predictors(name, trial)
    data, rows = trial.data, trial.rows
    own = [found[party] if isinstance(found, list) else found for party in range(len(rows.test))]
    self_ = np.mean([measures(f, data.X[i], data.y[i]) for f, i in zip(own, rows.test, strict=True)], axis=0)
    everywhere = own if isinstance(found, list) else own[:1]
    across = np.mean([measures(f, data.X[rows.across], data.y[rows.across]) for f in everywhere], axis=0)
    sys.stdout.write(f"seed {trial.seed}, {name}: self {self_[0]:.3f}, across {across[0]:.3f}, {points} points\n")
    sys.stdout.flush()
    columns = {
        f"{what}_{where}": float(value)
        for where, values in (("self", self_), ("across", across))
        for what, value in zip(("rmse", "nlpd", "coverage"), values, strict=True)
    }
    return {**columns, "points": points, "seconds": seconds}


def choose_kernel(data: Temperatures) -> dict[str, float]:
    """Return the mean validation error of local fits with each kernel, on a split of its own."""
    rows = split(data, CHOICE_SEED, **ROWS)
    errors = {}
    for kernel in KERNELS:
        fits = Trial(data, rows, kernel, CHOICE_SEED).local()
        own = zip(one_by_one(fits), rows.validation, strict=True)
        errors[kernel] = float(np.mean([measures(predict, data.X[i], data.y[i])[0] for predict, i in own]))
    return errors


def summary(columns: dict[str, list[Any]], reference: dict[str, list[Any]]) -> dict[str, Any]:
    """Return mean and spread over seeds, and the paired difference of errors to local models in per cent of theirs."""
    result: dict[str, Any] = {}
    for name, values in columns.items():
        if name == "seconds":
            result[name] = None if values[0] is None else median(values)
        else:
            result[name] = {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else 0.0}
    for where in ("self", "across"):
        own, theirs = np.array(columns[f"rmse_{where}"]), np.array(reference[f"rmse_{where}"])
        change = paired_difference(100.0 * own / theirs, np.full(len(own), 100.0), np.ones(len(own)))
        result[f"change_{where}_percent"] = change.mean
        result[f"change_{where}_interval"] = list(change.interval) if len(own) > 1 else None
    return result


def written(rows: list[dict[str, Any]], settings: dict[str, Any], ran: dict[str, str]) -> str:
    """Return what is written down of the scores of every seed so far."""
    columns = {
        name: {key: [row[name]["scores"][key] for row in rows] for key in rows[0][name]["scores"]} for name in METHODS
    }
    result = {
        "settings": {"seeds": list(range(len(rows))), **settings},
        "chosen": CHOSEN,
        "versions": ran,
        "library_sources": {name: sorted({row[name]["library_source"] for row in rows}) for name in METHODS},
        "summary": {name: summary(found, columns[REFERENCE]) for name, found in columns.items()},
        "scores": columns,
    }
    return as_text(result)


def main() -> None:
    """Choose the kernel, fit, fuse, score and write down, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="+", default=[], choices=METHODS, metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    told = parser.parse_args()
    ran, data, rows = versions(), load_temperatures(), []
    with threadpool_limits(1):
        errors = choose_kernel(data)
        kernel = min(errors, key=errors.__getitem__)
        settings = {
            "parties": list(data.states),
            "features": FEATURES,
            "shift": SHIFT,
            "scale": SCALE,
            "rows": ROWS,
            "points": [POINTS, MANY_POINTS],
            "mass": MASS,
            "kernel": kernel,
            "validation_error": errors,
        }
        for seed in range(told.seeds):
            trial = Trial(data, split(data, seed, **ROWS), kernel, seed)
            path = FITS / "results" / f"{kernel}-seed{seed}.json"
            work = lambda name, trial=trial: score(name, trial)  # noqa: E731  (bound to this trial)
            rows.append(remembered(path, METHODS, set(told.again), ran["library_source"], work))
            (HERE / "temperatures.json").write_text(written(rows, settings, ran))


if __name__ == "__main__":
    main()
