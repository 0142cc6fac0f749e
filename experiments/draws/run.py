"""Distances of fused draws from the full posterior, by target and method.

python -m experiments.draws.run [--seeds 3]          resumes: what results.json has is not computed again
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import wasserstein_distance

import consilience as cs
from experiments.draws.baselines import BASELINES
from experiments.draws.targets import REPORTED, TUNING

RESULTS = Path(__file__).with_name("results.json")
N_DRAWS, N_REFERENCE = 2000, 8000
OURS = {
    "auto": {"method": "auto"},
    "gaussian_product": {"method": "gaussian_product"},
    "consensus_mc": {"method": "consensus_mc"},
    "semiparametric": {"method": "semiparametric"},
    "nonparametric": {"method": "semiparametric", "parametric": False},
    "hierarchical": {"method": "hierarchical"},
}


def distances(coordinates, reference):
    """Return distance of means, least and greatest ratio of widths, and mean Wasserstein-1, in deviations."""
    deviation = reference.std(axis=0)
    gaps = (coordinates.mean(axis=0) - reference.mean(axis=0)) / deviation
    ratios = coordinates.std(axis=0) / deviation
    pairs = zip(coordinates.T, reference.T, deviation, strict=True)
    return {
        "mean": float(np.sqrt(np.mean(gaps**2))),
        "widths": [float(ratios.min()), float(ratios.max())],
        "wasserstein": float(np.mean([wasserstein_distance(a, b) / s for a, b, s in pairs])),
    }


def in_chains(target, draws):
    """Return arrays by name (4, T / 4, ...)."""
    return target.to_variables(draws.reshape(4, -1, draws.shape[1]))


def run_cell(make, seed):
    """Return the distances of all methods on one target with one seed."""
    rng = np.random.default_rng([seed, 27])
    target = make(rng)
    n_sites = len(target.likelihoods)
    started = time.perf_counter()
    full, again = (
        target.to_coordinates(target.to_variables(target.draws(None, 1.0, 1.0, N_REFERENCE, rng))) for _ in range(2)
    )
    settings = {"shared": (1.0 / n_sites, 1.0), "whole": (1.0, 1.0), "powered": (1.0, float(n_sites))}
    draws = {
        name: [target.draws(j, *powers, N_DRAWS, rng) for j in range(n_sites)] for name, powers in settings.items()
    }
    cell = {"sampling_seconds": round(time.perf_counter() - started, 1), "n_sites": n_sites, "methods": {}}

    def record(name, coordinates, started, **told):
        cell["methods"][name] = {
            **distances(coordinates, full), "seconds": round(time.perf_counter() - started, 2), **told,
        }  # fmt: skip

    def fuse(name, sites, **options):
        started = time.perf_counter()
        try:
            fusion = cs.fuse(sites, allow_divergent=True, rng=seed, **options)
        except cs.InputError as error:
            cell["methods"][name] = {"refused": str(error.problems[0])}
            return
        kept = ("chosen", "largest_skewness", "acceptance_rate")
        told = {key: value for key, value in fusion.details.items() if key in kept}
        record(
            name,
            target.to_coordinates({key: one[0] for key, one in fusion.draws.variables.items()}),
            started,
            **told,
        )

    record("a second full run", again, time.perf_counter())
    shared = [cs.Draws(in_chains(target, own), prior=1.0 / n_sites, **target.told) for own in draws["shared"]]
    for name, options in OURS.items():
        fuse(name, shared, **options)
    if target.laws:
        whole = [cs.Draws(in_chains(target, own), prior=target.laws, **target.told) for own in draws["whole"]]
        fuse("gaussian_product, prior divided out", whole, method="gaussian_product")
        fuse("consensus_mc, prior divided out", whole, method="consensus_mc")
    powered = [
        cs.Draws(in_chains(target, own), prior=1.0, likelihood_power=n_sites, **target.told) for own in draws["powered"]
    ]
    fuse("wasp", powered, method="wasp")
    record("draws of all sites, mixed", target.to_coordinates(target.to_variables(np.concatenate(draws["shared"]))),
           time.perf_counter())  # fmt: skip
    names = list(target.to_variables(full[:1] if target.ranges is None else draws["shared"][0][:1]))
    arrays = [target.to_variables(own) for own in draws["shared"]]
    shapes = {name: arrays[0][name].shape[1:] for name in names}
    flat = np.stack([np.concatenate([own[n].reshape(N_DRAWS, -1) for n in names], axis=1) for own in arrays])
    kept = flat.shape[2] - int("w" in names)  # the last weight follows from the others
    for name, combine in BASELINES.items():
        started = time.perf_counter()
        combined = combine(flat[:, :, :kept], np.random.default_rng([seed, 1]))
        if kept < flat.shape[2]:
            combined = np.concatenate([combined, 1.0 - combined[:, -2:].sum(axis=1, keepdims=True)], axis=1)
        ends = np.cumsum([int(np.prod(shapes[n])) for n in names])
        parts = np.split(combined, ends[:-1], axis=1)
        values = {n: part.reshape(len(part), *shapes[n]) for n, part in zip(names, parts, strict=True)}
        record(name, target.to_coordinates(values), started)
    return cell


def main():
    """Run what results.json lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in range(arguments.seeds):
        for part, targets in (("tuning", TUNING), ("reported", REPORTED)):
            for name, make in targets.items():
                key = f"{name} {seed}"
                if key in results or (arguments.only and name not in arguments.only):
                    continue
                started = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", cs.HarmWarning)
                    results[key] = {"half": part, "target": name, "seed": seed, **run_cell(make, seed)}
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                print(f"{key}: {time.perf_counter() - started:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
