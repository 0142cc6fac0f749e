"""Steps of KL-fusion by themselves: site-by-site refinement against every choice, seeds, limits, and what is said."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience import families as f
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.diagnostics import find_far_sites
from consilience.posteriors.methods.kl import problem as problems
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, compact, fit_binary, objective, refine
from tests import tolerances
from tests.families.zoo import ZOO
from tests.posteriors.oracles.test_kl_fusion import test_the_relaxed_objective_is_that_of_its_coupling as relaxed_law

pytestmark = pytest.mark.covering(2)

SIZES = (2, 3, 1, 2)


def problem_of(name, seed, direction="forward", weights=(1.0, 2.0, 0.5, 1.0)):
    rng = np.random.default_rng([seed, 17])
    sites = [cs.Posterior(ZOO[name].family, ZOO[name].draw(rng, size)) for size in SIZES]
    return KLProblem.of(Ensemble.of(sites, weights), direction), rng


def value_of(problem, labels, strength):
    labels, centres = compact(problem, labels)
    return objective(problem, centres, labels, strength)


@pytest.mark.parametrize("strength", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("name", ["dirichlet", "diagonal-gaussian", "gamma"])
def test_refinement_ends_where_no_site_can_choose_better(name, direction, strength):
    """Every choice of groups of one site is tried, its own groups included where nobody else is in them."""
    moved = 0
    for seed in range(4):
        problem, rng = problem_of(name, seed, direction)
        offsets = problem.ensemble.offsets
        labels = np.concatenate([rng.permutation(6)[:size] for size in SIZES])
        labels, centres = compact(problem, labels)
        start = objective(problem, centres, labels, strength)
        fit = refine(problem, KLFit(labels, centres, start, (start,), True), strength, rng)
        assert_allclose(fit.objective, value_of(problem, fit.labels, strength), rtol=tolerances.KL_MATRIX_PRODUCT)
        assert fit.objective <= start
        moved += fit.objective < start
        for first, end in itertools.pairwise(offsets.tolist()):
            for choice in itertools.permutations(range(fit.n_groups), end - first):
                trial = fit.labels.copy()
                trial[first:end] = choice
                value = value_of(problem, trial, strength)
                assert value >= fit.objective * (1 - tolerances.KL_MATRIX_PRODUCT), (seed, first, choice)
    assert moved


def assert_no_site_can_choose_better(problem, fit, strength):
    for first, end in itertools.pairwise(problem.ensemble.offsets.tolist()):
        for choice in itertools.permutations(range(fit.n_groups), end - first):
            trial = fit.labels.copy()
            trial[first:end] = choice
            value = value_of(problem, trial, strength)
            assert value >= fit.objective * (1 - tolerances.KL_MATRIX_PRODUCT), (first, choice)


@pytest.mark.parametrize("strength", [0.1, 1.0])
@pytest.mark.parametrize("name", ["dirichlet", "gamma"])
def test_every_start_of_a_small_problem_ends_where_no_site_can_choose_better(name, strength):
    for seed in range(6):
        problem, rng = problem_of(name, seed)
        fit = fit_binary(problem, problem.seeds(4, rng), strength, rng, 100, 0.0)
        assert_no_site_can_choose_better(problem, fit, strength)


def test_seeds_are_the_same_whether_divergences_are_kept_or_not(monkeypatch):
    kept = problem_of("dirichlet", 5)[0].seeds(4, np.random.default_rng(0))
    monkeypatch.setattr(problems, "MAX_CACHED_ROWS", 1)
    assert_array_equal(problem_of("dirichlet", 5)[0].seeds(4, np.random.default_rng(0)), kept)


def test_a_relaxed_fusion_reports_the_objective_of_its_coupling():
    """The law that is tried on all families where there is time, on one."""
    relaxed_law("dirichlet", "forward", 1.0)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [1, 4], [5], [0, 3, 5], []], ids=str)
def test_sites_keep_their_places_in_a_stack_of_some_rows(rows):
    """Also sites of which nothing is left."""
    family, owner = f.SphericalGaussian(1), np.array([0, 0, 1, 2, 2, 2])
    eta = family.to_natural(mean=np.arange(6.0)[:, None], variance=np.ones(6))
    taken = Stack(family, eta, np.array([0, 2, 3, 6]), np.arange(1.0, 7.0)).take(np.array(rows, dtype=np.int64))
    assert taken.n_sites == 3
    assert_array_equal(taken.owner, owner[rows])
    assert_array_equal(taken.natural, eta[rows])
    assert_array_equal(taken.row_weights, np.arange(1.0, 7.0)[rows])


# -- The number of components.


def sites_of(sizes, seed=0):
    """Sites with nothing in common."""
    family, rng = f.SphericalGaussian(2), np.random.default_rng([seed, *sizes])
    return [
        cs.Posterior(family, family.to_natural(mean=10.0 * rng.normal(size=(n, 2)), variance=np.full(n, 0.1)))
        for n in sizes
    ]


def test_every_number_is_tried_up_to_that_of_all_components():
    for sizes in [(5, 6, 6), (4,) * 9]:
        numbers = [record["n_components"] for record in cs.fuse(sites_of(sizes), "kl").details["path"]]
        assert numbers == list(range(numbers[0], sum(sizes) + 1))


def test_no_number_above_the_given_limit_is_tried():
    bounded = cs.fuse(sites_of((4,) * 9), "kl", max_components=7).details["path"]
    assert max(record["n_components"] for record in bounded) == 7


@pytest.mark.parametrize("sizes", [(4,) * 9, (3, 2, 4, 1, 4, 3, 4, 2), (6, 5, 4, 3, 2, 1, 6, 6, 6)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_no_more_components_than_the_given_limit_are_found(sizes, seed):
    """Also where the best pairs, merged one after another, leave no room for the largest site's components."""
    fusion = cs.fuse(sites_of(sizes, seed), "kl", max_components=max(sizes))
    assert fusion.n_components == max(sizes)
    assert fusion.status is cs.results.Status.AT_CAPACITY


def test_details_count_what_is_left_out_only_where_something_is():
    rng, kind = np.random.default_rng(1), ZOO["normal-gamma"]
    shared = kind.draw(rng, 3)
    sites = [cs.Posterior(kind.family, kind.near(rng, shared, 0.01), prior=kind.prior) for _ in range(3)]
    assert "left_out" not in cs.fuse(sites, "kl").details
    unseen = cs.Posterior(kind.family, np.concatenate([shared, kind.prior[None]]), prior=kind.prior)
    assert cs.fuse([*sites, unseen], "kl").details["left_out"] == 1


@pytest.mark.parametrize("regularization", ["automatic", "", "1.0"])
def test_a_regularization_that_is_another_text_is_refused(regularization):
    with pytest.raises(cs.errors.OptionError, match="regularization must be 'auto' or a number"):
        cs.methods.KLFusion(regularization=regularization)


# -- Sites that are not like the others.


def test_only_sites_with_several_components_are_told_to_have_none_in_common():
    """One component of one site's own may be rare; all of several are another world."""
    family = f.SphericalGaussian(1)
    labels = np.array([0, 1, 0, 1, 0, 1, 2, 3, 4])  # three sites alike, one of one component, one of two
    eta = family.to_natural(mean=9.0 * labels[:, None], variance=np.ones(9))
    stack = Stack(family, eta, np.array([0, 2, 4, 6, 7, 9]), np.ones(9))
    assert find_far_sites(stack, labels) == {4: "none of its components is found at another site"}
