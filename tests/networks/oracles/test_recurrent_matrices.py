"""What weight matching takes from a network: weights among units, groups beside each other, signed permutations."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.core.progress import silent
from consilience.matching.gromov import TransportPlan
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.weight_matching.coordinate_descent import (
    _dependent_groups,
    ignored_recurrent_arrays,
    permutation_transport,
    recurrent_arrays,
    recurrent_weights,
)
from consilience.networks.methods.weight_matching.match import match_weights
from consilience.networks.network import Network
from consilience.networks.symmetry.axes import Axis, Group, Layout, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection
from consilience.networks.tracing.trace import trace
from tests.tolerances import ROUNDING

CELLS = {
    "rnn": (nn.RNN, (True,)),
    "gru": (nn.GRU, (False, False, True)),
    "lstm": (nn.LSTM, (False, False, True, False)),
}
"""With the gates whose rows turn with their unit: only what is proposed as the new state, torch's third."""
every_cell = pytest.mark.parametrize("kind", CELLS)


class Tagger(nn.Module):
    """A recurrent layer of five units with a decoder."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.decoder = cell(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.decoder(self.cell(x)[0])


def arrays_of(module):
    return {name: array.detach().double() for name, array in module.state_dict().items()}


@every_cell
def test_the_weights_among_units_are_those_of_every_gate(kind):
    cell, flips = CELLS[kind]
    module = Tagger(cell)
    symmetry = trace(module, torch.zeros(2, 4, 3))
    (group,) = symmetry.groups
    ((rows, columns),) = recurrent_arrays(symmetry, group)
    assert (rows.array, rows.axis, columns.axis) == ("cell.weight_hh_l0", 0, 1)
    assert ignored_recurrent_arrays(symmetry, group) == set()
    weights = recurrent_weights(symmetry, arrays_of(module), group, 5)
    expected = module.cell.weight_hh_l0.detach().double().numpy().reshape(len(flips), 5, 5)
    assert_array_equal(weights.matrices, expected)
    assert weights.flips == flips
    none = recurrent_weights(symmetry, {}, group, 5)
    assert none.matrices.shape == (0, 5, 5)
    assert none.flips == ()


@pytest.mark.parametrize("given", [("a",), ("b",), ("b", "a"), ()], ids=str)
def test_of_several_recurrent_arrays_those_that_are_given_count(given):
    both = Axis((Segment("state"),), "output"), Axis((Segment("state"),), "input")
    symmetry = Symmetry({"a": Layout(both), "b": Layout(both)}, (Group("state", 3, 0),))
    arrays = {name: np.random.default_rng(ord(name)).normal(size=(3, 3)) for name in given}
    weights = recurrent_weights(symmetry, arrays, "state", 3)
    assert_array_equal(weights.matrices, np.reshape([arrays[name] for name in sorted(given)], (-1, 3, 3)))
    assert weights.flips == (True,) * len(given)


def test_arrays_that_hold_a_group_on_two_axes_beside_another_are_ignored():
    """Dense connections: the second layer of a stacked cell reads both itself and the layer before, by one array."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.mix = nn.Linear(3, 4), nn.Linear(8, 4, bias=False)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            side, state = torch.relu(self.first(x)), torch.zeros(len(x), 4)
            for _ in range(2):
                state = torch.tanh(self.mix(torch.cat([side, state], dim=1)))
            return self.out(state)

    module = Mixed()
    symmetry = trace(module, torch.zeros(2, 3))
    assert symmetry.groups == {"first": 4, "mix": 4}
    assert recurrent_arrays(symmetry, "mix") == []
    assert ignored_recurrent_arrays(symmetry, "mix") == {"mix.weight"}
    assert ignored_recurrent_arrays(symmetry, "first") == set()
    assert recurrent_weights(symmetry, arrays_of(module), "mix", 4).matrices.shape == (0, 4, 4)


def test_a_group_pulls_at_the_groups_on_the_other_axes_of_its_arrays():
    sizes = (3, 4, 5, 6, 2)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    state = SimpleNamespace(symmetry=trace(module, torch.zeros(2, 3)), fixed_groups=frozenset())
    assert _dependent_groups(state, arrays_of(module)) == {"0": ["2"], "2": ["0", "4"], "4": ["2"]}
    state.fixed_groups = frozenset({"2"})
    assert _dependent_groups(state, arrays_of(module)) == {"0": [], "4": []}


@pytest.mark.parametrize("actions", [("permute",), ("permute", "sign")], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_units_that_stand_only_in_weights_among_themselves_are_matched_by_these(actions, seed):
    """Nothing else tells them apart: the assignment problem is all zeros, and the quadratic one has the answer."""
    rng = np.random.default_rng(seed)
    both = Axis((Segment("state"),), "output"), Axis((Segment("state"),), "input")
    symmetry = Symmetry({"h": Layout(both)}, (Group("state", 4, 0, actions=actions),))
    weights, order = rng.normal(size=(4, 4)), rng.permutation(4)
    signs = rng.choice([-1.0, 1.0], 4) if "sign" in actions else np.ones(4)
    moved = (signs[:, None] * weights * signs)[np.ix_(order, order)]
    networks = tuple(Network({"h": values}, symmetry) for values in (weights, moved))
    ensemble = NetworkEnsemble(networks, np.array([0.5, 0.5]), {"state": 4})
    found = match_weights(ensemble, ["identity", *["random"] * 30], 100, rng, silent, signs="sign" in actions)
    aligned = [network.move(moves)["h"] for network, moves in zip(networks, found.transports, strict=True)]
    assert_allclose(aligned[1], aligned[0], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("signs", [None, (1, 1, 1, 1), (1, -1, 1, 1), (-1, 1, -1, 1), (-1, -1, -1, -1)], ids=str)
def test_a_signed_permutation_is_a_transport(signs):
    """Unit by unit: rows of a plan are slots, its columns units."""
    slots = np.array([2, 0, 3, 1])
    mass = np.zeros((4, 4))
    mass[slots, np.arange(4)] = 0.25
    plan = TransportPlan(mass, None if signs is None else mass * np.array(signs, dtype=float))
    transport = permutation_transport(plan)
    values = np.random.default_rng(0).normal(size=(4, 3))
    expected = 4 * plan.signed_mass @ values
    assert isinstance(transport, Injection)
    assert_allclose(transport.move(values, 0, "output"), expected)
    assert (transport.signs is None) == (signs is None or min(signs) > 0)
