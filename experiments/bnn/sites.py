"""Train the sites of the Table 2 experiment: MNIST over five sites, a horseshoe network of 150 units at each.

    python experiments/bnn/sites.py select            settings by the sites' own validation data, seed 100
    python experiments/bnn/sites.py train SEED...     the sites of these seeds, and the network of all their data
    python experiments/bnn/sites.py plain SEED...     the same without logit adjustment

Every network is kept in experiments/.cache/bnn as soon as it is trained, so that a run that is stopped goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import consilience as cs
from consilience.checks import Array, Labels

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "bnn"
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared" / "data"))
SITES, CONCENTRATION, CLASSES, UNITS = 5, 0.8, 10, 150
BASE = {"hidden": (UNITS,), "batch_size": 256, "learning_rate": 4e-3, "deviation": 0.1, "epochs": 30}
CANDIDATES: tuple[dict[str, float], ...] = (
    {"temperature": 1.0, "unit_width": 1.0},
    {"temperature": 0.1, "unit_width": 0.1},
    {"temperature": 0.02, "unit_width": 0.1},
    {"temperature": 0.02, "unit_width": 1.0},
)
SELECTION_SEED, SELECTION_EPOCHS, SELECTION_SITES = 100, 12, 3
VALIDATION = 0.1


def mnist() -> tuple[Array, Labels, Array, Labels]:
    """Return training and test images (n, 784) in [0, 1], and their classes."""
    data = np.load(DATA / "mnist.npz")
    images = [data[name].reshape(len(data[name]), -1).astype(np.float32) / 255 for name in ("x_train", "x_test")]
    return images[0], data["y_train"].astype(np.int64), images[1], data["y_test"].astype(np.int64)


def split(labels: Labels, seed: int) -> list[tuple[Labels, Labels]]:
    """Return the rows of every site, for training and validation: each class over sites by Dirichlet(0.8)."""
    rng = np.random.default_rng(seed)
    rows: list[list[Labels]] = [[] for _ in range(SITES)]
    for k in range(CLASSES):
        own = rng.permutation(np.flatnonzero(labels == k))
        cuts = (np.cumsum(rng.dirichlet(np.full(SITES, CONCENTRATION))) * len(own)).astype(int)[:-1]
        for site, part in zip(rows, np.split(own, cuts), strict=True):
            site.append(part)
    found = []
    for site in rows:
        mixed = rng.permutation(np.concatenate(site))
        cut = round(VALIDATION * len(mixed))
        found.append((mixed[cut:], mixed[:cut]))
    return found


def shares(labels: Labels) -> Array:
    """Return the logarithms of class shares (classes,) at a site; unseen classes count as half an example."""
    counts = np.maximum(np.bincount(labels, minlength=CLASSES), 0.5)
    return np.log(counts / counts.sum())


def with_shares(bnn: cs.BayesianNetwork, labels: Labels) -> cs.BayesianNetwork:
    """Return the network as a site uses it alone: with the site's own class shares in its output biases."""
    bias = list(bnn.means)[-1]
    means = {**bnn.means, bias: bnn.means[bias] + shares(labels).astype(np.float32)}
    return cs.BayesianNetwork(bnn.module, means, bnn.variances)


def fitted(x: Array, y: Labels, seed: int, told: dict[str, Any]) -> tuple[cs.BayesianNetwork, dict[str, Any]]:
    """Return a site's network, and facts about its training."""
    start = time.perf_counter()
    found = cs.learners.HorseshoeBNN(**{**BASE, **told}, seed=seed).fit(x, y, classes=CLASSES)
    facts = {
        "seconds": time.perf_counter() - start,
        "elbo": [float(found.history[0]), float(found.history[-1])],
        "scales": np.sort(found.scales["0"])[::-1].round(5).tolist(),
        "raw_scales": found.scales["0"].tolist(),
    }
    return found.posterior, facts


def cached(
    name: str, x: Array, y: Labels, seed: int, told: dict[str, Any]
) -> tuple[cs.BayesianNetwork, dict[str, Any]]:
    """Return a network from the cache, trained first if it is not there."""
    path, side = CACHE / f"{name}.safetensors", CACHE / f"{name}.json"
    if not side.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        bnn, facts = fitted(x, y, seed, told)
        cs.save(bnn, path)
        side.write_text(json.dumps({**facts, "options": {**BASE, **told}, "seed": seed}))
        sys.stdout.write(f"{name}: {facts['seconds']:.0f} s\n")
    loaded = cs.load(path)
    return loaded.with_module(architecture(int(loaded.means["0.bias"].shape[0]))), json.loads(side.read_text())


def architecture(units: int = UNITS) -> torch.nn.Module:
    """Return the sites' architecture."""
    return torch.nn.Sequential(torch.nn.Linear(784, units), torch.nn.ReLU(), torch.nn.Linear(units, CLASSES))


def selected() -> dict[str, Any]:
    """Return the settings of greatest validation likelihood at the sites of the selection seed."""
    found = json.loads((CACHE / "selection.json").read_text())
    return dict(max(found, key=lambda one: one["validation_log_likelihood"])["options"])


def select() -> None:
    """Compare settings by the likelihood that sites' networks give to the sites' own validation data."""
    x, y, _, _ = mnist()
    results = []
    for options in CANDIDATES:
        told = {**options, "logit_adjustment": True, "epochs": SELECTION_EPOCHS}
        values, counts = [], []
        for number, (train, held) in enumerate(split(y, SELECTION_SEED)[:SELECTION_SITES]):
            bnn, _ = fitted(x[train], y[train], number, told)
            p = with_shares(bnn, y[train]).predict(x[held], samples=30)
            values.append(float(np.log(p[np.arange(len(held)), y[held]]).mean()))
            counts.append(len(held))
        value = float(np.average(values, weights=counts))
        results.append({"options": dict(options), "validation_log_likelihood": value, "sites": values})
        sys.stdout.write(f"{options} {value:.4f}\n")
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / "selection.json").write_text(json.dumps(results))


def sites(seed: int, *, adjusted: bool = True) -> list[tuple[cs.BayesianNetwork, dict[str, Any], Labels, Labels]]:
    """Return the networks of a seed's sites with facts and rows."""
    x, y, _, _ = mnist()
    kind = "adjusted" if adjusted else "plain"
    found = []
    for number, (train, held) in enumerate(split(y, seed)):
        told = {**selected(), "logit_adjustment": adjusted}
        bnn, facts = cached(f"site-{kind}-{seed}-{number}", x[train], y[train], 10 * seed + number, told)
        found.append((bnn, facts, train, held))
    return found


def pooled(seed: int) -> tuple[cs.BayesianNetwork, dict[str, Any]]:
    """Return the network of all sites' training data."""
    x, y, _, _ = mnist()
    rows = np.concatenate([train for train, _ in split(y, seed)])
    return cached(f"pooled-{seed}", x[rows], y[rows], 10 * seed + 9, {**selected(), "epochs": 10})


def main() -> None:
    """Do what the command line says."""
    torch.set_num_threads(1)
    what, seeds = sys.argv[1], [int(one) for one in sys.argv[2:]]
    if what == "select":
        select()
    for seed in seeds:
        sites(seed, adjusted=what == "train")
        if what == "train":
            pooled(seed)


if __name__ == "__main__":
    main()
