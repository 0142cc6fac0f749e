"""Laws of repaired statistics, measured on inputs."""

from copy import deepcopy

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError
from consilience.networks.repair.channel_statistics import channel_statistics, reestimate_batch_norm, target_statistics
from consilience.networks.repair.repair import repair
from tests.networks.repair_nets import (
    FLOAT64,
    HALVES,
    NETS,
    UNEVEN,
    average,
    digits,
    every_net,
    inputs_for,
    same_state,
    trio,
)
from tests.tolerances import ROUNDING

# -- Batch normalisation.


def test_running_statistics_are_those_of_the_inputs():
    net = NETS["convolutional"]().double()
    inputs = inputs_for("convolutional")
    remeasured = reestimate_batch_norm(net, inputs)
    with torch.no_grad():
        normalised_values = net[0](inputs)
    assert_allclose(remeasured[1].running_mean, normalised_values.mean(dim=(0, 2, 3)), rtol=ROUNDING)
    assert_allclose(remeasured[1].running_var, normalised_values.var(dim=(0, 2, 3)), rtol=ROUNDING)


def test_running_statistics_are_averaged_over_batches_and_do_not_remember():
    net = nn.Sequential(nn.BatchNorm1d(1, momentum=0.25)).double().train()
    net[0].running_mean.fill_(100.0)
    remeasured = reestimate_batch_norm(net, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [8.0]])])
    assert float(remeasured[0].running_mean) == 3.5
    assert float(remeasured[0].running_var) == 5.0
    assert (remeasured[0].momentum, remeasured.training, remeasured[0].training) == (0.25, True, True)
    assert float(net[0].running_mean) == 100.0


def test_a_network_without_batch_normalisation_stays():
    net = NETS["perceptron"]()
    assert same_state(reestimate_batch_norm(net, inputs_for("perceptron")), net)


def test_dropout_is_off_while_statistics_are_estimated():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1)).double().train()
    remeasured = reestimate_batch_norm(net, torch.ones(2, 1).double())
    assert float(remeasured[1].running_mean) == 1.0


def test_batches_of_one_value_are_refused():
    with pytest.raises(InputError, match="larger batches"):
        reestimate_batch_norm(nn.Sequential(nn.BatchNorm1d(2)), [torch.ones(1, 2)])


# -- REPAIR.


@every_net
def test_repaired_channels_meet_their_goals_in_every_layer(kind):
    net_a, net_b, fused, inputs = trio(kind)
    repaired = repair(fused, [net_a, net_b], UNEVEN, inputs.split(37))
    points = list(repaired.factors)
    assert len(points) == {"perceptron": 2, "convolutional": 2, "residual": 3}[kind]
    of_a, of_b = (channel_statistics(model, inputs, points) for model in (net_a, net_b))
    for name, statistics in channel_statistics(repaired.module, inputs, points).items():
        target_mean = 0.3 * of_a[name].mean + 0.7 * of_b[name].mean
        assert_allclose(statistics.mean, target_mean, rtol=FLOAT64, atol=FLOAT64)
        assert_allclose(statistics.std, 0.3 * of_a[name].std + 0.7 * of_b[name].std, rtol=FLOAT64)


@every_net
def test_running_statistics_of_a_repaired_network_are_those_measured(kind):
    net_a, net_b, fused, inputs = trio(kind)
    repaired = repair(fused, [net_a, net_b], UNEVEN, inputs).module
    remeasured = reestimate_batch_norm(repaired, inputs)
    with torch.no_grad():
        # what is left is the correction n / (n - 1) of the running variance, and what later layers make of it
        assert_allclose(remeasured.eval()(inputs), repaired.eval()(inputs), rtol=0.02, atol=0.02)


@every_net
@pytest.mark.parametrize("which", [0, 1])
def test_the_fusion_that_is_one_of_the_models_is_unchanged(kind, which):
    net_a, net_b, _, inputs = trio(kind)
    model = (net_a, net_b)[which]
    weights = [1.0 - which, float(which)]
    with torch.no_grad():
        expected = model.eval()(inputs)
        repaired = repair(model, [net_a, net_b], weights, inputs)
        assert_allclose(repaired.module(inputs), expected, rtol=FLOAT64, atol=FLOAT64)


@every_net
def test_the_networks_are_left_as_they_are_and_the_names_stay(kind):
    net_a, net_b, fused, inputs = trio(kind)
    fused.train()
    before = [deepcopy(net) for net in (net_a, net_b, fused)]
    repaired = repair(fused, [net_a, net_b], UNEVEN, inputs).module
    assert all(same_state(*pair) for pair in zip(before, (net_a, net_b, fused), strict=True))
    assert list(repaired.state_dict()) == list(fused.state_dict())
    assert [part.training for part in repaired.modules()] == [part.training for part in fused.modules()]
    assert not any(part._forward_hooks for net in (net_a, net_b, fused, repaired) for part in net.modules())


def test_passes_from_the_start_find_what_runs_from_layer_to_layer_find():
    net_a, net_b, fused, inputs = trio("convolutional")

    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    expected = repair(fused, [net_a, net_b], UNEVEN, inputs.split(40)).module
    repaired = repair(Wrapped(fused), [Wrapped(net_a), Wrapped(net_b)], UNEVEN, inputs.split(40)).module.net
    anew = [(batch, None) for batch in inputs.split(40)]
    streamed = repair(fused, [net_a, net_b], UNEVEN, torch.utils.data.DataLoader(anew, batch_size=None)).module
    for other in (repaired, streamed):
        for name, values in expected.state_dict().items():
            assert_allclose(other.state_dict()[name], values, rtol=FLOAT64, atol=FLOAT64)


def test_dead_channels_stay():
    net_a, net_b, fused, inputs = trio("perceptron")
    with torch.no_grad():
        fused[0].weight[3] = 0.0
    repaired = repair(fused, [net_a, net_b], UNEVEN, inputs).module
    assert_array_equal(repaired[0].weight[3].detach(), 0.0)
    assert repaired[0].bias[3] == fused[0].bias[3]


def test_units_that_only_one_model_has_meet_the_goals_of_that_model():
    net_a, net_b, _, inputs = trio("perceptron")
    with torch.no_grad():
        for layer in (0, 2):
            net_a[layer].weight[:4] = 0.0
            net_a[layer].bias[:4] = 0.0
    statistics = [channel_statistics(net, inputs, ["0"])["0"] for net in (net_a, net_b)]
    target = target_statistics(statistics, UNEVEN)
    assert_allclose(target.std[:4], statistics[1].std[:4], rtol=ROUNDING)
    assert_allclose(target.std[4:], 0.3 * statistics[0].std[4:] + 0.7 * statistics[1].std[4:], rtol=ROUNDING)


def test_a_layer_without_bias_is_only_scaled_and_said_to_be():
    net_a, net_b, fused = (
        nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 2)).double() for _ in range(3)
    )
    inputs = inputs_for("perceptron") + 1.0
    repaired = repair(fused, [net_a, net_b], UNEVEN, inputs)
    target = target_statistics([channel_statistics(net, inputs, ["0"])["0"] for net in (net_a, net_b)], UNEVEN)
    assert_allclose(channel_statistics(repaired.module, inputs, ["0"])["0"].std, target.std, rtol=FLOAT64)
    ratio = repaired.module[0].weight / fused[0].weight
    assert_allclose(ratio.detach(), ratio[:, :1].detach().expand(7, 5), rtol=FLOAT64)
    assert repaired.notes == {"0": "has no bias: deviations were repaired, means were not"}


def test_the_output_layer_is_repaired_only_when_told():
    net_a, net_b, fused, inputs = trio("perceptron")
    without_output = repair(fused, [net_a, net_b], UNEVEN, inputs).module
    assert_array_equal(without_output[4].weight.detach(), fused[4].weight.detach())
    repaired = repair(fused, [net_a, net_b], UNEVEN, inputs, output=True).module
    target = target_statistics([channel_statistics(net, inputs, ["4"])["4"] for net in (net_a, net_b)], UNEVEN)
    assert_allclose(channel_statistics(repaired, inputs, ["4"])["4"].std, target.std, rtol=FLOAT64)


def test_layers_that_share_weights_or_are_called_twice_are_left_alone_with_a_note():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.again, self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
            self.unused, self.last.weight = nn.Linear(5, 5), self.first.weight

        def forward(self, x):
            return self.last(self.again(self.again(self.first(x))))

    nets = [Twice().double() for _ in range(3)]
    repaired = repair(nets[0], nets[1:], None, inputs_for("perceptron"))
    notes = {"again": "is called 2 times", "unused": "is not called as a module"}
    assert repaired.notes == notes | {"first": "shares its weights", "last": "shares its weights"}
    assert same_state(repaired.module, nets[0])


@pytest.mark.parametrize("batches", [[], iter(()), torch.zeros(0, 5).double(), None])
def test_no_inputs_are_refused(batches):
    net_a, net_b, fused, _ = trio("perceptron")
    with pytest.raises(InputError, match="batch"):
        repair(fused, [net_a, net_b], None, batches)


def test_values_that_are_not_finite_are_refused_with_the_layer():
    net_a, net_b, fused, inputs = trio("perceptron")
    with torch.no_grad():
        fused[2].weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="2: gives NaN"):
        repair(fused, [net_a, net_b], None, inputs)


def test_repair_brings_trained_networks_back():
    """Convolutional networks with batch normalisation on digits: an average of two is worthless before, not after."""
    data = digits("convolutional")
    fused = average(data.aligned, HALVES)
    repaired = repair(fused, data.aligned, None, data.inputs).module
    assert data.accuracy(repaired) > data.accuracy(fused) + 0.1
