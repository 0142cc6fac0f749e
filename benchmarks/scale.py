"""Many sites: one iteration against its bare operations, time against the number of sites, memory of a whole fusion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from timing import interleaved, medians, seconds

import consilience as cs
from consilience.matching.group_sparse import descend_binary
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.methods.kl.problem import KLProblem

PER_SITE, SEED = 5, 0
PRICE = 0.1  # in spreads, where components have a price
SWEEPS = 20  # over the sites at most, of one matching with a price; the library's own limit
ITERATION = {"sites": 10_000, "dim": 100, "groups": 50, "repeats": 5}
LINEAR = {"sites": [1_000, 3_000, 10_000, 30_000, 100_000], "dim": 10, "groups": 20, "iterations": 5, "repeats": 3}
SPREAD_OF_CENTRES, NOISE = 1.0, 0.3
MEMORY_LIMIT = 1800  # seconds after which a whole fusion is given up


def planted(sites: int, dim: int, groups: int) -> tuple[list[cs.Posterior], np.ndarray]:
    """Return sites that each hold five of some planted diagonal Gaussians, moved a little, and which ones."""
    rng = np.random.default_rng(SEED)
    family = cs.families.DiagonalGaussian(dim=dim)
    means = SPREAD_OF_CENTRES * rng.standard_normal((groups, dim))
    truth = rng.random((sites, groups)).argsort(axis=1)[:, :PER_SITE]
    local = means[truth] + NOISE * rng.standard_normal((sites, PER_SITE, dim))
    variance = 0.1 * rng.gamma(10.0, 0.1, size=local.shape)
    natural = family.to_natural(mean=local.reshape(-1, dim), variance=variance.reshape(-1, dim))
    return [cs.Posterior(family, rows) for rows in natural.reshape(sites, PER_SITE, -1)], truth.ravel()


def run_iteration() -> dict[str, Any]:
    """Time one outer iteration and the bare products and assignments in it, from first seeds and from the truth."""
    posteriors, truth = planted(ITERATION["sites"], ITERATION["dim"], ITERATION["groups"])
    problem = KLProblem.of(Ensemble.of(posteriors))
    rng = np.random.default_rng(SEED)
    starts = {
        "first": problem.seeds(ITERATION["groups"], rng, spread_out=False),
        "settled": problem.barycenters(truth, ITERATION["groups"]),
    }
    problem.costs(starts["first"])  # what is computed once for all iterations is not part of one
    strength = PRICE * problem.spread
    results = {
        f"{name}, {how}": _one_iteration(problem, centres, strength if sweeps else 0.0, sweeps)
        for name, centres in starts.items()
        for how, sweeps in (("no price", 0), ("priced, one sweep", 1), ("priced, all sweeps", SWEEPS))
    }
    settings = {
        **ITERATION,
        "per_site": PER_SITE,
        "price": PRICE,
        "spread": SPREAD_OF_CENTRES,
        "noise": NOISE,
        "seed": SEED,
    }
    return {"settings": settings, "results": results}


def _one_iteration(problem: KLProblem, centres: np.ndarray, strength: float, sweeps: int) -> dict[str, Any]:
    """Time one iteration; `sweeps` limits how often a matching with a price goes over the sites."""
    offsets, groups = problem.ensemble.offsets, len(centres)
    costs = problem.costs(centres)

    def assign() -> np.ndarray:
        return descend_binary(costs, offsets, strength, None, np.random.default_rng(SEED), sweeps)

    labels = assign()
    local, moving = np.ascontiguousarray(problem.ensemble.natural), np.ascontiguousarray(centres.T)
    blocks = np.ascontiguousarray(costs).reshape(-1, PER_SITE, groups)
    member = csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=(groups, len(labels)))
    plan = member.toarray()
    phases = {
        "costs": lambda: problem.costs(centres),
        "assignment": assign,
        "average": lambda: problem.barycenters(labels, groups, centres),
        "bare costs": lambda: local @ moving,
        "bare assignment": lambda: [linear_sum_assignment(block)[1] for block in blocks],
        "bare average": lambda: member @ local,
        "bare average, dense": lambda: plan @ local,
    }
    times = interleaved(phases, ITERATION["repeats"], {})
    typical = medians(times)
    ours = sum(typical[name] for name in ("costs", "assignment", "average"))
    bare = sum(typical[name] for name in ("bare costs", "bare assignment", "bare average"))
    return {"seconds": times, "medians": typical, "iteration": ours, "bare": bare, "ratio": ours / bare}


def run_linear() -> dict[str, Any]:
    """Time a fixed number of iterations for more and more sites."""
    rows = []
    for sites in LINEAR["sites"]:
        making, (posteriors, _) = seconds(lambda: planted(sites, LINEAR["dim"], LINEAR["groups"]))  # noqa: B023
        stacking, problem = seconds(lambda: _stacked(posteriors))  # noqa: B023
        spreading, _ = seconds(lambda: problem.spread)  # noqa: B023
        row = {"sites": sites, "making_posteriors": making, "stacking": stacking, "spread": spreading, "seconds": {}}
        for name, price, repeats in (("no price", 0.0, LINEAR["repeats"]), ("priced", PRICE, 1)):
            row["seconds"][name] = [seconds(lambda: _iterations(problem, price))[0] for _ in range(repeats)]  # noqa: B023
        rows.append(row)
    return {"settings": _linear_settings(), "results": {"rows": rows, "slopes": _slopes(rows)}}


def run_memory() -> dict[str, Any]:
    """Measure the memory of fusions of the most sites, each in a process of its own, and how busy the machine was."""
    results = {how: _memory(how) for how in ("n_components", "regularization", "default")}
    return {"settings": _linear_settings(), "results": results}


def _linear_settings() -> dict[str, Any]:
    return {
        **LINEAR,
        "per_site": PER_SITE,
        "price": PRICE,
        "spread": SPREAD_OF_CENTRES,
        "noise": NOISE,
        "seed": SEED,
    }


def _slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the slopes of log time against log number of sites, iterations with and without the spread they need."""
    times = {
        "no price": [median(row["seconds"]["no price"]) for row in rows],
        "priced": [median(row["seconds"]["priced"]) for row in rows],
        "spread": [row["spread"] for row in rows],
    }
    times["priced, with spread"] = [a + b for a, b in zip(times["priced"], times["spread"], strict=True)]
    sites = np.log([row["sites"] for row in rows])
    return {name: float(np.polyfit(sites, np.log(values), 1)[0]) for name, values in times.items()}


def _stacked(posteriors: list[cs.Posterior]) -> KLProblem:
    problem = KLProblem.of(Ensemble.of(posteriors))
    problem.costs(problem.ensemble.natural[:1])
    return problem


def _iterations(problem: KLProblem, price: float) -> None:
    """Match and average from the same seeds; one sweep over the sites each time."""
    rng = np.random.default_rng(SEED)
    centres, labels = problem.seeds(LINEAR["groups"], rng, spread_out=False), None
    strength = price * problem.spread if price else 0.0
    for _ in range(LINEAR["iterations"]):
        labels = descend_binary(problem.costs(centres), problem.ensemble.offsets, strength, labels, rng, 1)
        centres = problem.barycenters(labels, len(centres), centres)


def _memory(how: str) -> dict[str, Any]:
    """Return what a child process says of its memory, or that it did not end in time."""
    command = [sys.executable, str(Path(__file__).with_name("memory.py")), how, "resident"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=True, timeout=MEMORY_LIMIT, env=alone
        )
    except subprocess.TimeoutExpired:
        return {"gave_up_after": MEMORY_LIMIT}
    return {**json.loads(done.stdout), "load_average": os.getloadavg()[1]}
