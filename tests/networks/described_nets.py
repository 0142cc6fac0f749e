"""Small networks with the data that they are described by."""

import copy

import numpy as np
import torch
from torch import nn

from consilience.networks.descriptions.measure import measure_network

CLASSES = ("ash", "birch", "cedar")


def describe_network(module, data=None, **options):
    """Return the description of a network, which is neither traced nor bound to its symmetry as by `cs.describe`."""
    defaults = dict.fromkeys(("n_observations", "classes", "example", "layers"))
    defaults |= {"min_count": 5.0, "class_prior": "own", "name": "description"}
    return measure_network(module, data, **{**defaults, **options})[0]


def rows(seed=0, counts=(150, 120, 90), d=6, scale=1.0, shift=0.0):
    """Return inputs (n, d) in float32 and classes (n,), so many of each."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    mix = np.random.default_rng(7).normal(size=(d, d))
    inputs = rng.normal(size=(len(labels), d)) @ mix + 3.0 * np.eye(len(counts), d)[labels]
    return (scale * (inputs + shift)).astype(np.float32), labels


def perceptron(seed=0, d=6, classes=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(d, 8), nn.ReLU(), nn.Linear(8, classes))


def convolutional(seed=0):
    """Return a network of images (1, 8, 8) with batch and group normalisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.ReLU()
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


class Reader(nn.Module):
    """A network of tokens, 0 filling up."""

    def __init__(self, vocabulary=40, classes=2):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.words = nn.Embedding(vocabulary, 5, padding_idx=0)
            self.out = nn.Linear(5, classes)

    def forward(self, words):
        return self.out(self.words(words).mean(dim=1).tanh())


class Undecided(nn.Module):
    """A network that cannot be traced: what it computes depends on numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if self.layer.bias.sum().item() < 9 else -self.layer(x)


def with_head(net, rows_added):
    """Return a copy of a network whose last bias is another."""
    other = copy.deepcopy(net)
    other[-1].bias.data += rows_added
    return other
