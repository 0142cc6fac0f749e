"""Weight and activation matching of small networks against all permutations."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

import consilience as cs
from tests.networks.fusable_nets import assert_layers, coupling_of, drawn_layers, fused_layers, layers_of
from tests.networks.references import every_order, permuted_layers, plan, squared_distance
from tests.tolerances import DESCENT

# -- Weight matching.


def output_bias_distance(first, second):
    """Return the squared distance of the only arrays that no renumbering moves, which the objective leaves out."""
    return 0.0 if first[-1][1] is None else ((first[-1][1] - second[-1][1]) ** 2).sum()


def moving_distance(first, second):
    return squared_distance(first, second) - output_bias_distance(first, second)


def best_of_all(models):
    """Return the least squared distance of two networks over all orders of all hidden units, and the order."""
    first, second = models
    widths = [len(weight) for weight, _ in first[:-1]]
    return min((squared_distance(first, permuted_layers(second, o)), o) for o in every_order(widths))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", ["rebasin", "consensus"])
def test_one_hidden_layer_is_matched_as_well_as_by_any_permutation(method, bias):
    for seed in range(5):
        models = drawn_layers((3, 5, 2), 2, seed=seed, bias=bias)
        best, order = best_of_all(models)
        constant = output_bias_distance(*models)
        options = {"refit": False, "balance": False} if method == "consensus" else {}
        fusion = fused_layers(models, method, reference=0, **options)
        assert fusion.objective == pytest.approx((best - constant) / 4, rel=1e-9)
        aligned = [layers_of(model) for model in fusion.aligned_models]
        assert squared_distance(*aligned) == pytest.approx(best, rel=1e-9)
        assert_layers(aligned[1], permuted_layers(models[1], order))


@pytest.mark.parametrize("method", ["rebasin", "consensus"])
def test_two_hidden_layers_are_matched_no_better_than_by_the_best_permutations(method):
    reached = 0
    for seed in range(6):
        models = drawn_layers((3, 4, 4, 2), 2, seed=seed)
        best, _ = best_of_all(models)
        options = {"refit": False, "balance": False} if method == "consensus" else {}
        fusion = fused_layers(models, method, restarts=6, **options)
        found = squared_distance(*[layers_of(model) for model in fusion.aligned_models])
        assert fusion.objective == pytest.approx((found - output_bias_distance(*models)) / 4, rel=1e-9)
        assert found >= best - 1e-9
        assert found <= squared_distance(*models) + 1e-9
        reached += found <= best + 1e-9
    assert reached >= 5


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("method", ["rebasin", "consensus"])
def test_no_order_of_one_group_of_one_model_is_better(method, number):
    models = drawn_layers((3, 4, 4, 2), number, seed=number)
    weights = np.arange(1, number + 1) / np.arange(1, number + 1).sum()
    options = {"refit": False, "balance": False} if method == "consensus" else {}
    fusion = fused_layers(models, method, weights=weights, **options)
    aligned = [layers_of(model) for model in fusion.aligned_models]

    def value(networks):
        return sum(
            weights[i] * weights[j] * moving_distance(networks[i], networks[j])
            for i, j in itertools.combinations(range(number), 2)
        )

    reached = value(aligned)
    assert fusion.objective == pytest.approx(reached, rel=1e-9)
    same = list(range(4))
    for model, group, order in itertools.product(range(number), range(2), itertools.permutations(range(4))):
        orders = [list(order) if group == index else same for index in range(2)]
        moved = [permuted_layers(one, orders) if i == model else one for i, one in enumerate(aligned)]
        assert value(moved) >= reached * (1 - DESCENT)


def test_the_distance_is_the_same_from_either_side():
    models = drawn_layers((3, 5, 2), 2, seed=8)
    there, back = (fused_layers(models, "rebasin", reference=index).objective for index in (0, 1))
    assert there == pytest.approx(back, rel=1e-12)


def test_the_objective_of_merging_many_is_the_spread_around_their_mean():
    models = drawn_layers((3, 4, 5, 2), 4, seed=9)
    fusion = fused_layers(models, "rebasin")
    mean = layers_of(fusion.model)
    spread = sum(moving_distance(layers_of(model), mean) for model in fusion.aligned_models) / 4
    assert fusion.objective == pytest.approx(spread, rel=1e-9)


class Recurrent(nn.Module):
    def __init__(self, seed, hidden=4):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.rnn = nn.RNN(3, hidden, batch_first=True).double()
            self.out = nn.Linear(hidden, 2).double()

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def test_recurrent_units_on_both_axes_are_matched_near_the_best_of_all_permutations():
    inputs = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    symmetry = cs.symmetry(Recurrent(0), inputs)
    (group,) = symmetry.groups
    reached = 0
    for seed in range(6):
        models = [Recurrent(2 * seed).eval(), Recurrent(2 * seed + 1).eval()]
        first = models[0].state_dict()

        def distance(order, first=first, second=models[1]):
            moved = cs.permute(second, symmetry, {group: list(order)}).state_dict()
            return sum(((first[key] - moved[key]) ** 2).sum().item() for key in first if key != "out.bias")

        best = min(distance(order) for order in itertools.permutations(range(4)))
        fusion = cs.fuse(models, method="rebasin", symmetry=symmetry, reference=0, restarts=4)
        order = fusion.transports[1][group].order
        assert fusion.objective == pytest.approx(distance(order) / 4, rel=1e-9)
        assert distance(order) >= best - 1e-9
        assert distance(order) <= distance(range(4)) + 1e-9
        reached += distance(order) <= best + 1e-9
    assert reached >= 5


# -- Activations.


def hidden_outputs(layers, x):
    """Return what hidden units give after ReLU, by layer (k, m)."""
    result = []
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, 0.0)
        result.append(x.T)
    return result


@pytest.mark.parametrize("cost", ["activations", "correlation"])
def test_activations_are_matched_by_their_products(cost):
    models = drawn_layers((3, 5, 6, 2), 3, seed=10)
    x = np.random.default_rng(0).normal(size=(40, 3))
    given = [hidden_outputs(model, x) for model in models]
    fusion = fused_layers(models, "rebasin", cost=cost, reference=0, inputs=torch.tensor(x))
    for model in (1, 2):
        for number, name in enumerate(fusion.groups):
            one, other = given[0][number], given[model][number]
            if cost == "correlation":
                one, other = (
                    np.nan_to_num((z - z.mean(1, keepdims=True)) / np.where(z.std(1) > 0, z.std(1), 1)[:, None])
                    for z in (one, other)
                )
            products = one @ other.T / x.shape[0]
            columns = linear_sum_assignment(products, maximize=True)[1]
            order = fusion.transports[model][name].order
            value = products[np.arange(len(order)), order].sum()
            assert value == pytest.approx(products[np.arange(len(order)), columns].sum(), rel=1e-9)


def test_ot_fusion_by_activations_compares_what_units_give():
    models = drawn_layers((3, 5, 6, 2), 2, seed=11)
    x = np.random.default_rng(0).normal(size=(40, 3))
    given = [hidden_outputs(model, x) for model in models]
    for metric in ("squared", "euclidean"):
        fusion = fused_layers(models, "ot", cost="activations", metric=metric, reference=0, inputs=torch.tensor(x))
        for number, name in enumerate(fusion.groups):
            costs = ((given[0][number][:, None] - given[1][number][None]) ** 2).sum(-1)
            costs = np.sqrt(costs) if metric == "euclidean" else costs
            found = coupling_of(fusion.transports[1][name])
            assert (found * costs).sum() == pytest.approx((plan(costs) * costs).sum(), rel=1e-9)
