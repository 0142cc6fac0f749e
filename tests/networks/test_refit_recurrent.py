"""Laws of recurrent layers that are fitted to what the aligned models' recurrent layers do, at the mean states."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

import consilience as cs
from consilience.errors import InputError
from consilience.networks.repair.refit import refit
from consilience.networks.repair.repair import repair
from consilience.networks.repair.synthetic_inputs import synthetic_inputs
from tests.networks.recurrent_nets import (
    FORMS,
    Bridged,
    Last,
    Odd,
    Reader,
    Texts,
    error,
    every_form,
    inputs_for,
    outputs,
    randomised,
)
from tests.networks.repair_nets import average, same_state
from tests.tolerances import SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

FLOAT64 = 1e-9
# A system that is drawn by 1e-9 of the mean square towards spoilt weights, and then errors that the steps pass on.
LEAST_RIDGE = 1e-4
HALVES = np.array([0.5, 0.5])
UNEVEN = np.array([0.3, 0.7])

# -- Fitting.


@every_form
@pytest.mark.parametrize("ridge", [0.0, 0.1, 100.0])
def test_a_fusion_that_is_the_model_is_refitted_to_itself(form, ridge):
    net = randomised(Reader(form), 0)
    inputs = inputs_for(net)
    before = deepcopy(net)
    fitted = refit(net, [net, net], UNEVEN, inputs, ridge=ridge)
    assert_allclose(outputs(fitted.module, inputs), outputs(net, inputs), rtol=FLOAT64, atol=FLOAT64)
    assert fitted.notes == {}
    assert same_state(net, before)


@pytest.mark.parametrize("form", ["rnn", "stacked lstm both ways", "gru without bias"])
def test_single_precision_leaves_models_that_are_the_same_as_they_are_on_inputs_that_say_little(form):
    net = randomised(Reader(form), 0).float()
    inputs = inputs_for(net).float() * torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    inputs[..., 1] = inputs[..., 0]
    fitted = refit(net, [net, net], None, inputs, ridge=0.0, rescaled=False).module.recurrent
    # weights that no input tells anything of stay too
    for name, values in net.recurrent.named_parameters():
        if "weight" in name:
            assert_allclose(getattr(fitted, name).detach(), values.detach(), atol=100 * SINGLE_PRECISION)


@every_form
@pytest.mark.parametrize("last", [False, True])
def test_spoilt_weights_are_restored_from_one_model(form, last):
    net, spoilt = randomised(Reader(form, last), 0), randomised(Reader(form, last), 7)
    inputs = inputs_for(net, 400)
    assert error(spoilt, inputs, outputs(net, inputs)) > 0.1
    fitted = refit(spoilt, [net], None, inputs, ridge=0.0).module
    assert_allclose(outputs(fitted, inputs), outputs(net, inputs), atol=LEAST_RIDGE)
    other = inputs_for(net, 10, steps=12, seed=4)
    assert_allclose(outputs(fitted, other), outputs(net, other), atol=LEAST_RIDGE)


def poor(form):
    """Two networks that are alike, their average, and inputs."""
    base = randomised(Reader(form), 0)
    net_a, net_b = (randomised(None, seed, near=base, scale=0.25) for seed in (1, 2))
    return net_a, net_b, average([net_a, net_b], HALVES), inputs_for(base, 300)


@every_form
def test_a_poor_average_is_brought_nearer_to_the_mean_answers(form):
    net_a, net_b, fused, inputs = poor(form)
    target = (outputs(net_a, inputs) + outputs(net_b, inputs)) / 2
    assert error(refit(fused, [net_a, net_b], None, inputs).module, inputs, target) < 0.9 * error(fused, inputs, target)


@pytest.mark.parametrize("form", [form for form in FORMS if "rnn" in form or "stacked" in form])
def test_states_of_rnns_and_of_deeper_layers_are_brought_nearer_to_the_mean_states(form):
    """Not so of one layer with gates: only what is added up before the gates is fitted, not what they make of it."""
    net_a, net_b, fused, inputs = poor(form)
    fitted = refit(fused, [net_a, net_b], None, inputs).module
    states, first, second, after = (outputs(net.recurrent, inputs)[0] for net in (fused, net_a, net_b, fitted))
    target = (first + second) / 2
    assert (after - target).square().mean() < 0.9 * (states - target).square().mean()


def _forced(rows, answers):
    """Weights and biases by numpy's least squares."""
    return np.linalg.lstsq(np.hstack([rows, np.ones((len(rows), 1))]), answers, rcond=None)[0].T


def _numpy(net):
    return [values.detach().numpy() for values in net.recurrent.parameters()]


def _before(net, inputs):
    """States before each step."""
    states = outputs(net.recurrent, inputs)[0].numpy()
    return np.concatenate([np.zeros_like(states[:1]), states[:-1]]).reshape(-1, 6)


def test_an_rnn_is_the_least_squares_fit_at_the_mean_states():
    net_a, net_b = (randomised(Reader("rnn"), seed) for seed in (0, 1))
    inputs, fused = inputs_for(net_a, 200), average([net_a, net_b], UNEVEN)
    fitted = refit(fused, [net_a, net_b], UNEVEN, inputs, ridge=0.0).module.recurrent
    x, before = inputs.numpy().reshape(-1, 5), [_before(net, inputs) for net in (net_a, net_b)]
    target = 0.0
    for weight, net, h in zip(UNEVEN, (net_a, net_b), before, strict=True):
        w, u, b, c = _numpy(net)
        target = target + weight * (x @ w.T + h @ u.T + b + c)
    expected = _forced(np.hstack([x, UNEVEN[0] * before[0] + UNEVEN[1] * before[1]]), target)
    assert_allclose(fitted.weight_ih_l0.detach(), expected[:, :5], rtol=1e-6, atol=1e-6)
    assert_allclose(fitted.weight_hh_l0.detach(), expected[:, 5:-1], rtol=1e-6, atol=1e-6)
    assert_allclose(fitted.bias_ih_l0.detach(), expected[:, -1], rtol=1e-6, atol=1e-6)
    assert_array_equal(fitted.bias_hh_l0.detach(), 0.0)


def test_the_last_gate_of_a_gru_is_fitted_to_input_and_state_apart():
    net_a, net_b = (randomised(Reader("gru"), seed) for seed in (0, 1))
    inputs, fused = inputs_for(net_a, 200), average([net_a, net_b], UNEVEN)
    fitted = refit(fused, [net_a, net_b], UNEVEN, inputs, ridge=0.0).module.recurrent
    before = [_before(net, inputs) for net in (net_a, net_b)]
    target = 0.0
    for weight, net, h in zip(UNEVEN, (net_a, net_b), before, strict=True):
        _, u, _, c = _numpy(net)
        target = target + weight * (h @ u[12:].T + c[12:])
    expected = _forced(UNEVEN[0] * before[0] + UNEVEN[1] * before[1], target)
    assert_allclose(fitted.weight_hh_l0[12:].detach(), expected[:, :-1], rtol=1e-6, atol=1e-6)
    assert_allclose(fitted.bias_hh_l0[12:].detach(), expected[:, -1], rtol=1e-6, atol=1e-6)
    # the input is the same for all, so that the mean of the models' weights answers it
    assert_allclose(fitted.weight_ih_l0[12:].detach(), fused.recurrent.weight_ih_l0[12:].detach(), rtol=1e-6, atol=1e-6)
    assert_array_equal(fitted.bias_hh_l0[:12].detach(), 0.0)


@every_form
def test_batches_do_not_matter_and_few_samples_are_drawn_the_same_for_the_same_seed(form):
    net_a, net_b = (randomised(Reader(form), seed) for seed in (0, 1))
    inputs, fused = inputs_for(net_a, 100), average([net_a, net_b], UNEVEN)
    axis = 0 if net_a.recurrent.batch_first else 1
    whole = refit(fused, [net_a, net_b], UNEVEN, [inputs]).module
    parts = refit(fused, [net_a, net_b], UNEVEN, list(inputs.split(30, dim=axis))).module
    assert_allclose(outputs(parts, inputs), outputs(whole, inputs), rtol=1e-6, atol=1e-6)
    drawn = [refit(fused, [net_a, net_b], UNEVEN, [inputs], patches_per_layer=140, rng=3).module for _ in range(2)]
    assert same_state(*drawn)
    assert not same_state(drawn[0], whole)


def beside(small, wide, number):
    """Write a GRU of 6 units, in place, into one of 12: the first units or the last ones."""
    units = slice(6 * number, 6 * number + 6)
    with torch.no_grad():
        for name, values in small.named_parameters():
            gates = wide.get_parameter(name).unflatten(0, (3, 12))[:, units]
            (gates[..., units] if "weight_hh" in name else gates).copy_(values.unflatten(0, (3, 6)))


def zeros(module):
    for values in module.parameters():
        nn.init.zeros_(values)
    return module.double()


def test_recurrent_networks_side_by_side_still_answer_as_the_ensemble():
    small = [randomised(Reader("gru"), seed) for seed in range(2)]
    wide, aligned = zeros(nn.GRU(5, 12)), []
    for number, net in enumerate(small):
        padded = Reader("gru").eval()
        padded.recurrent, padded.decoder = zeros(nn.GRU(5, 12)), zeros(nn.Linear(12, 3))
        beside(net.recurrent, padded.recurrent, number)
        beside(net.recurrent, wide, number)
        with torch.no_grad():
            padded.decoder.weight[:, 6 * number : 6 * number + 6] = net.decoder.weight
            padded.decoder.bias.copy_(net.decoder.bias)
        aligned.append(padded)
    fused = average(aligned, UNEVEN)
    fused.recurrent = wide
    inputs = inputs_for(fused)
    ensemble = sum(a * outputs(net, inputs) for a, net in zip(UNEVEN, small, strict=True))
    assert_allclose(outputs(fused, inputs), ensemble, atol=FLOAT64)
    fitted = refit(fused, aligned, UNEVEN, inputs).module
    assert_allclose(outputs(fitted, inputs), ensemble, atol=FLOAT64)


def test_layers_that_start_from_states_of_other_layers_are_restored():
    net, spoilt = randomised(Bridged(), 0), randomised(Bridged(), 7)
    inputs = inputs_for(net, 400)
    fitted = refit(spoilt, [net], None, inputs, ridge=0.0)
    assert fitted.notes == {}
    assert_allclose(outputs(fitted.module, inputs), outputs(net, inputs), atol=LEAST_RIDGE)


def test_parts_of_a_sequence_may_answer_with_states_beside_their_output():
    def build():
        return nn.Sequential(
            nn.Embedding(9, 5, padding_idx=0),
            nn.Dropout(0.5),
            nn.LSTM(5, 6, batch_first=True),
            Last(),
            nn.ReLU(inplace=True),
            nn.Linear(6, 4),
            nn.Tanh(),
            nn.Linear(4, 3),
        )

    net, spoilt = randomised(build(), 0), randomised(build(), 7)
    with torch.no_grad():
        spoilt[0].weight.copy_(net[0].weight)
    words = synthetic_inputs([net], None, torch.zeros(1, 8, dtype=torch.int64), 600)
    fitted = refit(spoilt, [net], None, words, ridge=0.0).module
    assert_allclose(outputs(fitted, words), outputs(net, words), atol=LEAST_RIDGE)


# -- What is left alone.


def test_cells_and_layers_that_cannot_be_fitted_keep_the_average_with_a_note():
    net_a, net_b = (randomised(Odd(), seed) for seed in range(2))
    fused = average([net_a, net_b], HALVES)
    inputs = torch.randn(50, 4, 5, dtype=torch.float64)
    notes = {
        "cell": "is called 4 times",
        "once": "is a cell that is called step by step",
        "twice": "is called 2 times",
        "packed": "reads packed sequences",
        "single": "reads a single sequence, no batch",
        "unused": "is not called as a module",
    }
    fitted = refit(fused, [net_a, net_b], None, inputs)
    assert fitted.notes == notes
    for name in notes:
        assert same_state(fitted.module.get_submodule(name), fused.get_submodule(name))
    assert not same_state(fitted.module.decoder, fused.decoder)


def test_layers_of_a_class_that_runs_otherwise_are_not_taken_for_recurrent_ones():
    class Doubled(nn.GRU):
        def forward(self, x):
            states, last = super().forward(2 * x)
            return 2 * states, last

    class Plain(nn.GRU):
        pass

    nets = [randomised(nn.Sequential(kind(5, 6, batch_first=True), Last()), 0) for kind in (Doubled, Plain)]
    spoilt_nets = [randomised(nn.Sequential(kind(5, 6, batch_first=True), Last()), 7) for kind in (Doubled, Plain)]
    inputs = torch.randn(300, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert same_state(refit(spoilt_nets[0], [nets[0]], None, inputs, ridge=0.0).module, spoilt_nets[0])
    fitted = refit(spoilt_nets[1], [nets[1]], None, inputs, ridge=0.0).module
    assert_allclose(outputs(fitted, inputs), outputs(nets[1], inputs), atol=LEAST_RIDGE)


def test_repair_leaves_recurrent_layers_and_their_decoder():
    net_a, net_b = (randomised(Reader("stacked gru both ways"), seed) for seed in range(2))
    fused = average([net_a, net_b], HALVES)
    fitted = repair(fused, [net_a, net_b], None, inputs_for(net_a))
    assert same_state(fitted.module, fused)
    assert same_state(
        repair(fused.recurrent, [net_a.recurrent, net_b.recurrent], None, inputs_for(net_a)).module, fused.recurrent
    )


def test_values_that_are_not_finite_are_refused_with_the_layer():
    net_a, net_b = (randomised(Reader("lstm"), seed) for seed in range(2))
    fused = average([net_a, net_b], HALVES)
    with torch.no_grad():
        net_a.recurrent.weight_ih_l0[0, 0] = float("nan")
    with pytest.raises(InputError, match="recurrent: gives NaN"):
        refit(fused, [net_a, net_b], None, inputs_for(net_a))


# -- The public function.


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_fusing_recurrent_networks_refits_them(kind):
    base = randomised(Texts(kind=kind), 0)
    nets = [randomised(None, seed, near=base, scale=0.2).float() for seed in (1, 2)]
    words = torch.from_numpy(np.random.default_rng(0).integers(1, 12, (300, 8)))
    fusion = cs.fuse(nets, "consensus", example=words[:2], rng=0)
    assert fusion.details["refit"] == "layers fitted on synthetic inputs"
    plain = cs.fuse(nets, "consensus", example=words[:2], rng=0, refit=False)
    target = sum(outputs(net, words) for net in nets) / 2
    assert error(fusion.model, words, target) < error(plain.model, words, target)


def test_fusing_networks_that_read_steps_refits_them():
    base = randomised(Reader("gru", last=True), 0)
    nets = [randomised(None, seed, near=base, scale=0.2).float() for seed in (1, 2)]
    inputs = inputs_for(base, 300).float()
    fusion = cs.fuse(nets, "consensus", example=inputs[:, :2], rng=0)
    assert fusion.details["refit"] == "layers fitted on synthetic inputs"
    plain = cs.fuse(nets, "consensus", example=inputs[:, :2], rng=0, refit=False)
    target = sum(outputs(net, inputs) for net in nets) / 2
    assert error(fusion.model, inputs, target) < error(plain.model, inputs, target)
