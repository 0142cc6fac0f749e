"""One-shot FedMA of small networks against all matchings, and its known factors."""

import itertools

import numpy as np
import pytest

import consilience as cs
from tests.copies import COPIES
from tests.networks.fusable_nets import (
    assert_layers,
    dense_net,
    deviation,
    drawn_layers,
    fused_layers,
    layers_of,
    proved,
    random_layers,
    shuffled,
    siblings,
    symmetry_of_layers,
)
from tests.tolerances import ROUNDING, SINGLE_PRECISION

# -- FedMA.


def log_posterior(groups, number, sigma, sigma0, gamma):
    """Return twice the log joint of neurons in groups, at the likeliest atoms, up to a constant.

    `groups` has a list of (model, neuron) for every atom: the neurons given atoms, the atoms, and what the
    Beta-Bernoulli process makes of who holds them: gamma / J for a new atom, n / (J - n) for one that n models hold.
    """
    total = 0.0
    for members in groups:
        rows = np.array([row for _, row in members])
        atom = rows.sum(0) / (len(rows) + sigma**2 / sigma0**2)
        total -= ((rows - atom) ** 2).sum() / sigma**2 + (atom**2).sum() / sigma0**2
        total += 2 * np.log(gamma / number) + sum(2 * np.log(n / (number - n)) for n in range(1, len(rows)))
    return total


def matchings(first, second):
    """Yield all ways to match some of `first` neurons with some of `second`: pairs (i, j)."""
    for count in range(min(first, second) + 1):
        for rows in itertools.combinations(range(first), count):
            for columns in itertools.permutations(range(second), count):
                yield list(zip(rows, columns, strict=True))


def in_groups(pairs, vectors):
    partner = dict(pairs)
    groups = [[(0, row)] + ([(1, vectors[1][partner[i]])] if i in partner else []) for i, row in enumerate(vectors[0])]
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
            tuple(pairs): log_posterior(in_groups(pairs, vectors), 2, sigma, 1.0, gamma) for pairs in matchings(3, 3)
        }
        best = max(values.values())
        method = cs.methods.FedMA(sigma=sigma, gamma=gamma, growth=True)
        fusion = fused_layers(models, method, reference=0)
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
        models = drawn_layers(widths, 2, seed=seed)
        vectors = [np.hstack([weight, bias[:, None]]) for (weight, bias), _ in models]
        small = len(vectors[1])
        best = max(
            (log_posterior(in_groups(pairs, vectors), 2, 1.0, 1.0, 1.0), pairs)
            for pairs in matchings(len(vectors[0]), small)
            if len(pairs) == small
        )
        (matching,) = fused_layers(models, cs.methods.FedMA(), reference=0).matching.values()
        assert matching.of_site(0).tolist() == list(range(len(vectors[0])))
        assert [(label, j) for j, label in enumerate(matching.of_site(1))] == sorted(best[1], key=lambda p: p[1])


@COPIES
@pytest.mark.parametrize(("sigma", "sigma0"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.5)])
@pytest.mark.parametrize("number", [2, 3])
def test_shrinkage_scales_matched_neurons_by_the_known_factor(number, sigma, sigma0):
    (base,) = drawn_layers((4, 5, 6, 3), 1, seed=12)
    module = dense_net(base)
    copies = [shuffled(module, symmetry_of_layers(module), seed, {"0": 5, "2": 6}) for seed in range(number - 1)]
    method = cs.methods.FedMA(sigma=sigma, sigma0=sigma0, shrink=True)
    fusion = cs.fuse([module, *copies], method=method, symmetry=symmetry_of_layers(module), reference=0)
    factor = number / (number + sigma**2 / sigma0**2)
    layers = layers_of(fusion.model)
    for layer in (0, 1):
        np.testing.assert_allclose(layers[layer][0], factor * base[layer][0], rtol=1e-9)
        np.testing.assert_allclose(layers[layer][1], factor * base[layer][1], rtol=1e-9)
    assert_layers(layers[2:], base[2:])


@pytest.mark.parametrize("kind", ["mlp", "lenet", "depthwise"])
def test_two_models_of_one_width_are_fused_as_by_exact_transport(kind):
    """Without growth and with full widths the gain of a match is an inner product of rows, as the cost of a plan is."""
    _, inputs, symmetry = proved(kind)
    models = siblings(kind)[:2]
    one, other = (cs.fuse(models, method, symmetry=symmetry, example=inputs, reference=0) for method in ("fedma", "ot"))
    assert deviation(one.model, other.model, inputs) < SINGLE_PRECISION


def test_neurons_of_one_model_alone_shrink_more():
    wide, narrow = drawn_layers([(4, 5, 3), (4, 2, 3)], 2, seed=13)
    fusion = fused_layers([wide, narrow], cs.methods.FedMA(shrink=True), reference=0)
    (matching,) = fusion.matching.values()
    alone = np.setdiff1d(np.arange(5), matching.of_site(1))
    layers = layers_of(fusion.model)
    np.testing.assert_allclose(layers[0][0][alone], wide[0][0][alone] / 2, rtol=1e-9)
    both = matching.of_site(1)
    mean = (wide[0][0][both] + narrow[0][0]) / 3
    np.testing.assert_allclose(layers[0][0][both], mean, rtol=1e-9)


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_classes_are_averaged_by_who_saw_them(turn):
    """Model 0 saw class 0 alone, model 1 class 1 alone, both equally much of class 2; whichever comes first."""
    models = drawn_layers((4, 5, 3), 2, seed=20 + turn)
    counts = [[30, 0, 8], [0, 50, 8]]
    fusion = fused_layers(models, cs.methods.FedMA(class_counts=counts), reference=0)
    aligned = [layers_of(model)[-1] for model in fusion.aligned_models]
    weight, bias = layers_of(fusion.model)[-1]
    for row, shares in enumerate([(1, 0), (0, 1), (0.5, 0.5)]):
        expected = [sum(s * one[part][row] for s, one in zip(shares, aligned, strict=True)) for part in (0, 1)]
        np.testing.assert_allclose(weight[row], expected[0], rtol=1e-9)
        np.testing.assert_allclose(bias[row], expected[1], rtol=1e-9)


def test_counts_of_classes_stay_with_their_model():
    models, counts = drawn_layers((4, 5, 3), 3, seed=30), [[30, 0, 8], [0, 50, 8], [10, 10, 1]]
    expected = layers_of(fused_layers(models, cs.methods.FedMA(class_counts=counts)).model)
    for order in itertools.permutations(range(3)):
        method = cs.methods.FedMA(class_counts=[counts[i] for i in order])
        assert_layers(layers_of(fused_layers([models[i] for i in order], method).model), expected, ROUNDING)
