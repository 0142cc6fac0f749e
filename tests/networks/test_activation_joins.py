"""Joining of units within and across models, and refits to models whose units are joined."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.errors import UnsupportedError
from consilience.networks.methods.by_activations import ActivationJoins, join_transport, join_units
from consilience.networks.repair import refit
from consilience.networks.repair.partners import joined_layers
from consilience.networks.symmetry.transport import permutation
from consilience.testing import check_transport
from tests.copies import COPIES

ROUNDING = 1e-9
SINGLE_ROUNDING = 1e-4
X, Y = (torch.tensor(values) for values in load_digits(return_X_y=True))
X = X.float() / 16


def activations_of(n_models, units, samples=40, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(units, samples)) for _ in range(n_models)]


def spread_within_slots(points, slots, width):
    """The objective by its definition: squared distances of standardised units from the means of their slots."""
    rows = np.concatenate([values - values.mean(axis=1, keepdims=True) for values in points])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    slots = np.concatenate(slots)
    members = (rows[slots == slot] for slot in range(width))
    return sum(np.square(of_slot - of_slot.mean(axis=0)).sum() for of_slot in members if len(of_slot))


# -- The placement.


@pytest.mark.parametrize(("n_models", "width"), [(1, 3), (3, 4), (3, 6), (4, 5)])
def test_the_objective_is_the_spread_within_slots_and_never_rises(n_models, width):
    points = activations_of(n_models, 6, seed=width)
    slots, history = join_units(points, width)
    assert set(np.concatenate(slots).tolist()) == set(range(width))
    assert history[-1] == pytest.approx(spread_within_slots(points, slots, width), abs=ROUNDING)
    assert all(later <= earlier + ROUNDING for earlier, later in pairwise(history))


@pytest.mark.parametrize("seed", range(4))
def test_units_in_clear_clusters_are_joined_as_the_best_of_all_placements(seed):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, 60))
    points = [centres[rng.integers(3, size=4)] + 0.3 * rng.normal(size=(4, 60)) for _ in range(2)]
    _, history = join_units(points, 3)
    best = min(
        spread_within_slots(points, [np.array(placement[:4]), np.array(placement[4:])], 3)
        for placement in product(range(3), repeat=8)
    )
    assert history[-1] == pytest.approx(best, abs=ROUNDING)


def test_where_every_unit_finds_a_slot_of_its_own_nothing_is_joined():
    slots, history = join_units(activations_of(3, 4), 12)
    assert sorted(np.concatenate(slots).tolist()) == list(range(12))
    assert history == [0.0]


def test_units_that_are_alike_in_one_model_make_room_for_those_without_a_partner():
    first, second = activations_of(2, 3)
    first[1] = 5.0 * first[0] + 1.0
    second[0] = first[2]
    slots, history = join_units([first, second], 4)
    assert slots[0][0] == slots[0][1]
    assert slots[0][2] == slots[1][0]
    assert len(np.unique(np.concatenate(slots))) == 4
    assert history[-1] == pytest.approx(0.0, abs=ROUNDING)


def test_renumbering_units_renumbers_their_slots():
    points = activations_of(3, 5, seed=2)
    order = np.array([3, 1, 4, 0, 2])
    slots, _ = join_units(points, 6)
    moved, _ = join_units([points[0][order], *points[1:]], 6)
    together = [np.equal.outer(np.concatenate(one), np.concatenate(one)) for one in (slots, moved)]
    everywhere = np.r_[order, 5:15]
    np.testing.assert_array_equal(together[0][np.ix_(everywhere, everywhere)], together[1])


def test_joins_are_transports():
    check_transport(join_transport(np.array([2, 0, 2, 2, 1]), 4))


# -- Networks.


def perceptron(seed, hidden=12):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)).eval()


def convolutional(seed, channels=6):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Flatten(),
        nn.Linear(channels * 36, 10),
    )  # fmt: skip
    with torch.no_grad():
        net.train()(X)
    return net.eval()


@COPIES
@pytest.mark.parametrize("make", [perceptron, convolutional])
def test_a_network_with_every_unit_twice_is_joined_into_the_same_function(make):
    single = make(0, 5)
    doubled = make(1, 10)
    state = {}
    for (key, narrow), wide in zip(single.state_dict().items(), doubled.state_dict().values(), strict=True):
        is_head = key == list(single.state_dict())[-2]
        if narrow.shape == wide.shape:
            state[key] = narrow
        elif is_head:  # what reads the units gets half from each
            per_unit = narrow.reshape(10, 5, -1)
            state[key] = torch.cat([per_unit, per_unit], dim=1).reshape(wide.shape) / 2
        else:
            state[key] = torch.cat([narrow, narrow])
    doubled.load_state_dict(state)
    symmetry = cs.symmetry(doubled, example=X[:2])
    ((group, _),) = symmetry.groups.items()
    fusion = cs.fuse([doubled, doubled], ActivationJoins(), symmetry=symmetry, inputs=X[:300], target_widths={group: 5})
    with torch.no_grad():
        torch.testing.assert_close(fusion.model(X), single(X), atol=SINGLE_ROUNDING, rtol=0)


@COPIES
def test_units_inside_heads_are_refused():
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    example = torch.randn(2, 5, 8)
    with pytest.raises(UnsupportedError, match="heads"):
        cs.fuse([net, net], ActivationJoins(), example=example, inputs=torch.randn(20, 5, 8))


# -- Refits to models whose units are joined.


def test_a_refit_to_renumbered_models_is_that_to_aligned_ones():
    nets = [convolutional(seed) for seed in range(3)]
    symmetry = cs.symmetry(nets[0], example=X[:2])
    ((group, width),) = symmetry.groups.items()
    orders = [np.random.default_rng(seed).permutation(width) for seed in range(3)]
    weights, units = np.array([0.5, 0.3, 0.2]), [dict(symmetry.groups)] * 3
    maps, shares = joined_layers(symmetry, [{group: permutation(order)} for order in orders], units, weights)
    aligned = [cs.permute(net, symmetry, {group: order}) for net, order in zip(nets, orders, strict=True)]
    start = convolutional(9)
    expected = refit(start, aligned, weights, X[:400]).module.state_dict()
    found = refit(start, nets, weights, X[:400], shares=shares, maps=maps).module.state_dict()
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, atol=SINGLE_ROUNDING, rtol=SINGLE_ROUNDING)


def test_joined_units_have_the_mean_of_their_answers_every_unit_counting_alike():
    nets = [perceptron(seed, 3) for seed in range(2)]
    symmetry = cs.symmetry(nets[0], example=X[:2])
    ((group, _),) = symmetry.groups.items()
    slots = (np.array([0, 0, 1]), np.array([0, 2, 2]))
    transports = [{group: join_transport(of_model, 3)} for of_model in slots]
    maps, shares = joined_layers(symmetry, transports, [dict(symmetry.groups)] * 2, np.array([0.5, 0.5]))
    fitted = refit(perceptron(9, 3), nets, None, X[:500], ridge=0.0, rescaled=False, shares=shares, maps=maps).module
    with torch.no_grad():
        hidden, one, two = (net[0](X[:500]) for net in (fitted, *nets))
    means = torch.stack([(one[:, 0] + one[:, 1] + two[:, 0]) / 3, one[:, 2], (two[:, 1] + two[:, 2]) / 2], dim=1)
    torch.testing.assert_close(hidden, means, atol=1e-3, rtol=0)


def test_recurrent_networks_are_not_refitted_to_joined_units():
    torch.manual_seed(0)
    net = nn.LSTM(3, 4, batch_first=True).eval()
    with pytest.raises(UnsupportedError, match="recurrent"):
        refit(net, [net, net], None, torch.randn(20, 5, 3), maps={"": [np.eye(4)] * 2})


# -- The default.


def test_four_networks_are_joined_and_three_are_not():
    nets = [perceptron(seed) for seed in range(4)]
    options = {"example": X[:2], "inputs": X[:600], "steps": 0}
    assert {"refit_joined", "refit_joined_head"} <= set(cs.fuse(nets, **options).candidates)
    assert "refit_joined" not in cs.fuse(nets[:3], **options).candidates
