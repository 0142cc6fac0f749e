"""Paths between Gaussian posteriors of a network, and the barrier of what is predicted along them."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.gaussian.gaussian_arrays import divergences
from consilience.networks.gaussian.predictive_barrier import (
    GAUSSIAN_PATHS,
    PredictiveBarrier,
    geodesic,
    natural_interpolation,
)
from consilience.networks.landscape.evaluation import Classification
from tests.copies import COPIES
from tests.tolerances import ROUNDING, SINGLE_PRECISION, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

INPUTS, HIDDEN, CLASSES = 3, 6, 4
KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")


def module(hidden: int = HIDDEN) -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)).double().eval()


def posterior(seed: int, variance: float = 0.05, hidden: int = HIDDEN, **told: object) -> cs.BayesianNetwork:
    torch.manual_seed(seed)
    net = module(hidden)
    means = {key: torch.randn_like(values) for key, values in net.named_parameters()}
    variances = {key: variance * (0.2 + torch.rand_like(values)) for key, values in means.items()}
    return cs.BayesianNetwork(net, means, variances, **told)


def permuted(bnn: cs.BayesianNetwork, order: torch.Tensor) -> cs.BayesianNetwork:
    """The same function with its hidden units in another order."""

    def moved(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        first, bias, second, last = (arrays[key] for key in KEYS)
        return dict(zip(KEYS, (first[order], bias[order], second[:, order], last), strict=True))

    return replace(bnn, means=moved(dict(bnn.means)), variances=moved(dict(bnn.variances)))


def labelled(bnn: cs.BayesianNetwork, count: int = 200) -> tuple[torch.Tensor, np.ndarray]:
    """Inputs with the classes that a network predicts."""
    x = torch.randn(count, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return x, bnn.predict(x, samples=64, rng=99).argmax(axis=1)


def w2(one: cs.BayesianNetwork, other: cs.BayesianNetwork) -> float:
    """Wasserstein-2 distance, written out weight by weight."""
    total = 0.0
    for key in one.means:
        total += float(((one.means[key] - other.means[key]) ** 2).sum())
        total += float(((one.variances[key] ** 0.5 - other.variances[key] ** 0.5) ** 2).sum())
    return total**0.5


A, B = posterior(0), posterior(1)


def between(one: cs.BayesianNetwork, other: cs.BayesianNetwork, t: float, path: str) -> cs.BayesianNetwork:
    """The posterior at t on a path of Gaussians."""
    means, variances = {}, {}
    for key in one.means:
        (m0, v0), (m1, v1) = (
            (torch.as_tensor(bnn.means[key]), torch.as_tensor(bnn.variances[key])) for bnn in (one, other)
        )
        means[key], deviation = GAUSSIAN_PATHS[path](m0, v0.sqrt(), m1, v1.sqrt(), t)
        variances[key] = deviation**2
    return replace(one, means=means, variances=variances)


# -- paths


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_distances_along_the_geodesic_are_proportional_to_its_parameter(t: float) -> None:
    middle = between(A, B, t, "wasserstein")
    assert w2(A, middle) == pytest.approx(t * w2(A, B), rel=ROUNDING)
    assert w2(middle, B) == pytest.approx((1.0 - t) * w2(A, B), rel=ROUNDING)


@pytest.mark.parametrize("path", GAUSSIAN_PATHS)
def test_equal_posteriors_have_nothing_else_between_them(path: str) -> None:
    found = between(A, A, 0.3, path)
    for key in A.means:
        assert torch.equal(found.means[key], A.means[key])
        torch.testing.assert_close(found.variances[key], A.variances[key], rtol=ROUNDING, atol=0.0)


def test_the_middle_of_the_geodesic_is_where_the_squared_distances_to_both_are_least() -> None:
    middle = between(A, B, 0.5, "wasserstein")
    means = {key: values.clone().requires_grad_() for key, values in middle.means.items()}
    deviations = {key: values.sqrt().requires_grad_() for key, values in middle.variances.items()}
    total = torch.zeros(())
    for end in (A, B):
        for key in means:
            total = total + ((means[key] - end.means[key]) ** 2).sum()
            total = total + ((deviations[key] - end.variances[key].sqrt()) ** 2).sum()
    total.backward()
    for values in (*means.values(), *deviations.values()):
        assert values.grad is not None
        assert float(values.grad.abs().max()) < ROUNDING


def test_the_middle_of_the_geodesic_is_the_posterior_that_fusion_gives() -> None:
    fusion = cs.fuse([A, B], "w2", example=torch.zeros(1, INPUTS, dtype=torch.float64))
    one, other = fusion.aligned_models
    middle = between(one, other, 0.5, "wasserstein")
    for key in middle.means:
        torch.testing.assert_close(torch.as_tensor(fusion.model.means[key]), middle.means[key])
        torch.testing.assert_close(torch.as_tensor(fusion.model.variances[key]), middle.variances[key])


@pytest.mark.parametrize("t", [0.25, 0.5])
def test_the_natural_path_averages_natural_parameters(t: float) -> None:
    middle = between(A, B, t, "natural")
    for key in A.means:
        (m0, v0), (m1, v1) = ((one.means[key], one.variances[key]) for one in (A, B))
        precision = (1.0 - t) / v0 + t / v1
        torch.testing.assert_close(middle.variances[key], 1.0 / precision)
        torch.testing.assert_close(middle.means[key], ((1.0 - t) * m0 / v0 + t * m1 / v1) / precision)


def test_the_middle_of_the_natural_path_has_the_least_divergences_to_both() -> None:
    middle = between(A, B, 0.5, "natural")

    def divergence(bnn: cs.BayesianNetwork) -> float:
        given = [
            {**one.means, **{f"{key}/deviation": values**0.5 for key, values in one.variances.items()}}
            for one in (bnn, A, B)
        ]
        return sum(sum(divergences("kl", given[0], end).values()) for end in given[1:])

    least = divergence(middle)
    for key in A.means:
        for step in (1e-3, -1e-3):
            means = {**middle.means, key: middle.means[key] + step}
            variances = {**middle.variances, key: middle.variances[key] * (1.0 + step)}
            assert divergence(replace(middle, means=means)) > least
            assert divergence(replace(middle, variances=variances)) > least


def test_a_path_reversed_is_the_path_from_the_other_end() -> None:
    for step in (geodesic, natural_interpolation):
        for one, other in zip(step(1.0, 0.5, -2.0, 2.0, 0.3), step(-2.0, 2.0, 1.0, 0.5, 0.7), strict=True):
            assert one == pytest.approx(other, rel=ROUNDING)


# -- barriers


@pytest.mark.parametrize("path", ["wasserstein", "natural", "mixture"])
def test_equal_posteriors_have_no_barrier(path: str) -> None:
    x, y = labelled(A)
    curve = cs.predictive_barrier(A, A, x, y, path=path, points=5, samples=8)
    for name in curve.values:
        assert curve.height(name) == pytest.approx(0.0, abs=ROUNDING)


def test_ends_of_the_curve_are_what_the_networks_predict() -> None:
    x, y = labelled(A)
    curve = cs.predictive_barrier(A, B, x, y, points=3, samples=16, rng=5)
    for end, bnn in ((0, A), (-1, B)):
        p = bnn.predict(x, samples=16, rng=5)
        assert curve.values["loss"][end] == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), rel=ROUNDING)
        assert curve.values["error"][end] == pytest.approx(100.0 * (p.argmax(axis=1) != y).mean(), rel=ROUNDING)


@pytest.mark.parametrize("path", GAUSSIAN_PATHS)
def test_curves_are_those_of_the_posteriors_between_with_the_same_draws(path: str) -> None:
    x, y = labelled(A)
    curve = cs.predictive_barrier(A, B, x, y, path=path, points=5, samples=6, rng=3)
    for place, t in enumerate(curve.t.tolist()):
        middle = between(A, B, t, path)
        p = middle.predict(x, samples=6, rng=3)[np.arange(len(y)), y]
        assert curve.values["loss"][place] == pytest.approx(-np.log(p).mean(), rel=ROUNDING)
        single = [-np.log(posterior_draw(middle, noise, x)[np.arange(len(y)), y]) for noise in middle.noise(6, 3)]
        assert curve.values["expected_loss"][place] == pytest.approx(np.mean(single), rel=ROUNDING)


def posterior_draw(bnn: cs.BayesianNetwork, noise: dict[str, torch.Tensor], x: torch.Tensor) -> np.ndarray:
    return bnn.logits(x, bnn.state(noise)).softmax(dim=1).numpy()


def test_a_mixture_never_predicts_worse_than_its_parts_on_average() -> None:
    x, y = labelled(A)
    curve = cs.predictive_barrier(A, B, x, y, path="mixture", points=9, samples=8)
    assert curve.excess("loss").max() <= ROUNDING
    assert curve.excess("loss")[4] < -0.01
    np.testing.assert_allclose(curve.excess("expected_loss"), 0.0, atol=ROUNDING)


def test_a_mixture_predicts_the_average_of_what_its_parts_predict() -> None:
    x, y = labelled(A)
    curve = cs.predictive_barrier(A, B, x, y, path="mixture", points=5, samples=8, rng=2)
    one, other = (bnn.predict(x, samples=8, rng=2) for bnn in (A, B))
    for place, t in enumerate(curve.t.tolist()):
        p = (1.0 - t) * one + t * other
        assert curve.values["loss"][place] == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), rel=ROUNDING)
        assert curve.values["error"][place] == pytest.approx(100.0 * (p.argmax(axis=1) != y).mean(), abs=ROUNDING)


@COPIES
@pytest.mark.parametrize("path", GAUSSIAN_PATHS)
def test_a_permuted_copy_has_a_barrier_that_alignment_removes(path: str) -> None:
    sure = posterior(0, variance=1e-3)
    x, y = labelled(sure)
    copy = permuted(sure, torch.tensor([2, 0, 1, 5, 4, 3]))
    before = cs.predictive_barrier(sure, copy, x, y, path=path, points=5, samples=16)
    assert before.height() > 0.1
    fusion = cs.fuse([sure, copy], "w2", example=x[:1])
    after = cs.predictive_barrier(*fusion.aligned_models, x, y, path=path, points=5, samples=16)
    assert after.height() == pytest.approx(0.0, abs=ROUNDING)


def test_networks_without_spread_have_the_barrier_of_their_means() -> None:
    one, other = posterior(0, variance=1e-24), posterior(1, variance=1e-24)
    x, y = labelled(one)
    curve = cs.predictive_barrier(one, other, x, y, points=9, samples=2)
    plain = cs.barrier(one.mean_module(), other.mean_module(), Classification(x, torch.from_numpy(y)), points=9)
    np.testing.assert_allclose(curve.values["loss"], plain.values["loss"], rtol=SINGLE_PRECISION)
    np.testing.assert_allclose(curve.values["expected_loss"], curve.values["loss"], rtol=SINGLE_PRECISION)
    assert curve.height() > 0.1


def test_an_answer_that_no_draw_finds_likely_has_a_finite_loss() -> None:
    net = nn.Linear(1, 2, bias=False).double()
    sure = cs.BayesianNetwork(net, {"weight": torch.tensor([[1e3], [-1e3]]).double()}, {"weight": torch.ones(2, 1)})
    curve = cs.predictive_barrier(sure, sure, torch.ones(1, 1, dtype=torch.float64), [1], points=2, samples=4)
    assert 1900.0 < curve.values["loss"][0] < 2100.0


def test_parts_of_the_inputs_see_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = labelled(A)
    whole = cs.predictive_barrier(A, B, x, y, points=5, samples=4)
    monkeypatch.setattr(
        sys.modules["consilience.networks.gaussian.predictive_barrier"], "_MAX_PROBABILITIES", 70 * 5 * CLASSES
    )
    parts = cs.predictive_barrier(A, B, x, y, points=5, samples=4, batch_size=33)
    for name, curve in whole.values.items():
        np.testing.assert_allclose(parts.values[name], curve, rtol=ROUNDING)


def test_runs_differ_by_their_draws_and_tell_their_error() -> None:
    x, y = labelled(A)
    curve = cs.predictive_barrier(A, B, x, y, points=5, samples=8, repeats=6)
    assert isinstance(curve, PredictiveBarrier)
    alone = [one.excess() for one in curve.runs]
    assert len(alone) == 6
    np.testing.assert_allclose(curve.excess(), np.mean(alone, axis=0), atol=ROUNDING)
    np.testing.assert_allclose(curve.excess_error(), np.std(alone, axis=0, ddof=1) / 6**0.5)
    assert curve.excess_error()[0] == curve.excess_error()[-1] == 0.0
    first = cs.predictive_barrier(A, B, x, y, points=5, samples=8)
    np.testing.assert_array_equal(first.values["loss"], curve.runs[0].values["loss"])
    fresh = cs.predictive_barrier(A, B, x, y, points=5, samples=8, repeats=6, rng=1)
    spread = np.hypot(curve.excess_error()[2], fresh.excess_error()[2])
    assert abs(curve.excess()[2] - fresh.excess()[2]) < STANDARD_ERRORS * spread
    with pytest.raises(InputError, match="repeats=2"):
        first.height_error()


# -- figure A1 of the paper: two Gaussians that are mirror images at y = x, their means on that line


def mirrored() -> list[cs.BayesianNetwork]:
    """Two hidden units with the same means, of deviations 1 and 0.3 in one network, 0.3 and 1 in the other."""
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    means = {name: torch.ones_like(values) for name, values in net.state_dict().items()}
    flat = torch.full((1, 2), 0.01, dtype=torch.float64)
    rows = ([[1.0], [0.09]], [[0.09], [1.0]])
    return [
        cs.BayesianNetwork(net, means, {"0.weight": torch.tensor(row, dtype=torch.float64), "2.weight": flat})
        for row in rows
    ]


@COPIES
@pytest.mark.parametrize(
    ("metric", "order"),
    [("means", [0, 1]), ("w2", [1, 0]), ("kl", [1, 0]), ("kl_reverse", [1, 0]), ("hellinger", [1, 0])],
)
def test_of_mirrored_gaussians_only_a_distance_of_means_leaves_the_units_in_place(metric: str, order: list) -> None:
    fusion = cs.fuse(mirrored(), "w2", metric=metric, example=torch.ones(1, 1, dtype=torch.float64))
    (matching,) = fusion.matching.values()
    assert matching.labels.tolist() == [0, 1, *order]
    if order == [1, 0]:
        one, other = fusion.aligned_models
        assert w2(one, other) == pytest.approx(0.0, abs=ROUNDING)


def test_the_divergence_that_the_paper_prints_lacks_a_term_that_permutations_change() -> None:
    mean, s0, s1 = np.ones(2), np.array([1.0, 0.09]), np.array([0.09, 1.0])  # variances
    traces, gaps = [], []
    for order in permutations(range(2)):
        pick = list(order)
        one, other = {"w": mean, "w/deviation": s1[pick] ** 0.5}, {"w": mean, "w/deviation": s0**0.5}
        whole = sum(divergences("kl", one, other).values())
        gaps.append(whole - 0.5 * float(((mean - mean[pick]) ** 2 / s0).sum()))  # beyond the distance of means
        traces.append(0.5 * float((s1[pick] / s0).sum()))
    assert gaps[0] - gaps[1] == pytest.approx(traces[0] - traces[1], rel=ROUNDING)
    assert gaps[0] - gaps[1] > 4.0


# -- refusals


def test_networks_of_other_widths_are_refused_with_the_remedy() -> None:
    x, y = labelled(A)
    with pytest.raises(InputError, match=r"0\.weight has shape \(6, 3\) in bnn_a, \(5, 3\) in bnn_b.*aligned"):
        cs.predictive_barrier(A, posterior(2, hidden=5), x, y)


def test_networks_of_other_parameters_classes_or_buffers_are_refused() -> None:
    x, y = labelled(A)
    bare = cs.BayesianNetwork(None, {"a": np.ones(2)}, {"a": np.ones(2)})
    with pytest.raises(InputError, match=r"bnn_b has no 0\.weight, which bnn_a has"):
        cs.predictive_barrier(A, bare, x, y)
    names = ("a", "b", "c", "d")
    with pytest.raises(InputError, match="bring them into one order"):
        cs.predictive_barrier(replace(A, classes=names), replace(B, classes=names[::-1]), x, y)
    with pytest.raises(InputError, match=r"expected a consilience\.BayesianNetwork"):
        cs.predictive_barrier(A, module(), x, y)  # type: ignore[arg-type]
    odd = [module() for _ in range(2)]
    for number, net in enumerate(odd):
        net.register_buffer("shift", torch.full((1,), float(number)))
    with pytest.raises(InputError, match="buffer shift is not the same"):
        cs.predictive_barrier(A.with_module(odd[0]), B.with_module(odd[1]), x, y)


def test_what_cannot_be_computed_is_refused() -> None:
    x, y = labelled(A)
    with pytest.raises(OptionError, match="'wasserstein', 'natural', 'mixture', found 'straight'"):
        cs.predictive_barrier(A, B, x, y, path="straight")
    for option, value in (("points", 1), ("samples", 0), ("batch_size", 2.5), ("repeats", 0)):
        with pytest.raises(OptionError, match=option):
            cs.predictive_barrier(A, B, x, y, **{option: value})
    with pytest.raises(UnsupportedError, match="with_module"):
        cs.predictive_barrier(replace(A, module=None), B, x, y)


def test_labels_that_are_no_classes_are_refused() -> None:
    x, y = labelled(A)
    for bad, said in (
        (y + 1, "from 0 to 3.*found 1 to 4|from 0 to 3"),
        (y - 1, "from 0 to 3"),
        (y[:-1], "one for each of 200 inputs"),
        (y + 0.5, "whole numbers"),
        (["a"] * len(y), "whole numbers"),
    ):
        with pytest.raises(InputError, match=said):
            cs.predictive_barrier(A, B, x, bad, points=2, samples=1)
