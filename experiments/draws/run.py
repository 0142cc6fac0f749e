"""Distances of fused draws from the full posterior, by target and method.

python -m experiments.draws.run [--seeds 5]          resumes: what results.json has is not computed again

Samples of the sites and of the full posterior are kept in ``draws`` of ``CONSILIENCE_CACHE`` (default
``experiments/.cache``), so that a method is added without sampling anew.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import wasserstein_distance

import consilience as cs
from experiments.draws.baselines import BASELINES
from experiments.draws.targets import REPORTED, TUNING
from experiments.record import versions

RESULTS = Path(__file__).with_name("results.json")
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "draws"
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


def sampled(name, make, seed):
    """Return a target, its full posterior twice in comparable coordinates, draws of sites by setting, and seconds."""
    rng = np.random.default_rng([seed, 27])
    target = make(rng)
    path = CACHE / f"{name}-{seed}.npz"
    if not path.exists():
        started = time.perf_counter()
        n_sites = len(target.likelihoods)
        arrays = {
            f"full{number}": target.to_coordinates(target.to_variables(target.draws(None, 1.0, 1.0, N_REFERENCE, rng)))
            for number in range(2)
        }
        settings = {"shared": (1.0 / n_sites, 1.0), "whole": (1.0, 1.0), "powered": (1.0, float(n_sites))}
        for setting, powers in settings.items():
            arrays[setting] = np.stack([target.draws(j, *powers, N_DRAWS, rng) for j in range(n_sites)])
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays, seconds=time.perf_counter() - started)
    with np.load(path) as file:
        return (
            target,
            [file["full0"], file["full1"]],
            {n: file[n] for n in ("shared", "whole", "powered")},
            float(file["seconds"]),
        )


def run_density(name, make, seed):
    """Return the distances after one to three requests of log densities, from the default's draws."""
    target, (full, _), draws, _ = sampled(name, make, seed)
    n_sites = len(target.likelihoods)
    sites = {
        f"site {j}": cs.Draws(in_chains(target, own), prior=1.0 / n_sites, **target.told)
        for j, own in enumerate(draws["shared"])
    }
    try:
        fusion = cs.fuse(sites, allow_divergent=True, rng=seed)
    except cs.errors.InputError:  # of modes, which the density products keep
        fusion = cs.fuse(sites, "semiparametric", parametric=False, allow_divergent=True, rng=seed)

    def density(likelihood):
        def log_density(values, rows):
            u = target.to_coordinates(values)
            return likelihood(u) + target.log_prior(u) / n_sites

        return log_density

    functions = {site: density(likelihood) for site, likelihood in zip(sites, target.likelihoods, strict=True)}
    found = {}
    for rounds in (1, 2, 3):
        started = time.perf_counter()
        ended = cs.federated.exchange(
            "density", fusion, dict.fromkeys(sites, np.zeros(1)), rounds=rounds, min_count=0, module=functions
        )
        coordinates = target.to_coordinates({key: one[0] for key, one in ended.draws.variables.items()})
        told = {key: ended.details["weighted"][key] for key in ("effective_size", "pareto_k", "points")}
        seconds = round(time.perf_counter() - started, 2)
        called = f"density, {rounds} request{'s' if rounds > 1 else ''}"
        found[called] = {**distances(coordinates, full), "seconds": seconds, **told, "verdict": ended.verdict.code}
    return found


def run_cell(name, make, seed):
    """Return the distances of all methods on one target with one seed."""
    target, (full, again), draws, seconds = sampled(name, make, seed)
    n_sites = len(target.likelihoods)
    cell = {"sampling_seconds": round(seconds, 1), "n_sites": n_sites, "methods": {}}

    def record(name, coordinates, started, **told):
        cell["methods"][name] = {
            **distances(coordinates, full), "seconds": round(time.perf_counter() - started, 2), **told,
        }  # fmt: skip

    def fuse(name, sites, **options):
        started = time.perf_counter()
        try:
            fusion = cs.fuse(sites, allow_divergent=True, rng=seed, **options)
        except cs.errors.InputError as error:
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


def read_arguments(description, seeds):
    """Return the arguments of a program that runs targets: how many seeds, and which targets alone."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--only", nargs="*")
    return parser.parse_args()


def main():
    """Run what results.json lacks."""
    arguments = read_arguments(__doc__, seeds=5)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in range(arguments.seeds):
        for part, targets in (("tuning", TUNING), ("reported", REPORTED)):
            for name, make in targets.items():
                key = f"{name} {seed}"
                known = results.get(key, {"methods": {}})["methods"]
                if "density, 3 requests" in known or (arguments.only and name not in arguments.only):
                    continue
                started = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", cs.errors.HarmWarning)
                    if not known:
                        results[key] = {"half": part, "target": name, "seed": seed, **run_cell(name, make, seed)}
                        results[key]["library_source"] = versions()["library_source"]
                    results[key]["methods"] |= run_density(name, make, seed)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                print(f"{key}: {time.perf_counter() - started:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
