"""Matching by activations into slots, units without partners, and wider networks of many models."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.networks.methods.by_activations import ActivationSlots, match_to_slots
from consilience.networks.repair import refit
from consilience.networks.repair.partners import layer_shares, unit_shares

ROUNDING = 1e-9
X, Y = (torch.tensor(values) for values in load_digits(return_X_y=True))
X = X.float() / 16


def activations_of(n_models, units, samples=40, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(units, samples)) for _ in range(n_models)]


def spread_within_slots(points, slots, width):
    """The objective by its definition: squared distances of standardised units from the means of their slots."""
    total = 0.0
    rows = [values - values.mean(axis=1, keepdims=True) for values in points]
    rows = [values / np.linalg.norm(values, axis=1, keepdims=True) for values in rows]
    for slot in range(width):
        members = [row for of_model, at in zip(rows, slots, strict=True) for row in of_model[np.asarray(at) == slot]]
        total += sum(np.square(row - np.mean(members, axis=0)).sum() for row in members)
    return total


@pytest.mark.parametrize("width", [4, 6, 12])
def test_units_of_one_model_have_slots_of_their_own(width):
    slots, history = match_to_slots(activations_of(3, 4), width)
    assert all(len(set(of_model.tolist())) == 4 and of_model.max() < width for of_model in slots)
    assert history[-1] == pytest.approx(spread_within_slots(activations_of(3, 4), slots, width), abs=ROUNDING)
    assert all(later <= earlier + ROUNDING for earlier, later in pairwise(history))


def test_where_every_unit_finds_a_slot_of_its_own_nothing_is_merged():
    slots, history = match_to_slots(activations_of(3, 4), 12)
    assert len(np.unique(np.concatenate(slots))) == 12
    assert history[-1] == pytest.approx(0.0, abs=ROUNDING)


@pytest.mark.parametrize("width", [3, 4, 5])
def test_two_models_are_matched_as_the_best_of_all_placements(width):
    points = activations_of(2, 3, seed=width)
    _, history = match_to_slots(points, width)
    best = min(spread_within_slots(points, (range(3), placement), width) for placement in permutations(range(width), 3))
    assert history[-1] == pytest.approx(best, abs=ROUNDING)


def test_renumbered_copies_are_merged_unit_by_unit_in_any_scale():
    (units,) = activations_of(1, 5)
    orders = [np.arange(5), np.array([3, 1, 4, 0, 2]), np.array([4, 3, 2, 1, 0])]
    copies = [scale * units[order] + scale for scale, order in zip((1.0, 7.0, 0.1), orders, strict=True)]
    slots, history = match_to_slots(copies, 8)
    for order, of_model in zip(orders, slots, strict=True):
        assert np.array_equal(of_model, slots[0][order])
    assert history[-1] == pytest.approx(0.0, abs=ROUNDING)


def test_units_that_are_alike_share_a_slot_and_the_others_stand_alone():
    first, second = activations_of(2, 4)
    second[:2] = first[[1, 0]]
    slots, _ = match_to_slots([first, second], 6)
    assert slots[1][:2].tolist() == slots[0][[1, 0]].tolist()
    assert not set(slots[1][2:].tolist()) & set(slots[0].tolist())


# -- Units without a partner.


def test_units_with_partners_keep_all_models_and_the_others_one_in_turn_by_weight():
    alike = activations_of(1, 2)[0]
    unlike = activations_of(3, 6, samples=400, seed=1)
    points = np.stack([np.concatenate([alike, of_model[:, :40]]) for of_model in unlike])
    weights = np.array([0.5, 0.25, 0.25])
    shares = unit_shares(points, weights)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    np.testing.assert_allclose(shares[:, :2], np.repeat(weights[:, None], 2, axis=1))
    assert set(np.unique(shares[:, 2:])) == {0.0, 1.0}
    np.testing.assert_array_equal(shares[:, 2:6].sum(axis=1), [2.0, 1.0, 1.0])


def test_a_model_that_lacks_a_unit_or_has_no_weight_never_owns_it():
    points = np.stack(activations_of(3, 5))
    points[0, :3] = 0.0
    shares = unit_shares(points, np.array([0.5, 0.5, 0.0]))
    assert shares[0, :3].max() == 0.5  # of one member nothing is chosen among
    assert not shares[2].any()


def perceptron(seed, hidden=12):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)).eval()


def test_a_refit_by_shares_gives_a_unit_the_answers_of_its_one_model():
    nets = [perceptron(seed) for seed in range(2)]
    shares = {"0": np.stack([np.r_[np.ones(6), np.zeros(6)], np.r_[np.zeros(6), np.ones(6)]])}
    fitted = refit(perceptron(9), nets, None, X[:500], ridge=0.0, rescaled=False, shares=shares).module
    with torch.no_grad():
        hidden, *of_models = (net[0](X[:500]) for net in (fitted, *nets))
    torch.testing.assert_close(hidden[:, :6], of_models[0][:, :6], atol=1e-4, rtol=0)
    torch.testing.assert_close(hidden[:, 6:], of_models[1][:, 6:], atol=1e-4, rtol=0)


def test_layers_whose_units_have_partners_have_no_shares_of_their_own():
    net = perceptron(0)
    symmetry = cs.symmetry(net, example=X[:2])
    assert layer_shares([net, net], np.array([0.5, 0.5]), symmetry, X[:200]) == {}
    shares = layer_shares([net, perceptron(1)], np.array([0.5, 0.5]), symmetry, X[:200])
    assert set(shares) == {"0"}
    assert shares["0"].shape == (2, 12)


def test_channels_after_a_flattening_have_the_shares_of_their_unit():
    def convolutional(seed):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Flatten(),
            nn.Linear(4 * 16, 10),
        ).eval()  # fmt: skip

    nets, images = [convolutional(0), convolutional(1)], X.reshape(-1, 1, 8, 8)[:100]
    symmetry = cs.symmetry(nets[0], example=images[:2])
    shares = layer_shares(nets, np.array([0.5, 0.5]), symmetry, images)
    # The depthwise layer has the units of the layer before.
    assert {name: of_layer.shape for name, of_layer in shares.items()} == dict.fromkeys(("0", "1", "3"), (2, 4))


# -- Wider networks.


def normed(seed, rows):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), Y[rows]).backward()
        optimizer.step()
    return net.eval()


def test_networks_of_stated_widths_have_a_candidate_of_partial_slots():
    four = [normed(seed, slice(seed, 1200, 4)) for seed in range(4)]
    widths = dict.fromkeys(cs.symmetry(four[0], example=X[:2]).groups, 12)
    stated = cs.fuse(four, target_widths=widths, example=X[:2], inputs=X[1200:], steps=0)
    assert {"refit", "refit_partial"} <= set(stated.candidates)
    assert stated.model[0].out_features == 12


def depthwise(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4),
        nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[seed:800:2]), Y[seed:800:2]).backward()
        optimizer.step()
    return net.eval()


def test_depthwise_networks_have_a_candidate_whose_unpartnered_units_are_one_models():
    fusion = cs.fuse([depthwise(0), depthwise(1)], example=X[:2], inputs=X[1200:], steps=0)
    assert {"refit_partial", "refit_partial_head"} <= set(fusion.candidates)


def test_attention_heads_are_left_to_other_matchings():
    heads = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    other = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    rows = torch.randn(4, 3, 8)
    with pytest.raises(cs.errors.UnsupportedError, match="units inside heads"):
        cs.fuse([heads, other], ActivationSlots(), example=rows, inputs=rows)
