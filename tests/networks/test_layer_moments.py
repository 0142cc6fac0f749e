"""Laws of moments of layer inputs, which sites send, and of statistics that are predicted from them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors import safe_open
from torch import nn
from torch.nn import functional

from consilience.errors import FileFormatError, InputError
from consilience.networks.repair.channel_statistics import channel_statistics
from consilience.networks.repair.layer_moments import LayerMoments, layer_moments
from consilience.networks.repair.regression import regmean
from consilience.networks.symmetry.transport import Injection, Spread, move, permutation
from consilience.networks.tracing.proof import symmetry
from tests.networks.repair_nets import (
    FLOAT64,
    NETS,
    Residual,
    every_net,
    inputs_for,
    permuted_copy,
    randomised,
    trio,
)


def prediction_errors(net, moments, inputs):
    """Return by layer the larger error of predicted means and of deviations, in units of its RMS deviation."""
    errors = []
    for name, measured in channel_statistics(net, inputs, list(moments.layers)).items():
        layer, of_inputs = net.get_submodule(name), moments.layers[name]
        rows = layer.weight.detach().double().flatten(1)
        bias = 0.0 if layer.bias is None else layer.bias.detach().double()
        mean = rows @ torch.as_tensor(of_inputs.mean) + bias
        std = torch.einsum("kd,de,ke->k", rows, torch.as_tensor(of_inputs.covariance), rows).clamp(min=0).sqrt()
        unit = measured.std.square().mean().sqrt()
        pairs = ((mean, measured.mean), (std, measured.std))
        errors.append(max(float((found - known).square().mean().sqrt() / unit) for found, known in pairs))
    return errors


@every_net
def test_moments_are_those_of_what_layers_are_given(kind):
    net, inputs = randomised(kind, 0), inputs_for(kind)
    moments = layer_moments(net, inputs.split(31))
    name = next(iter(moments.layers))
    layer = net.get_submodule(name)
    rows = inputs
    if isinstance(layer, nn.Conv2d):
        options = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}
        rows = functional.unfold(inputs, layer.kernel_size, **options).transpose(1, 2).flatten(0, 1)
    assert_allclose(moments.layers[name].mean, rows.mean(dim=0), rtol=FLOAT64, atol=FLOAT64)
    assert_allclose(moments.layers[name].covariance, np.cov(rows.T.numpy(), bias=True), rtol=FLOAT64, atol=FLOAT64)
    assert moments.samples == len(inputs)


@every_net
def test_statistics_predicted_for_a_model_from_its_own_moments_are_exact(kind):
    net, inputs = randomised(kind, 0), inputs_for(kind)
    assert max(prediction_errors(net, layer_moments(net, inputs), inputs)) < FLOAT64


def test_moments_move_as_the_network_does():
    for kind, example in (("perceptron", (2, 5)), ("convolutional", (2, 2, 6, 6)), ("residual", (2, 2, 6, 6))):
        net, inputs = randomised(kind, 0), inputs_for(kind)
        traced = symmetry(net, torch.randn(example, dtype=torch.float64))
        rng = np.random.default_rng(1)
        transports = {name: permutation(rng.permutation(size)) for name, size in traced.groups.items()}
        copy = permuted_copy(net, traced, transports)
        moved = layer_moments(net, inputs).moved(traced, transports, traced.groups)
        for name, expected in layer_moments(copy, inputs).layers.items():
            assert_allclose(moved.layers[name].mean, expected.mean, rtol=FLOAT64, atol=FLOAT64)
            assert_allclose(moved.layers[name].covariance, expected.covariance, rtol=FLOAT64, atol=FLOAT64)


@pytest.mark.parametrize("transport", [Injection(np.arange(8), 12), Spread(np.repeat(np.eye(8), 2, axis=0) / 16)])
def test_moments_move_into_a_wider_network_as_its_signals_do(transport):
    net, inputs = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).double(), inputs_for("perceptron")
    traced = symmetry(net, inputs[:2])
    wide = nn.Sequential(nn.Linear(5, transport.width), nn.ReLU(), nn.Linear(transport.width, 3)).double()
    state = net.state_dict()
    wide.load_state_dict(
        {name: move(state[name], traced.layouts[name], {"0": transport}, traced.groups) for name in state}
    )
    moved = layer_moments(net, inputs).moved(traced, {"0": transport}, traced.groups).layers["2"]
    expected = layer_moments(wide, inputs).layers["2"]
    assert_allclose(wide(inputs).detach(), net(inputs).detach(), rtol=FLOAT64, atol=FLOAT64)
    assert_allclose(moved.mean, expected.mean, rtol=FLOAT64, atol=FLOAT64)
    assert_allclose(moved.covariance, expected.covariance, rtol=FLOAT64, atol=FLOAT64)


def test_moments_come_back_from_files(tmp_path):
    net = Residual().double()
    moments = layer_moments(net, inputs_for("residual"))
    moments.save(tmp_path / "moments.safetensors")
    loaded = LayerMoments.load(tmp_path / "moments.safetensors")
    for name, of_layer in moments.layers.items():
        assert_array_equal(loaded.layers[name].mean, of_layer.mean)
        assert_array_equal(loaded.layers[name].covariance, of_layer.covariance)
    for field in ("samples", "skipped"):
        assert getattr(loaded, field) == getattr(moments, field)
    assert list(loaded.layers) == list(moments.layers)
    with safe_open(tmp_path / "moments.safetensors", framework="numpy") as file:
        assert set(file.keys()) == {f"{field}.{name}" for field in ("mean", "covariance") for name in moments.layers}


def test_other_files_are_refused(tmp_path):
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        LayerMoments.load(tmp_path / "other")


def test_moments_over_few_samples_are_refused():
    net, inputs = NETS["perceptron"]().double(), inputs_for("perceptron")
    with pytest.raises(InputError, match="99 samples may betray"):
        layer_moments(net, inputs[:99])
    assert layer_moments(net, inputs[:99], minimum=99).samples == 99


def test_grouped_convolutions_have_no_moments_and_are_named():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(16, 2)).double()
    moments = layer_moments(net, inputs_for("convolutional"))
    assert list(moments.layers) == ["0", "3"]
    assert moments.skipped == {"1": "is a grouped convolution"}


def test_moments_of_other_networks_are_refused():
    net_a, net_b, fused, inputs = trio("perceptron")
    wide = layer_moments(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)).double(), inputs)
    with pytest.raises(InputError, match="moments 1: layer 2 has 3 inputs, but 16 in moments 0"):
        regmean(fused, [net_a, net_b], None, [layer_moments(net_a, inputs), wide])
    with pytest.raises(InputError, match="layer 2 has 3 inputs where the model has 16"):
        regmean(fused, [net_a, net_b], None, [wide, wide])
    with pytest.raises(InputError, match="expected one for each of 2 models, found 1"):
        regmean(fused, [net_a, net_b], None, [wide])
