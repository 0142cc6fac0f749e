"""Simulated centroids, after Yurochkin et al. 2019, section 5.1: ``python experiments/spahm/simulation.py``.

Fifty centroids in fifty dimensions; every site has a random part of them, moved by white noise, and 5,000 observations
around them. Compared are SPAHM on the sites' true centroids and on their k-means centres, k-means "matching" of these
and k-means of all data pooled, the last two told the true number. Results are kept one by one in the cache folder, so
that the run may be stopped and started again, and written to ``simulation.json`` beside this file.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "kl_fusion"))
from baselines import kmeans
from compare import hausdorff
from published_spahm import PublishedSPAHM
from record import as_text, remembered, versions

import consilience as cs

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "spahm"
SEEDS = range(10)
CENTROIDS, DIM, MEAN, BETWEEN, SAMPLES, OBSERVED = 50, 50, 2.0, 50.0, 5000, 1.0
NOISES, SITES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0), (10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100)
LOCAL = {"n_init": 4, "max_iter": 1000}
POOLED = {"n_init": 2, "max_iter": 1000}
PUBLISHED = {
    "within_variance": 1.0,
    "between_variance": 1.0,
    "restarts": 1,
    "max_iterations": 10,
    "factorial": True,
    "clip": 10,
}
CHOSEN = {
    "simulation": "G, D, mu0, the deviation sqrt(50) of centroids, inclusion Beta(1, 1), noises, numbers of sites "
    "and 5,000 points per site as the paper and its code",
    "points": "a site's points lie around its moved centroids with standard deviation 1, in equal shares: we chose",
    "SPAHM": "the library's default; no setting was chosen on these simulations",
    "SPAHM, published settings": "s = s0 = 1 at first, one start, ten rounds, -log k, counts clipped at 10",
    "k-means": "told the true number of centroids that occur; 8 starts on centres",
    "floor": "means of the true copies of every centroid, told the true matching",
}


@dataclass(frozen=True)
class Setting:
    """One point: standard deviation of a site's noise, and the number of sites."""

    noise: float
    sites: int

    @property
    def name(self) -> str:
        """Return a file name."""
        return f"noise{self.noise:g}-J{self.sites}".replace(".", "_")


PLAN = [Setting(noise, 20) for noise in NOISES] + [Setting(1.0, sites) for sites in SITES if sites != 20]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Centroids that occur (G, D), every site's moved ones, which they are (L,), and the pooled k-means centres."""

    centroids: np.ndarray
    moved: list[np.ndarray]
    labels: np.ndarray
    centres: list[np.ndarray]
    centre_labels: np.ndarray
    pooled: np.ndarray
    pooled_seconds: float


def simulate(seed: int, setting: Setting) -> Simulation:
    """Draw sites and run the k-means of each, and of all."""
    rng = np.random.default_rng(seed)
    centroids = MEAN + np.sqrt(BETWEEN) * rng.standard_normal((CENTROIDS, DIM))
    inclusion = rng.beta(1.0, 1.0, CENTROIDS)
    moved, labels, centres, centre_labels, everything = [], [], [], [], []
    for site in range(setting.sites):
        own = np.flatnonzero(rng.random(CENTROIDS) < inclusion)
        while not own.size:
            own = np.flatnonzero(rng.random(CENTROIDS) < inclusion)
        places = centroids[own] + setting.noise * rng.standard_normal((len(own), DIM))
        member = rng.integers(len(own), size=SAMPLES)
        data = places[member] + OBSERVED * rng.standard_normal((SAMPLES, DIM))
        model = kmeans(data, len(own), 1000 * seed + site, **LOCAL)
        moved.append(places)
        labels.append(own)
        centres.append(model.cluster_centers_)
        nearest = np.linalg.norm(model.cluster_centers_[:, None] - places[None], axis=2).argmin(axis=1)
        centre_labels.append(own[nearest])
        everything.append(data.astype(np.float32))
    occurring, numbers = np.unique(np.concatenate(labels), return_inverse=True)
    start = time.perf_counter()
    pooled = kmeans(np.concatenate(everything), len(occurring), seed, **POOLED)
    taken = time.perf_counter() - start
    return Simulation(
        centroids[occurring],
        moved,
        numbers,
        centres,
        np.searchsorted(occurring, np.concatenate(centre_labels)),
        pooled.cluster_centers_.astype(np.float64),
        taken,
    )


def scored(simulation: Simulation, points: np.ndarray, labels: np.ndarray | None, truth: np.ndarray) -> dict[str, Any]:
    """Return the scores of estimated centroids (G, D) and of who became which (L,)."""
    result: dict[str, Any] = {
        "components": len(points),
        "error": abs(len(points) - len(simulation.centroids)),
        "hausdorff": hausdorff(points, simulation.centroids),
    }
    if labels is not None:
        result["rand"] = float(adjusted_rand_score(truth, labels))
    return result


def spahm(
    simulation: Simulation, setting: Setting, *, centres: bool, method: str | cs.methods.SPAHM = "spahm"
) -> dict[str, Any]:
    """Fuse true local centroids, or k-means centres, by SPAHM."""
    points, truth = (simulation.centres, simulation.centre_labels) if centres else (simulation.moved, simulation.labels)
    posteriors = [cs.Posterior(cs.families.Point(DIM), own) for own in points]
    start = time.perf_counter()
    fusion = cs.fuse(posteriors, method, min_count=0)
    taken = time.perf_counter() - start
    law = {name: attached.values for name, attached in fusion.atoms.attached.items()}
    within = setting.noise**2
    return {
        **scored(simulation, fusion.posterior.natural, fusion.matching.labels, truth),
        "seconds": taken,
        "status": fusion.status.name.lower(),
        "mean_error": float(np.linalg.norm(law["mean"] - MEAN) / (MEAN * np.sqrt(DIM))),
        "within_error": float(np.mean(np.abs(law["within_variance"] - within)) / within),
        "between_error": float(np.mean(np.abs(law["between_variance"] - BETWEEN)) / BETWEEN),
    }


def matched_by_kmeans(simulation: Simulation, seed: int) -> dict[str, Any]:
    """Cluster the sites' centres, told the true number."""
    points = np.concatenate(simulation.centres)
    start = time.perf_counter()
    model = kmeans(points, len(simulation.centroids), seed)
    taken = time.perf_counter() - start
    found = scored(simulation, model.cluster_centers_, model.labels_, simulation.centre_labels)
    return {**found, "seconds": taken}


def floor(simulation: Simulation) -> dict[str, Any]:
    """Average the sites' true centroids, told who is who."""
    points = np.concatenate(simulation.moved)
    means = np.stack([points[simulation.labels == group].mean(axis=0) for group in range(len(simulation.centroids))])
    return scored(simulation, means, simulation.labels, simulation.labels)


def pooled(simulation: Simulation) -> dict[str, Any]:
    """Cluster all data, told the true number."""
    return {**scored(simulation, simulation.pooled, None, simulation.labels), "seconds": simulation.pooled_seconds}


METHODS = {
    "SPAHM": lambda one, setting, seed: spahm(one, setting, centres=False),
    "SPAHM, published settings": lambda one, setting, seed: spahm(
        one, setting, centres=False, method=PublishedSPAHM(**PUBLISHED)
    ),
    "SPAHM of k-means": lambda one, setting, seed: spahm(one, setting, centres=True),
    "k-means matching": lambda one, setting, seed: matched_by_kmeans(one, seed),
    "pooled k-means": lambda one, setting, seed: pooled(one),
    "floor": lambda one, setting, seed: floor(one),
}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean, standard deviation and worst of every score of every method over seeds."""
    result: dict[str, Any] = {}
    for name in METHODS:
        scores = [row[name]["scores"] for row in rows]
        floors = [row["floor"]["scores"]["hausdorff"] for row in rows]
        columns = {key: [one[key] for one in scores] for key in scores[0] if key != "status"}
        columns["over_floor"] = [one["hausdorff"] / least for one, least in zip(scores, floors, strict=True)]
        result[name] = {
            key: {"mean": mean(values), "sd": stdev(values), "worst": max(values), "median": median(values)}
            for key, values in columns.items()
        }
    return result


def main() -> None:
    """Run what is missing and write everything down."""
    again = set(sys.argv[2:]) if sys.argv[1:2] == ["--again"] else set()
    ran, points = versions(), []
    with threadpool_limits(1):
        for setting in PLAN:
            rows = []
            for seed in SEEDS:
                kept = CACHE / f"simulation-{setting.name}-seed{seed}.json"
                simulation: list[Simulation] = []  # made when the first method asks for it

                def work(name: str) -> dict[str, Any]:
                    if not simulation:  # noqa: B023  (called before the loop goes on)
                        simulation.append(simulate(seed, setting))  # noqa: B023
                    return METHODS[name](simulation[0], setting, seed)  # noqa: B023

                rows.append(remembered(kept, METHODS, again, ran["library_source"], work))
                sys.stdout.write(f"{setting.name} seed {seed}\n")
                sys.stdout.flush()
            points.append({**asdict(setting), "seeds": len(rows), "summary": summary(rows)})
    settings = {
        "centroids": CENTROIDS,
        "dim": DIM,
        "mean": MEAN,
        "between_variance": BETWEEN,
        "samples": SAMPLES,
        "observation_sd": OBSERVED,
        "local": LOCAL,
        "pooled": POOLED,
        "published": PUBLISHED,
        "seeds": list(SEEDS),
    }
    result = {"settings": settings, "chosen": CHOSEN, "versions": ran, "points": points}
    (HERE / "simulation.json").write_text(as_text(result))


if __name__ == "__main__":
    main()
