"""How well the number of components is found: simulated sites, ``python experiments/size/run.py`` (about five minutes).

Simulations after Claici et al. 2020, section 5.1: five Gaussian components with means N(0, s G I) in ten dimensions, 50
sites with their own subsets, means moved by N(0, sigma^2 I), covariances Wishart(100 D) around the component's; every
site fits a variational mixture with its true number of components. Writes ``results.json`` beside this file.
"""

import json
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from consilience.io.provenance import library_versions

SITES, DIM, COMPONENTS, SAMPLES, NOISE = 50, 10, 5, 500, 0.5
SEPARATIONS, SEEDS, LIMITS = (0.1, 0.5, 2.0), (0, 1, 2), (None, 10)
ARMS = {"any subset": COMPONENTS, "at most three": 3}


def covariance(rng: np.random.Generator) -> np.ndarray:
    """Return a component's covariance: singular values of a Gaussian matrix, capped at 1 and raised by 1."""
    left, values, right = np.linalg.svd(rng.standard_normal((DIM, DIM)))
    root = (left * (1.0 + np.minimum(values, 1.0))) @ right
    return root @ root.T / np.sqrt(DIM)


def simulate(seed: int, separation: float, most: int) -> tuple[list[BayesianGaussianMixture], np.ndarray]:
    """Return the sites' models and the true means of the components that occur."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((COMPONENTS, DIM)) * np.sqrt(separation * COMPONENTS)
    covariances = [covariance(rng) for _ in range(COMPONENTS)]
    inclusion = rng.beta(1.0, 1.0, size=COMPONENTS)
    models, seen = [], set()
    for site in range(SITES):
        own = np.flatnonzero(rng.random(COMPONENTS) < inclusion)
        while len(own) < 2:
            own = np.flatnonzero(rng.random(COMPONENTS) < inclusion)
        own = rng.choice(own, size=min(len(own), most), replace=False)
        seen |= set(own.tolist())
        parts = []
        for component, count in zip(own, rng.multinomial(SAMPLES, rng.dirichlet(np.full(len(own), 10.0))), strict=True):
            draws = rng.multivariate_normal(np.zeros(DIM), covariances[component], size=100 * DIM)
            centre = means[component] + NOISE * rng.standard_normal(DIM)
            parts.append(rng.multivariate_normal(centre, draws.T @ draws / len(draws), size=count))
        model = BayesianGaussianMixture(
            n_components=len(own),
            weight_concentration_prior_type="dirichlet_distribution",
            n_init=2,
            init_params="k-means++",
            random_state=1000 * seed + site,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            models.append(model.fit(np.concatenate(parts)))
    return models, means[sorted(seen)]


def hausdorff(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Hausdorff distance of two sets of points."""
    distances = np.linalg.norm(a[:, None] - b[None], axis=2)
    return float(max(distances.min(axis=0).max(), distances.min(axis=1).max()))


def main() -> None:
    """Run every setting and write the results."""
    rows = []
    for arm, most in ARMS.items():
        for separation in SEPARATIONS:
            for seed in SEEDS:
                models, truth = simulate(seed, separation, most)
                for limit in LIMITS:
                    fusion = cs.fuse(models, max_components=limit, rng=seed)
                    rows.append(
                        {
                            "arm": arm,
                            "separation": separation,
                            "seed": seed,
                            "max_components": limit,
                            "true": len(truth),
                            "largest_site": max(len(model.means_) for model in models),
                            "found": fusion.n_components,
                            "hausdorff": hausdorff(fusion.model.means_, truth),
                        }
                    )
    settings = {"sites": SITES, "dim": DIM, "components": COMPONENTS, "samples": SAMPLES, "sigma": NOISE}
    record = {"settings": settings, "versions": library_versions(), "results": rows}
    Path(__file__).with_name("results.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
