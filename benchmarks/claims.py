"""How many times the median a network's observations may count: what lies cost, and what honest large sites lose.

Ten sites of scikit-learn's data train a small network each from a common initialisation; the average by observations is
scored on held-out rows. Some sites rotate their labels and claim many times their rows; honest sites have sizes that
are alike, or differ tenfold. The bound of a claim is none, or a multiple of the median. Digits and wine are the half on
which the multiple was looked at, breast cancer and iris the half that is reported.

    python benchmarks/claims.py            writes benchmarks/claims.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from torch import nn
from torch.nn import functional

import consilience as cs

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

SITES = 10
SEEDS = range(3)
HALVES = {
    "tune": {"digits": load_digits, "wine": load_wine},
    "report": {"cancer": load_breast_cancer, "iris": load_iris},
}
BOUNDS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, np.inf)
LIARS = (0, 1, 2)
CLAIMS = (1.0, 10.0, 100.0)


def network(width: int, classes: int) -> nn.Module:
    """Return an untrained network."""
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))


def trained(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Train a network."""
    optimiser = torch.optim.Adam(net.parameters(), 0.01, weight_decay=1e-4)
    for _ in range(80):
        optimiser.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def setting(name: str, load: Any, seed: int, spread: str) -> dict[str, Any]:
    """Return the errors of averages, by liars, claim and bound."""
    rng = np.random.default_rng(seed)
    x, y = load(return_X_y=True)
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1.0)
    order = rng.permutation(len(x))
    test, train = order[: len(x) // 4], order[len(x) // 4 :]
    sizes = np.ones(SITES) if spread == "alike" else np.geomspace(1.0, 10.0, SITES)[rng.permutation(SITES)]
    ends = np.round(np.cumsum(sizes) / sizes.sum() * len(train)).astype(int)
    parts = np.split(train, ends[:-1])
    inputs, labels, classes = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y), int(y.max()) + 1
    torch.manual_seed(seed)
    start = network(x.shape[1], classes).state_dict()

    def site(rows: Any, rotate: bool) -> nn.Module:
        net = network(x.shape[1], classes)
        net.load_state_dict(start)
        return trained(net, inputs[rows], (labels[rows] + int(rotate)) % classes)

    honest, hostile = ([site(rows, rotate) for rows in parts] for rotate in (False, True))
    errors = {}
    for liars in LIARS:
        models = [*honest[: SITES - liars], *hostile[SITES - liars :]]
        for claim in CLAIMS if liars else (1.0,):
            counts = np.array([len(rows) for rows in parts], dtype=float)
            counts[SITES - liars :] *= claim
            for bound in BOUNDS:
                counted = np.minimum(counts, bound * np.median(counts))
                fused = cs.fuse(models, "average", n_observations=counted.tolist(), example=inputs[:1]).model
                with torch.no_grad():
                    wrong = float((fused(inputs[test]).argmax(1) != labels[test]).double().mean())
                errors[f"{liars} liars x{claim:g}, bound {bound:g}"] = wrong
    return {"data": name, "seed": seed, "sizes": spread, "errors": errors}


def main() -> None:
    """Run all settings, and write them."""
    torch.set_num_threads(1)
    rows = {
        half: [
            setting(name, load, seed, spread)
            for name, load in sets.items()
            for seed in SEEDS
            for spread in ("alike", "tenfold")
        ]
        for half, sets in HALVES.items()
    }
    document = {"versions": versions() | {"torch": torch.__version__}, "sites": SITES, "seeds": list(SEEDS), **rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
