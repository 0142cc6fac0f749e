"""Laws of anchored batch normalisation."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import consilience as cs
from consilience.networks.fusion import norm_distance
from consilience.networks.repair.anchor import anchor
from consilience.networks.repair.channel_statistics import channel_rows, reestimate_batch_norm
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


# -- Every kind of norm, any number of models, any width.

SHAPES = {"1d": (4,), "1d of sequences": (4, 7), "2d": (4, 5, 3), "3d": (4, 3, 2, 3)}


def normed(kind, seed, dtype=torch.float64):
    """Return a norm of four channels whose every number depends on the seed."""
    generator = torch.Generator().manual_seed(seed)
    norm = getattr(nn, f"BatchNorm{max(1, len(SHAPES[kind]) - 1)}d")(4).to(dtype).eval()
    with torch.no_grad():
        for values in (norm.weight, norm.bias, norm.running_mean):
            values.copy_(torch.randn(4, generator=generator))
        norm.running_var.copy_(torch.rand(4, generator=generator) + 0.1)
    return norm


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, FLOAT64), (torch.float32, FLOAT32)])
def test_every_kind_of_batch_normalisation_keeps_its_function_at_the_mean_of_many_models(kind, dtype, rounding):
    models, fused = [normed(kind, seed, dtype) for seed in range(5)], normed(kind, 9, dtype)
    weights = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    anchored = anchor(fused, models, weights).module
    x = 3.0 * torch.randn(50, *SHAPES[kind], generator=torch.Generator().manual_seed(1), dtype=dtype)
    assert relative_gap(fused, anchored, x) < rounding
    gains, biases = (
        sum(a * value(model).detach() for a, model in zip(weights, models, strict=True))
        for value in (lambda norm: norm.weight.abs(), lambda norm: norm.bias)
    )
    assert_allclose(anchored.weight.detach().abs(), gains, rtol=rounding)
    assert_allclose(anchored.bias.detach(), biases, rtol=rounding, atol=rounding)
    assert (anchored.weight.sign() == fused.weight.sign()).all()
    # In training mode a channel has this deviation and this mean, on whatever inputs.
    answer = channel_rows(anchored, deepcopy(anchored).train()(x))
    assert_allclose(answer.mean(dim=0).detach(), biases, rtol=1e-4, atol=1e-4)
    assert_allclose(answer.std(dim=0, correction=0).detach(), gains, rtol=1e-3)


class Deep(nn.Module):
    """A residual network with batch and group normalisation, dropout, and a branch that is left out at random."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.inner, self.group = nn.Conv2d(6, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.fixed, self.drop = nn.BatchNorm2d(6, affine=False), nn.Dropout2d(0.3)
        self.head, self.survival = nn.Linear(6, 4), 0.8

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        branch = self.drop(self.group(self.inner(x)))
        if self.training:
            branch = branch * (torch.rand(len(x), 1, 1, 1) < self.survival) / self.survival
        return self.head(self.fixed(x + branch).relu().mean(dim=(2, 3)))


def test_group_normalisation_dropout_and_stochastic_depth_are_untouched():
    models = []
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Deep().double()
            for _ in range(3):
                model(inputs_for("convolutional", seed=seed))
            models.append(model.eval())
    fused = average(models, [0.5, 0.3, 0.2]).train()
    anchored = anchor(fused, models, [0.5, 0.3, 0.2]).module
    changed = {key for key, values in anchored.state_dict().items() if not torch.equal(values, fused.state_dict()[key])}
    assert changed <= {f"norm.{key}" for key in ("weight", "bias", "running_mean", "running_var")}
    assert [type(part) for part in anchored.modules()] == [type(part) for part in fused.modules()]
    assert (anchored.drop.p, anchored.survival, anchored.training) == (0.3, 0.8, True)
    fitted = refit(fused, models, [0.5, 0.3, 0.2], inputs_for("convolutional")).module
    assert (fitted.drop.p, fitted.survival, fitted.training, fitted.drop.training) == (0.3, 0.8, True, True)
    assert torch.equal(fitted.group.weight, fused.group.weight)
    assert torch.equal(fitted.norm.num_batches_tracked, fused.norm.num_batches_tracked)


def test_in_a_wider_network_every_channel_has_the_gamma_of_the_models_that_have_it():
    data = digits("convolutional")
    fusion = cs.fuse(
        data.aligned, "consensus", example=data.inputs[:2], inputs=data.inputs[:300], target_widths={"0": 24}
    )
    models = fusion.aligned_models
    norm, of_models = fusion.model[1], [model[1] for model in models]
    has_unit = torch.stack([(one.weight != 0) | (one.bias != 0) for one in of_models]).double()
    assert set(has_unit.sum(dim=0).tolist()) == {1.0, 2.0}
    gains = (has_unit * torch.stack([one.weight.abs() for one in of_models])).sum(dim=0) / has_unit.sum(dim=0)
    assert_allclose(norm.weight.detach().abs(), gains.detach(), rtol=FLOAT32)
    assert not fusion.needs_repair


# -- Whether a fusion says so.


def fused_digits(**options):
    data = digits("convolutional")
    return cs.fuse(data.aligned, "consensus", example=data.inputs[:2], **options)


def test_a_fusion_whose_training_mode_is_another_network_needs_repair():
    data = digits("convolutional")
    averaged = fused_digits(refit=False)
    assert (averaged.has_averaged_statistics, averaged.scales_twice_in_training) == (True, False)
    loud = cs.repair(averaged, 10.0 * data.inputs, kind="refit", rescaled=False)
    loud = cs.repair(loud, 10.0 * data.inputs, kind="repair")
    true = cs.repair(averaged, 10.0 * data.inputs, kind="refit")
    assert (loud.needs_repair, true.needs_repair) == (True, False)
    assert "`train()` is another network" in loud.verdict.text
    assert "anchor" in loud.verdict.remedy
    assert "train()" not in true.verdict.text


def test_the_distance_is_the_written_one():
    generator = np.random.default_rng(0)
    models = [{"n.weight": generator.normal(size=3), "n.bias": generator.normal(size=3)} for _ in range(2)]
    models[1]["n.weight"][2] = models[1]["n.bias"][2] = 0.0  # a unit that only the first has
    fused = {"n.weight": generator.normal(size=3), "n.bias": generator.normal(size=3), "n.running_var": np.ones(3)}
    gains = [0.25 * abs(models[0]["n.weight"][c]) + 0.75 * abs(models[1]["n.weight"][c]) for c in range(2)]
    biases = [0.25 * models[0]["n.bias"][c] + 0.75 * models[1]["n.bias"][c] for c in range(2)]
    gains, biases = [*gains, abs(models[0]["n.weight"][2])], [*biases, models[0]["n.bias"][2]]
    gap = sum((abs(fused["n.weight"][c]) - gains[c]) ** 2 + (fused["n.bias"][c] - biases[c]) ** 2 for c in range(3))
    expected = np.sqrt(gap / sum(gain**2 for gain in gains))
    assert_allclose(norm_distance(fused, models, UNEVEN), expected, rtol=FLOAT64)
    assert norm_distance({"weight": np.ones(2)}, [{}], np.ones(1)) == 0.0
