"""Laws of what is said of couplings and alignments, and of the bound of Theorem C.1."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError, OptionError
from consilience.networks.landscape.alignment import coupling_diagnostics, layer_distances, variance_collapse
from consilience.networks.landscape.bound import OneHiddenLayer, interpolation_bound
from tests.networks.landscape_nets import OTHER_ORDER, every_kind, make, permuted, task
from tests.tolerances import ROUNDING, SINGLE_PRECISION

# -- Couplings and alignments.


def test_a_permutation_is_a_coupling_of_one_partner_each():
    order = np.random.default_rng(0).permutation(9)
    diagnostics = coupling_diagnostics(np.eye(9)[order] / 9)
    assert_array_equal(diagnostics.permutation, order)
    assert (diagnostics.mean_entropy, diagnostics.effective_partners, diagnostics.mean_largest) == (0.0, 1.0, 1.0)
    assert_allclose(
        (diagnostics.distance, diagnostics.off_permutation, diagnostics.row_error, diagnostics.column_error),
        0.0,
        atol=ROUNDING,
    )


def test_the_independent_coupling_has_every_unit_as_partner():
    diagnostics = coupling_diagnostics(np.full((4, 6), 1.0 / 24))
    assert_allclose(diagnostics.mean_entropy, np.log(6), rtol=ROUNDING)
    assert_allclose(diagnostics.effective_partners, 6.0, rtol=ROUNDING)
    assert_allclose(diagnostics.mean_largest, 1.0 / 6.0, rtol=ROUNDING)
    assert diagnostics.permutation is None
    assert np.isnan(diagnostics.distance)
    assert np.isnan(diagnostics.off_permutation)


def test_diagnostics_do_not_depend_on_the_order_of_units():
    rng = np.random.default_rng(1)
    coupling = rng.dirichlet(np.full(36, 0.2)).reshape(6, 6)
    rows, columns = rng.permutation(6), rng.permutation(6)
    one, two = coupling_diagnostics(coupling), coupling_diagnostics(coupling[rows][:, columns])
    for name in ("mean_entropy", "mean_largest", "distance", "off_permutation", "row_error", "column_error"):
        assert_allclose(getattr(one, name), getattr(two, name), rtol=ROUNDING)
    assert_array_equal(columns[two.permutation], one.permutation[rows])


def test_a_row_without_mass_has_no_entropy_and_counts_as_error():
    diagnostics = coupling_diagnostics([[0.5, 0.5], [0.0, 0.0]])
    assert np.isnan(diagnostics.entropy[1])
    assert_allclose(
        (diagnostics.effective_partners, diagnostics.row_error, diagnostics.column_error),
        (2.0, 1.0, 0.0),
        atol=ROUNDING,
    )


@pytest.mark.parametrize("bad", [[1.0, 2.0], [[-1.0, 2.0]], [[np.nan, 1.0]], np.zeros((2, 2)), np.zeros((0, 2))])
def test_what_is_no_coupling_is_refused(bad):
    with pytest.raises(InputError, match="coupling: expected a matrix of finite numbers, not negative"):
        coupling_diagnostics(bad)


def test_alignment_takes_distances_away():
    net = make("perceptron", 1)
    twin = permuted(net)
    diagnostics = layer_distances(net, twin, net.state_dict())
    assert diagnostics.names == tuple(net.state_dict())
    assert_array_equal(diagnostics.after, 0.0)
    assert np.all(diagnostics.before[:-1] > 0.0)
    assert diagnostics.before[-1] == 0.0  # the bias of the output layer, which no permutation moves
    assert_allclose(diagnostics.norm, [value.norm() for value in net.state_dict().values()], rtol=SINGLE_PRECISION)
    with pytest.raises(InputError, match=r"aligned: has no tensor '0\.bias'"):
        layer_distances(net, twin, {"0.weight": net[0].weight})


@every_kind
def test_the_spread_does_not_collapse_between_a_network_and_itself(kind):
    net = make(kind, 1)
    ratios = variance_collapse(net, deepcopy(net), task(kind, net).inputs)
    layers = [name for name, part in net.named_modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    assert list(ratios) == [name for name in layers if (kind, name) != ("branching", "two")]
    assert_allclose(list(ratios.values()), 1.0, rtol=ROUNDING)


def test_the_spread_collapses_between_networks_that_were_not_aligned():
    net_a, net_b = make("convolutional", 1), make("convolutional", 2)
    inputs = task("convolutional", net_a).inputs
    assert all(ratio < 0.9 for ratio in variance_collapse(net_a, net_b, inputs).values())
    for end in (0.0, 1.0):
        assert_allclose(list(variance_collapse(net_a, net_b, inputs, t=end).values()), 1.0, rtol=ROUNDING)
    parts = [variance_collapse(net_a, net_b, inputs, batch_size=size) for size in (7, 1000)]
    assert_allclose(list(parts[0].values()), list(parts[1].values()), rtol=OTHER_ORDER)


def test_a_layer_without_spread_has_no_ratio():
    net_a, net_b = nn.Linear(2, 2), nn.Linear(2, 2)
    assert np.isnan(variance_collapse(nn.Sequential(net_a), nn.Sequential(net_b), torch.ones(1, 2))["0"])


def test_spread_needs_samples():
    net = make("perceptron", 1)
    with pytest.raises(InputError, match="inputs: expected at least one sample"):
        variance_collapse(net, net, torch.ones(0, 5))
    with pytest.raises(OptionError, match="batch_size: expected a positive whole number"):
        variance_collapse(net, net, torch.ones(2, 5), batch_size=0)


# -- The bound.


def test_the_bound_of_a_network_and_its_permuted_copy_is_zero():
    rng = np.random.default_rng(0)
    hidden, output, bias = rng.normal(size=(8, 3)), rng.normal(size=(2, 8)), rng.normal(size=8)
    order = rng.permutation(8)
    net, twin = OneHiddenLayer(hidden[order], output[:, order], bias[order]), OneHiddenLayer(hidden, output, bias)
    assert interpolation_bound(net, twin, radius=2.0).relu > 1.0
    for matching in (order, np.eye(8)[order] / 8):
        bound = interpolation_bound(net, twin, matching, radius=2.0)
        assert (bound.epsilon, bound.eta, bound.linear, bound.relu) == (0.0, 0.0, 0.0, 0.0)


def test_a_bias_is_the_weight_of_one_more_input_that_is_one():
    up, down = (OneHiddenLayer([[0.0]], [1.0], [sign]) for sign in (1.0, -1.0))
    # epsilon = 1, eta = 3/2, |v_2| = 5, r = 2: the constants of the theorem by hand.
    bound = interpolation_bound(OneHiddenLayer([[1.0]], [2.0]), OneHiddenLayer([[3.0]], [5.0]), radius=2.0)
    assert (bound.linear, bound.relu) == (12.0, 32.0)
    # At x = 0 all that differs are the biases: half of s(1) is lost in the middle, and the bound is reached.
    assert interpolation_bound(up, down, radius=0.0).relu / 4.0 == 0.5
    assert_allclose(interpolation_bound(up, down, radius=3.0).radius, np.sqrt(10.0), rtol=ROUNDING)


NET = OneHiddenLayer(np.eye(3), np.ones(3))


@pytest.mark.parametrize(
    ("second", "permutation", "message"),
    [
        (OneHiddenLayer(np.eye(4), np.ones(4)), None, r"expected weights of shapes \(3, 3\) and \(1, 3\)"),
        (OneHiddenLayer(np.eye(3), np.ones(4)), None, "second.output: expected an array of shape"),
        (OneHiddenLayer(np.eye(3), np.ones(3), np.ones(3)), None, r"biases included\), found \(3, 4\)"),
        (OneHiddenLayer(np.eye(3) * np.nan, np.ones(3)), None, "second: has weights that are NaN"),
        (NET, [0, 0, 1], "permutation: expected the numbers 0 to 2 in some order"),
        (NET, [0, 1], "permutation: expected the numbers 0 to 2 in some order"),
        (NET, np.full((3, 3), 1 / 9) + np.eye(3) / 9, "the coupling splits units"),
    ],
)
def test_networks_that_the_theorem_does_not_cover_are_refused(second, permutation, message):
    with pytest.raises(InputError, match=message):
        interpolation_bound(NET, second, permutation, radius=1.0)


@pytest.mark.parametrize("radius", [-1.0, np.inf, "one"])
def test_the_radius_must_be_a_number(radius):
    with pytest.raises(OptionError, match="radius: expected a finite number"):
        interpolation_bound(NET, NET, radius=radius)
