"""Recurrent networks in double precision, their proved symmetry, and the same functions in other numbers and signs.

A network is a front (raw sequences, a dense layer, an embedding), recurrent layers, and a decoder of what they give at
every step. Units are moved by loops over the stretches of axes, and by nothing that the methods use.
"""

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.symmetry.transport import Spread
from tests.networks.fusable_nets import outputs

VOCABULARY, FEATURES, CLASSES, STEPS, BATCH = 7, 3, 3, 5, 4
KINDS = {
    "rnn": (nn.RNN, {}),
    "relu rnn": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
}
GATES = {"rnn": 1, "relu rnn": 1, "lstm": 4, "gru": 3}
# Which of the stacked gates turns with its unit: the new state of an RNN, g of (i, f, g, o), n of (r, z, n).
TURNING = {"rnn": (0,), "lstm": (2,), "gru": (2,)}
CELLS = list(KINDS)
every_cell = pytest.mark.parametrize("kind", CELLS)
# float64 throughout; plans by linear programming have their marginals to some 1e-16 of a mass of 1 / 12.
EXACT = 1e-9
# Mirror descent takes a hundred times as long as the others; it is asked of RNNs always, and of the rest when slow.
MIRROR = pytest.param("mirror", marks=pytest.mark.slow)
every_mode = pytest.mark.parametrize("mode", ["exact", "paper", MIRROR])


class Recurrent(nn.Module):
    """A front, recurrent layers and a decoder.

    Parameters: the cell; what reads the input ("none", "linear", "embedding", "frozen"); units of the recurrent layers
    and of the front; whether the first state is learned; whether the decoder reads the last state or every step.
    """

    def __init__(
        self, kind="rnn", front="none", hidden=5, inner=4, learned=False, last=False, classes=CLASSES,
        features=FEATURES, **options,
    ):  # fmt: skip
        super().__init__()
        cell, more = KINDS[kind]
        self.last, self.batch_first = last, options.get("batch_first", True)
        if front == "linear":
            self.enc = nn.Linear(features, inner)
        elif front in ("embedding", "frozen"):
            self.enc = nn.Embedding(VOCABULARY, inner)
        if front == "frozen":
            self.enc.weight.requires_grad_(False)
        n_inputs = features if front == "none" else inner
        self.rnn = cell(n_inputs, hidden, **{"batch_first": True, **options, **more})
        ways = 2 if self.rnn.bidirectional else 1
        n_outputs = self.rnn.proj_size or hidden
        self.first = nn.Parameter(torch.zeros(self.rnn.num_layers * ways, 1, n_outputs)) if learned else None
        self.out = nn.Linear(n_outputs * (1 if last else ways), classes)

    def forward(self, x):
        x = self.enc(x) if hasattr(self, "enc") else x
        start = None
        if self.first is not None:
            start = self.first.expand(-1, x.shape[0 if self.batch_first else 1], -1).contiguous()
            if isinstance(self.rnn, nn.LSTM):
                start = (start, torch.zeros_like(start))
        outputs, state = self.rnn(x, start)
        if self.last:
            outputs = (state[0] if isinstance(state, tuple) else state)[-1]
        return self.out(outputs)


ARCHITECTURES = {
    **{kind: {"kind": kind} for kind in CELLS},
    **{f"{kind}, stacked": {"kind": kind, "num_layers": 2, "front": "embedding"} for kind in CELLS},
    **{f"{kind}, both ways": {"kind": kind, "bidirectional": True} for kind in CELLS},
    **{f"{kind}, no bias": {"kind": kind, "bias": False} for kind in CELLS},
    **{f"{kind}, dense front": {"kind": kind, "front": "linear"} for kind in ("rnn", "gru")},
    **{f"{kind}, learned start": {"kind": kind, "learned": True} for kind in ("rnn", "gru")},
    "lstm, stacked both ways": {"kind": "lstm", "num_layers": 2, "bidirectional": True, "front": "embedding"},
    "gru, stacked both ways": {"kind": "gru", "num_layers": 2, "bidirectional": True, "batch_first": False},
    "lstm, projected": {"kind": "lstm", "proj_size": 3},
    "lstm, stacked, projected": {"kind": "lstm", "proj_size": 3, "num_layers": 2},
    "lstm, frozen embedding": {"kind": "lstm", "front": "frozen", "batch_first": False},
    "gru, last state": {"kind": "gru", "front": "embedding", "last": True, "batch_first": False},
}
# Tracing and proving takes most of the time of a test.
RARE = [
    "relu rnn, both ways", "rnn, both ways", "gru, both ways", "relu rnn, no bias", "gru, no bias", "rnn, dense front",
    "rnn, stacked", "lstm, stacked both ways", "gru, last state",
]  # fmt: skip
every_architecture = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in RARE else ()) for name in ARCHITECTURES]
)


@cache
def _drawn(name, seed, changes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Recurrent(**{**ARCHITECTURES[name], **dict(changes)}).double().eval()
        for array in module.parameters():
            array.data = 0.6 * torch.randn(array.shape, dtype=torch.float64)
        if ARCHITECTURES[name].get("front") == "frozen":  # given, the same for all
            torch.manual_seed(1000)
            module.enc.weight.data = torch.randn(module.enc.weight.shape, dtype=torch.float64)
    return module


def net(name, seed=0, **changes):
    """Return a network with weights and biases large enough that units saturate a little."""
    return deepcopy(_drawn(name, seed, tuple(changes.items())))


def sequences(name, **changes):
    """Return a batch of sequences."""
    options = {**ARCHITECTURES[name], **changes}
    source = torch.Generator().manual_seed(3)
    shape = (BATCH, STEPS) if options.get("batch_first", True) else (STEPS, BATCH)
    if options.get("front") in ("embedding", "frozen"):
        return torch.randint(0, VOCABULARY, shape, generator=source)
    return torch.randn(*shape, options.get("features", FEATURES), dtype=torch.float64, generator=source)


@cache
def symmetry_of(name):
    """Return the proved symmetry; made once for all tests."""
    return cs.symmetry(net(name), sequences(name))


def fused(models, name, **options):
    """Return the fusion of networks of an architecture."""
    options = {"method": "gwb", **options}
    return cs.fuse(models, symmetry=symmetry_of(name), example=sequences(name), **options)


def moved(module, symmetry, orders, signs=None):
    """Return a network with unit ``orders[group][u]`` at place u, and with ``signs[group][u]`` on that place."""
    moved = deepcopy(module)
    arrays = dict(moved.state_dict(keep_vars=True))
    for name, layout in symmetry.layouts.items():
        values = arrays[name].detach().numpy().copy()
        for number, axis in enumerate(layout.axes):
            order, factor = [], []
            for segment in axis.segments:
                if segment.group is None:
                    stretch = segment.outer * segment.inner
                    order += range(len(order), len(order) + stretch)
                    factor += [1.0] * stretch
                    continue
                unit_order = orders[segment.group]
                turn = np.ones(len(unit_order)) if signs is None or segment.group not in signs else signs[segment.group]
                begin = len(order)
                for copy in range(segment.outer):
                    turns = segment.odd is None or copy in segment.odd
                    for new_unit, unit in enumerate(unit_order):
                        for position in range(segment.inner):
                            order.append(begin + (copy * len(unit_order) + int(unit)) * segment.inner + position)
                            factor.append(turn[new_unit] if turns else 1.0)
            shape = [1] * values.ndim
            shape[number] = -1
            values = np.take(values, order, axis=number) * np.reshape(factor, shape)
        arrays[name].data = torch.tensor(values)
    return moved


def may_turn(symmetry):
    """Return the groups of recurrent units that may change sign: those on the rows of hidden-to-hidden weights."""
    rows = {
        segment.group
        for name, layout in symmetry.layouts.items()
        if "weight_hh" in name
        for segment in layout.axes[0].segments
    }
    return [group.name for group in symmetry.all_groups if "sign" in group.actions and group.name in rows]


def renumbered(module, name, seed, turned=False):
    """Return the same function with all units in another order, and some of those that may turned."""
    rng, symmetry = np.random.default_rng(seed), symmetry_of(name)
    units = symmetry.units({key: tuple(values.shape) for key, values in module.state_dict().items()})
    orders = {group: rng.permutation(size) for group, size in units.items()}
    signs = {group: rng.choice([-1.0, 1.0], size=units[group]) for group in may_turn(symmetry)}
    return moved(module, symmetry, orders, signs if turned else None)


def difference(model, other, name):
    """Return the largest difference of outputs, relative to the largest output."""
    expected = outputs(other, sequences(name))
    return np.abs(outputs(model, sequences(name)) - expected).max() / np.abs(expected).max()


def plan_of(transport):
    """Return mass and signs (K, k) of a transport."""
    if isinstance(transport, Spread):
        signs = np.ones(transport.coupling.shape) if transport.signs is None else transport.signs
        return transport.coupling, signs
    mass, signs = np.zeros((transport.width, len(transport.slots))), np.ones((transport.width, len(transport.slots)))
    for unit, slot in enumerate(transport.slots):
        mass[slot, unit] = 1 / len(transport.slots)
        signs[slot, unit] = 1.0 if transport.signs is None else transport.signs[unit]
    return mass, signs
