"""Laws of networks as vectors: there and back, combined, and refused where they do not fit."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.landscape.barrier import barrier
from consilience.networks.landscape.parameters import ParameterLayout, interpolate
from consilience.networks.landscape.plane import plane
from tests.networks.landscape_nets import every_kind, make, perceptron, same, snapshot, task
from tests.tolerances import SINGLE_PRECISION


@every_kind
def test_a_network_comes_back_from_its_vector(kind):
    net, other = make(kind, 1), make(kind, 2)
    layout = ParameterLayout.of(net)
    vector = layout.flatten(net)
    assert vector.shape == (layout.size,)
    state = layout.unflatten(vector)
    other.load_state_dict({**other.state_dict(), **state, **{a: state[b] for a, b in layout.tied.items()}})
    floating = {name for name, value in net.state_dict().items() if value.is_floating_point()}
    assert set(state) | set(layout.tied) == floating
    assert all(torch.equal(other.state_dict()[name], net.state_dict()[name]) for name in floating)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_each_tensor_keeps_its_dtype_and_its_bits(dtype):
    net = perceptron()
    net[0].to(dtype)
    state = ParameterLayout.of(net).unflatten(ParameterLayout.of(net).flatten(net))
    assert {name: value.dtype for name, value in state.items()} == {k: v.dtype for k, v in net.state_dict().items()}
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in state.items())


def test_a_tied_tensor_counts_once_in_a_module_and_in_its_state():
    net = make("tied", 1)
    expected = sum(value.numel() for value in net.parameters())
    assert ParameterLayout.of(net).size == ParameterLayout.of(net.state_dict()).size == expected


@pytest.mark.parametrize("lost", ["embed.weight", "out.weight"])
def test_a_tied_tensor_may_be_saved_under_either_name_alone(lost):
    net = make("tied", 1)
    state = {name: value for name, value in net.state_dict().items() if name != lost}
    assert torch.equal(ParameterLayout.of(net).flatten(state), ParameterLayout.of(net).flatten(net))


def test_tensors_that_are_tied_in_one_network_only_are_refused():
    net = make("tied", 1)
    state = {**net.state_dict(), "out.weight": net.out.weight + 1.0}
    with pytest.raises(InputError, match=r"states\[0\]: tensors 'embed.weight' and 'out.weight' differ, but are tied"):
        interpolate(net, [state], [1.0])


def test_a_network_of_the_mean_has_the_mean_of_every_tensor_and_the_counters_of_the_first():
    nets = [make("convolutional", seed) for seed in (1, 2, 3)]
    before = [snapshot(net) for net in nets]
    fused = interpolate(nets[0], [nets[0], nets[1].state_dict(), nets[2]], [0.5, 0.3, 0.2]).state_dict()
    for name, value in fused.items():
        parts = [net.state_dict()[name].double() for net in nets]
        expected = 0.5 * parts[0] + 0.3 * parts[1] + 0.2 * parts[2] if value.is_floating_point() else parts[0]
        assert torch.equal(value, expected.to(value.dtype)) or torch.allclose(
            value.double(), expected, rtol=SINGLE_PRECISION, atol=0.0
        )
    assert all(same(snapshot(net), old) for net, old in zip(nets, before, strict=True))


def test_a_network_of_weight_one_and_a_mean_of_equal_ones_are_exact():
    net_a, net_b = (make("perceptron", seed).double() for seed in (1, 2))
    with torch.no_grad():
        for value in (*net_a.parameters(), *net_b.parameters()):
            value.div_(3.0)  # numbers that need all the digits of float64
    for others, weights in (
        ([net_b, net_a], [0.0, 1.0]),
        ([net_a, net_b], [1.0, 0.0]),
        ([net_a, net_a, net_a], [0.3, 0.6, 0.1]),
    ):
        copied = interpolate(net_a, others, weights).state_dict()
        assert all(torch.equal(copied[name], value) for name, value in net_a.state_dict().items())


def test_the_numbers_of_the_module_play_no_part_where_others_are_combined():
    net, template = make("perceptron", 1), make("perceptron", 2)
    with torch.no_grad():
        template[0].weight.fill_(torch.nan)
    copied = interpolate(template, [net], [1.0]).state_dict()
    assert all(torch.equal(copied[name], value) for name, value in net.state_dict().items())


def test_arrays_do_for_tensors():
    net = make("perceptron", 1)
    arrays = {name: value.numpy() for name, value in net.state_dict().items()}
    assert torch.equal(ParameterLayout.of(net).flatten(arrays), ParameterLayout.of(net).flatten(net))


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [np.nan, 1.0], [[0.5, 0.5]]])
def test_weights_that_are_not_affine_are_refused(weights):
    net = perceptron()
    with pytest.raises(OptionError, match="weights: expected 2 finite numbers of sum one"):
        interpolate(net, [net, net], weights)


def test_frozen_parameters_are_left_out_on_request_when_they_are_the_same():
    net, other = make("perceptron", 1), make("perceptron", 2)
    net[0].weight.requires_grad_(False)
    assert ParameterLayout.of(net, include_frozen=False).size == ParameterLayout.of(net).size - net[0].weight.numel()
    with pytest.raises(InputError, match=r"net_b: frozen tensor '0\.weight' is not that of net_a"):
        barrier(net, other, task("perceptron", net), include_frozen=False)
    with torch.no_grad():
        other[0].weight.copy_(net[0].weight)
    with_it, without = (
        barrier(net, other, task("perceptron", net), points=5, include_frozen=include) for include in (True, False)
    )
    assert_array_equal(with_it.curve(), without.curve())


def spoil(change):
    net = make("perceptron", 1)
    state = dict(net.state_dict())
    change(state)
    return net, state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update({"0.weight": torch.ones(8, 5)}), r"'0.weight' has shape \(8, 5\), expected \(16, 5\)"),
        (lambda s: s.pop("3.bias"), r"has no tensor '3.bias' of shape \(4,\)"),
        (lambda s: s.update({"9.bias": torch.ones(3)}), "has a tensor '9.bias' that the first network lacks"),
        (lambda s: s.update({"3.bias": torch.full((4,), torch.nan)}), "'3.bias' has NaN or infinite values"),
    ],
)
def test_networks_that_do_not_fit_are_refused_with_the_tensor(change, message):
    net, state = spoil(change)
    with pytest.raises(InputError, match=f"net_b: .*{message}"):
        barrier(net, state, task("perceptron", net))
    with pytest.raises(InputError, match=f"net_c: .*{message}"):
        plane(net, net, state, task("perceptron", net))


def test_what_is_no_network_is_refused():
    net = perceptron()
    with pytest.raises(UnsupportedError, match="net_a: expected a torch module to evaluate, found dict"):
        barrier(dict(net.state_dict()), net, task("perceptron", net))
    with pytest.raises(UnsupportedError, match="expected a torch module or a mapping of names to tensors, found int"):
        barrier(net, 3, task("perceptron", net))
    with pytest.raises(InputError, match="no floating-point tensors"):
        barrier(nn.ReLU(), nn.ReLU(), task("perceptron", net))
    with pytest.raises(UnsupportedError, match="tensor 'w' is complex"):
        ParameterLayout.of({"w": torch.ones(2, dtype=torch.complex64)})
    with pytest.raises(InputError, match="vector: expected 196 numbers"):
        ParameterLayout.of(net).unflatten(torch.zeros(3))
