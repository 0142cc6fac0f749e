"""Fusion of small networks against the methods' own formulas: explicit loops, linear programming, all permutations."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

import consilience as cs
from tests.network_oracles import (
    barycenter,
    barycentric_rows,
    couplings_to_reference,
    dense_net,
    every_order,
    four_way_costs,
    layers_of,
    outputs,
    permuted_layers,
    plan,
    random_layers,
    shuffled,
    spread_average,
    squared_distance,
)
from tests.tolerances import CONVEX_SOLVER, DESCENT, DIFFERENCES, ROUNDING

SYMMETRY = {}


def symmetry_of(module):
    """Return the proved symmetry of a network made by `dense_net`; traced once for every depth."""
    parts = (len(module), module[0].bias is None, module[0].in_features, module[-1].out_features)
    if parts not in SYMMETRY:
        SYMMETRY[parts] = cs.symmetry(module, torch.zeros(2, module[0].in_features, dtype=torch.float64))
    return SYMMETRY[parts]


def fused(models, method, **options):
    """Return the fusion of networks given as layers."""
    modules = [dense_net(one) for one in models]
    return cs.fuse(modules, method=method, symmetry=symmetry_of(modules[0]), **options)


def drawn(widths, number, seed=0, bias=True):
    rng = np.random.default_rng(seed)
    return [random_layers(one, rng, bias) for one in (widths if isinstance(widths, list) else [widths] * number)]


def assert_layers(found, expected, tolerance=1e-9):
    for (weight, bias), (value, other) in zip(found, expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=0, atol=tolerance)
        if bias is not None:
            np.testing.assert_allclose(bias, other, rtol=0, atol=tolerance)


def coupling_of(transport):
    """Return the plan (k_new, k_old) of a transport."""
    if hasattr(transport, "coupling"):
        return transport.coupling
    found = np.zeros((transport.width, len(transport.labels)))
    found[transport.labels, np.arange(len(transport.labels))] = 1 / transport.width
    return found


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
    models = drawn(widths, 3, bias=bias)
    for reference in range(3):
        if isinstance(widths, list) and reference:
            continue
        couplings = couplings_to_reference(models, reference)
        fusion = fused(models, "ot", weights=SHARES, reference=reference, **as_wide_as(models[reference]))
        for moves, own in zip(fusion.transports, couplings, strict=True):
            for transport, expected in zip(moves.values(), own, strict=True):
                np.testing.assert_allclose(coupling_of(transport), expected, rtol=0, atol=CONVEX_SOLVER)
        assert_layers(layers_of(fusion.model), spread_average(models, couplings, SHARES), 1e-6)


def test_ot_fusion_by_distance_of_normalised_rows_follows_its_steps():
    models = drawn((4, 6, 3), 2, seed=4)
    rows = [np.hstack([weight, bias[:, None]]) for (weight, bias), _ in models]
    for normalize, metric in itertools.product((False, True), ("squared", "euclidean")):
        used = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in rows] if normalize else rows
        costs = ((used[0][:, None] - used[1][None]) ** 2).sum(-1)
        expected = plan(np.sqrt(costs) if metric == "euclidean" else costs)
        fusion = fused(models, "ot", reference=0, normalize=normalize, metric=metric)
        np.testing.assert_allclose(coupling_of(next(iter(fusion.transports[1].values()))), expected, atol=ROUNDING)


def test_both_directions_of_ot_fusion_are_the_same_network_up_to_numbering_with_one_hidden_layer():
    models = drawn((4, 6, 3), 2, seed=5)
    inputs = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    there, back = (fused(models, "ot", reference=one).model for one in (0, 1))
    np.testing.assert_allclose(outputs(there, inputs), outputs(back, inputs), rtol=0, atol=1e-12)


# -- Wasserstein barycenters.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("widths", [*WIDTHS.values(), UNEQUAL], ids=[*WIDTHS, "unequal"])
def test_wasserstein_fusion_follows_algorithm_1(widths, bias, paper):
    models = drawn(widths, 3, bias=bias, seed=1)
    layers, couplings, histories = barycenter(models, SHARES, 0, paper)
    fusion = fused(models, "wb", weights=SHARES, reference=0, paper_scaling=paper, **as_wide_as(models[0]))
    for moves, own in zip(fusion.transports, couplings, strict=True):
        for transport, expected in zip(moves.values(), own, strict=True):
            np.testing.assert_allclose(coupling_of(transport), expected, rtol=0, atol=CONVEX_SOLVER)
    assert_layers(layers_of(fusion.model), layers, 1e-6)
    assert fusion.objective == pytest.approx(sum(one[-1] for one in histories), rel=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_into_another_width_the_reported_objective_is_that_of_the_reported_couplings(bias):
    """Whatever support it started from, the couplings' own barycenters have the objective that is reported."""
    models = drawn(UNEQUAL, 3, seed=2, bias=bias)
    target = {"0": 8, "2": 9}
    fusion = fused(models, "wb", weights=SHARES, reference=0, target_widths=target)
    befores = [np.eye(4) / 4] * 3
    total = 0.0
    for number, name in enumerate(target):
        plans = [coupling_of(moves[name]) for moves in fusion.transports]
        layers = [one[number] for one in models]
        rows = barycentric_rows(layers, plans, befores, SHARES)
        costs = [four_way_costs(rows, layer, before) for layer, before in zip(layers, befores, strict=True)]
        total += sum(a * (c * p).sum() for a, c, p in zip(SHARES, costs, plans, strict=True))
        for cost, found in zip(costs, plans, strict=True):  # and no plan is better for these rows
            assert (cost * found).sum() == pytest.approx((cost * plan(cost)).sum(), rel=1e-6)
        befores = plans
    assert fusion.objective == pytest.approx(total, rel=1e-6)
    couplings = [[coupling_of(one) for one in moves.values()] for moves in fusion.transports]
    assert_layers(layers_of(fusion.model), spread_average(models, couplings, SHARES), 1e-9)


@pytest.mark.parametrize("paper", [False, True])
def test_the_update_is_the_minimiser_of_the_objective(paper):
    """Formula (9) against differences of the objective by the tensor, with couplings that are no permutations."""
    models = drawn(UNEQUAL, 3, seed=3)
    fusion = fused(models, "wb", weights=SHARES, reference=0, paper_scaling=paper, **as_wide_as(models[0]))
    first, second = (
        [coupling_of(moves[name]) for moves in fusion.transports] for name in fusion.groups
    )
    weight, bias = layers_of(fusion.model)[1]
    layers = [one[1] for one in models]

    def value(w, b):
        costs = [four_way_costs((w, b), layer, before, paper) for layer, before in zip(layers, first, strict=True)]
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
    models = drawn((4, 6, 3), 2, seed=6)
    one = fused(models, "wb", reference=0, max_iterations=1)
    other = fused(models, "ot", reference=0)
    assert_layers(layers_of(one.model), layers_of(other.model))


# -- Weight matching.


def best_of_all(models):
    """Return the least squared distance of two networks over all orders of all hidden units, and the order."""
    first, second = models
    widths = [len(weight) for weight, _ in first[:-1]]
    return min((squared_distance(first, permuted_layers(second, o)), o) for o in every_order(widths))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", ["rebasin", "consensus"])
def test_one_hidden_layer_is_matched_as_well_as_by_any_permutation(method, bias):
    for seed in range(5):
        models = drawn((3, 5, 2), 2, seed=seed, bias=bias)
        best, order = best_of_all(models)
        options = {"refit": False, "balance": False} if method == "consensus" else {}
        fusion = fused(models, method, reference=0, **options)
        assert fusion.objective == pytest.approx(best / 4, rel=1e-9)
        found = [layers_of(one) for one in fusion.aligned_models]
        assert squared_distance(*found) == pytest.approx(best, rel=1e-9)
        assert_layers(found[1], permuted_layers(models[1], order))


@pytest.mark.parametrize("method", ["rebasin", "consensus"])
def test_two_hidden_layers_are_matched_no_better_than_by_the_best_permutations(method):
    reached = 0
    for seed in range(6):
        models = drawn((3, 4, 4, 2), 2, seed=seed)
        best, _ = best_of_all(models)
        options = {"refit": False, "balance": False} if method == "consensus" else {}
        fusion = fused(models, method, restarts=6, **options)
        found = squared_distance(*[layers_of(one) for one in fusion.aligned_models])
        assert fusion.objective == pytest.approx(found / 4, rel=1e-9)
        assert found >= best - 1e-9
        assert found <= squared_distance(*models) + 1e-9
        reached += found <= best + 1e-9
    assert reached >= 5


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("method", ["rebasin", "consensus"])
def test_no_order_of_one_group_of_one_model_is_better(method, number):
    models = drawn((3, 4, 4, 2), number, seed=number)
    weights = np.arange(1, number + 1) / np.arange(1, number + 1).sum()
    options = {"refit": False, "balance": False} if method == "consensus" else {}
    fusion = fused(models, method, weights=weights, **options)
    found = [layers_of(one) for one in fusion.aligned_models]

    def value(networks):
        return sum(
            weights[i] * weights[j] * squared_distance(networks[i], networks[j])
            for i, j in itertools.combinations(range(number), 2)
        )

    reached = value(found)
    assert fusion.objective == pytest.approx(reached, rel=1e-9)
    same = list(range(4))
    for model, group, order in itertools.product(range(number), range(2), itertools.permutations(range(4))):
        orders = [list(order) if group == one else same for one in range(2)]
        moved = [permuted_layers(one, orders) if i == model else one for i, one in enumerate(found)]
        assert value(moved) >= reached * (1 - DESCENT)


def test_the_distance_is_the_same_from_either_side():
    models = drawn((3, 5, 2), 2, seed=8)
    there, back = (fused(models, "rebasin", reference=one).objective for one in (0, 1))
    assert there == pytest.approx(back, rel=1e-12)


def test_the_objective_of_merging_many_is_the_spread_around_their_mean():
    models = drawn((3, 4, 5, 2), 4, seed=9)
    fusion = fused(models, "rebasin")
    mean = layers_of(fusion.model)
    spread = sum(squared_distance(layers_of(one), mean) for one in fusion.aligned_models) / 4
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
            return sum(((first[key] - moved[key]) ** 2).sum().item() for key in first)

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
    found = []
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, 0.0)
        found.append(x.T)
    return found


@pytest.mark.parametrize("cost", ["activations", "correlation"])
def test_activations_are_matched_by_their_products(cost):
    models = drawn((3, 5, 6, 2), 3, seed=10)
    x = np.random.default_rng(0).normal(size=(40, 3))
    given = [hidden_outputs(one, x) for one in models]
    fusion = fused(models, "rebasin", cost=cost, reference=0, inputs=torch.tensor(x))
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
    models = drawn((3, 5, 6, 2), 2, seed=11)
    x = np.random.default_rng(0).normal(size=(40, 3))
    given = [hidden_outputs(one, x) for one in models]
    for metric in ("squared", "euclidean"):
        fusion = fused(models, "ot", cost="activations", metric=metric, reference=0, inputs=torch.tensor(x))
        for number, name in enumerate(fusion.groups):
            costs = ((given[0][number][:, None] - given[1][number][None]) ** 2).sum(-1)
            costs = np.sqrt(costs) if metric == "euclidean" else costs
            found = coupling_of(fusion.transports[1][name])
            assert (found * costs).sum() == pytest.approx((plan(costs) * costs).sum(), rel=1e-9)


# -- FedMA.


def log_posterior(groups, number, sigma, sigma0, gamma):
    """Return twice the log joint of neurons in groups, at the likeliest atoms: neurons first, then the process.

    `groups` has a list of (model, neuron) for every atom. Every model's new atoms are new in the order of models.
    """
    total, seen = 0.0, 0
    for members in groups:
        rows = np.array([row for _, row in members])
        atom = rows.sum(0) / (len(rows) + sigma**2 / sigma0**2)
        total -= ((rows - atom) ** 2).sum() / sigma**2 + (atom**2).sum() / sigma0**2
        total -= rows.size * np.log(sigma**2) + atom.size * np.log(sigma0**2)
        seen += 1
    opened = [0] * number
    for members in groups:
        owners = [owner for owner, _ in members]
        opened[min(owners)] += 1
        for place, owner in enumerate(sorted(owners)):
            if place:
                total += 2 * np.log(place / (number - place))
            assert owner < number
    for count in opened:
        total += 2 * (count * np.log(gamma / number) - sum(np.log(k) for k in range(1, count + 1)))
    return total


def matchings(first, second):
    """Yield all ways to match some of `first` neurons with some of `second`: pairs (i, j)."""
    for count in range(min(first, second) + 1):
        for rows in itertools.combinations(range(first), count):
            for columns in itertools.permutations(range(second), count):
                yield list(zip(rows, columns, strict=True))


def in_groups(pairs, vectors):
    partner = dict(pairs)
    groups = [
        [(0, row)] + ([(1, vectors[1][partner[i]])] if i in partner else []) for i, row in enumerate(vectors[0])
    ]
    taken = set(partner.values())
    return groups + [[(1, row)] for j, row in enumerate(vectors[1]) if j not in taken]


@pytest.mark.parametrize(("sigma", "gamma"), [(1.0, 1.0), (0.6, 1.0), (0.4, 7.0), (1.0, 0.05)])
def test_fedma_finds_the_best_of_all_matchings_of_two_models(sigma, gamma):
    """Three neurons each, 34 matchings; incoming weights and biases are the neuron."""
    sizes = set()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        base = random_layers((2, 3, 2), rng)
        models = [[(w + 0.5 * rng.normal(size=w.shape), b + 0.5 * rng.normal(size=b.shape)) for w, b in base]
                  for _ in range(2)]  # fmt: skip
        vectors = [np.hstack([weight, bias[:, None]]) for (weight, bias), _ in models]
        values = {
            tuple(pairs): log_posterior(in_groups(pairs, vectors), 2, sigma, 1.0, gamma)
            for pairs in matchings(3, 3)
        }
        best = max(values.values())
        method = cs.FedMA(sigma=sigma, gamma=gamma, growth=True)
        fusion = fused(models, method, reference=0)
        (matching,) = fusion.matching.values()
        left, right = matching.of_site(0).tolist(), matching.of_site(1).tolist()
        found = tuple((left.index(label), j) for j, label in enumerate(right) if label in left)
        assert values[tuple(sorted(found))] == pytest.approx(best, rel=1e-9)
        assert fusion.n_components == 6 - len(found)
        sizes.add(len(found))
    assert sizes


@pytest.mark.parametrize("widths", [[(3, 4, 2)] * 2, [(3, 5, 2), (3, 3, 2)]], ids=["equal", "unequal"])
def test_fedma_without_growth_is_the_best_full_matching(widths):
    for seed in range(5):
        models = drawn(widths, 2, seed=seed)
        vectors = [np.hstack([weight, bias[:, None]]) for (weight, bias), _ in models]
        small = len(vectors[1])
        best = max(
            (log_posterior(in_groups(pairs, vectors), 2, 1.0, 1.0, 1.0), pairs)
            for pairs in matchings(len(vectors[0]), small)
            if len(pairs) == small
        )
        (matching,) = fused(models, cs.FedMA(shrink=False), reference=0).matching.values()
        assert matching.of_site(0).tolist() == list(range(len(vectors[0])))
        assert [(label, j) for j, label in enumerate(matching.of_site(1))] == sorted(best[1], key=lambda p: p[1])


@pytest.mark.parametrize(("sigma", "sigma0"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.5)])
@pytest.mark.parametrize("number", [2, 3])
def test_shrinkage_scales_matched_neurons_by_the_known_factor(number, sigma, sigma0):
    (base,) = drawn((4, 5, 6, 3), 1, seed=12)
    module = dense_net(base)
    copies = [shuffled(module, symmetry_of(module), seed) for seed in range(number - 1)]
    method = cs.FedMA(sigma=sigma, sigma0=sigma0)
    fusion = cs.fuse([module, *copies], method=method, symmetry=symmetry_of(module), reference=0)
    factor = number / (number + sigma**2 / sigma0**2)
    found = layers_of(fusion.model)
    for layer in (0, 1):
        np.testing.assert_allclose(found[layer][0], factor * base[layer][0], rtol=1e-9)
        np.testing.assert_allclose(found[layer][1], factor * base[layer][1], rtol=1e-9)
    assert_layers(found[2:], base[2:])


def test_neurons_of_one_model_alone_shrink_more():
    wide, narrow = drawn([(4, 5, 3), (4, 2, 3)], 2, seed=13)
    fusion = fused([wide, narrow], cs.FedMA(), reference=0)
    (matching,) = fusion.matching.values()
    alone = np.setdiff1d(np.arange(5), matching.of_site(1))
    found = layers_of(fusion.model)
    np.testing.assert_allclose(found[0][0][alone], wide[0][0][alone] / 2, rtol=1e-9)
    both = matching.of_site(1)
    mean = (wide[0][0][both] + narrow[0][0]) / 3
    np.testing.assert_allclose(found[0][0][both], mean, rtol=1e-9)


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_classes_are_averaged_by_who_saw_them(turn):
    """Model 0 saw class 0 alone, model 1 class 1 alone, both equally much of class 2; whichever comes first."""
    models = drawn((4, 5, 3), 2, seed=20 + turn)
    counts = [[30, 0, 8], [0, 50, 8]]
    fusion = fused(models, cs.FedMA(shrink=False, class_counts=counts), reference=0)
    aligned = [layers_of(one)[-1] for one in fusion.aligned_models]
    weight, bias = layers_of(fusion.model)[-1]
    for row, shares in enumerate([(1, 0), (0, 1), (0.5, 0.5)]):
        expected = [sum(s * one[part][row] for s, one in zip(shares, aligned, strict=True)) for part in (0, 1)]
        np.testing.assert_allclose(weight[row], expected[0], rtol=1e-9)
        np.testing.assert_allclose(bias[row], expected[1], rtol=1e-9)


# -- What every weight is averaged over.


@pytest.mark.parametrize("options", [
    {"method": cs.FedMA(shrink=False)}, {"method": cs.Consensus(refit=False, balance=False)},
    {"method": cs.Consensus(refit=False, balance=False), "target_widths": {"0": 9, "2": 9}},
    {"method": cs.FedMA(shrink=False, growth=True, sigma=0.3)},
], ids=["fedma", "consensus", "consensus, wider", "fedma, growing"])  # fmt: skip
def test_every_weight_is_averaged_over_the_models_that_own_the_receiving_unit(options):
    models = drawn(UNEQUAL, 3, seed=14)
    fusion = fused(models, weights=SHARES, **options)
    names = list(fusion.groups)
    expected = []
    for number in range(3):
        out = [
            fusion.transports[i][names[number]].labels if number < 2 else np.arange(3) for i in range(3)
        ]
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
