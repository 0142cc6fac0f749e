"""Distillation: what it minimises, what it leaves alone, and that it never returns worse than its start."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.distillation import Distilled, distill, has_batch_norm, part_way
from tests.networks.test_heads import Recurrent, Transformer
from tests.tolerances import ROUNDING


def make(seed=0, norm=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norms = [nn.BatchNorm1d(8)] if norm else []
        net = nn.Sequential(nn.Linear(4, 8), *norms, nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        for layer in net:
            if isinstance(layer, nn.BatchNorm1d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
        return net


def inputs(n=300, seed=1):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def teacher(x, seed=7):
    with torch.no_grad():
        return make(seed).eval()(3 * x).softmax(1)


def distilled(student=None, fit=None, held=None, **options):
    student = make() if student is None else student
    fit, held = inputs() if fit is None else fit, inputs(100, 2) if held is None else held
    return distill(student, fit, teacher(fit), held, teacher(held), **options)


def raw(module):
    return {name: values.numpy().tobytes() for name, values in module.state_dict().items()}


def divergence(module, x):
    with torch.no_grad():
        p = module.eval()(x).double().softmax(1)
    t = teacher(x).double()
    return float((t * (t.log() - p.log())).sum(1).mean())


def test_the_network_comes_nearer_to_its_teacher():
    result = distilled(steps=300, learning_rate=1e-2)
    held = inputs(100, 2)
    assert result.history[0] == pytest.approx(divergence(make(), held), rel=1e-5)
    assert result.history.min() == pytest.approx(divergence(result.module, held), rel=1e-5)
    assert result.history.min() < 0.5 * result.history[0]
    assert (result.steps, result.stopped_by) == (300, "steps")
    assert divergence(result.module, inputs(500, 5)) < divergence(make(), inputs(500, 5))


def test_a_network_that_its_teacher_is_stays_as_it_is():
    student, fit, held = make(), inputs(), inputs(50, 2)
    with torch.no_grad():
        answers = [student.eval()(x).softmax(1) for x in (fit, held)]
    result = distill(student, fit, answers[0], held, answers[1], steps=400)
    assert result.best_step == 0
    assert raw(result.module) == raw(student)


@pytest.mark.parametrize("norm", [False, True])
def test_a_held_out_loss_that_never_falls_returns_the_start(norm):
    student, fit, held = make(norm=norm), inputs(), inputs(50, 2)
    with torch.no_grad():
        own = student.eval()(held).softmax(1)
    result = distill(student, fit, teacher(fit), held, own, steps=400)
    assert (result.best_step, result.stopped_by) == (0, "rises")
    assert len(result.history) == 1 + 3 * (1 + norm)  # of a network with batch normalisation, in each phase
    assert raw(result.module) == raw(student)
    assert result.steps == 75 * (1 + norm)


@pytest.mark.parametrize("norm", [False, True])
def test_the_same_seed_gives_the_same_bytes_and_moves_no_generator(norm):
    state = torch.random.get_rng_state()
    student = make(norm=norm).train()
    before = raw(student)
    one, other = (distilled(student, steps=30, rng=3) for _ in range(2))
    assert raw(one.module) == raw(other.module)
    assert np.array_equal(one.history, other.history)
    assert raw(distilled(student, steps=30, rng=4).module) != raw(one.module)
    assert raw(student) == before
    assert student.training
    assert torch.equal(torch.random.get_rng_state(), state)


def test_buffers_of_batch_normalisation_stay():
    student = make(norm=True)
    assert has_batch_norm(student)
    result = distilled(student, steps=60)
    assert not result.module.training
    for name, values in student.named_buffers():
        assert torch.equal(result.module.state_dict()[name], values)
    assert raw(result.module) != raw(student)


def test_batch_normalisation_may_read_batches_and_nothing_else_is_in_training_mode():
    student, fit = make(norm=True).double(), inputs(10).double()
    targets = teacher(inputs(10)).double()
    targets /= targets.sum(1, keepdim=True)
    options = {"steps": 1, "learning_rate": 1e-3, "batch_size": 10, "batch_statistics": True}
    result = distill(student, fit, targets, fit, targets, **options)
    reference = copy.deepcopy(student).eval()
    reference[1].train()  # alone: dropout stays off
    loss = (targets * (targets.log() - reference(fit).softmax(1).log())).sum(1).mean()
    loss.backward()
    for parameter, fitted in zip(reference.parameters(), result.module.parameters(), strict=True):
        expected = parameter - 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
        torch.testing.assert_close(fitted, expected, rtol=0, atol=1e-9)
    for name, values in reference.named_buffers():
        torch.testing.assert_close(result.module.state_dict()[name], values)
    assert not any(part.training for part in result.module.modules())


def test_batches_of_one_input_have_no_variance_to_read():
    student, x = make(norm=True), inputs()
    with pytest.raises(cs.errors.OptionError, match="batch_size: batch normalisation reads no variance from one input"):
        distill(student, x, teacher(x), x, teacher(x), batch_size=1, batch_statistics=True)
    with pytest.raises(cs.errors.OptionError, match="expected two or more"):
        distill(student, x[:1], teacher(x[:1]), x, teacher(x), batch_statistics=True)
    assert distill(make(), x, teacher(x), x, teacher(x), steps=2, batch_size=1, batch_statistics=True).steps == 2


def test_statistics_that_were_read_from_batches_go_back_with_the_best_network():
    student, fit, held = make(norm=True), inputs(), inputs(50, 2)
    with torch.no_grad():
        own = student.eval()(held).softmax(1)
    result = distill(student, fit, teacher(fit), held, own, steps=400, batch_statistics=True)
    assert (result.best_step, result.stopped_by, result.steps) == (0, "rises", 75)
    assert raw(result.module) == raw(student)


def test_batch_normalisation_has_its_head_trained_first():
    student = make(norm=True)
    body = [name for name in student.state_dict() if not name.startswith("4.")]
    seen = []
    distilled(student, steps=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    # The first of two steps is the head's, at the full rate; the second is everybody's, at a tenth of it.
    moved = distilled(student, steps=2).module.state_dict()
    changes = {name: float((moved[name] - student.state_dict()[name]).abs().max()) for name in moved}
    assert changes["4.weight"] == pytest.approx(1.1e-3, rel=0.1)
    assert all(changes[name] == pytest.approx(1e-4, rel=0.1) for name in body if name.endswith(("weight", "bias")))


def test_parameters_without_gradient_stay_and_keep_their_flag():
    student = make()
    student[0].weight.requires_grad_(False)
    result = distilled(student, steps=50)
    assert torch.equal(result.module[0].weight, student[0].weight)
    assert not torch.equal(result.module[0].bias, student[0].bias)
    assert [p.requires_grad for p in result.module.parameters()] == [False, True, True, True]
    assert all(parameter.grad is None for parameter in result.module.parameters())


def test_the_first_step_is_adams_on_the_divergence():
    student, fit = make().double(), inputs(10).double()
    targets = teacher(inputs(10)).double()
    targets /= targets.sum(1, keepdim=True)
    result = distill(student, fit, targets, fit, targets, steps=1, learning_rate=1e-3, batch_size=10)
    reference = copy.deepcopy(student).eval()
    loss = (targets * (targets.log() - reference(fit).softmax(1).log())).sum(1).mean()
    loss.backward()
    for parameter, fitted in zip(reference.parameters(), result.module.parameters(), strict=True):
        # Adam's first step is the sign of the gradient times the rate, up to its epsilon of 1e-8.
        expected = parameter - 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
        torch.testing.assert_close(fitted, expected, rtol=0, atol=1e-9)


def test_regressions_minimise_the_squared_gap():
    student, fit, held = make(), inputs(), inputs(60, 2)
    result = distill(student, fit, 4 * fit[:, :3], held, 4 * held[:, :3], loss="squared", steps=300, learning_rate=1e-2)
    with torch.no_grad():
        gap = float((result.module(held) - 4 * held[:, :3]).square().mean())
    assert result.history.min() == pytest.approx(gap, rel=1e-5)
    assert gap < 0.8 * result.history[0]


class Positions(Transformer):
    """Answers every position of each input."""

    def forward(self, x):
        return super().forward(x).reshape(len(x), -1, 3)


@pytest.mark.parametrize("kind", [Recurrent, Positions])
def test_recurrent_networks_and_transformers_are_distilled(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        student = kind()
    x = torch.randn(60, 6, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        shape = student.eval()(x).shape
    targets = torch.rand(shape, generator=torch.Generator().manual_seed(1)).square().softmax(-1)
    result = distill(student, x[:40], targets[:40], x[:40], targets[:40], steps=50)
    assert result.history[-1] < result.history[0]


def test_several_arguments_are_given_in_their_order():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make()

        def forward(self, x, y):
            return self.net(x + 2 * y)

    x, y = inputs(100), inputs(100, 9)
    targets = teacher(x + 2 * y)
    result = distill(Sum(), (x, y), targets, (x, y), targets, steps=100)
    assert result.history[-1] < result.history[0]


def test_half_precision_is_kept():
    student = make().to(torch.bfloat16)
    fit = inputs().to(torch.bfloat16)
    result = distill(student, fit, teacher(inputs()), fit, teacher(inputs()), steps=100, learning_rate=1e-2)
    assert all(parameter.dtype == torch.bfloat16 for parameter in result.module.parameters())
    assert result.history.min() < result.history[0]


def test_time_that_is_up_is_said():
    result = distilled(steps=100000, max_seconds=0.05)
    assert isinstance(result, Distilled)
    assert result.stopped_by == "time"
    assert result.steps < 100000
    start = distilled(steps=10, max_seconds=1e-9)
    assert (start.steps, start.best_step, start.stopped_by) == (0, 0, "time")
    assert raw(start.module) == raw(make())
    assert distilled(steps=5, max_seconds=1000).history == pytest.approx(distilled(steps=5).history, rel=ROUNDING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "l1"}, "loss: expected"),
        ({"steps": 0}, "steps: expected a positive integer"),
        ({"batch_size": 2.5}, "batch_size: expected a positive integer"),
        ({"learning_rate": 0}, "learning_rate: expected a positive number"),
        ({"max_seconds": -1}, "max_seconds: expected a positive number"),
        ({"rng": "x"}, "rng"),
    ],
    ids=str,
)
def test_options_that_are_not_what_they_must_be_are_refused(options, message):
    with pytest.raises(cs.errors.OptionError, match=message):
        distilled(**options)


X = inputs(6)
T = teacher(X)
BAD = {
    "too few targets": ((X, T[:5], X, T), "targets: expected one for each of 6 inputs, found 5"),
    "other classes": ((X, T[:, :2], X, T), r"targets: have shape \(2,\) by input, and the network answers \(3,\)"),
    "no probabilities": ((X, 2 * T, X, T), "targets: expected probabilities"),
    "negative": ((X, torch.tensor([[2.0, -0.5, -0.5]]).expand(6, 3), X, T), "targets: expected probabilities"),
    "NaN": ((X, T, X, T * torch.nan), "held_targets: have NaN or infinite values"),
    "no inputs": ((X[:0], T[:0], X, T), "fit_inputs: expected one or more"),
    "inputs of another width": ((X[:, :3], T, X, T), "fit_inputs: Sequential does not take an input such as"),
}


@pytest.mark.parametrize("case", BAD)
def test_targets_and_inputs_that_do_not_fit_are_refused(case):
    arguments, message = BAD[case]
    with pytest.raises(cs.errors.InputError, match=message):
        distill(make(), *arguments)


def test_a_network_without_parameters_to_train_is_refused():
    with pytest.raises(cs.errors.InputError, match="has no parameters to train"):
        distilled(make().requires_grad_(False))


@pytest.mark.parametrize("norm", [False, True])
def test_half_of_the_way_is_the_mean_of_all_that_training_moved(norm):
    before = make(norm=norm)
    after = distilled(before, batch_statistics=norm).module
    kept = [raw(module) for module in (before, after)]
    module = part_way(before, after)
    for key, values in module.state_dict().items():
        one, other = before.state_dict()[key], after.state_dict()[key]
        torch.testing.assert_close(values, (one + other) / 2 if values.is_floating_point() else other)
    assert not module.training
    assert raw(part_way(before, before)) == raw(before)
    assert raw(part_way(before, after, 1.0)) == raw(after)
    assert [raw(module) for module in (before, after)] == kept


def test_weights_that_are_shared_are_halved_once():
    def tied():
        first, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        last.weight = first.weight
        return nn.Sequential(first, last)

    before, after = tied(), tied()
    module = part_way(before, after)
    torch.testing.assert_close(module[0].weight, (before[0].weight + after[0].weight) / 2)
    assert module[0].weight is module[1].weight
