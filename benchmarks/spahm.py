"""Speed and scaling of SPAHM: ``python benchmarks/spahm.py [part ...]`` (a few minutes for all).

Writes ``spahm.json`` beside this file; a part that is not named keeps its numbers. What is compared ran in one process
on one thread, round by round.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import direct_spahm
import numpy as np
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, minima, seconds, versions, yardstick

import consilience as cs

RESULTS = Path(__file__).with_suffix(".json")
CENTROIDS, DIM, NOISE, SEEDS, ROUNDS, REPEATS = 50, 50, 1.0, range(3), 10, 5
START = {"within_variance": 1.0, "between_variance": 1.0, "max_iterations": ROUNDS, "restarts": 1}
SITES = (100, 1000, 10_000)


def simulated(sites: int, seed: int) -> list[np.ndarray]:
    """Return the points of every site: a random part of fifty centroids, moved by unit noise."""
    rng = np.random.default_rng(seed)
    centroids = 2.0 + np.sqrt(50.0) * rng.standard_normal((CENTROIDS, DIM))
    inclusion = rng.beta(1.0, 1.0, CENTROIDS)
    points = []
    for _ in range(sites):
        own = rng.permutation(np.flatnonzero(rng.random(CENTROIDS) < inclusion))
        own = own if own.size else rng.integers(CENTROIDS, size=1)
        points.append(centroids[own] + NOISE * rng.standard_normal((len(own), DIM)))
    return points


def _posteriors(points: list[np.ndarray]) -> list[cs.Posterior]:
    return [cs.Posterior(cs.families.Point(DIM), own) for own in points]


def run_direct() -> dict[str, Any]:
    """Compare with the direct implementation: time, and the log posterior of each matching under each one's law."""
    results = []
    for seed in SEEDS:
        points = simulated(100, seed)
        posteriors, stacked = _posteriors(points), np.concatenate(points)
        runs = {
            "direct": lambda points=points, seed=seed: direct_spahm.fuse(points, ROUNDS, np.random.default_rng(seed)),
            "one start": lambda posteriors=posteriors: cs.fuse(posteriors, "spahm", min_count=0, **START),
            "default": lambda posteriors=posteriors: cs.fuse(posteriors, "spahm", min_count=0),
        }
        times = interleaved(runs, REPEATS, {}, time.process_time)  # of one thread: the machine may be busy
        direct = runs["direct"]()
        found = {"direct": (np.concatenate(direct.labels), (direct.mean, direct.within, direct.between))}
        for name in ("one start", "default"):
            fusion = runs[name]()
            names = ("mean", "within_variance", "between_variance")
            found[name] = (fusion.matching.labels, tuple(fusion.atoms.attached[key].values for key in names))
        middle, least = medians(times), minima(times)
        results.append(
            {
                "seed": seed,
                "seconds": times,
                "medians": middle,
                "minima": least,
                "ratios": {name: middle["direct"] / middle[name] for name in ("one start", "default")},
                "ratios of minima": {name: least["direct"] / least[name] for name in ("one start", "default")},
                "log_posterior": {
                    name: direct_spahm.log_posterior(labels, stacked, len(points), law)
                    for name, (labels, law) in found.items()
                },
                "groups": {name: len(np.unique(labels)) for name, (labels, _) in found.items()},
            }
        )
    settings = {"centroids": CENTROIDS, "dim": DIM, "sites": 100, "noise": NOISE, "rounds": ROUNDS, "start": START}
    return {"settings": {**settings, "repeats": REPEATS}, "yardstick": yardstick(), "results": results}


def run_linear() -> dict[str, Any]:
    """Time one start by the number of sites."""
    rows = []
    for sites in SITES:
        posteriors = _posteriors(simulated(sites, 0))
        found = [
            seconds(lambda posteriors=posteriors: cs.fuse(posteriors, "spahm", restarts=1, min_count=0))
            for _ in range(3)
        ]
        fusion = found[0][1]
        rows.append(
            {
                "sites": sites,
                "local": sum(posterior.n_components for posterior in posteriors),
                "seconds": sorted(time for time, _ in found),
                "groups": fusion.n_components,
                "rounds": len(fusion.history) - 1,
            }
        )
    logs = np.log([[row["sites"], row["seconds"][1] / row["rounds"]] for row in rows])
    slope = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
    return {"results": {"rows": rows, "slope": slope}}


PARTS = {"direct": run_direct, "linear": run_linear}


def main() -> None:
    """Run the parts that were named, or all."""
    wanted = sys.argv[1:] or list(PARTS)
    if unknown := [part for part in wanted if part not in PARTS]:
        sys.exit(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for part in wanted:
        with threadpool_limits(1):
            found = {"versions": versions(), **PARTS[part]()}
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        stored[part] = found
        RESULTS.write_text(json.dumps({name: stored[name] for name in PARTS if name in stored}, indent=1) + "\n")
        sys.stdout.write(f"{part}: done\n")


if __name__ == "__main__":
    main()
