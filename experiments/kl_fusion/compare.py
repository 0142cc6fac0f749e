"""What is compared on every simulation, and how it is scored."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from simulate import Simulation
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

sys.path.append(str(Path(__file__).resolve().parents[1]))
import baselines
from published_spahm import PublishedSPAHM

PAPER = {"regularization": 0.1, "max_components": 10}  # lambda as the paper has it; twice the true number at most
PUBLISHED_SPAHM = {
    "within_variance": 1.0,
    "between_variance": 1.0,
    "restarts": 1,
    "max_iterations": 10,
    "factorial": True,
    "clip": 10,
}
CONCENTRATIONS = (0.01, 0.1, 1.0)
DIRICHLET_PROCESS = {"covariance_type": "spherical", "n_init": 4, "max_iter": 1000}


@dataclass(frozen=True, eq=False)
class Found:
    """What a method gives.

    Parameters
    ----------
    means
        Means of its components (G, D); None for a method that only tells their number.
    components
        How many there are.
    labels
        Its component of each local one (L,), -1 for what it left out; None where it does not match.
    seconds
        Wall-clock time, where there was something to time.
    """

    means: np.ndarray | None
    components: int
    labels: np.ndarray | None = None
    seconds: float | None = None


def local_means(simulation: Simulation) -> np.ndarray:
    """Return the means of all local components (L, D), stacked over sites."""
    return np.concatenate([posterior.parameters()["mean"] for posterior in simulation.posteriors])


def fused(simulation: Simulation, **options: Any) -> Found:
    """Fuse with the library, averaging as the paper does."""
    start = time.perf_counter()
    fusion = cs.fuse(simulation.posteriors, combine="barycenter", min_count=0, **options)
    taken = time.perf_counter() - start
    return Found(fusion.posterior.parameters()["mean"], fusion.n_components, fusion.matching.labels, taken)


def floor(simulation: Simulation) -> Found:
    """Average what truly belongs together: the best that this kind of average can do when nothing is mismatched."""
    family = simulation.posteriors[0].family
    natural = np.concatenate([posterior.natural for posterior in simulation.posteriors])
    groups = range(len(simulation.means))
    averages = np.stack([family.barycenter(natural[simulation.labels == group]) for group in groups])
    return Found(family.from_natural(averages)["mean"], len(averages), simulation.labels)


def pooled(simulation: Simulation) -> Found | None:
    """Return the mixture fitted to all data with the true number of components, where it was fitted."""
    means = simulation.pooled_means
    return None if means is None else Found(means, len(means))


def kmeans(simulation: Simulation, seed: int) -> Found:
    """Cluster local means, whoever they come from, with the true number of clusters."""
    means = local_means(simulation)
    start = time.perf_counter()
    model = baselines.kmeans(means, len(simulation.means), seed)
    return Found(model.cluster_centers_, model.n_clusters, model.labels_, time.perf_counter() - start)


def dirichlet_process(simulation: Simulation, seed: int) -> Found:
    """Cluster local means by a Dirichlet-process mixture (variational, Blei & Jordan 2006).

    The concentration is that of the greatest lower bound. scikit-learn leaves out of its bound what is constant in one
    fit; of that, T log(concentration) from the T stick-breaking priors differs between concentrations and is added. A
    cluster is told by the average of its points, which lies nearer the truth than the posterior mean with its pull
    towards the middle of all.
    """
    means = local_means(simulation)
    largest = max(posterior.n_components for posterior in simulation.posteriors)
    sticks = min(len(means), 2 * largest + 10)
    start = time.perf_counter()
    best, greatest = None, -np.inf
    for concentration in CONCENTRATIONS:
        model = BayesianGaussianMixture(
            n_components=sticks,
            weight_concentration_prior_type="dirichlet_process",
            weight_concentration_prior=concentration,
            random_state=seed,
            **DIRICHLET_PROCESS,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(means)
        bound = model.lower_bound_ + sticks * np.log(concentration)
        if bound > greatest:
            best, greatest = model, bound
    labels = np.unique(best.predict(means), return_inverse=True)[1]
    count = int(labels.max()) + 1
    centres = np.stack([means[labels == cluster].mean(axis=0) for cluster in range(count)])
    return Found(centres, count, labels, time.perf_counter() - start)


def largest_site(simulation: Simulation) -> Found:
    """Return the number of components of the largest site: what is known without any fusion."""
    return Found(None, max(posterior.n_components for posterior in simulation.posteriors))


METHODS: dict[str, Callable[[Simulation, int], Found | None]] = {
    "auto": lambda simulation, seed: fused(simulation),
    "paper": lambda simulation, seed: fused(simulation, assignment="relaxed", **PAPER),
    "paper, integral": lambda simulation, seed: fused(simulation, **PAPER),
    "SPAHM": lambda simulation, seed: fused(simulation, method="spahm"),
    "SPAHM, published": lambda simulation, seed: fused(simulation, method=PublishedSPAHM(**PUBLISHED_SPAHM)),
    "pooled": lambda simulation, seed: pooled(simulation),
    "Dirichlet process": dirichlet_process,
    "k-means": kmeans,
    "floor": lambda simulation, seed: floor(simulation),
    "largest site": lambda simulation, seed: largest_site(simulation),
}
OURS = ("auto", "paper", "paper, integral", "SPAHM", "SPAHM, published", "floor")  # what the library has a part in


def hausdorff(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Hausdorff distance of two sets of points (m, D) and (n, D)."""
    distances = np.linalg.norm(a[:, None] - b[None], axis=2)
    return float(max(distances.min(axis=0).max(), distances.min(axis=1).max()))


def scores(found: Found, means: np.ndarray, labels: np.ndarray) -> dict[str, float | int | None]:
    """Return the scores of what a method found, as JSON values.

    Parameters
    ----------
    found
        What is scored.
    means
        Means of the true components that occur (G, D).
    labels
        True component of each local one (L,).
    """
    result: dict[str, float | int | None] = {
        "components": int(found.components),
        "hausdorff": None if found.means is None else hausdorff(found.means, means),
        "seconds": found.seconds,
    }
    if found.labels is not None:
        kept = found.labels >= 0
        result["rand"] = float(adjusted_rand_score(labels[kept], found.labels[kept]))
        result["left_out"] = int((~kept).sum())
    return result
