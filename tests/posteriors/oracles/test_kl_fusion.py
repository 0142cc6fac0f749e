"""KL-fusion against enumeration of every matching, against its objective written out, and on planted models."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience import families as f
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances
from tests.families.zoo import NAMES, ZOO, specimen

pytestmark = pytest.mark.covering(2)

DIRECTIONS = ("forward", "reverse")
ENUMERATED = ("normal-wishart", "dirichlet", "diagonal-gaussian")
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)
every_family = pytest.mark.parametrize("name", NAMES)
every_assignment = pytest.mark.parametrize("assignment", ["integral", "relaxed"])


def divergences(family, moving, fixed, direction):
    """KL(moving || fixed) or KL(fixed || moving), all pairs, as the Bregman divergence of the log normaliser."""
    a, b = (moving, fixed) if direction == "forward" else (fixed, moving)
    inner = np.einsum("ap,abp->ab", family.mean_parameters(a), b[None] - a[:, None])
    matrix = family.log_normalizer(b) - family.log_normalizer(a)[:, None] - inner
    return matrix if direction == "forward" else matrix.T


def centre(family, rows, weights, direction):
    """The minimiser of a group's weighted divergences: a mean of natural, or of mean, parameters."""
    share = weights / weights.sum()
    if direction == "forward":
        return share @ rows
    return family.from_mean((share @ family.mean_parameters(rows))[None])[0]


def group_cost(family, rows, weights, direction):
    fused = centre(family, rows, weights, direction)
    return weights @ divergences(family, fused[None], rows, direction)[0]


def ensemble_of(family, models, weights=None):
    return Ensemble.of([cs.Posterior(family, eta) for eta in models], weights)


def random_models(name, seed, sizes):
    rng = np.random.default_rng([seed, 11])
    return [ZOO[name].draw(rng, size) for size in sizes]


def written_out(outcome, ensemble, direction):
    """Objective (9) of an outcome: divergences of the fused components it returns, and the norm (8) of its labels."""
    labels, family = outcome.matching.labels, ensemble.family
    costs = divergences(family, outcome.posterior.natural, ensemble.natural, direction)
    total = ensemble.row_weights @ costs[labels, np.arange(len(labels))]
    if "spread" in outcome.details:
        price = outcome.details["regularization"] * outcome.details["spread"]
        total += price * np.sqrt(np.bincount(labels)).sum()
    return total


# -- Brute force.


def best_homogeneous(family, models, direction):
    """The lowest objective (3) over all permutations; the first model's order names the groups."""
    size, rows = len(models[0]), np.concatenate(models)
    starts = size * np.arange(len(models))
    groups = list(itertools.product(range(size), repeat=len(models)))  # one member of each model
    cost = {g: group_cost(family, rows[starts + g], np.ones(len(models)), direction) for g in groups}
    orders = itertools.product(*[list(itertools.permutations(range(size)))] * (len(models) - 1))
    return min(sum(cost[group] for group in zip(range(size), *chosen, strict=True)) for chosen in orders)


@pytest.mark.slow
@every_direction
@pytest.mark.parametrize("name", ENUMERATED)
@pytest.mark.parametrize(("n_models", "size"), [(2, 3), (2, 4), (3, 2), (3, 3), (3, 4)])
def test_homogeneous_optimum_is_that_of_all_permutations(name, direction, n_models, size):
    models = random_models(name, 10 * n_models + size, [size] * n_models)
    method = cs.methods.KLFusion(n_components=size, regularization=0, direction=direction, restarts=20)
    outcome = method.fuse(ensemble_of(ZOO[name].family, models), np.random.default_rng(0))
    optimum = best_homogeneous(ZOO[name].family, models, direction)
    assert_allclose(outcome.objective, optimum, rtol=tolerances.KL_MATRIX_PRODUCT)


def partitions(owner):
    """Every grouping of the rows in which no group holds two rows of one model, as lists of rows."""
    if len(owner) == 0:
        yield []
        return
    row = len(owner) - 1
    for groups in partitions(owner[:-1]):
        yield [*groups, [row]]
        for place, group in enumerate(groups):
            if all(owner[member] != owner[row] for member in group):
                yield [*groups[:place], [*group, row], *groups[place + 1 :]]


def best_heterogeneous(ensemble, price, direction):
    """The lowest objective (9) over all groupings and numbers of components."""
    memory = {}

    def cost(group):
        if group not in memory:
            rows = list(group)
            divergence = group_cost(ensemble.family, ensemble.natural[rows], ensemble.row_weights[rows], direction)
            memory[group] = divergence + price * np.sqrt(len(rows))
        return memory[group]

    return min(sum(cost(tuple(group)) for group in groups) for groups in partitions(ensemble.owner.tolist()))


@pytest.mark.slow
@every_direction
@pytest.mark.parametrize("name", ENUMERATED)
@pytest.mark.parametrize("regularization", [0.05, 0.5])
def test_priced_optimum_is_that_of_all_groupings(name, direction, regularization):
    """Nothing ends below the enumeration, and the best of many starts ends on it or close above."""
    ensemble = ensemble_of(ZOO[name].family, random_models(name, 4, (3, 2, 3)))
    method = cs.methods.KLFusion(regularization=regularization, direction=direction, restarts=20, max_components=8)
    outcome = method.fuse(ensemble, np.random.default_rng(0))
    price = outcome.details["regularization"] * outcome.details["spread"]
    optimum = best_heterogeneous(ensemble, price, direction)
    assert outcome.objective >= optimum * (1 - tolerances.KL_MATRIX_PRODUCT)
    assert outcome.objective <= optimum * (1 + tolerances.LOCAL_OPTIMUM)


# -- The objective, written out.


@every_direction
@every_family
@pytest.mark.parametrize(
    "options", [{"n_components": 4, "regularization": 0}, {"regularization": 0.2}, {"regularization": 1.5}], ids=str
)
def test_the_objective_is_what_it_says(name, direction, options):
    """Divergences from the components returned, weighted by site, plus lambda times the norm; also with weights."""
    ensemble = ensemble_of(ZOO[name].family, random_models(name, 1, (3, 2, 4, 3)), [1.0, 2.0, 0.5, 1.0])
    outcome = cs.methods.KLFusion(direction=direction, **options).fuse(ensemble, np.random.default_rng(0))
    expected = written_out(outcome, ensemble, direction)
    scale = ensemble.row_weights @ np.abs(divergences(ensemble.family, ensemble.natural, ensemble.natural, direction))
    slack = tolerances.KL_MATRIX_PRODUCT * scale.mean()
    assert_allclose(outcome.objective, expected, rtol=tolerances.KL_MATRIX_PRODUCT, atol=slack)
    assert_allclose(outcome.history[-1], outcome.objective, rtol=tolerances.KL_MATRIX_PRODUCT, atol=slack)


@pytest.mark.slow
@every_direction
@pytest.mark.parametrize("name", ENUMERATED)
@pytest.mark.parametrize("regularization", [0.05, 1.0])
def test_the_relaxed_objective_is_that_of_its_coupling(name, direction, regularization):
    """The soft plan is feasible, and its objective at its own barycenters is the one reported."""
    ensemble = ensemble_of(ZOO[name].family, random_models(name, 1, (3, 2, 4, 3)))
    method = cs.methods.KLFusion(regularization=regularization, direction=direction, assignment="relaxed", restarts=2)
    outcome = method.fuse(ensemble, np.random.default_rng(0))
    plan, rows = outcome.matching.coupling, ensemble.natural
    assert_allclose(plan.sum(axis=1), 1.0, rtol=0, atol=tolerances.ROUNDING)
    for start, end in itertools.pairwise(ensemble.offsets.tolist()):
        assert np.all(plan[start:end].sum(axis=0) <= 1 + tolerances.ROUNDING)
    price = outcome.details["regularization"] * outcome.details["spread"]
    matched = sum(group_cost(ensemble.family, rows, column, direction) for column in plan.T if column.any())
    assert_allclose(outcome.objective, matched + price * np.linalg.norm(plan, axis=0).sum(), rtol=method.gap)


@every_direction
@every_family
def test_k_means_objective_is_what_it_says(name, direction):
    ensemble = ensemble_of(ZOO[name].family, random_models(name, 1, (3, 2, 4, 3)), [1.0, 2.0, 0.5, 1.0])
    outcome = cs.methods.KMeans(n_components=4, direction=direction).fuse(ensemble, np.random.default_rng(0))
    assert_allclose(outcome.objective, written_out(outcome, ensemble, direction), rtol=tolerances.KL_MATRIX_PRODUCT)
    nearest = divergences(ensemble.family, outcome.posterior.natural, ensemble.natural, direction).min(axis=0)
    slack = tolerances.KL_MATRIX_PRODUCT * outcome.objective
    assert_allclose(ensemble.row_weights @ nearest, outcome.objective, atol=slack)


@every_family
def test_averaging_costs_the_jensen_gap_of_the_log_normaliser(name):
    """sum_i w_i KL(mean || i) = sum_i w_i A(i) - W A(mean), and no other member of the family does better."""
    family = ZOO[name].family
    ensemble = ensemble_of(family, random_models(name, 2, (3, 3, 3)), [1.0, 3.0, 2.0])
    outcome = cs.methods.KLFusion(n_components=3, regularization=0).fuse(ensemble, np.random.default_rng(0))
    fused, labels, weights = outcome.posterior.natural, outcome.matching.labels, ensemble.row_weights
    mass = np.bincount(labels, weights=weights)
    local = weights @ family.log_normalizer(ensemble.natural)
    assert_allclose(outcome.objective, local - mass @ family.log_normalizer(fused), rtol=tolerances.KL_MATRIX_PRODUCT)
    rng = np.random.default_rng(3)
    for amount in (1e-3, 0.03, 0.3):
        moved = ZOO[name].near(rng, fused, amount)
        costs = divergences(family, moved, ensemble.natural, "forward")[labels, np.arange(len(labels))]
        assert weights @ costs > outcome.objective


# -- Planted models.

PLANTED = {
    "normal-wishart": specimen(f.NormalWishart(3)),
    "dirichlet": specimen(f.Dirichlet(12)),
    "diagonal-gaussian": specimen(f.DiagonalGaussian(4)),
    "gaussian": specimen(f.Gaussian(3)),
    "normal-gamma": specimen(f.NormalGamma(4)),
    "point": specimen(f.Point(4)),
}
few_planted = pytest.mark.parametrize("name", ["normal-wishart", "dirichlet", "point"])
FOUND = [{"n_components": 5}, {}, {"regularization": 0.1}]


def planted(name, seed, n_sites=20, n_global=5, noise=0.01):
    """Sites that hold 2 to 4 of 5 components, each seen through a little noise, and the truth (L,)."""
    rng, kind = np.random.default_rng([seed, 5]), PLANTED[name]
    whole = kind.draw(rng, n_global)
    truth = [rng.permutation(n_global)[: rng.integers(2, 5)] for _ in range(n_sites)]
    return ensemble_of(kind.family, [kind.near(rng, whole[own], noise) for own in truth]), np.concatenate(truth)


def priced(ensemble, labels, price, direction):
    """Objective (9) of a grouping at its barycenters."""
    rows = [np.flatnonzero(labels == group) for group in np.unique(labels)]
    family, eta, weights = ensemble.family, ensemble.natural, ensemble.row_weights
    return sum(group_cost(family, eta[r], weights[r], direction) + price * np.sqrt(len(r)) for r in rows)


@pytest.mark.slow
@every_direction
@pytest.mark.parametrize("options", FOUND, ids=str)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_components_are_found(name, options, direction):
    """The labels are the truth up to renaming, whether the number of components is given, found or priced."""
    ensemble, truth = planted(name, 0)
    outcome = cs.methods.KLFusion(direction=direction, **options).fuse(ensemble, np.random.default_rng(0))
    if curve := outcome.details.get("number", {}).get("topics_at_loss"):  # the least number within .02 nats a word
        assert curve["0.01"] == 5
        options = {"n_components": 5}
        outcome = cs.methods.KLFusion(direction=direction, **options).fuse(ensemble, np.random.default_rng(0))
    assert outcome.posterior.n_components == 5
    assert adjusted_rand_score(truth, outcome.matching.labels) == 1.0


@pytest.mark.slow
@every_direction
@every_assignment
@few_planted
@pytest.mark.parametrize("regularization", [0.1, 0.5])
def test_the_answer_cannot_be_improved_by_merging_two_components(name, assignment, direction, regularization):
    """Rounding a relaxed plan may not leave one component in two halves."""
    ensemble, _ = planted(name, 1, n_sites=6)
    method = cs.methods.KLFusion(regularization=regularization, assignment=assignment, direction=direction, restarts=2)
    outcome = method.fuse(ensemble, np.random.default_rng(0))
    labels, price = outcome.matching.labels, outcome.details["regularization"] * outcome.details["spread"]
    ours = priced(ensemble, labels, price, direction)
    for a, b in itertools.combinations(range(outcome.posterior.n_components), 2):
        if not set(ensemble.owner[labels == a]) & set(ensemble.owner[labels == b]):
            merged = priced(ensemble, np.where(labels == b, a, labels), price, direction)
            assert merged >= ours * (1 - tolerances.KL_MATRIX_PRODUCT)


@pytest.mark.slow
@every_direction
@every_assignment
@few_planted
def test_a_priced_answer_is_no_worse_than_the_truth(name, assignment, direction):
    """The relaxed objective is a minimum over more plans, the integral one over these."""
    ensemble, truth = planted(name, 2, n_sites=6)
    method = cs.methods.KLFusion(regularization=0.3, assignment=assignment, direction=direction, restarts=3)
    outcome = method.fuse(ensemble, np.random.default_rng(0))
    price = outcome.details["regularization"] * outcome.details["spread"]
    assert outcome.objective <= priced(ensemble, truth, price, direction) * (1 + method.gap)


@every_assignment
def test_a_huge_price_leaves_the_size_of_the_largest_site(assignment):
    ensemble, _ = planted("normal-wishart", 3)
    method = cs.methods.KLFusion(regularization=1e3, assignment=assignment)
    assert method.fuse(ensemble, np.random.default_rng(0)).posterior.n_components == ensemble.sizes.max()


@pytest.mark.parametrize(("limit", "status"), [(6, cs.results.Status.AT_CAPACITY), (7, cs.results.Status.CONVERGED)])
def test_a_tiny_price_keeps_what_differs_apart(limit, status):
    """Merging two components costs more than a component, so that only a limit below their number binds."""
    ensemble = ensemble_of(ZOO["gaussian"].family, random_models("gaussian", 9, (2, 3, 2)))
    outcome = cs.methods.KLFusion(regularization=1e-9, max_components=limit).fuse(ensemble, np.random.default_rng(0))
    assert outcome.posterior.n_components == limit
    assert outcome.status is status


@pytest.mark.parametrize(
    "method", [cs.methods.KLFusion(n_components=4), cs.methods.KMeans(n_components=4)], ids=["kl", "kmeans"]
)
def test_a_site_of_no_weight_is_still_told_who_is_who(method):
    """It has no say in the averages, but its labels are those that a very small weight would give."""
    rng, kind = np.random.default_rng(8), ZOO["gaussian"]
    eta = kind.draw(rng, 4)
    order = rng.permutation(4)
    ensemble = ensemble_of(kind.family, [eta, kind.near(rng, eta, 0.01)[order]], [1.0, 0.0])
    matching = method.fuse(ensemble, np.random.default_rng(0)).matching
    assert_array_equal(matching.of_site(1), matching.of_site(0)[order])
