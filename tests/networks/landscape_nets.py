"""Networks of several kinds, and data for them, for the tests of loss landscapes."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from consilience.networks.landscape.evaluation import Classification
from tests.tolerances import SINGLE_PRECISION

CLASSES = 4
# A hundred or so single-precision products, summed in another order by a batched product.
OTHER_ORDER = 100 * SINGLE_PRECISION


class Recurrent(nn.Module):
    """An LSTM, which torch cannot vectorise over models."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Branching(nn.Module):
    """A network that looks at its numbers to decide, which cannot be vectorised either, unknown to anyone before."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(5, CLASSES), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.one(x) if self.one.bias.sum() > 0 else self.two(x)


class Filtered(nn.Module):
    """A convolution by function, which no one sees to be one, and batch normalisation."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(6, 2, 3, 3))
        self.norm, self.drop, self.head = nn.BatchNorm2d(6), nn.Dropout(0.5), nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.drop(functional.relu(self.norm(functional.conv2d(x, self.kernel)))).flatten(1))


class Tied(nn.Module):
    """An embedding whose weight is that of the output layer as well."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(CLASSES, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, CLASSES)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.mix(self.embed(x).mean(dim=1))))


class Brittle(nn.Module):
    """A network that divides by a parameter."""

    def __init__(self, scale):
        super().__init__()
        self.scale, self.net = nn.Parameter(torch.tensor(scale)), make("perceptron", 1)

    def forward(self, x):
        return self.net(x) / self.scale


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(24, CLASSES)
    )


def perceptron():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, CLASSES))


KINDS = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "filtered": Filtered,
    "recurrent": Recurrent,
    "branching": Branching,
    "tied": Tied,
}
INPUTS = {
    "perceptron": (5,),
    "convolutional": (2, 4, 4),
    "filtered": (2, 4, 4),
    "recurrent": (7, 3),
    "branching": (5,),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, seed):
    """A network whose weights, running statistics and counters all differ from one seed to another."""
    generator = torch.Generator().manual_seed(seed)
    net = KINDS[kind]()
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.8 * torch.randn(value.shape, generator=generator))
        for value in net.buffers():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5 if value.is_floating_point() else seed)
    return net


def task(kind, teacher, samples=60, **options):
    generator = torch.Generator().manual_seed(99)
    if kind == "tied":
        inputs = torch.randint(CLASSES, (samples, 5), generator=generator)
    else:
        inputs = torch.randn(samples, *INPUTS[kind], generator=generator)
    with torch.no_grad():
        labels = deepcopy(teacher).eval()(inputs).argmax(dim=1)
    return Classification(inputs, labels, **options)


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}, [m.training for m in net.modules()]


def same(first, second):
    return first[1] == second[1] and all(torch.equal(first[0][name], second[0][name]) for name in first[0])


def one_by_one(evaluate):
    return lambda net: evaluate(net)


def permuted(net, seed=5):
    """A perceptron of the same function, its hidden units in another order."""
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    twin = deepcopy(net)
    with torch.no_grad():
        for layer, name in ((0, "weight"), (0, "bias"), (2, "weight"), (2, "bias")):
            getattr(twin[layer], name).copy_(getattr(net[layer], name)[order])
        twin[3].weight.copy_(net[3].weight[:, order])
    return twin
