"""Requests about layers and heads after a matched average: which of them helps when, on digits.

``python experiments/one_shot/layer_refits.py`` writes ``layer_refits.json`` (a minute of one processor). scikit-learn's
digits, 500 rows held out, the others divided between five sites by Dirichlet(alpha) of each class; every site trains a
network of 48 and 32 ReLU units from a start of its own or one of all, 150 steps of Adam. Settings are the first ones
tried.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import versions

import consilience as cs

RESULTS = Path(__file__).with_name("layer_refits.json")
ALPHAS, SEEDS, N_SITES, N_TEST = (0.1, 0.5, 100.0), (0, 1, 2), 5, 500
LEAST_ROWS = 20
"""Rows of a site at least; smaller ones are left out."""


def network(seed: int) -> nn.Sequential:
    """Return an untrained network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))


def trained(start: nn.Sequential, x: np.ndarray, y: np.ndarray) -> nn.Sequential:
    """Return a network trained from a start."""
    optimiser = torch.optim.Adam(start.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        functional.cross_entropy(start(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return start.eval()


def run_cell(alpha: float, seed: int, has_common_start: bool) -> dict[str, float]:
    """Return accuracies on the rows that are held out."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    test, training = order[:N_TEST], order[N_TEST:]
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(N_SITES, alpha), size=10)
    owner = np.array([rng.choice(N_SITES, p=shares[label]) for label in y[training]])
    rows = {f"site {j}": training[owner == j] for j in range(N_SITES) if np.sum(owner == j) >= LEAST_ROWS}
    data = {site: (x[own], y[own]) for site, own in rows.items()}
    networks = {
        site: trained(network(1000 if has_common_start else 10 * seed + j), *data[site]) for j, site in enumerate(data)
    }

    def accuracy(module: Any) -> float:
        with torch.no_grad():
            predicted = module(torch.from_numpy(x[test])).argmax(dim=1).numpy()
        return 100.0 * float((predicted == y[test]).mean())

    fusion = cs.fuse(networks, method="consensus", example=torch.zeros(1, 64))
    scores = {"best site": max(accuracy(one) for one in networks.values()), "matched average": accuracy(fusion.model)}
    for kind, rounds in (("gram", 3), ("chain", 1), ("chain", 2), ("chain", 3), ("head", 1)):
        ended = cs.federated.exchange(kind, fusion, data, rounds=rounds, min_count=0)
        scores[f"{kind}:{rounds}"] = accuracy(ended.model)
    return scores


def main() -> None:
    """Run all cells."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cells = {
        f"{'common' if common else 'own'} start, alpha {alpha:g}, seed {seed}": run_cell(alpha, seed, common)
        for common in (False, True)
        for alpha in ALPHAS
        for seed in SEEDS
    }
    document = {"versions": versions(), "chosen": "nothing: the first settings tried", "cells": cells}
    RESULTS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
