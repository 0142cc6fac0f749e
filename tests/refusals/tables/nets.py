"""Small networks that the tables of refusals are made from; each traced once."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from safetensors.torch import save_file
from torch import nn

import consilience as cs

X = torch.zeros(2, 6)


def made(make, seed=0):
    """Return what a function makes, its weights from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def mlp(seed=0, hidden=5, classes=3, inputs=6):
    """Return a small network."""
    return made(lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)), seed)


def mlps(count=2, **widths):
    """Return several."""
    return [mlp(seed, **widths) for seed in range(count)]


@cache
def symmetry():
    """Return the symmetry of a small network."""
    return cs.symmetry(mlp(), X)


def deeper(seed=0):
    """Return a network of three layers."""
    return made(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), seed)


def normalised(seed=0):
    """Return a network with batch normalisation."""
    return made(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), seed)


class Recurrent(nn.Module):
    """Reads sequences."""

    def __init__(self, kind=nn.RNN, **options):
        super().__init__()
        self.rnn, self.out = kind(3, 4, batch_first=True, **options), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def recurrent(seed=0, kind=nn.RNN, **options):
    """Return a recurrent network."""
    return made(lambda: Recurrent(kind, **options), seed)


SEQUENCE = torch.zeros(2, 5, 3)


@cache
def recurrent_symmetry():
    """Return the symmetry of a recurrent network."""
    return cs.symmetry(recurrent(), SEQUENCE)


class Tied(nn.Module):
    """Reads words with the weights that it answers with."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x).tanh())


class Undecided(nn.Module):
    """Looks at its numbers to decide."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if x.sum().item() > 0 else -self.layer(x)


def changed(seed=1, net=mlp, **arrays):
    """Return a network with other arrays; None leaves one out."""
    state = dict(net(seed).state_dict())
    for key, change in arrays.items():
        name = key.replace("__", ".")
        state[name] = change(state.get(name))
    return {key: values for key, values in state.items() if values is not None}


def with_nan(values):
    """Return values, one of them NaN."""
    values = values.clone()
    values.view(-1)[0] = float("nan")
    return values


def filed(state, path):
    """Write a state to a plain checkpoint, and return the path."""
    save_file({key: values.contiguous() for key, values in state.items()}, path)
    return path


def orthogonal(seed=0):
    """Return the state of a network whose first layer has an orthogonal parametrisation, which names do not explain."""
    net = mlp(seed)
    nn.utils.parametrizations.orthogonal(net[0])
    return {key: values.contiguous() for key, values in net.state_dict().items()}


def scripted(seed=0):
    """Return a TorchScript module whose first layer computes its weight from parts."""
    net = mlp(seed)
    nn.utils.parametrizations.weight_norm(net[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated
        return torch.jit.trace(net, torch.zeros(2, 6))


def checkpoints(**arrays):
    """Write two plain checkpoints, the second with other arrays, and return their paths."""
    return [filed(mlp(0).state_dict(), "one.safetensors"), filed(changed(1, **arrays), "two.safetensors")]


def network_files(count=2):
    """Write networks with their symmetry, and return the paths."""
    paths = ["one.safetensors", "two.safetensors", "three.safetensors"][:count]
    for seed, path in enumerate(paths):
        cs.save(mlp(seed), path, symmetry=symmetry())
    return paths


def bayesian(seed=0, net=mlp, spread=0.1, **fields):
    """Return a Bayesian network."""
    module = net(seed) if callable(net) and not isinstance(net, nn.Module) else net
    means = {name: values.detach() for name, values in module.named_parameters()}
    return cs.BayesianNetwork(module, means, {name: torch.full_like(v, spread) for name, v in means.items()}, **fields)


def bayesians(count=2, **fields):
    """Return several Bayesian networks."""
    return [bayesian(seed, **fields) for seed in range(count)]


def bayesian_files(*fields):
    """Write Bayesian networks with their symmetry, each with its own fields, and return the paths."""
    paths = ["one.safetensors", "two.safetensors"]
    for seed, path in enumerate(paths):
        cs.save(bayesian(seed, **(fields[seed] if fields else {})), path, symmetry=symmetry())
    return paths


def unproved(function, *arguments, **options):
    """Call a function that warns of a symmetry that nobody proved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.errors.UnprovedSymmetryWarning)
        return function(*arguments, **options)
