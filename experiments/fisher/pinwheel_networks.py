"""The pinwheel of five arms, and networks of 400 parameters trained on it as in the published script of SSF.

All models of a seed have one start and the same 350 points. Model k (0 to 4) has 100 (k + 1) epochs of plain SGD, in
batches of 100, with the rate 0.01 (k + 1) / 2 and weight decay 0.01: settings that the published script has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ARMS, EACH, TRAIN, VALIDATION, BATCH, WEIGHT_DECAY, MODELS = 5, 1000, 350, 500, 100, 0.01, 5
RADIAL, TANGENTIAL, RATE = 0.3, 0.05, 0.25
PRIOR_PRECISION = TRAIN * WEIGHT_DECAY
"""Of the sum over observations, since the loss is a mean over them."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points (n, 2) and their arms (n,)."""

    x: torch.Tensor
    y: torch.Tensor


def points(seed: int) -> tuple[Points, Points, Points]:
    """Return points for training, validation and test: 350, 500 and 4,150."""
    rng = np.random.default_rng([12, seed])
    arms = np.repeat(np.arange(ARMS), EACH)
    along = rng.normal(size=(len(arms), 2)) * (RADIAL, TANGENTIAL) + (1.0, 0.0)
    angle = 2.0 * np.pi * arms / ARMS + RATE * np.exp(along[:, 0])
    turned = np.stack(
        [
            along[:, 0] * np.cos(angle) + along[:, 1] * np.sin(angle),
            along[:, 1] * np.cos(angle) - along[:, 0] * np.sin(angle),
        ],
        axis=1,
    )
    order = rng.permutation(len(arms))
    x, y = torch.from_numpy((2.0 * turned[order]).astype(np.float32)), torch.from_numpy(arms[order])
    cuts = (slice(TRAIN), slice(TRAIN, TRAIN + VALIDATION), slice(TRAIN + VALIDATION, None))
    return tuple(Points(x[rows], y[rows]) for rows in cuts)


def network() -> nn.Sequential:
    """Return the network of the published script, 2-16-16-5 with 400 parameters."""
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, ARMS, bias=False))


def trained(seed: int, train: Points) -> list[nn.Module]:
    """Return five networks that were trained from one start, each longer and faster than the one before."""
    torch.manual_seed(int(np.random.SeedSequence([12, seed]).generate_state(1)[0]))
    start, networks = network().state_dict(), []
    for number in range(1, MODELS + 1):
        net = network()
        net.load_state_dict(start)
        generator = torch.Generator().manual_seed(1000 * seed + number)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.01 * number / 2, weight_decay=WEIGHT_DECAY)
        for _ in range(100 * number):
            for rows in torch.randperm(TRAIN, generator=generator).split(BATCH):
                optimiser.zero_grad()
                functional.cross_entropy(net(train.x[rows]), train.y[rows]).backward()
                optimiser.step()
        networks.append(net.eval())
    return networks


@torch.no_grad()
def loss_and_accuracy(net: nn.Module, where: Points) -> dict[str, float]:
    """Return the mean cross-entropy in nats, and the accuracy in percent."""
    logits = net(where.x).double()
    return {
        "loss": functional.cross_entropy(logits, where.y).item(),
        "accuracy": 100.0 * (logits.argmax(dim=1) == where.y).double().mean().item(),
    }
