"""Laws of evaluating networks: many at once as one by one, none of them changed."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError, OptionError
from consilience.networks.landscape.alignment import variance_collapse
from consilience.networks.landscape.barrier import Barrier, barrier
from consilience.networks.landscape.evaluation import BatchedEvaluation, Classification
from consilience.networks.landscape.parameters import ParameterLayout
from consilience.networks.landscape.plane import plane
from tests.networks.landscape_nets import (
    CLASSES,
    OTHER_ORDER,
    Brittle,
    every_kind,
    make,
    one_by_one,
    perceptron,
    same,
    snapshot,
    task,
)
from tests.tolerances import SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)


@every_kind
def test_many_networks_at_once_are_worth_what_each_is_worth(kind):
    nets = [make(kind, seed) for seed in range(5)]
    evaluate = task(kind, nets[0], batch_size=17, models_at_once=2)
    layout = ParameterLayout.of(nets[0])
    states = layout.unflatten(torch.stack([layout.flatten(net) for net in nets]))
    together = evaluate.many(nets[0], states)
    alone = [evaluate(net) for net in nets]
    assert_allclose(together["loss"], [values["loss"] for values in alone], rtol=OTHER_ORDER)
    assert_array_equal(together["error"], [values["error"] for values in alone])


@pytest.mark.parametrize("kind", ["recurrent", "branching"])
def test_networks_that_torch_cannot_vectorise_are_among_these(kind):
    evaluate, net = task(kind, make(kind, 0)), make(kind, 0)
    states = {name: value[None] for name, value in net.state_dict().items()}
    with pytest.raises(RuntimeError):
        torch.vmap(lambda state: torch.func.functional_call(net, state, (evaluate.inputs,)))(states)


@pytest.mark.parametrize(
    ("kind", "calls"), [("perceptron", 3), ("filtered", 3), ("convolutional", 5), ("recurrent", 5), ("branching", 8)]
)
def test_networks_are_evaluated_together_where_that_gains_something(kind, calls):
    net = make(kind, 0)
    seen = []
    net.register_forward_pre_hook(lambda *_: seen.append(1))
    evaluate = task(kind, make(kind, 0), models_at_once=2)
    evaluate.many(net, {name: torch.stack([value] * 5) for name, value in net.state_dict().items()})
    assert len(seen) == calls  # of five: two, two and one; or each by itself; or tried together and then each


@every_kind
def test_curves_and_surfaces_are_the_same_batched_and_one_by_one(kind):
    nets = [make(kind, seed) for seed in (1, 2, 3)]
    evaluate = task(kind, nets[0], models_at_once=7)
    assert isinstance(evaluate, BatchedEvaluation)
    assert not isinstance(one_by_one(evaluate), BatchedEvaluation)
    curves = [barrier(nets[0], nets[1], way, points=9).curve() for way in (evaluate, one_by_one(evaluate))]
    assert_allclose(*curves, rtol=OTHER_ORDER)
    surfaces = [plane(*nets, way, points=4) for way in (evaluate, one_by_one(evaluate))]
    assert_allclose(*(surface.values["loss"] for surface in surfaces), rtol=OTHER_ORDER)


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_networks_are_left_as_they_were_and_evaluated_without_dropout(kind, training):
    nets = [make(kind, seed).train(training) for seed in (1, 2, 3)]
    next(iter(nets[0].children())).train(not training)  # some parts may be in another mode than the whole
    before = [snapshot(net) for net in nets]
    evaluate = task(kind, nets[0])
    first, second = evaluate(nets[0]), evaluate(nets[0])
    barrier(nets[0], nets[1], evaluate, points=3)
    plane(*nets, one_by_one(evaluate), points=2)
    variance_collapse(nets[0], nets[1], evaluate.inputs)
    assert first == second
    assert first["error"] == 0.0
    assert all(same(snapshot(net), old) for net, old in zip(nets, before, strict=True))
    assert not any(module._forward_hooks for net in nets for module in net.modules())


@pytest.mark.parametrize("refresh", [None, nn.Module.train])
def test_every_evaluation_is_handed_networks_in_evaluation_mode(refresh):
    nets = [make("convolutional", seed).train() for seed in (1, 2, 3)]
    mode = {"points": 3, "refresh": refresh}
    training = [barrier(*nets[:2], is_training, **mode).curve(), plane(*nets, is_training, **mode).values["loss"]]
    assert not any(np.any(values) for values in training)


def is_training(net):
    return {"loss": float(any(part.training for part in net.modules()))}


def test_the_batch_size_does_not_matter():
    net = make("perceptron", 1)
    losses = [task("perceptron", make("perceptron", 2), batch_size=size)(net)["loss"] for size in (1, 7, 1000)]
    assert_allclose(losses, losses[0], rtol=SINGLE_PRECISION)


@pytest.mark.parametrize("way", [lambda evaluate: evaluate, one_by_one])
def test_a_network_that_overflows_has_infinite_loss_and_the_error_of_guessing(way):
    evaluate = way(task("perceptron", make("perceptron", 2)))
    curve = barrier(Brittle(1.0), Brittle(-1.0), evaluate, points=5)
    assert_array_equal(np.isfinite(curve.curve()), [True, True, False, True, True])
    assert curve.curve("error")[2] == 100.0 * (1.0 - 1.0 / CLASSES)
    assert (curve.height(), curve.peak(), curve.midpoint(), curve.area()) == (np.inf, 0.5, np.inf, np.inf)
    assert curve.height_over_maximum() == curve.height_over_mean() == np.inf
    assert 0.0 <= curve.height("error") < 100.0


def test_an_infinite_end_has_no_barrier():
    curve = Barrier(np.array([0.0, 0.5, 1.0]), {"loss": np.array([1.0, 2.0, np.inf])})
    assert all(np.isnan(curve.summary()["loss"][name]) for name in ("height", "height_over_mean", "peak", "area"))
    assert np.isnan(curve.height_over_maximum())
    assert curve.midpoint() == 2.0


def test_whatever_an_evaluation_returns_becomes_a_curve_and_nan_becomes_infinite():
    net = make("perceptron", 1)
    curve = barrier(net, net, lambda _: {"regret": torch.tensor(2.0), "odd": float("nan")}, points=2, refine=True)
    assert_array_equal(curve.curve("regret"), [2.0, 2.0, 2.0])
    assert_array_equal(curve.curve("odd"), np.inf)
    with pytest.raises(InputError, match="no curve 'loss'; the evaluation returned regret, odd"):
        curve.height()


@pytest.mark.parametrize("values", [{}, {"loss": "low"}, 3.0, None])
def test_an_evaluation_that_returns_no_numbers_by_name_is_refused(values):
    with pytest.raises(InputError, match="evaluate: expected numbers by name"):
        barrier(perceptron(), perceptron(), lambda _: values)


def test_an_evaluation_that_changes_its_names_is_refused():
    names = iter("abcdefg")
    with pytest.raises(InputError, match="returned other names"):
        barrier(perceptron(), perceptron(), lambda _: {next(names): 1.0}, points=3)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.ones(3, 5), torch.tensor([0, 1]), r"labels: expected \(N,\) for inputs \(N, ...\), found \(3, 5\) and"),
        (torch.ones(0, 5), torch.ones(0, dtype=torch.int64), "labels: expected at least one"),
        (torch.ones(2, 5), torch.tensor([0.0, 1.0]), "labels: expected at least one, all of them whole"),
        (torch.ones(2, 5), torch.tensor([0, -1]), "whole numbers from 0"),
        (torch.ones(2, 5), torch.tensor([0, CLASSES]), f"labels: found {CLASSES}, but the network has {CLASSES}"),
        (torch.ones(2, 3, 5), torch.tensor([0, 1]), r"expected logits of shape \(2, classes\), found \(2, 3, 4\)"),
    ],
)
@pytest.mark.parametrize("batched", [True, False])
def test_data_that_do_not_fit_are_refused(inputs, labels, message, batched):
    def attempt():
        evaluate = Classification(inputs, labels)
        barrier(perceptron(), perceptron(), evaluate if batched else one_by_one(evaluate), points=3)

    with pytest.raises(InputError, match=message):
        attempt()


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"models_at_once": 2.5}])
def test_sizes_of_batches_must_be_counts(options):
    with pytest.raises(OptionError, match=f"{next(iter(options))}: expected a positive whole number"):
        Classification(torch.ones(2, 5), torch.tensor([0, 1]), **options)
