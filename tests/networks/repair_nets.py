"""Networks and digits for the tests of repair and of regression on the models' answers."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from consilience.core.progress import silent
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.weight_matching.match import match_weights
from consilience.networks.network import Network
from consilience.networks.symmetry.transport import move
from consilience.networks.tracing.proof import symmetry

# Some hundred sums of products in float64, layer after layer.
FLOAT64 = 1e-9
SENT = 1e-3
HALVES = np.array([0.5, 0.5])
UNEVEN = np.array([0.3, 0.7])


class Residual(nn.Module):
    """A convolution that is strided and dilated, with batch normalisation, and a residual one without bias."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, stride=2, dilation=2, padding=2)
        self.norm, self.inner, self.inner_norm = (
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 6, (1, 3), padding="same"),
            nn.BatchNorm2d(6),
        )
        self.narrow, self.head = nn.Conv2d(6, 5, 1), nn.Linear(45, 4)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.relu(x + self.inner_norm(self.inner(x)))
        return self.head(functional.relu(self.narrow(x)).flatten(1))


def perceptron():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Conv2d(6, 7, 2), nn.Dropout(0.5), nn.ReLU(inplace=True)),
        nn.Flatten(),
        nn.Linear(63, 4),
    )


NETS = {"perceptron": perceptron, "convolutional": convolutional, "residual": Residual}
every_net = pytest.mark.parametrize("kind", NETS)


def randomised(kind, seed):
    """A network of float64 in evaluation mode whose every number depends on the seed."""
    generator = torch.Generator().manual_seed(seed)
    net = NETS[kind]().double().eval()
    with torch.no_grad():
        for values in net.parameters():
            values.copy_(0.5 * torch.randn(values.shape, generator=generator))
        for values in net.buffers():
            if values.is_floating_point():
                values.copy_(torch.rand(values.shape, generator=generator) + 0.5)
    return net


def inputs_for(kind, count=120, seed=9):
    shape = (5,) if kind == "perceptron" else (2, 6, 6)
    inputs = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return inputs.cumsum(dim=-1) + 0.5


def average(nets, weights):
    mean = deepcopy(nets[0])
    states = [net.state_dict() for net in nets]
    for name, values in mean.state_dict().items():
        if values.is_floating_point():
            values.copy_(sum(w * state[name] for w, state in zip(weights, states, strict=True)))
    return mean


def permuted_copy(net, traced, transports):
    copy = deepcopy(net)
    moved = {
        name: move(values, traced.layouts[name], transports, traced.groups)
        for name, values in net.state_dict().items()
        if values.is_floating_point()
    }
    copy.load_state_dict(net.state_dict() | moved)
    return copy


def same_state(net_a, net_b):
    pairs = zip(net_a.state_dict().items(), net_b.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@dataclass(frozen=True, eq=False)
class Trained:
    """Two networks trained on digits, the second's units in the first's order; inputs to ask, others to judge by."""

    aligned: list
    inputs: torch.Tensor
    held_out: torch.Tensor
    labels: torch.Tensor

    def accuracy(self, net):
        with torch.no_grad():
            return float((net.eval()(self.held_out).argmax(dim=1) == self.labels).double().mean())


def _for_digits(kind):
    if kind == "perceptron":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 10)
        )
    layers = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(2):
        layers += [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@cache
def digits(kind):
    """Train, align and keep two networks; a second or two."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8)
    order = torch.tensor(np.random.default_rng(0).permutation(len(labels)))
    train, held_out = order[:1200], order[1200:]
    answers = torch.tensor(labels)
    nets = [_trained(kind, seed, inputs[train], answers[train]) for seed in range(2)]
    traced = symmetry(nets[0], inputs[:2])
    networks = tuple(Network(dict(net.state_dict()), traced, str(n)) for n, net in enumerate(nets))
    ensemble = NetworkEnsemble(networks, np.array([0.5, 0.5]), dict(networks[0].units))
    transports = match_weights(ensemble, ["receiving"], 50, np.random.default_rng(0), silent).transports
    aligned = [permuted_copy(net, traced, moves) for net, moves in zip(nets, transports, strict=True)]
    return Trained(aligned, inputs[train], inputs[held_out], answers[held_out])


def _trained(kind, seed, inputs, labels):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = _for_digits(kind)
        optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(5):
            for rows in torch.randperm(len(labels)).split(64):
                loss = functional.cross_entropy(net(inputs[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return net.eval()


def trio(kind, seed=0):
    """Two networks, their average, and inputs."""
    net_a, net_b = randomised(kind, seed), randomised(kind, seed + 1)
    return net_a, net_b, average([net_a, net_b], UNEVEN), inputs_for(kind)
