"""Laws of anchored batch normalisation."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from consilience.networks.repair.anchor import anchor
from consilience.networks.repair.channel_statistics import reestimate_batch_norm
from consilience.networks.repair.refit import refit
from tests.networks.repair_nets import average, digits, inputs_for, randomised, same_state

HALVES, UNEVEN = np.array([0.5, 0.5]), np.array([0.25, 0.75])
KINDS = ["convolutional", "residual"]
# Lines are written anew in float64, and stored in float64 or float32.
FLOAT64, FLOAT32 = 1e-9, 1e-5


def norms(net):
    return {name: part for name, part in net.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)}


def relative_gap(net, other, inputs):
    with torch.no_grad():
        expected = net.eval()(inputs)
        return float((other.eval()(inputs) - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_function_in_evaluation_stays(kind, dtype):
    models, fused = [randomised(kind, seed).to(dtype) for seed in range(2)], randomised(kind, 7).to(dtype)
    anchored = anchor(fused, models, UNEVEN)
    inputs = inputs_for(kind).to(dtype)
    assert relative_gap(fused, anchored.module, inputs) < (FLOAT64 if dtype == torch.float64 else FLOAT32)
    assert set(anchored.factors) == set(norms(fused))
    assert not anchored.notes


@pytest.mark.parametrize("kind", KINDS)
def test_gamma_and_beta_are_the_mean_of_those_of_the_models(kind):
    models, fused = [randomised(kind, seed) for seed in range(2)], randomised(kind, 7)
    anchored = anchor(fused, models, UNEVEN).module
    for name, norm in norms(anchored).items():
        of_models = [model.get_submodule(name) for model in models]
        gain = sum(a * model.weight.abs() for a, model in zip(UNEVEN, of_models, strict=True)).detach()
        bias = sum(a * model.bias for a, model in zip(UNEVEN, of_models, strict=True)).detach()
        assert_allclose(norm.weight.detach().abs(), gain, rtol=FLOAT64)
        assert_allclose(norm.bias.detach(), bias, rtol=FLOAT64, atol=FLOAT64)
        assert torch.equal(norm.weight.sign(), fused.get_submodule(name).weight.sign())


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_its_own_anchor(kind):
    model = randomised(kind, 0)
    anchored = anchor(model, [model, model]).module
    for name, norm in norms(model).items():
        for key in ("weight", "bias", "running_mean", "running_var"):
            expected = getattr(norm, key).detach()
            assert_allclose(getattr(anchored.get_submodule(name), key).detach(), expected, rtol=FLOAT64, atol=FLOAT64)


def test_networks_are_left_as_they_are():
    models, fused = [randomised("residual", seed) for seed in range(2)], randomised("residual", 7)
    before = deepcopy([*models, fused])
    anchor(fused, models)
    assert all(same_state(net, copy) for net, copy in zip([*models, fused], before, strict=True))


def one_norm(gamma, beta=0.0, mean=0.0, variance=1.0, eps=1e-5):
    norm = nn.BatchNorm1d(1, eps=eps).eval()
    with torch.no_grad():
        for key, value in (("weight", gamma), ("bias", beta), ("running_mean", mean), ("running_var", variance)):
            getattr(norm, key).fill_(value)
    return norm


@pytest.mark.parametrize(
    ("norm", "model"),
    [
        (one_norm(0.0, 3.0, 2.0, 5.0), one_norm(2.0)),  # constant: no line through two points
        (one_norm(2.0, 3.0, 2.0, 5.0), one_norm(0.0, 1.0)),  # nothing to anchor at
        (one_norm(2.0, 3.0, 2.0, 5.0), one_norm(0.0, 0.0)),  # no model has the unit
        (one_norm(1e-25, 3.0, 2.0, 5.0), one_norm(2.0)),  # its variance would be 1e51
    ],
)
def test_channels_that_cannot_be_written_otherwise_stay(norm, model):
    anchored = anchor(norm, [model])
    assert same_state(anchored.module, norm)
    assert anchored.factors[""].item() == 1.0


def test_a_slope_near_zero_keeps_the_function():
    norm, model = one_norm(1e-6, 3.0, 2.0, 5.0), one_norm(2.0, -1.0)
    anchored = anchor(norm, [model]).module
    assert_allclose(anchored.weight.item(), 2.0, rtol=FLOAT32)
    assert relative_gap(norm, anchored, torch.linspace(-5, 5, 7)[:, None]) < FLOAT32


def test_where_eps_alone_is_too_much_variance_gamma_takes_what_is_left():
    norm, model = one_norm(10.0, 0.5, 0.2, 0.0, eps=1e-3), one_norm(1.0, -1.0)
    anchored = anchor(norm, [model]).module
    assert anchored.running_var.item() == 0.0
    assert_allclose(anchored.weight.item(), 10.0, rtol=FLOAT32)
    assert relative_gap(norm, anchored, torch.linspace(-5, 5, 7)[:, None]) < FLOAT32


def test_a_model_without_the_unit_does_not_count():
    anchored = anchor(one_norm(5.0), [one_norm(0.0, 0.0), one_norm(2.0, 1.0)], UNEVEN).module
    assert_allclose([anchored.weight.item(), anchored.bias.item()], [2.0, 1.0], rtol=FLOAT32)


def test_norms_of_one_form_only_stay():
    net = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False))
    net[0].running_var.fill_(4.0)
    anchored = anchor(net, [net])
    assert same_state(anchored.module, net)
    assert anchored.notes == {"1": "keeps no running statistics: it answers by the batch"}


# -- After a refit.


def training_accuracy(data, net):
    copy = deepcopy(net).train()
    with torch.no_grad():
        answers = copy(data.held_out).argmax(dim=1)
    return float((answers == data.labels).double().mean())


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_after_a_refit_gamma_is_that_of_the_models_whatever_the_scale_of_the_inputs(scale):
    data = digits("convolutional")
    refitted = refit(average(data.aligned, HALVES), data.aligned, HALVES, scale * data.inputs).module
    for name, norm in norms(refitted).items():
        gains = sum(model.get_submodule(name).weight.abs() for model in data.aligned) / 2
        assert_allclose(norm.weight.detach().abs(), gains.detach(), rtol=FLOAT32)


def test_after_a_refit_training_mode_and_recalibration_are_no_worse_than_evaluation():
    data = digits("convolutional")
    refitted = refit(average(data.aligned, HALVES), data.aligned, HALVES, data.inputs).module
    assert training_accuracy(data, refitted) > data.accuracy(refitted) - 0.02
    assert data.accuracy(reestimate_batch_norm(refitted, data.inputs)) > data.accuracy(refitted) - 0.01


def test_training_mode_no_longer_multiplies_twice():
    # gamma in units of inputs a hundred times too large, which the running variance undoes in evaluation alone
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)).eval()
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    loud = deepcopy(model)
    with torch.no_grad():
        loud[1].running_var.fill_(1e4)
        loud[1].weight.fill_(100.0)
    anchored = anchor(loud, [model]).module
    loud_deviation, deviation, expected = (
        deepcopy(net).train()(x).std(dim=0).detach() for net in (loud, anchored, model)
    )
    assert (loud_deviation > 50 * expected).all()
    assert_allclose(deviation, expected, rtol=1e-2)
    assert relative_gap(loud, anchored, x) < FLOAT32
