"""Laws of repaired statistics: measured on inputs, and predicted from moments that sites sent instead."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError
from consilience.networks.repair.channel_statistics import channel_statistics, reestimate_batch_norm, target_statistics
from consilience.networks.repair.layer_moments import layer_moments
from consilience.networks.repair.repair import repair, repair_from_moments
from tests.networks.repair_nets import (
    NETS,
    average,
    digits,
    every_net,
    inputs_for,
    randomised,
    same_state,
)
from tests.tolerances import ROUNDING

# Some hundred sums of products in float64, layer after layer.
FLOAT64 = 1e-9
SENT = 1e-3
HALVES = np.array([0.5, 0.5])
UNEVEN = np.array([0.3, 0.7])


def trio(kind, seed=0):
    """Two networks, their average, and inputs."""
    one, two = randomised(kind, seed), randomised(kind, seed + 1)
    return one, two, average([one, two], UNEVEN), inputs_for(kind)


# -- Batch normalisation.


def test_running_statistics_are_those_of_the_inputs():
    net = NETS["convolutional"]().double()
    inputs = inputs_for("convolutional")
    found = reestimate_batch_norm(net, inputs)
    with torch.no_grad():
        given = net[0](inputs)
    assert_allclose(found[1].running_mean, given.mean(dim=(0, 2, 3)), rtol=ROUNDING)
    assert_allclose(found[1].running_var, given.var(dim=(0, 2, 3)), rtol=ROUNDING)


def test_running_statistics_are_averaged_over_batches_and_do_not_remember():
    net = nn.Sequential(nn.BatchNorm1d(1, momentum=0.25)).double().train()
    net[0].running_mean.fill_(100.0)
    found = reestimate_batch_norm(net, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [8.0]])])
    assert float(found[0].running_mean) == 3.5
    assert float(found[0].running_var) == 5.0
    assert (found[0].momentum, found.training, found[0].training) == (0.25, True, True)
    assert float(net[0].running_mean) == 100.0


def test_a_network_without_batch_normalisation_stays():
    net = NETS["perceptron"]()
    assert same_state(reestimate_batch_norm(net, inputs_for("perceptron")), net)


def test_dropout_is_off_while_statistics_are_estimated():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1)).double().train()
    found = reestimate_batch_norm(net, torch.ones(2, 1).double())
    assert float(found[1].running_mean) == 1.0


def test_batches_of_one_value_are_refused():
    with pytest.raises(InputError, match="larger batches"):
        reestimate_batch_norm(nn.Sequential(nn.BatchNorm1d(2)), [torch.ones(1, 2)])


# -- REPAIR.


@every_net
def test_repaired_channels_meet_their_goals_in_every_layer(kind):
    one, two, fused, inputs = trio(kind)
    found = repair(fused, [one, two], UNEVEN, inputs.split(37))
    points = list(found.factors)
    assert len(points) == {"perceptron": 2, "convolutional": 2, "residual": 3}[kind]
    wanted = [channel_statistics(model, inputs, points) for model in (one, two)]
    for name, now in channel_statistics(found.module, inputs, points).items():
        assert_allclose(now.mean, 0.3 * wanted[0][name].mean + 0.7 * wanted[1][name].mean, rtol=FLOAT64, atol=FLOAT64)
        assert_allclose(now.std, 0.3 * wanted[0][name].std + 0.7 * wanted[1][name].std, rtol=FLOAT64)


@every_net
def test_running_statistics_of_a_repaired_network_are_those_measured(kind):
    one, two, fused, inputs = trio(kind)
    found = repair(fused, [one, two], UNEVEN, inputs).module
    again = reestimate_batch_norm(found, inputs)
    with torch.no_grad():
        # what is left is the correction n / (n - 1) of the running variance, and what later layers make of it
        assert_allclose(again.eval()(inputs), found.eval()(inputs), rtol=0.02, atol=0.02)


@every_net
@pytest.mark.parametrize("which", [0, 1])
def test_the_fusion_that_is_one_of_the_models_is_unchanged(kind, which):
    one, two, _, inputs = trio(kind)
    model = (one, two)[which]
    weights = [1.0 - which, float(which)]
    moments = [layer_moments(net, inputs) for net in (one, two)]
    with torch.no_grad():
        expected = model.eval()(inputs)
        found = repair(model, [one, two], weights, inputs)
        assert_allclose(found.module(inputs), expected, rtol=FLOAT64, atol=FLOAT64)
        found = repair_from_moments(model, [one, two], weights, moments)
        assert_allclose(found.module(inputs), expected, rtol=FLOAT64, atol=FLOAT64)


@every_net
def test_the_networks_are_left_as_they_are_and_the_names_stay(kind):
    one, two, fused, inputs = trio(kind)
    fused.train()
    before = [deepcopy(net) for net in (one, two, fused)]
    found = repair(fused, [one, two], UNEVEN, inputs).module
    assert all(same_state(*pair) for pair in zip(before, (one, two, fused), strict=True))
    assert list(found.state_dict()) == list(fused.state_dict())
    assert [part.training for part in found.modules()] == [part.training for part in fused.modules()]
    assert not any(part._forward_hooks for net in (one, two, fused, found) for part in net.modules())


def test_passes_from_the_start_find_what_runs_from_layer_to_layer_find():
    one, two, fused, inputs = trio("convolutional")

    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    expected = repair(fused, [one, two], UNEVEN, inputs.split(40)).module
    found = repair(Wrapped(fused), [Wrapped(one), Wrapped(two)], UNEVEN, inputs.split(40)).module.net
    anew = [(batch, None) for batch in inputs.split(40)]
    streamed = repair(fused, [one, two], UNEVEN, torch.utils.data.DataLoader(anew, batch_size=None)).module
    for other in (found, streamed):
        for name, values in expected.state_dict().items():
            assert_allclose(other.state_dict()[name], values, rtol=FLOAT64, atol=FLOAT64)


def test_dead_channels_stay():
    one, two, fused, inputs = trio("perceptron")
    with torch.no_grad():
        fused[0].weight[3] = 0.0
    found = repair(fused, [one, two], UNEVEN, inputs).module
    assert_array_equal(found[0].weight[3].detach(), 0.0)
    assert found[0].bias[3] == fused[0].bias[3]


def test_units_that_only_one_model_has_meet_the_goals_of_that_model():
    one, two, _, inputs = trio("perceptron")
    with torch.no_grad():
        for layer in (0, 2):
            one[layer].weight[:4] = 0.0
            one[layer].bias[:4] = 0.0
    statistics = [channel_statistics(net, inputs, ["0"])["0"] for net in (one, two)]
    found = target_statistics(statistics, UNEVEN)
    assert_allclose(found.std[:4], statistics[1].std[:4], rtol=ROUNDING)
    assert_allclose(found.std[4:], 0.3 * statistics[0].std[4:] + 0.7 * statistics[1].std[4:], rtol=ROUNDING)


def test_a_layer_without_bias_is_only_scaled_and_said_to_be():
    one, two, fused = (
        nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 2)).double() for _ in range(3)
    )
    inputs = inputs_for("perceptron") + 1.0
    found = repair(fused, [one, two], UNEVEN, inputs)
    goal = target_statistics([channel_statistics(net, inputs, ["0"])["0"] for net in (one, two)], UNEVEN)
    assert_allclose(channel_statistics(found.module, inputs, ["0"])["0"].std, goal.std, rtol=FLOAT64)
    ratio = found.module[0].weight / fused[0].weight
    assert_allclose(ratio.detach(), ratio[:, :1].detach().expand(7, 5), rtol=FLOAT64)
    assert found.notes == {"0": "has no bias: deviations were repaired, means were not"}


def test_the_output_layer_is_repaired_only_when_told():
    one, two, fused, inputs = trio("perceptron")
    kept = repair(fused, [one, two], UNEVEN, inputs).module
    assert_array_equal(kept[4].weight.detach(), fused[4].weight.detach())
    found = repair(fused, [one, two], UNEVEN, inputs, output=True).module
    goal = target_statistics([channel_statistics(net, inputs, ["4"])["4"] for net in (one, two)], UNEVEN)
    assert_allclose(channel_statistics(found, inputs, ["4"])["4"].std, goal.std, rtol=FLOAT64)


def test_layers_that_share_weights_or_are_called_twice_are_left_alone_with_a_note():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.again, self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
            self.unused, self.last.weight = nn.Linear(5, 5), self.first.weight

        def forward(self, x):
            return self.last(self.again(self.again(self.first(x))))

    nets = [Twice().double() for _ in range(3)]
    found = repair(nets[0], nets[1:], None, inputs_for("perceptron"))
    notes = {"again": "is called 2 times", "unused": "is not called as a module"}
    assert found.notes == notes | {"first": "shares its weights", "last": "shares its weights"}
    assert same_state(found.module, nets[0])


@pytest.mark.parametrize("batches", [[], iter(()), torch.zeros(0, 5).double(), None])
def test_no_inputs_are_refused(batches):
    one, two, fused, _ = trio("perceptron")
    with pytest.raises(InputError, match="batch"):
        repair(fused, [one, two], None, batches)


def test_values_that_are_not_finite_are_refused_with_the_layer():
    one, two, fused, inputs = trio("perceptron")
    with torch.no_grad():
        fused[2].weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="2: gives NaN"):
        repair(fused, [one, two], None, inputs)


def test_repair_brings_trained_networks_back():
    """Convolutional networks with batch normalisation on digits: an average of two is worthless before, not after."""
    data = digits("convolutional")
    fused = average(data.aligned, HALVES)
    repaired = repair(fused, data.aligned, None, data.inputs).module
    moments = [layer_moments(net, data.inputs) for net in data.aligned]
    sent = repair_from_moments(fused, data.aligned, None, moments).module
    before, measured, without = (data.accuracy(net) for net in (fused, repaired, sent))
    assert min(measured, without) > before + 0.1
