"""Laws of barriers and planes, over networks of several kinds."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError, OptionError
from consilience.networks.landscape.barrier import barrier
from consilience.networks.landscape.parameters import ParameterLayout, interpolate
from consilience.networks.landscape.plane import PlaneAxes, plane
from tests.networks.landscape_nets import (
    OTHER_ORDER,
    every_kind,
    make,
    one_by_one,
    permuted,
    same,
    snapshot,
    task,
)
from tests.tolerances import ROUNDING, SINGLE_PRECISION


def far_apart(count=3, size=7, seed=0):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=size)) for _ in range(count)]


# -- Barriers.


@every_kind
def test_there_is_no_barrier_between_a_network_and_itself(kind):
    net = make(kind, 1)
    curve = barrier(net, deepcopy(net), one_by_one(task(kind, make(kind, 2))))
    assert np.ptp(curve.curve()) == 0.0
    assert curve.height() <= ROUNDING
    assert curve.height("error") <= ROUNDING


def test_a_permuted_copy_has_a_barrier_that_alignment_takes_away():
    net = make("perceptron", 1)
    twin = permuted(net)
    evaluate = task("perceptron", net)
    assert_allclose(evaluate(twin)["loss"], evaluate(net)["loss"], rtol=OTHER_ORDER)
    naive = barrier(net, twin, evaluate)
    assert naive.height() > 0.1
    assert naive.height("error") > 5.0
    order = torch.argsort(torch.randperm(16, generator=torch.Generator().manual_seed(5)))
    aligned = deepcopy(twin)
    with torch.no_grad():
        for layer, name in ((0, "weight"), (0, "bias"), (2, "weight"), (2, "bias")):
            getattr(aligned[layer], name).copy_(getattr(twin[layer], name)[order])
        aligned[3].weight.copy_(twin[3].weight[:, order])
    curve = barrier(net, aligned, evaluate)
    assert curve.height() <= SINGLE_PRECISION
    assert curve.height("error") == 0.0


@every_kind
def test_a_barrier_is_the_same_from_both_ends(kind):
    net_a, net_b = make(kind, 1), make(kind, 2)
    evaluate = task(kind, net_a)
    there, back = barrier(net_a, net_b, evaluate, points=11), barrier(net_b, net_a, evaluate, points=11)
    assert_allclose(there.t, 1.0 - back.t[::-1], atol=ROUNDING)
    assert_allclose(there.curve(), back.curve()[::-1], rtol=OTHER_ORDER)
    measures = ("height", "height_over_maximum", "height_over_mean", "midpoint", "area")
    assert_allclose(
        [there.summary()["loss"][name] for name in measures],
        [back.summary()["loss"][name] for name in measures],
        rtol=OTHER_ORDER,
        atol=OTHER_ORDER,
    )


def test_the_three_barriers_are_ordered_and_not_negative():
    for seed in range(5):
        net_a, net_b = make("perceptron", seed), make("perceptron", seed + 10)
        curve = barrier(net_a, net_b, task("perceptron", net_a), points=7)
        for name in ("loss", "error"):
            assert curve.height(name) >= 0.0
            assert 0.0 <= curve.height_over_maximum(name) <= curve.height_over_mean(name)


def test_the_order_of_the_parameters_does_not_matter():
    nets = [make("perceptron", seed) for seed in (1, 2, 3)]
    states = [dict(reversed(net.state_dict().items())) for net in nets]
    evaluate = task("perceptron", nets[0])
    assert_array_equal(
        barrier(nets[0], nets[1], evaluate, points=4).curve(), barrier(nets[0], states[1], evaluate, points=4).curve()
    )
    vectors = [ParameterLayout.of(nets[0]).flatten(net) for net in nets]
    order = torch.randperm(len(vectors[0]), generator=torch.Generator().manual_seed(0))
    there, other = PlaneAxes.through(*vectors), PlaneAxes.through(*(vector[order] for vector in vectors))
    assert_allclose((there.dx, there.dy, there.skew), (other.dx, other.dy, other.skew), rtol=ROUNDING)
    surfaces = [plane(nets[0], *others, evaluate, points=3) for others in (nets[1:], states[1:])]
    assert_array_equal(*(surface.values["loss"] for surface in surfaces))


@pytest.mark.parametrize("points", [2, 3, 8, 25])
def test_the_ends_and_the_middle_are_always_on_the_line(points):
    net_a, net_b = make("perceptron", 1), make("perceptron", 2)
    evaluate = one_by_one(task("perceptron", net_a))
    curve = barrier(net_a, net_b, evaluate, points)
    assert len(curve.t) == points + (points % 2 == 0)
    assert {0.0, 0.5, 1.0} <= set(curve.t.tolist())
    assert (curve.curve()[0], curve.curve()[-1]) == (evaluate(net_a)["loss"], evaluate(net_b)["loss"])
    middle = evaluate(interpolate(net_a, [net_a, net_b], [0.5, 0.5]))["loss"]
    assert_allclose(curve.midpoint(), middle, rtol=SINGLE_PRECISION)


def test_refining_adds_places_and_never_lowers_the_barrier():
    net_a, net_b = make("perceptron", 1), make("perceptron", 2)
    evaluate = task("perceptron", net_a)
    coarse, fine = (barrier(net_a, net_b, evaluate, points=4, refine=refine) for refine in (False, True))
    assert fine.height() > coarse.height()
    assert len(fine.t) == len(coarse.t) + 12
    assert set(coarse.t) < set(fine.t)
    assert_array_equal(fine.curve("error")[np.isin(fine.t, coarse.t)], coarse.curve("error"))


def test_statistics_are_refreshed_at_every_place_and_only_there():
    net_a, net_b = make("convolutional", 1), make("convolutional", 2)
    evaluate = task("convolutional", net_a)
    seen = []

    def refresh(module):
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.reset_running_stats()
                layer.momentum = None
        module.train()
        with torch.no_grad():
            module(evaluate.inputs)
        seen.append(int(module[1].num_batches_tracked))

    for net in (net_a, net_b):
        refresh(net)
    before = [snapshot(net) for net in (net_a, net_b)]
    seen.clear()
    curve = barrier(net_a, net_b, evaluate, points=5, refresh=refresh)
    assert seen == [1] * 5
    assert all(same(snapshot(net), old) for net, old in zip((net_a, net_b), before, strict=True))
    # The ends had statistics of the same data, so they are what they were; the networks between are not.
    plain = barrier(net_a, net_b, evaluate, points=5)
    assert_allclose(curve.curve()[[0, -1]], plain.curve()[[0, -1]], rtol=OTHER_ORDER)
    assert abs(curve.midpoint() - plain.midpoint()) > 0.01


@pytest.mark.parametrize("points", [1, 0, -3, 2.5, "many"])
def test_a_line_or_grid_needs_two_places(points):
    nets = [make("perceptron", seed) for seed in (1, 2, 3)]
    with pytest.raises(OptionError, match="points: expected a whole number from 2"):
        barrier(*nets[:2], task("perceptron", nets[0]), points=points)
    with pytest.raises(OptionError, match="points: expected a whole number from 2"):
        plane(*nets, task("perceptron", nets[0]), points=points)


# -- Planes.


@every_kind
def test_the_three_networks_are_on_the_plane_with_their_own_values(kind):
    nets = [make(kind, seed) for seed in (1, 2, 3)]
    evaluate = one_by_one(task(kind, nets[0]))
    surface = plane(*nets, evaluate, points=2, margin=0.0, names=("base 1", "base 2", "base 3"))
    first, second, third = surface.markers
    assert [marker.name for marker in surface.markers] == ["base 1", "base 2", "base 3"]
    assert (first.alpha, first.beta, second.beta, third.alpha, third.beta) == (0.0, 0.0, 1.0, 1.0, 0.0)
    assert all(marker.distance == 0.0 for marker in surface.markers)
    assert [dict(marker.values) for marker in surface.markers] == [evaluate(net) for net in nets]
    if 0.0 <= second.alpha <= 1.0:  # then corners of the grid without margin are networks
        assert surface.values["loss"][0, 0] == first.values["loss"]
        assert surface.values["loss"][0, 1] == third.values["loss"]


def test_the_axes_are_orthonormal_and_hold_the_three_points():
    for seed in range(5):
        points = far_apart(seed=seed)
        if seed == 4:  # nearly on a line, where one pass of orthogonalisation is not enough
            points[1] = points[0] + 0.3 * (points[2] - points[0]) + 1e-5 * points[1]
        axes = PlaneAxes.through(*points)
        frame = torch.stack([axes.u, axes.v])
        assert_allclose(frame @ frame.T, np.eye(2), atol=ROUNDING)
        for point, place in zip(points, [(0.0, 0.0), (axes.skew, 1.0), (1.0, 0.0)], strict=True):
            assert_allclose(axes.coordinates(point), (*place, 0.0), atol=1e5 * ROUNDING if seed == 4 else ROUNDING)
            weights = torch.from_numpy(axes.weights(*np.array(place)[:, None])[0])
            assert_allclose(weights @ torch.stack(points), point, atol=ROUNDING)


def test_weights_of_a_place_are_affine_and_one_at_the_networks():
    axes = PlaneAxes.through(*far_apart())
    rng = np.random.default_rng(0)
    assert_allclose(axes.weights(*rng.normal(size=(2, 20))).sum(axis=1), 1.0, rtol=ROUNDING)
    assert_array_equal(axes.weights(np.array([0.0, axes.skew, 1.0]), np.array([0.0, 1.0, 0.0])), np.eye(3))


def test_the_average_of_two_networks_lies_in_the_middle_and_others_at_their_distance():
    evaluate = task("perceptron", make("perceptron", 1))
    nets = [make("perceptron", seed).double() for seed in (1, 2, 3)]
    fused = interpolate(nets[0], [nets[0], nets[2]], [0.5, 0.5])
    outside = make("perceptron", 4).double()
    marked = {"fused": fused, "outside": outside.state_dict()}
    surface = plane(*nets, evaluate, points=2, marked=marked)
    found = {marker.name: marker for marker in surface.markers}
    middle = found["fused"]
    assert_allclose((middle.alpha, middle.beta, middle.distance), (0.5, 0.0, 0.0), atol=10 * ROUNDING)
    assert_allclose(middle.values["loss"], evaluate(fused)["loss"], rtol=ROUNDING)
    vectors = torch.stack([ParameterLayout.of(fused).flatten(net) for net in (*nets, outside)]).numpy()
    sides = (vectors[1:3] - vectors[0]).T
    rest = vectors[3] - vectors[0] - sides @ np.linalg.lstsq(sides, vectors[3] - vectors[0], rcond=None)[0]
    assert_allclose(found["outside"].distance, np.linalg.norm(rest), rtol=10 * ROUNDING)


def test_the_grid_has_its_margin_and_holds_every_network():
    nets = [make("perceptron", seed) for seed in (1, 2, 3)]
    with torch.no_grad():  # the second is beyond the third
        nets[1][0].weight.copy_(nets[0][0].weight + 3.0 * (nets[2][0].weight - nets[0][0].weight))
    surface = plane(*nets, lambda _: {"loss": 1.0}, points=5, margin=0.25)
    skew = surface.markers[1].alpha
    assert skew > 1.0
    assert_allclose(surface.alphas[[0, -1]], [-0.25, skew + 0.25])
    assert_allclose(surface.betas, [-0.25, 0.125, 0.5, 0.875, 1.25])
    assert surface.values["loss"].shape == (5, 5)


def test_networks_that_span_no_plane_are_refused():
    net_a, net_b = make("perceptron", 1), make("perceptron", 2)
    between = interpolate(net_a, [net_a, net_b], [0.3, 0.7])
    evaluate = task("perceptron", net_a)
    with pytest.raises(InputError, match="lie on one line"):
        plane(net_a, between, net_b, evaluate)
    with pytest.raises(InputError, match="lie on one line"):
        plane(net_a, net_a, net_b, evaluate)
    with pytest.raises(InputError, match="are the same network"):
        plane(net_a, net_b, net_a, evaluate)


def test_options_of_a_plane_are_checked():
    nets = [make("perceptron", seed) for seed in (1, 2, 3)]
    evaluate = task("perceptron", nets[0])
    with pytest.raises(OptionError, match="margin: expected a finite number that is not negative, found -1"):
        plane(*nets, evaluate, margin=-1.0)
    with pytest.raises(OptionError, match="names: expected three names that are different"):
        plane(*nets, evaluate, names=("a", "a", "b"))
    with pytest.raises(OptionError, match="names: expected three names that are different"):
        plane(*nets, evaluate, marked={"net_a": nets[0]})
    with pytest.raises(InputError, match=r"marked\['fused'\]: tensor '0.weight' has shape"):
        plane(*nets, evaluate, marked={"fused": nn.Sequential(nn.Linear(2, 2))})
