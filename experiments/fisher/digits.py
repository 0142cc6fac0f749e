"""Fisher merging of three networks of digits, as in its guide: ``python experiments/fisher/digits.py``.

A small network that was trained on public digits goes on at three sites, of most digits of which one site has nearly
all; or one with random weights goes on there, and such a one with two hidden layers. Five seeds, of
which the guide runs the first.
Writes ``digits.json``: loss in nats and accuracy in percent on held-out digits, by network and seed. Options of the
merges are the library's defaults.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from record import as_text, versions

RESULTS = Path(__file__).with_name("digits.json")
SEEDS, SITES, SKEW, DECAY, RANK = 5, 3, 0.3, 1e-3, 64
STEPS = {
    "public digits": (50, 150, (16,)),
    "random weights": (0, 150, (16,)),
    "random weights, two hidden layers": (0, 400, (16, 16)),
}
"""Steps of training before the sites and at them, and hidden units."""


def trained(net: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> nn.Module:
    """Return a network that went on from `net`."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=DECAY)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


def run(seed: int, public_steps: int, site_steps: int, hidden: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Return the scores of all networks of one seed."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 8 - 1, dtype=torch.float32), torch.tensor(digits.target)
    rng = np.random.default_rng(seed)
    part = rng.permutation(len(y)) % 10
    shares = rng.dirichlet([SKEW] * SITES, size=10)
    site = (rng.random((len(y), 1)) > shares.cumsum(axis=1)[digits.target]).sum(axis=1)
    public, held_out, private = (np.flatnonzero(rows) for rows in (part == 0, (part > 0) & (part < 4), part >= 4))
    sites = [np.flatnonzero((part >= 4) & (site == number)) for number in range(SITES)]

    def scores(net: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            logits = net(x[held_out])
        right = (logits.argmax(dim=1) == y[held_out]).float().mean()
        loss = nn.functional.cross_entropy(logits, y[held_out])
        return {"loss": float(loss), "accuracy": 100 * float(right)}

    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, width in zip((64, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    start = nn.Sequential(*layers, nn.Linear(hidden[-1], 10))
    common = trained(start, x[public], y[public], public_steps)
    nets = [trained(common, x[own], y[own], site_steps) for own in sites]
    infos, without_prior = (
        [
            cs.fisher(net, x[own], kind="factors", rank=RANK, prior_precision=share * len(own) * DECAY)
            for net, own in zip(nets, sites, strict=True)
        ]
        for share in (1.0, 0.0)
    )
    merges = {
        "isotropic": cs.fuse(nets, method="fisher", structure="isotropic"),
        "diagonal": cs.fuse(nets, method="fisher", fishers=infos, structure="diagonal"),
        "low_rank": cs.fuse(nets, method="fisher", fishers=infos),
        "low_rank, shrinkage=0": cs.fuse(nets, method="fisher", fishers=infos, shrinkage=0.0),
        "low_rank, no prior": cs.fuse(nets, method="fisher", fishers=without_prior),
        "ssf": cs.fuse(nets, method="ssf", fishers=infos),
    }
    return {
        "start": scores(common),
        "best site": min(map(scores, nets), key=lambda one: one["loss"]),
        **{name: scores(fusion.model) for name, fusion in merges.items()},
        "pooled": scores(trained(common, x[private], y[private], site_steps)),
    }


def main() -> None:
    """Run all seeds."""
    torch.set_num_threads(1)
    settings = {"chosen": "nothing by these results; the best site is that of the least loss on the held-out digits"}
    starts = {name: [run(seed, *steps) for seed in range(SEEDS)] for name, steps in STEPS.items()}
    RESULTS.write_text(as_text({"settings": settings | {"steps": STEPS}, "starts": starts, "versions": versions()}))


if __name__ == "__main__":
    main()
