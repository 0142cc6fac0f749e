"""What is refused of posterior draws: their structure, their constants, and files among good ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import consilience as cs
from tests.refusals.tables.things import by_fuse_and_check


def factor(seed, change=None):
    """Return draws of a lower Cholesky factor, one entry of it changed."""
    rng = np.random.default_rng(seed)
    values = np.zeros((2, 200, 2, 2))
    values[..., 0, 0], values[..., 1, 1] = np.exp(0.1 * rng.normal(size=(2, 2, 200)))
    values[..., 1, 0] = rng.normal(size=(2, 200))
    if change is not None:
        values[(..., *change[0])] = change[1]
    return {"L": values, "mu": rng.normal(size=(2, 200))}


def sites(first, second, **told):
    """Return two sites of some variables."""
    return {name: cs.Draws(own, prior=0.5, **told) for name, own in (("lund", first), ("oslo", second))}


def correlation(seed, scale=1.0):
    """Return draws of a matrix with a constant diagonal, or, beside a scale that varies, without."""
    r = np.tanh(0.2 * np.random.default_rng(seed).normal(size=(2, 200)))
    one = np.ones_like(r)
    deviation = scale ** np.random.default_rng(seed + 9).normal(size=(2, 200))
    return {"R": np.stack([one, r, r, one], axis=-1).reshape(2, 200, 2, 2) * deviation[..., None, None] ** 2}


def singular(seed):
    """Return draws of a vector whose last entry is the sum of the others."""
    values = np.random.default_rng(seed).normal(size=(2, 200, 3))
    values[..., 2] = values[..., 0] + 2.0 * values[..., 1]
    return {"x": values}


def copied(seed):
    """Return draws of a vector whose last entry is its first."""
    values = np.random.default_rng(seed).normal(size=(2, 200, 3))
    values[..., 2] = values[..., 0]
    return {"x": values}


def truncated():
    """Return paths of three files of draws, of which one is cut off."""
    for seed, name in enumerate(("lund", "oslo", "riga")):
        cs.save(cs.Draws(factor(seed), prior=1 / 3), f"{name}.safetensors")
    Path("oslo.safetensors").write_bytes(Path("oslo.safetensors").read_bytes()[:-7])
    return [f"{name}.safetensors" for name in ("lund", "oslo", "riga")]


CASES = by_fuse_and_check({
    "a constant entry at one site of draws": lambda: (sites(factor(0), factor(1, ((1, 0), 0.25))), {}),
    "constant entries of draws with other values": lambda: (sites(factor(0), factor(1, ((0, 1), 0.5))), {}),
    "draws of constants alone": lambda: (sites({"n": np.ones((2, 200))}, {"n": np.ones((2, 200))}), {}),
    "copies of entries of draws at one site": lambda: (sites(singular(0), copied(1)), {}),
    "draws of a vector with sums": lambda: (sites(singular(0), singular(1)), {}),
    "correlations among covariances": lambda: (sites(correlation(0), correlation(1, 1.5)), {}),
    "correlations that are stated to be covariances": lambda: (
        sites(correlation(0), correlation(1), constraints={"R": "covariance"}), {},
    ),
    "a factor that is stated to be positive": lambda: (
        sites(factor(0), factor(1), constraints={"L": "positive"}), {},
    ),
    "the law of a matrix that is a prior of entries": lambda: (
        {
            name: cs.Draws(factor(seed), prior={"L": ("normal", 0, 1), "mu": "flat"})
            for seed, name in enumerate(("lund", "oslo"))
        },
        {},
    ),
    "a truncated file among draws": lambda: (truncated(), {}),
})  # fmt: skip
