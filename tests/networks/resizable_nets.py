"""Networks whose widths may be told, without normalisation, so that their units may lie side by side."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import consilience as cs
from tests.networks.zoo import conv


class Residual(nn.Module):
    """A residual network without normalisation, whose 1x1 shortcut widens the stream."""

    def __init__(self, stem=3, inner=4, stream=5):
        super().__init__()
        self.stem = conv(2, stem)
        self.first, self.second = conv(stem, inner), conv(inner, stem)
        self.third, self.fourth = conv(stem, inner), conv(inner, stream)
        self.shortcut = nn.Conv2d(stem, stream, 1)
        self.fc = nn.Linear(stream, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.second(F.relu(self.first(x))))
        x = F.relu(self.shortcut(x) + self.fourth(F.relu(self.third(x))))
        return self.fc(x.mean(dim=(2, 3)))


def lenet(one=3, two=4, three=5):
    return nn.Sequential(
        conv(1, one), nn.ReLU(), nn.MaxPool2d(2), conv(one, two), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * two, three), nn.ReLU(), nn.Linear(three, 3),
    )  # fmt: skip


def mlp(one=5, two=4, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(4, one), activation(), nn.Linear(one, two), activation(), nn.Linear(two, 3))


def tanh_mlp(one=5, two=4):
    return mlp(one, two, nn.Tanh)


MAKERS = {"mlp": mlp, "tanh": tanh_mlp, "lenet": lenet, "residual": Residual}
SHAPES = {"mlp": (4,), "tanh": (4,), "lenet": (1, 8, 8), "residual": (2, 6, 6)}
every_network = pytest.mark.parametrize("kind", list(MAKERS))


def random_net(kind, seed, *widths):
    """Return a network in double precision with biases that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MAKERS[kind](*widths).double().eval()
        for name, array in module.named_parameters():
            if name.endswith("bias"):
                array.data = 0.5 * torch.randn_like(array)
    return module


def inputs_of(kind):
    return torch.randn(12, *SHAPES[kind], dtype=torch.float64, generator=torch.Generator().manual_seed(1))


SYMMETRY = {}


def symmetry_of_kind(kind):
    if kind not in SYMMETRY:
        SYMMETRY[kind] = cs.symmetry(random_net(kind, 0), inputs_of(kind))
    return SYMMETRY[kind]


def fused_kind(models, method, kind, **options):
    return cs.fuse(models, method=method, symmetry=symmetry_of_kind(kind), example=inputs_of(kind), **options)


def times(kind, factor, groups=None):
    return {name: round(factor * size) for name, size in symmetry_of_kind(kind).groups.items()}
