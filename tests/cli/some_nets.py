"""A user's own code: modules of networks, and the checkpoints of two sites trained with them."""

import sys

import numpy as np
import torch
from safetensors.torch import save_file

SITES = ("one.safetensors", "two.safetensors")
MODULE = ("--module", "somenets:make_mlp")
TRACED = (*MODULE, "--example", "1,6")

NETS = """
from torch import nn


def make_mlp(first=10, second=7):
    layers = nn.Linear(6, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3)
    return nn.Sequential(*layers)


def wide():
    return make_mlp(20, 14)


def normalised():
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


instance = make_mlp()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.out = nn.Linear(5, 11)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x).tanh())


class Undecided(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if x.sum().item() > 0 else -self.layer(x)


def broken():
    raise RuntimeError("out of order")


number = 5
"""


def write_nets(folder):
    """Write the code, the checkpoints and labeled data into a folder that is on the path; return the module."""
    (folder / "somenets.py").write_text(NETS)
    sys.modules.pop("somenets", None)
    import somenets

    for seed, name in enumerate(SITES):
        torch.manual_seed(seed)
        save_file(somenets.make_mlp().state_dict(), folder / name)
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.normal(size=(120, 6)), y=rng.integers(0, 3, 120))
    return somenets
