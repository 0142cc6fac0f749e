"""The paper's simulation, fused by the direct implementation and by the library, in one run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import direct
import numpy as np
from timing import interleaved, medians, minima, seconds, yardstick

import consilience as cs
from consilience.posteriors import fuse
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence import linkage, search
from consilience.posteriors.evidence.random_effects import RandomEffects
from consilience.posteriors.methods.kl.method import fit_relaxed
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, fit_binary

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments/kl_fusion"))
from simulate import Setting, load, settings_of

SEEDS = (0, 1, 2)
SETTING = Setting(separation=0.5, noise=0.5, most=5)
CENTRES = 10  # G_max
TRUE = SETTING.components  # that k-means is told
GAP = 1e-4
REPEATS = 5
SHARES: dict[str, list[tuple[Any, str]]] = {
    "agglomeration": [(search, "agglomerate"), (linkage, "agglomerate")],
    "fits of the heterogeneity": [(RandomEffects, "fit_heterogeneity")],
    "ascents": [(search.EvidenceSearch, "ascend"), (search.EvidenceSearch, "ascend_in_size")],
    "reading": [(fuse, "prepare_posteriors")],
}
"""Steps of the default, and where the functions are looked up that do them."""
INNER = {"integral": 10, "KL-k-means, told": 5}  # a short call is timed as the mean of several


def stacked(posteriors: list[cs.Posterior]) -> tuple[direct.Components, np.ndarray]:
    """Return all components as the direct implementation wants them, and the sites' sizes."""
    parts = [posterior.parameters() for posterior in posteriors]
    columns = [np.concatenate([part[name] for part in parts]) for name in ("mean", "kappa", "scale", "dof")]
    return direct.Components(*columns), np.array([posterior.n_components for posterior in posteriors])


def run_direct() -> dict[str, Any]:
    """Time the direct implementation alone, beside a fixed matrix product."""
    rows = []
    for seed in SEEDS:
        local, sizes = stacked(load(seed, SETTING).posteriors)
        found = direct.seeds(local, CENTRES, np.random.default_rng(seed))
        times = [seconds(lambda: direct.fuse(local, sizes, found))[0] for _ in range(REPEATS)]  # noqa: B023
        unit = yardstick()
        rows.append({"seed": seed, "seconds": times, "products": float(np.median(times)) / unit, "yardstick": unit})
    return {"settings": _settings(), "results": rows}


def run_simulation() -> dict[str, Any]:
    """Time all on the same posteriors, centres and lambda, and compare the objectives that they end at."""
    return {"settings": _settings(), "results": [_compare(seed) for seed in SEEDS]}


def run_shares() -> dict[str, Any]:
    """Return what share of the default's processor time its steps take, and how many groups it merges."""
    results = []
    for seed in SEEDS:
        posteriors = load(seed, replace(SETTING, pooled=False)).posteriors
        cs.fuse(posteriors, rng=seed, min_count=0)  # warms every path up
        spent, n_merges, running = dict.fromkeys(SHARES, 0.0), 0, [0.0]

        def timed(name: str, function: Callable[..., Any], spent=spent, running=running) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal n_merges
                start = time.process_time()
                running.append(0.0)
                result = function(*args, **options)
                inner, taken = running.pop(), time.process_time() - start
                running[-1] += taken
                spent[name] += taken - inner  # what is within another step is that one's
                n_merges += len(result.merges) if name == "agglomeration" else 0
                return result

            return call

        with ExitStack() as patches:
            for name, places in SHARES.items():
                for owner, attribute in places:
                    patches.enter_context(patch.object(owner, attribute, timed(name, getattr(owner, attribute))))
            start = time.process_time()
            for _ in range(REPEATS):
                cs.fuse(posteriors, rng=seed, min_count=0)
            total = time.process_time() - start
        shares = {name: taken / total for name, taken in spent.items()}
        results.append({"seed": seed, "shares": shares, "merges": n_merges / REPEATS, "seconds": total / REPEATS})
    return {"settings": _settings(), "results": results}


def _settings() -> dict[str, Any]:
    return {
        **settings_of(SETTING),
        "centres": CENTRES,
        "lambda_in_spreads": direct.LAMBDA,
        "direct_outer_iterations": direct.OUTER_ITERATIONS,
        "relaxed_gap": GAP,
        "repeats": REPEATS,
        "clock": "processor time of one thread",
        "seeds": list(SEEDS),
    }


def _compare(seed: int) -> dict[str, Any]:
    posteriors = load(seed, SETTING).posteriors
    local, sizes = stacked(posteriors)
    rows = direct.seeds(local, CENTRES, np.random.default_rng(seed))
    base = direct.fuse(local, sizes, rows)
    centres = np.concatenate([posterior.natural for posterior in posteriors])[rows]

    def started() -> tuple[KLProblem, np.ndarray, float, np.random.Generator, int, float]:
        """Return the arguments of one start; stacking the posteriors is part of the time."""
        problem = KLProblem.of(Ensemble.of(posteriors))
        return problem, centres, base.strength, np.random.default_rng(seed), 100, 1e-6

    contenders = {
        "direct": lambda: direct.fuse(local, sizes, rows),
        "direct, written out": lambda: direct.fuse(local, sizes, rows, compiled=False),
        "integral": lambda: fit_binary(*started()),
        "relaxed": lambda: fit_relaxed(*started(), GAP),
        "default, at most 10": lambda: cs.fuse(posteriors, max_components=CENTRES, rng=seed, min_count=0),
        "default": lambda: cs.fuse(posteriors, rng=seed, min_count=0),
        "KL-k-means, told": lambda: cs.fuse(posteriors, "kmeans", n_components=TRUE, rng=seed, min_count=0),
    }
    ends = {name: function() for name, function in contenders.items()}  # also warms every path up
    times = interleaved(contenders, REPEATS, INNER, time.process_time)  # of one thread: the machine may be busy
    typical, least = medians(times), minima(times)
    row: dict[str, Any] = {"seed": seed, "locals": int(sizes.sum()), "lambda": base.strength}
    row |= {"seconds": times, "medians": typical, "minima": least}
    row["ratios"] = {name: typical["direct"] / value for name, value in typical.items() if name != "direct"}
    row["ratios, written out"] = {name: typical["direct, written out"] / value for name, value in typical.items()}
    row["ratios of minima, written out"] = {name: least["direct, written out"] / value for name, value in least.items()}
    row["default over KL-k-means, told"] = typical["default"] / typical["KL-k-means, told"]
    row["objective"] = {
        "direct, relaxed": direct.objective(base.plan, local, base.strength),
        "direct, rounded": direct.objective(base.rounded, local, base.strength),
        **{name: _objective(end, local, base.strength) for name, end in ends.items() if "direct" not in name},
    }
    row["groups"] = {"direct": base.rounded.shape[1]} | {
        name: end.n_groups if isinstance(end, KLFit) else end.n_components
        for name, end in ends.items()
        if "direct" not in name
    }
    return row


def _objective(end: KLFit | cs.Fusion, local: direct.Components, strength: float) -> float:
    """Return (9) of what the library ended at, by the direct implementation's own function.

    A default fusion leaves some components out, such as those of less than one observation. (9) has no such choice, so
    they are put where they then cost least.
    """
    if isinstance(end, KLFit):
        plan = direct.binary(end.labels) if end.plan is None else end.plan
        return direct.objective(plan, local, strength)
    labels = end.matching.labels.copy()
    for row in np.flatnonzero(labels < 0):
        own = end.matching.owner == end.matching.owner[row]
        free = np.setdiff1d(np.arange(end.n_components + 1), labels[own])

        def value(group: int, row: int = row) -> float:
            tried = labels.copy()
            tried[row] = group
            kept = tried >= 0
            return direct.objective(direct.binary(tried[kept]), local.take(kept), strength)

        labels[row] = min(free.tolist(), key=value)
    return direct.objective(direct.binary(labels), local, strength)
