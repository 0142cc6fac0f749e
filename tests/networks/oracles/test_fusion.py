"""Transport and averages of small networks against explicit loops and linear programming."""

import itertools

import numpy as np
import pytest
import torch

import consilience as cs
from tests.networks.fusable_nets import assert_layers, coupling_of, drawn_layers, fused_layers, layers_of, outputs
from tests.networks.references import (
    barycenter,
    barycentric_rows,
    couplings_to_reference,
    four_way_costs,
    plan,
    spread_average,
)
from tests.tolerances import CONVEX_SOLVER, DIFFERENCES, ROUNDING


def as_wide_as(layers):
    """Return the option that makes the fused network as wide as one of the models."""
    return {"target_widths": {str(2 * number): len(weight) for number, (weight, _) in enumerate(layers[:-1])}}


WIDTHS = {"equal": (4, 6, 5, 3), "deep": (3, 5, 4, 6, 2), "one": (4, 5, 3)}
UNEQUAL = [(4, 6, 5, 3), (4, 4, 7, 3), (4, 5, 5, 3)]
SHARES = np.array([0.5, 0.3, 0.2])

# -- OT fusion.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [*WIDTHS.values(), UNEQUAL], ids=[*WIDTHS, "unequal"])
def test_ot_fusion_follows_its_steps(widths, bias):
    models = drawn_layers(widths, 3, bias=bias)
    for reference in range(3):
        if isinstance(widths, list) and reference:
            continue
        couplings = couplings_to_reference(models, reference)
        fusion = fused_layers(models, "ot", weights=SHARES, reference=reference, **as_wide_as(models[reference]))
        for moves, own in zip(fusion.transports, couplings, strict=True):
            for transport, expected in zip(moves.values(), own, strict=True):
                np.testing.assert_allclose(coupling_of(transport), expected, rtol=0, atol=CONVEX_SOLVER)
        assert_layers(layers_of(fusion.model), spread_average(models, couplings, SHARES), 1e-6)


def test_ot_fusion_by_distance_of_normalised_rows_follows_its_steps():
    models = drawn_layers((4, 6, 3), 2, seed=4)
    rows = [np.hstack([weight, bias[:, None]]) for (weight, bias), _ in models]
    for normalize, metric in itertools.product((False, True), ("squared", "euclidean")):
        used = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in rows] if normalize else rows
        costs = ((used[0][:, None] - used[1][None]) ** 2).sum(-1)
        expected = plan(np.sqrt(costs) if metric == "euclidean" else costs)
        fusion = fused_layers(models, "ot", reference=0, normalize=normalize, metric=metric)
        np.testing.assert_allclose(coupling_of(next(iter(fusion.transports[1].values()))), expected, atol=ROUNDING)


def test_both_directions_of_ot_fusion_are_the_same_network_up_to_numbering_with_one_hidden_layer():
    models = drawn_layers((4, 6, 3), 2, seed=5)
    inputs = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    there, back = (fused_layers(models, "ot", reference=index).model for index in (0, 1))
    np.testing.assert_allclose(outputs(there, inputs), outputs(back, inputs), rtol=0, atol=1e-12)


# -- Wasserstein barycenters.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [*WIDTHS.values(), UNEQUAL], ids=[*WIDTHS, "unequal"])
def test_wasserstein_fusion_follows_algorithm_1(widths, bias):
    models = drawn_layers(widths, 3, bias=bias, seed=1)
    layers, couplings, histories = barycenter(models, SHARES, 0)
    fusion = fused_layers(models, "wb", weights=SHARES, reference=0, **as_wide_as(models[0]))
    for moves, own in zip(fusion.transports, couplings, strict=True):
        for transport, expected in zip(moves.values(), own, strict=True):
            np.testing.assert_allclose(coupling_of(transport), expected, rtol=0, atol=CONVEX_SOLVER)
    assert_layers(layers_of(fusion.model), layers, 1e-6)
    assert fusion.objective == pytest.approx(sum(history[-1] for history in histories), rel=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_into_another_width_the_reported_objective_is_that_of_the_reported_couplings(bias):
    """Whatever support it started from, the couplings' own barycenters have the objective that is reported."""
    models = drawn_layers(UNEQUAL, 3, seed=2, bias=bias)
    target = {"0": 8, "2": 9}
    fusion = fused_layers(models, "wb", weights=SHARES, reference=0, target_widths=target)
    befores = [np.eye(4) / 4] * 3
    total = 0.0
    for number, name in enumerate(target):
        plans = [coupling_of(moves[name]) for moves in fusion.transports]
        layers = [model[number] for model in models]
        rows = barycentric_rows(layers, plans, befores, SHARES)
        costs = [four_way_costs(rows, layer, before) for layer, before in zip(layers, befores, strict=True)]
        total += sum(a * (c * p).sum() for a, c, p in zip(SHARES, costs, plans, strict=True))
        for cost, found in zip(costs, plans, strict=True):  # and no plan is better for these rows
            assert (cost * found).sum() == pytest.approx((cost * plan(cost)).sum(), rel=1e-6)
        befores = plans
    assert fusion.objective == pytest.approx(total, rel=1e-6)
    couplings = [[coupling_of(transport) for transport in moves.values()] for moves in fusion.transports]
    assert_layers(layers_of(fusion.model), spread_average(models, couplings, SHARES), 1e-9)


def test_the_update_is_the_minimiser_of_the_objective():
    """Formula (9) against differences of the objective by the tensor, with couplings that are no permutations."""
    models = drawn_layers(UNEQUAL, 3, seed=3)
    fusion = fused_layers(models, "wb", weights=SHARES, reference=0, **as_wide_as(models[0]))
    first, second = ([coupling_of(moves[name]) for moves in fusion.transports] for name in fusion.groups)
    weight, bias = layers_of(fusion.model)[1]
    layers = [model[1] for model in models]

    def value(w, b):
        costs = [four_way_costs((w, b), layer, before) for layer, before in zip(layers, first, strict=True)]
        return sum(a * (c * p).sum() for a, c, p in zip(SHARES, costs, second, strict=True))

    step = 1e-3
    for index in np.ndindex(*weight.shape):
        move = np.zeros_like(weight)
        move[index] = step
        assert abs(value(weight + move, bias) - value(weight - move, bias)) / (2 * step) < DIFFERENCES
    for row in range(len(bias)):
        move = np.zeros_like(bias)
        move[row] = step
        assert abs(value(weight, bias + move) - value(weight, bias - move)) / (2 * step) < DIFFERENCES


def test_one_pass_of_wasserstein_fusion_is_ot_fusion():
    models = drawn_layers((4, 6, 3), 2, seed=6)
    one = fused_layers(models, "wb", reference=0, max_iterations=1)
    other = fused_layers(models, "ot", reference=0)
    assert_layers(layers_of(one.model), layers_of(other.model))


# -- What every weight is averaged over.


@pytest.mark.parametrize("options", [
    {"method": cs.methods.FedMA()}, {"method": cs.methods.Consensus(refit=False, balance=False)},
    {"method": cs.methods.Consensus(refit=False, balance=False), "target_widths": {"0": 9, "2": 9}},
    {"method": cs.methods.FedMA(growth=True, sigma=0.3)},
], ids=["fedma", "consensus", "consensus, wider", "fedma, growing"])  # fmt: skip
def test_every_weight_is_averaged_over_the_models_that_own_the_receiving_unit(options):
    models = drawn_layers(UNEQUAL, 3, seed=14)
    fusion = fused_layers(models, weights=SHARES, **options)
    names = list(fusion.groups)
    expected = []
    for number in range(3):
        out = [fusion.transports[i][names[number]].labels if number < 2 else np.arange(3) for i in range(3)]
        into = [fusion.transports[i][names[number - 1]].labels if number else np.arange(4) for i in range(3)]
        shape = (
            fusion.groups[names[number]] if number < 2 else 3, fusion.groups[names[number - 1]] if number else 4,
        )  # fmt: skip
        weight, bias = np.zeros(shape), np.zeros(shape[0])
        for u in range(shape[0]):
            owners = [i for i in range(3) if u in out[i]]
            share = sum(SHARES[i] for i in owners)
            for i in owners:
                row = list(out[i]).index(u)
                bias[u] += SHARES[i] * models[i][number][1][row] / share
                for column, v in enumerate(into[i]):
                    weight[u, v] += SHARES[i] * models[i][number][0][row, column] / share
        expected.append((weight, bias))
    assert_layers(layers_of(fusion.model), expected)
