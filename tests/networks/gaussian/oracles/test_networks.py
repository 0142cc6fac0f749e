"""Fusing Bayesian networks against brute force over every matching, with divergences weight by weight."""

import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.families import DiagonalGaussian
from consilience.matching.bregman_groups import BregmanGroups
from tests.copies import COPIES
from tests.networks.gaussian.nets import (
    assert_layers,
    example,
    layers_of,
    mean_logits,
    network,
    permuted,
    random_layers,
    shuffled,
    symmetry_of,
    unit_vectors,
)
from tests.tolerances import DESCENT, KL_MATRIX_PRODUCT, LOCAL_OPTIMUM, ROUNDING, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

METRICS = ("w2", "means", "kl", "kl_reverse", "hellinger")


def divergence(mean, variance, other, other_variance):
    """Return KL(N(mean, variance) || N(other, other_variance)) of independent Gaussians, summed over the last axis."""
    each = np.log(other_variance / variance) + (variance + (mean - other) ** 2) / other_variance - 1
    return each.sum(axis=-1) / 2


def precision_mean(means, variances, weights):
    """Return mean and variance (d,) of the natural-parameter mean of Gaussians (n, d)."""
    weights = np.asarray(weights, dtype=float)[:, None]
    precision = (weights / variances).sum(axis=0) / weights.sum()
    return (weights * means / variances).sum(axis=0) / weights.sum() / precision, 1 / precision


# -- KL-fusion: equation (9) by enumeration.


def partitions(sites):
    """Yield labels (L,) of every way to group components of `sites` (L,) with no two of one site in a group."""

    def grow(labels, members):
        here = len(labels)
        if here == len(sites):
            yield tuple(labels)
            return
        for group in range(len(members) + 1):
            if group == len(members):
                yield from grow([*labels, group], [*members, {sites[here]}])
            elif sites[here] not in members[group]:
                grown = [*members]
                grown[group] = members[group] | {sites[here]}
                yield from grow([*labels, group], grown)

    yield from grow([], [])


class Enumerated:
    """Equation (9) of components (L, d) of sites with weights, relative to their mean, for any matching."""

    def __init__(self, means, variances, sites, weights, price):
        self.means, self.variances, self.sites, self.price = means, variances, sites, price
        self.weights = (np.asarray(weights, dtype=float) / np.mean(weights))[sites]
        self.cost = functools.cache(self.cost)

    def cost(self, members):
        """Return what a group costs: divergences of its average from its members, and the price of their number."""
        rows = list(members)
        mean, variance = precision_mean(self.means[rows], self.variances[rows], self.weights[rows])
        apart = divergence(mean, variance, self.means[rows], self.variances[rows])
        return self.weights[rows] @ apart + self.price * np.sqrt(len(rows))

    def value(self, labels):
        """Return the objective of a matching (L,)."""
        return sum(self.cost(tuple(np.flatnonzero(np.equal(labels, group)))) for group in set(labels))

    def best_by_one_site(self, labels):
        """Return the lowest objective of all matchings in which only one site's components go elsewhere."""
        labels = np.asarray(labels)
        found = []
        for site in set(self.sites):
            own = np.flatnonzero(self.sites == site)
            others = np.delete(labels, own)
            for chosen in itertools.product([*sorted(set(others)), None], repeat=len(own)):
                placed = [label for label in chosen if label is not None]
                if len(set(placed)) == len(placed):
                    tried = labels.copy()
                    tried[own] = [
                        1000 + row if label is None else label for row, label in zip(own, chosen, strict=True)
                    ]
                    found.append(self.value(tried.tolist()))
        return min(found)

    def best(self, most=None):
        """Return the lowest objective of all matchings with at most so many groups."""
        every = partitions(list(self.sites))
        return min(self.value(labels) for labels in every if most is None or max(labels) < most)


def spread_between(means, variances, sites):
    """Return the standard deviation of KL between all ordered pairs of components of different sites."""
    pairs = [(a, b) for a in range(len(sites)) for b in range(len(sites)) if sites[a] != sites[b]]
    return np.std([divergence(means[a], variances[a], means[b], variances[b]) for a, b in pairs])


def enumerated(models, regularization, weights):
    """Return the enumeration of networks with one hidden layer, at lambda relative to the spread between sites."""
    vectors = [unit_vectors(layers) for layers in models]
    sites = np.repeat(np.arange(len(models)), [len(means) for means, _ in vectors])
    means, variances = (np.concatenate(parts) for parts in zip(*vectors, strict=True))
    spread = spread_between(means, variances, sites)
    return Enumerated(means, variances, sites, weights, regularization * spread), spread


def close_sites(widths, units, seed, noise=0.4):
    """Return networks that see parts of a common set of units, noisily, in random orders."""
    rng = np.random.default_rng(seed)
    truth = random_layers(widths, rng)
    sites = []
    for size in units:
        chosen = rng.permutation(widths[1])[:size]
        layers = permuted(truth, [chosen])
        sites.append(
            [
                (
                    mean + noise * rng.normal(size=mean.shape),
                    var * rng.uniform(0.5, 2, var.shape),
                    bias + noise * rng.normal(size=bias.shape),
                    bias_var * rng.uniform(0.5, 2, bias_var.shape),
                )
                for mean, var, bias, bias_var in layers
            ]
        )
    return sites


def kl_fused(models, **options):
    return cs.fuse([network(layers) for layers in models], method="kl", symmetry=symmetry_of(models[0]), **options)


TINY = [
    pytest.param((3, 3), 0, id="two sites of three units"),
    pytest.param((2, 2, 2), 1, id="three sites of two units"),
    pytest.param((2, 3), 2, id="two sites of different widths"),
    pytest.param((3, 3, 3), 3, id="three sites of three units", marks=pytest.mark.slow),
    pytest.param((3, 1, 2), 4, id="three sites of different widths"),
]


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, (2.0, 1.0, 0.5)], ids=["equal", "weighted"])
@pytest.mark.parametrize("regularization", [0.05, 0.3, 3.0])
@pytest.mark.parametrize(("units", "seed"), TINY)
def test_the_matching_found_is_an_optimum_of_equation_9(units, seed, regularization, weights):
    models = close_sites((3, 3, 2), units, seed)
    weights = None if weights is None else weights[: len(units)]
    exact, spread = enumerated(models, regularization, np.ones(len(units)) if weights is None else weights)
    fusion = kl_fused(models, regularization=regularization, weights=weights, restarts=20)
    group = fusion.matching["0"]
    assert fusion.details["groups"]["0"]["spread"] == pytest.approx(spread, rel=KL_MATRIX_PRODUCT)
    np.testing.assert_array_equal(group.owner, exact.sites)
    assert fusion.objective == pytest.approx(exact.value(group.labels), rel=KL_MATRIX_PRODUCT)
    assert fusion.objective == pytest.approx(exact.best_by_one_site(group.labels), rel=KL_MATRIX_PRODUCT)
    # With two sites that is the optimum; more can stop where two of them had to move at once.
    assert fusion.objective == pytest.approx(exact.best(), rel=KL_MATRIX_PRODUCT if len(units) == 2 else LOCAL_OPTIMUM)


@pytest.mark.parametrize("seed", range(8))
def test_the_matching_found_is_mostly_the_best_of_all(seed):
    models = close_sites((3, 3, 2), (3, 2, 3), 100 + seed)
    exact, _ = enumerated(models, 0.2, np.ones(3))
    found = kl_fused(models, regularization=0.2, restarts=20).objective
    assert found == pytest.approx(exact.best(), rel=KL_MATRIX_PRODUCT)


@pytest.mark.parametrize("most", [3, 4, 5])
def test_the_matching_found_is_the_optimum_under_a_bound_on_the_units(most):
    models = close_sites((3, 4, 2), (3, 3, 2), 5, noise=1.0)
    exact, _ = enumerated(models, 0.02, np.ones(3))
    fusion = kl_fused(models, regularization=0.02, restarts=20, max_units=most)
    assert fusion.groups["0"] <= most
    assert fusion.objective == pytest.approx(exact.best(most), rel=KL_MATRIX_PRODUCT)


def test_what_groups_are_worth_is_minus_equation_9():
    models = close_sites((3, 3, 2), (3, 2, 3), 21)
    weights = np.array([1.5, 1.0, 0.5])
    exact, _ = enumerated(models, 0.3, weights)
    sites = exact.sites
    family = DiagonalGaussian(dim=exact.means.shape[1])
    natural = np.concatenate([exact.means / exact.variances, -0.5 / exact.variances], axis=1)
    # Whichever order the family keeps its parameters in, its own divergence is the sum of those of the weights.
    np.testing.assert_allclose(
        family.kl(natural[:1], natural[1:2])[0, 0],
        divergence(exact.means[0], exact.variances[0], exact.means[1], exact.variances[1]),
        rtol=KL_MATRIX_PRODUCT,
    )
    groups = BregmanGroups(family, natural, np.searchsorted(sites, np.arange(4)), exact.weights, exact.price)
    rng = np.random.default_rng(0)
    every = list(partitions(list(sites)))
    for at in rng.choice(len(every), 20, replace=False):
        labels = np.array(every[at])
        value = exact.value(labels.tolist())
        assert groups.total(labels) == pytest.approx(-value, rel=KL_MATRIX_PRODUCT, abs=KL_MATRIX_PRODUCT)
    np.testing.assert_allclose(groups.opening(np.arange(len(sites))), -exact.price, rtol=KL_MATRIX_PRODUCT)


def averaged(models, labels, weights, outgoing):
    """Return the layers that a matching of one hidden layer gives, by loops over fused units."""
    vectors = [unit_vectors(layers) for layers in models]
    sites = np.repeat(np.arange(len(models)), [len(means) for means, _ in vectors])
    means, variances = (np.concatenate(parts) for parts in zip(*vectors, strict=True))
    weights = np.asarray(weights, dtype=float)
    inputs = models[0][0][0].shape[1]
    fused = []
    for unit in range(max(labels) + 1):
        rows = np.flatnonzero(np.equal(labels, unit))
        mean, variance = precision_mean(means[rows], variances[rows], weights[sites[rows]])
        if outgoing == "share":
            share = weights[sites[rows]].sum() / weights.sum()
            mean[inputs + 1 :] *= share
            variance[inputs + 1 :] *= share**2
        fused.append((mean, variance))
    mean, variance = (np.array(part) for part in zip(*fused, strict=True))
    bias, bias_variance = precision_mean(*(np.array([layers[1][at] for layers in models]) for at in (2, 3)), weights)
    return [
        (mean[:, :inputs], variance[:, :inputs], mean[:, inputs], variance[:, inputs]),
        (mean[:, inputs + 1 :].T, variance[:, inputs + 1 :].T, bias, bias_variance),
    ]


@pytest.mark.parametrize("outgoing", ["sum", "share"])
@pytest.mark.parametrize("weights", [None, (2.0, 1.0, 0.5)], ids=["equal", "weighted"])
@pytest.mark.parametrize("regularization", [0.0, 0.1, 3.0])
def test_fused_weights_are_means_of_natural_parameters(regularization, weights, outgoing):
    models = close_sites((3, 4, 2), (3, 4, 2), 11)
    fusion = kl_fused(models, regularization=regularization, weights=weights, outgoing=outgoing)
    expected = averaged(models, fusion.matching["0"].labels, (1, 1, 1) if weights is None else weights, outgoing)
    assert_layers(layers_of(fusion.model), expected)


# -- KL-fusion of two hidden layers: what a site lacks has the prior's factor.


def second_layer_vectors(models, labels, fused_before, prior):
    """Return means, variances and sites of all second-layer units, incoming weights by fused first-layer unit."""
    means, variances, sites = [], [], []
    for site, (layers, own) in enumerate(zip(models, labels, strict=True)):
        mean, variance = unit_vectors(layers, 1)
        into = len(own)
        for row, spread in zip(mean, variance, strict=True):
            incoming, incoming_variance = np.zeros(fused_before), np.full(fused_before, prior)
            incoming[own], incoming_variance[own] = row[:into], spread[:into]
            means.append(np.concatenate([incoming, row[into:]]))
            variances.append(np.concatenate([incoming_variance, spread[into:]]))
            sites.append(site)
    return np.array(means), np.array(variances), np.array(sites)


def seen_otherwise(array, variance, rng):
    """Return means with noise, or variances multiplied by some."""
    return array * rng.uniform(0.5, 2, array.shape) if variance else array + 0.4 * rng.normal(size=array.shape)


@pytest.mark.parametrize("lacking", ["off", "prior"])
@pytest.mark.parametrize("outgoing", ["sum", "share"])
@pytest.mark.parametrize(("regularization", "seed"), [(0.05, 0), (0.3, 1), (1.0, 3)])
def test_two_hidden_layers_are_matched_one_after_the_other(regularization, seed, outgoing, lacking):
    rng = np.random.default_rng(seed)
    truth = random_layers((3, 4, 4, 2), rng)
    models = []
    for first, second in ((3, 2), (2, 3)):
        part = permuted(truth, [rng.permutation(4)[:first], rng.permutation(4)[:second]])
        models.append([tuple(seen_otherwise(array, at % 2, rng) for at, array in enumerate(layer)) for layer in part])
    prior = 0.7
    fusion = kl_fused(models, regularization=regularization, prior_variance=prior, restarts=20, outgoing=outgoing,
                      lacking=lacking)  # fmt: skip

    # The first layer is matched by what it receives alone: its readers are not matched yet.
    first = [np.column_stack([layers[0][0], layers[0][2]]) for layers in models]
    first_variance = [np.column_stack([layers[0][1], layers[0][3]]) for layers in models]
    sites = np.repeat([0, 1], [len(rows) for rows in first])
    stacked, stacked_variance = np.concatenate(first), np.concatenate(first_variance)
    price = regularization * spread_between(stacked, stacked_variance, sites)
    one = Enumerated(stacked, stacked_variance, sites, np.ones(2), price)
    labels = [fusion.matching["0"].of_site(site) for site in range(2)]
    value = one.value(np.concatenate(labels))
    assert value == pytest.approx(one.best(), rel=KL_MATRIX_PRODUCT)

    means, variances, sites = second_layer_vectors(models, labels, fusion.groups["0"], prior)
    price = regularization * spread_between(means, variances, sites)
    two = Enumerated(means, variances, sites, np.ones(2), price)
    after = [fusion.matching["2"].of_site(site) for site in range(2)]
    value += two.value(np.concatenate(after))
    assert two.value(np.concatenate(after)) == pytest.approx(two.best(), rel=KL_MATRIX_PRODUCT)
    assert fusion.objective == pytest.approx(value, rel=KL_MATRIX_PRODUCT)

    # Every weight is averaged once, over the sites that own both of its ends.
    found = layers_of(fusion.model)
    for unit, reader in itertools.product(range(fusion.groups["0"]), range(fusion.groups["2"])):
        owners = [site for site in range(2) if unit in labels[site] and reader in after[site]]
        readers = sum(reader in own for own in after)
        mean, variance = found[1][0][reader, unit], found[1][1][reader, unit]
        if not owners:
            assert mean == 0
            # The point at zero is a Gaussian too, so narrow that nobody sees it.
            assert variance == pytest.approx(prior) if lacking == "prior" else 0 < variance < 1e-6
            continue
        at = [(list(after[site]).index(reader), list(labels[site]).index(unit)) for site in owners]
        entries = [np.array([[models[site][1][part][place]] for site, place in zip(owners, at, strict=True)])
                   for part in (0, 1)]  # fmt: skip
        expected, expected_variance = precision_mean(*entries, np.ones(len(owners)))
        share = len(owners) / readers if outgoing == "share" else 1.0
        np.testing.assert_allclose([mean, variance], [share * expected[0], share**2 * expected_variance[0]],
                                   rtol=ROUNDING)  # fmt: skip


# -- Alignment: every permutation tried.


def apart(metric, one, other):
    """Return the divergence of two posteriors of the same order of units; of `one` from `other` for "kl"."""
    total = 0.0
    for layer, against in zip(one, other, strict=True):
        for mean, variance, centre, width in (
            (layer[0], layer[1], against[0], against[1]),
            (layer[2], layer[3], against[2], against[3]),
        ):
            mean, variance, centre, width = (np.ravel(part) for part in (mean, variance, centre, width))
            match metric:
                case "w2":
                    total += ((mean - centre) ** 2 + (np.sqrt(variance) - np.sqrt(width)) ** 2).sum()
                case "means":
                    total += ((mean - centre) ** 2).sum()
                case "kl":
                    total += divergence(mean, variance, centre, width)
                case "kl_reverse":
                    total += divergence(centre, width, mean, variance)
                case "hellinger":
                    both = variance + width
                    exponent = (mean - centre) ** 2 / (4 * both)
                    total += (exponent + np.log(both / (2 * np.sqrt(variance * width))) / 2).sum()
    return total


def closest(metric, reference, moved):
    """Return the least divergence over all orders of the units of every hidden layer."""
    orders = [[list(order) for order in itertools.permutations(range(len(layer[0])))] for layer in reference[:-1]]
    return min(apart(metric, permuted(moved, chosen), reference) for chosen in itertools.product(*orders))


def aligned(models, **options):
    bnns = [network(layers) for layers in models]
    return cs.fuse(bnns, method="w2", symmetry=symmetry_of(models[0]), reference=0, **options)


def as_layers(one):
    """Return layers of a Gaussian network: arrays of means and of deviations."""
    arrays = one.arrays
    names = sorted({key.partition(".")[0] for key in arrays}, key=int)
    return [
        tuple(
            np.asarray(arrays[f"{name}.{kind}{deviation}"]) ** (2 if deviation else 1)
            for kind, deviation in itertools.product(("weight", "bias"), ("", "/deviation"))
        )
        for name in names
    ]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("units", "seed"), [(2, 0), (4, 2), (5, 4)])
def test_alignment_of_one_hidden_layer_is_the_best_of_all_permutations(metric, units, seed):
    rng = np.random.default_rng(seed)
    models = [random_layers((2, units, 2), rng) for _ in range(2)]
    fusion = aligned(models, metric=metric)
    found = [as_layers(one) for one in fusion.aligned]
    assert_layers(found[0], models[0], rtol=ROUNDING)  # the reference stays
    best = closest(metric, *models)
    assert apart(metric, found[1], found[0]) == pytest.approx(best, rel=KL_MATRIX_PRODUCT)
    assert fusion.details["distance_after"] == pytest.approx(best, rel=KL_MATRIX_PRODUCT)
    assert fusion.details["distance_before"] == pytest.approx(
        apart(metric, models[1], models[0]), rel=KL_MATRIX_PRODUCT
    )


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(4))
def test_alignment_of_two_hidden_layers_from_many_starts_is_the_best_of_all_permutations(metric, seed):
    rng = np.random.default_rng(100 + seed)
    models = [random_layers((2, 3, 3, 2), rng) for _ in range(2)]
    best = closest(metric, *models)
    fusion = aligned(models, metric=metric, restarts=30)
    assert fusion.details["distance_after"] == pytest.approx(best, rel=KL_MATRIX_PRODUCT)


@pytest.mark.parametrize("metric", METRICS)
def test_alignment_of_two_hidden_layers_is_never_below_the_best_of_all_permutations(metric):
    models = [random_layers((2, 3, 3, 2), np.random.default_rng(seed)) for seed in (5, 6)]
    best = closest(metric, *models)
    after = aligned(models, metric=metric).details["distance_after"]
    assert best * (1 - KL_MATRIX_PRODUCT) <= after <= apart(metric, models[1], models[0]) * (1 + KL_MATRIX_PRODUCT)


def spread_around_mean(models, weights, rho=1.0):
    """Return the weighted mean of squared distances to the Wasserstein barycenter: means of means and of deviations.

    The output's biases, which no permutation moves, are left out.
    """
    share = np.asarray(weights, dtype=float) / np.sum(weights)
    total = 0.0
    for number, parts in enumerate(zip(*models, strict=True)):
        for at, values in enumerate(zip(*parts, strict=True)):
            if number == len(models[0]) - 1 and at >= 2:
                continue
            stacked = np.array(values) if at % 2 == 0 else np.sqrt(np.array(values))
            middle = np.tensordot(share, stacked, axes=1)
            squares = ((stacked - middle) ** 2).reshape(len(models), -1).sum(axis=1)
            total += (share @ squares) * (1.0 if at % 2 == 0 else rho)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, (3.0, 1.0, 0.5)], ids=["equal", "weighted"])
@pytest.mark.parametrize("rho", [1.0, 0.2, 5.0])
def test_three_posteriors_come_closest_to_their_barycenter_of_all_permutations(rho, weights):
    rng = np.random.default_rng(17)
    models = [random_layers((2, 3, 2), rng) for _ in range(3)]
    told = (1.0, 1.0, 1.0) if weights is None else weights
    orders = [list(order) for order in itertools.permutations(range(3))]
    best = min(
        spread_around_mean([models[0], permuted(models[1], [one]), permuted(models[2], [two])], told, rho)
        for one, two in itertools.product(orders, orders)
    )
    fusion = aligned(models, rho=rho, weights=weights, restarts=20)
    found = [as_layers(one) for one in fusion.aligned]
    assert spread_around_mean(found, told, rho) == pytest.approx(best, rel=KL_MATRIX_PRODUCT)
    assert fusion.objective == pytest.approx(best, rel=KL_MATRIX_PRODUCT)
    assert np.all(np.diff(fusion.history) <= DESCENT * fusion.history[0])


@pytest.mark.parametrize("weights", [None, (3.0, 1.0)], ids=["equal", "weighted"])
def test_the_aligned_posteriors_average_to_their_wasserstein_barycenter(weights):
    rng = np.random.default_rng(3)
    models = [random_layers((2, 4, 3, 2), rng) for _ in range(2)]
    fusion = aligned(models, weights=weights)
    share = np.array((1.0, 1.0) if weights is None else weights)
    share /= share.sum()
    expected = [
        tuple(
            sum(w * part for w, part in zip(share, both, strict=True))
            if at % 2 == 0
            else sum(w * np.sqrt(part) for w, part in zip(share, both, strict=True)) ** 2
            for at, both in enumerate(zip(*pair, strict=True))
        )
        for pair in zip(*(as_layers(one) for one in fusion.aligned), strict=True)
    ]
    assert_layers(layers_of(fusion.model), expected, rtol=ROUNDING)


@COPIES
def test_permutations_by_the_divergence_are_not_those_by_means_alone():
    # s0 = s1 = (1, 2): the trace term is 2 for the identity, 2.5 for the swap, though the appendix calls it constant.
    variances = np.array([[1.0], [2.0]])
    plain = [
        (np.zeros((2, 1)), variances, np.zeros(2), np.ones(2)),
        (np.zeros((1, 2)), np.ones((1, 2)), np.zeros(1), np.ones(1)),
    ]
    swapped = permuted(plain, [[1, 0]])
    assert apart("kl", swapped, plain) == pytest.approx((0.5 + 2.0 - 2) / 2)
    for metric in ("w2", "kl", "kl_reverse", "hellinger"):
        fusion = aligned([plain, swapped], metric=metric)
        assert list(fusion.matching["0"].of_site(1)) == [1, 0]
        assert fusion.details["distance_after"] == pytest.approx(0, abs=ROUNDING)


@COPIES
def test_two_gaussians_mirrored_at_the_diagonal_are_told_apart_by_wasserstein():
    # Figure A1 of Rossi et al. 2023, as two units with one weight each: means (1, 3) and (3, 1), other things equal.
    def mirrored(first, second, wide, narrow):
        return [
            (np.array([[first], [second]]), np.array([[wide], [narrow]]), np.zeros(2), np.ones(2)),
            (np.ones((1, 2)), np.ones((1, 2)), np.zeros(1), np.ones(1)),
        ]

    models = [mirrored(1.0, 3.0, 4.0, 0.25), mirrored(3.0, 1.0, 0.25, 4.0)]
    for metric in METRICS:
        assert closest(metric, *models) == pytest.approx(0, abs=ROUNDING)
        assert aligned(models, metric=metric).details["distance_after"] == pytest.approx(0, abs=ROUNDING)


# -- What a network answers.


def test_predictive_probabilities_are_the_mean_softmax_over_the_weights():
    layers = random_layers((2, 3, 2), np.random.default_rng(8), spread=(0.05, 0.5))
    inputs = example(layers)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(1500):
        sample = [(m + np.sqrt(v) * rng.normal(size=m.shape), v, b + np.sqrt(u) * rng.normal(size=b.shape), u)
                  for m, v, b, u in layers]  # fmt: skip
        logits = mean_logits(sample, inputs)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        drawn.append(odds / odds.sum(axis=1, keepdims=True))
    drawn = np.array(drawn)
    found = network(layers).predict(inputs, samples=1500, rng=1)
    error = np.sqrt(2 * drawn.var(axis=0) / 1500)
    assert np.all(np.abs(found - drawn.mean(axis=0)) < STANDARD_ERRORS * error)
    assert np.allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize("samples", [1, 2, 5, 6])
def test_samples_come_in_pairs_of_opposite_noise(samples):
    layers = random_layers((2, 3, 2), np.random.default_rng(8))
    drawn = [{name: eps.numpy() for name, eps in noise.items()} for noise in network(layers).noise(samples, rng=2)]
    assert len(drawn) == samples
    for first, second in zip(drawn[::2], drawn[1::2], strict=False):
        assert all(np.array_equal(first[name], -second[name]) for name in first)
    firsts = [noise["0.weight"] for noise in drawn[::2]]
    assert len({eps.tobytes() for eps in firsts}) == len(firsts)


def test_of_a_linear_network_a_pair_has_the_mean_logits():
    layers = random_layers((4, 3), np.random.default_rng(9), spread=(0.05, 0.5))
    one, inputs = network(layers), example(layers)
    logits = [one.logits(inputs, one.state(noise)).numpy() for noise in one.noise(2, rng=1)]
    assert np.allclose(np.mean(logits, axis=0), mean_logits(layers, inputs), atol=1e-5)


def test_pairs_err_less_than_as_many_independent_samples():
    layers = random_layers((4, 8, 3), np.random.default_rng(5), spread=(0.02, 0.2))
    one, inputs = network(layers), example(layers)
    truth = one.predict(inputs, samples=6_000, rng=0)

    def independent(samples, rng):
        states = (one.state(noise) for number, noise in enumerate(one.noise(2 * samples, rng)) if number % 2 == 0)
        return np.mean([one.logits(inputs, state).softmax(dim=1).numpy() for state in states], axis=0)

    in_pairs = [np.square(one.predict(inputs, samples=16, rng=seed) - truth).mean() for seed in range(40)]
    apart = [np.square(independent(16, seed) - truth).mean() for seed in range(40)]
    assert np.mean(in_pairs) < 0.7 * np.mean(apart)


def test_the_same_noise_in_another_order_of_units_gives_the_same_answers():
    layers = random_layers((2, 4, 3), np.random.default_rng(8))
    order = [2, 0, 3, 1]
    one, other = network(layers), network(permuted(layers, [order]))
    (noise,) = one.noise(1, rng=3)
    moved = dict(noise)
    moved["0.weight"], moved["0.bias"] = noise["0.weight"][order], noise["0.bias"][order]
    moved["2.weight"] = noise["2.weight"][:, order]
    inputs = example(layers)
    torch.testing.assert_close(one.logits(inputs, one.state(noise)), other.logits(inputs, other.state(moved)))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_the_mean_module_has_the_mean_weights(activation):
    layers = shuffled(random_layers((2, 4, 3), np.random.default_rng(8)), np.random.default_rng(1))
    inputs = example(layers)
    expected = mean_logits(layers, inputs, np.tanh if activation is nn.Tanh else lambda x: np.maximum(x, 0))
    with torch.no_grad():
        np.testing.assert_allclose(network(layers, activation).mean_module()(inputs), expected, rtol=1e-12)
