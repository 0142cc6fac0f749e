"""Simulated sites with Gaussian mixtures, after Claici et al. 2020, section 5.1 and appendix A.

Run it (``python experiments/kl_fusion/simulate.py``) to make every simulation of the experiment: each is one ``.npz``
of the local posteriors in the cache folder (``CONSILIENCE_CACHE``, default ``experiments/.cache``). What is there is
kept, so the run may be stopped and started again. ``run.py`` then reads them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

import consilience as cs
from consilience.posteriors.describe import describe

sys.path.append(str(Path(__file__).resolve().parents[1]))
from baselines import MIXTURE_STARTS, mixture

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "kl_fusion"
LOCAL_STARTS = POOLED_STARTS = MIXTURE_STARTS


@dataclass(frozen=True)
class Setting:
    """One point of the experiment; the paper's letters are s, sigma, J, D, G and M."""

    separation: float = 0.5
    noise: float = 0.5
    most: int = 5
    sites: int = 50
    dim: int = 10
    components: int = 5
    samples: int = 500
    pooled: bool = True

    @property
    def name(self) -> str:
        """Return a file name that says what the setting is."""
        what = f"s{self.separation:g}-sigma{self.noise:g}-most{self.most}-J{self.sites}-D{self.dim}-M{self.samples}"
        return what.replace(".", "_")


SEPARATIONS, NOISES, ARMS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0), (0.1, 0.25, 0.5, 1.0, 2.0), (5, 3)
CURVES = {(s, 0.5) for s in SEPARATIONS} | {(0.5, sigma) for sigma in NOISES}
CURVES = sorted(CURVES, key=lambda pair: (-pair[0], pair[1]))
LARGE = [Setting(most=most, sites=200, pooled=False) for most in ARMS]
WIDE = [Setting(most=most, dim=50, samples=2000, pooled=False) for most in ARMS]
PLAN = [(seed, Setting(s, sigma, most)) for seed in range(10) for s, sigma in CURVES for most in ARMS]
PLAN += [(seed, setting) for seed in range(5) for setting in (*LARGE, *WIDE)]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Local posteriors, and the truth that they are judged by.

    Parameters
    ----------
    posteriors
        One of every site.
    means
        Means of the global components that occur (G, D).
    labels
        Row of `means` that each local component, stacked over sites, was fitted to (L,).
    pooled_means
        Means of the mixture fitted to all data (G, D), None where it was not fitted.
    """

    posteriors: list[cs.Posterior]
    means: np.ndarray
    labels: np.ndarray
    pooled_means: np.ndarray | None


def covariance(rng: np.random.Generator, dim: int, component: int) -> np.ndarray:
    """Return a covariance as the authors' code makes it: U (c + diag(min(s, 1))) V of a random Gram matrix U s V."""
    uniform = rng.random((dim, dim))
    left, values, right = np.linalg.svd(uniform.T @ uniform)
    matrix = left @ (np.sqrt(1.0 + component) + np.diag(np.minimum(values, 1.0))) @ right
    return 0.5 * (matrix + matrix.T)


def simulate(seed: int, setting: Setting) -> dict[str, np.ndarray]:
    """Draw the truth and the data and fit every site, as arrays."""
    rng = np.random.default_rng(seed)
    g, dim = setting.components, setting.dim
    means = rng.standard_normal((g, dim)) * np.sqrt(setting.separation * g)
    covariances = [covariance(rng, dim, component) for component in range(g)]
    inclusion = rng.beta(1.0, 1.0, size=g)
    everything, labels, stacked = [], [], {name: [] for name in ("natural", "counts", "weights", "priors", "sizes")}
    for site in range(setting.sites):
        own = np.flatnonzero(rng.random(g) < inclusion)
        while len(own) < 2:
            own = np.flatnonzero(rng.random(g) < inclusion)
        own = rng.choice(own, size=min(len(own), setting.most), replace=False)
        amounts = rng.multinomial(setting.samples, rng.dirichlet(np.full(len(own), 10.0)))
        rows = []
        for component, amount in zip(own, amounts, strict=True):
            draws = rng.multivariate_normal(np.zeros(dim), covariances[component], size=100 * dim)
            centre = means[component] + setting.noise * rng.standard_normal(dim)
            rows.append(rng.multivariate_normal(centre, draws.T @ draws / len(draws), size=amount))
        data = np.concatenate(rows)
        model = mixture(data, len(own), 1000 * seed + site, LOCAL_STARTS)
        posterior = describe(model, min_count=0)
        overlap = np.zeros((len(own), len(own)))
        np.add.at(overlap, (model.predict(data), np.repeat(np.arange(len(own)), amounts)), 1.0)
        labels.append(own[linear_sum_assignment(-overlap)[1]])
        everything.append(data)
        stacked["natural"].append(posterior.natural)
        stacked["counts"].append(posterior.counts)
        stacked["weights"].append(posterior.weights)
        stacked["priors"].append(posterior.prior[None])
        stacked["sizes"].append([len(own)])
    occurring, positions = np.unique(np.concatenate(labels), return_inverse=True)
    result = {name: np.concatenate(values) for name, values in stacked.items()}
    result |= {"means": means[occurring], "labels": positions}
    if setting.pooled:
        result["pooled_means"] = mixture(np.concatenate(everything), len(occurring), seed, POOLED_STARTS).means_
    return result


def load(seed: int, setting: Setting) -> Simulation:
    """Return a simulation, from the cache where it is there."""
    path = CACHE / f"{setting.name}-seed{seed}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part.npz")
        np.savez(partial, **simulate(seed, setting))
        partial.replace(path)
    with np.load(path) as stored:
        data = dict(stored)
    family = cs.families.NormalWishart(dim=setting.dim)
    ends = np.cumsum(data["sizes"])
    posteriors = [
        cs.Posterior(
            family,
            data["natural"][end - size : end],
            prior=data["priors"][site],
            counts=data["counts"][end - size : end],
            weights=data["weights"][end - size : end],
        )
        for site, (size, end) in enumerate(zip(data["sizes"].tolist(), ends.tolist(), strict=True))
    ]
    return Simulation(posteriors, data["means"], data["labels"], data.get("pooled_means"))


def settings_of(setting: Setting) -> dict[str, object]:
    """Return a setting as JSON values."""
    return {**asdict(setting), "local_starts": LOCAL_STARTS, "pooled_starts": POOLED_STARTS}


if __name__ == "__main__":
    for number, (seed, setting) in enumerate(PLAN):
        load(seed, setting)
        sys.stdout.write(f"{number + 1} of {len(PLAN)}: {setting.name} seed {seed}\n")
        sys.stdout.flush()
