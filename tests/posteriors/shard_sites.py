"""Sites for the tests of shards: posteriors with planted components, written as files or packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import consilience as cs


def planted_sites(
    sites: int, *, groups: int = 6, dim: int = 3, noise: float = 0.1, seed: int = 0, counts: bool = True
) -> tuple[list[cs.Posterior], np.ndarray]:
    """Return sites that each hold two to four of some well separated diagonal Gaussians, and which they hold."""
    rng = np.random.default_rng(seed)
    family = cs.families.DiagonalGaussian(dim=dim)
    means = 4.0 * rng.standard_normal((groups, dim))
    found, truth = [], []
    for _ in range(sites):
        own = rng.permutation(groups)[: rng.integers(2, 5)]
        mean = means[own] + noise * rng.standard_normal((len(own), dim))
        natural = family.to_natural(mean=mean, variance=0.05 * rng.gamma(20.0, 0.05, size=mean.shape))
        prior = family.to_natural(mean=np.zeros((1, dim)), variance=np.full((1, dim), 100.0))[0]
        observed = rng.uniform(20.0, 60.0, size=len(own)) if counts else None
        found.append(cs.Posterior(family, natural, prior=prior, counts=observed, weights=rng.random(len(own))))
        truth.append(own)
    return found, np.concatenate(truth)


def written(posteriors: list[cs.Posterior], folder: Path) -> Path:
    """Write a file for each posterior, named in their order."""
    folder.mkdir()
    for number, posterior in enumerate(posteriors):
        cs.save(posterior, folder / f"site-{number:04d}.safetensors", min_count=0)
    return folder
