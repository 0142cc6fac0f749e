"""Laws of clustering under a Dirichlet process: the price of a cluster, its limits, planted clusters, awkward sites."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from consilience import families as f
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.methods.dirichlet_process.method import MixtureSetting, fit_mixture, standardised
from tests.families.zoo import NAMES, ZOO
from tests.posteriors import planted
from tests.posteriors.matchings import matchings
from tests.tolerances import KL_MATRIX_PRODUCT, LOCAL_OPTIMUM, ROOT_FINDING, ROUNDING, VARIATIONAL_BOUND

pytestmark = pytest.mark.covering(2)

MIXTURE, MEANS = cs.methods.DirichletProcess(restarts=4), cs.methods.DirichletProcess(assignment="means", restarts=4)
METHODS = {
    "spherical": MIXTURE,
    "diagonal": cs.methods.DirichletProcess(covariance_type="diag", restarts=4),
    "means": MEANS,
}
HUGE = 1e9
every_family = pytest.mark.parametrize("family", NAMES)
every_method = pytest.mark.parametrize("method", METHODS)
directions = pytest.mark.parametrize("direction", ["forward", "reverse"])


def fused(sites, method, weights=None):
    ensemble = Ensemble.of(sites, weights)
    return method.fuse(ensemble, np.random.default_rng(0)), ensemble


def priced(penalty, direction="forward"):
    return cs.methods.DirichletProcess(assignment="means", penalty=penalty, direction=direction, restarts=4)


def random_sites(family, sizes, seed=0):
    rng, kind = np.random.default_rng(seed), ZOO[family]
    return [cs.Posterior(kind.family, kind.draw(rng, size)) for size in sizes]


def cost(ensemble, rows, direction):
    """What a cluster of some rows costs without its price: divergences from the barycenter."""
    eta, weights = ensemble.natural[rows], ensemble.row_weights[rows]
    centre = ensemble.family.barycenter(eta, weights, direction)[None]
    forward = direction == "forward"
    divergences = ensemble.family.kl(centre, eta)[0] if forward else ensemble.family.kl(eta, centre)[:, 0]
    return float(weights @ divergences)


def same(one, other):
    """Whether clusters are the same, whatever their numbers."""
    return adjusted_rand_score(one.matching.labels, other.matching.labels) == 1.0


# -- DP-means: the price of a cluster.


@every_family
@directions
def test_the_objective_is_the_divergences_and_a_price_for_each_cluster_but_one(family, direction):
    outcome, ensemble = fused(random_sites(family, (3, 2, 4)), priced(0.2, direction), (1.0, 2.0, 0.5))
    labels = outcome.matching.labels
    groups = [np.flatnonzero(labels == group) for group in range(labels.max() + 1)]
    expected = sum(cost(ensemble, rows, direction) for rows in groups) + outcome.details["penalty"] * labels.max()
    assert_allclose(outcome.objective, expected, rtol=ROOT_FINDING if direction == "reverse" else KL_MATRIX_PRODUCT)


@every_family
def test_no_price_leaves_every_component_alone_and_any_price_joins_all(family):
    sites, weights = random_sites(family, (3, 2, 4)), (1.0, 2.0, 0.5)
    alone, ensemble = fused(sites, priced(0.0), weights)
    assert_array_equal(np.sort(alone.matching.labels), np.arange(9))
    together, _ = fused(sites, priced(HUGE), weights)
    assert_array_equal(together.matching.labels, 0)
    grand_mean = ensemble.family.barycenter(ensemble.natural, ensemble.row_weights)
    assert_allclose(together.posterior.natural[0], grand_mean, rtol=ROUNDING, atol=ROUNDING * np.abs(grand_mean).max())
    assert together.details["violations"] == 6


@every_family
def test_no_price_joins_only_what_is_the_same(family):
    kind = ZOO[family]
    eta = kind.draw(np.random.default_rng(1), 3)
    outcome, _ = fused([cs.Posterior(kind.family, eta[[0, 1, 0]]), cs.Posterior(kind.family, eta[[2, 1]])], priced(0.0))
    labels = outcome.matching.labels
    assert labels[0] == labels[2] != labels[1] == labels[4] != labels[3] != labels[0]
    assert outcome.details["violations"] == 1


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("penalty", [0.1, 0.5])
def test_nothing_is_cheaper_than_the_cheapest_of_all_partitions(family, penalty):
    outcome, ensemble = fused(random_sites(family, (4, 3), seed=4), priced(penalty), (1.0, 2.0))
    price, bits = outcome.details["penalty"], 2 ** np.arange(7)
    members = [np.flatnonzero(bits & subset) for subset in range(2**7)]
    costs = [0.0, *(cost(ensemble, rows, "forward") for rows in members[1:])]
    every = ([int(bits[labels == group].sum()) for group in range(labels.max() + 1)] for labels in matchings([1] * 7))
    least = min(sum(costs[subset] for subset in subsets) + price * (len(subsets) - 1) for subsets in every)
    assert least * (1.0 - KL_MATRIX_PRODUCT) <= outcome.objective <= least * (1.0 + LOCAL_OPTIMUM)


def test_for_points_the_divergence_is_half_the_squared_distance():
    sites = random_sites("point", (3, 4, 3), seed=5)
    outcome, ensemble = fused(sites, priced(0.3))
    labels, centres = outcome.matching.labels, outcome.posterior.natural
    distances = np.square(ensemble.natural - centres[labels]).sum()
    assert_allclose(outcome.objective, 0.5 * distances + outcome.details["penalty"] * labels.max(), rtol=ROUNDING)
    means = [ensemble.natural[labels == group].mean(axis=0) for group in range(len(centres))]
    assert_allclose(centres, means, rtol=ROUNDING)


@pytest.mark.parametrize("family", ["gaussian", "dirichlet", "point"])
def test_a_higher_price_leaves_no_more_clusters(family):
    counts = [fused(random_sites(family, (4, 3, 4)), priced(p))[0].posterior.n_components for p in (0.01, 0.1, 1.0, 10)]
    assert counts == sorted(counts, reverse=True)


def test_the_price_that_was_chosen_gives_the_same_clusters():
    sites = planted.mixtures(seed=3).sites
    found = fused(sites, MEANS)[0]
    again = fused(sites, priced(found.details["penalty"] / found.details["spread"]))[0]
    assert_array_equal(again.matching.labels, found.matching.labels)
    assert_allclose(again.objective, found.objective, rtol=ROUNDING)


# -- The mixture.


def test_bounds_of_different_settings_can_be_compared():
    """In one dimension scikit-learn's bound is exact, but for what is constant in one fit."""
    rng = np.random.default_rng(6)
    points = standardised(np.concatenate([rng.normal(m, 0.5, 12) for m in (-4.0, 0.0, 5.0)])[:, None], "spherical")
    gaps = []
    for concentration, share in ((0.01, 1.0), (1.0, 0.05), (0.1, 0.25)):
        fit = fit_mixture(points, MixtureSetting(6, "spherical", concentration, share), 1, 1000, seed=0)
        model = BayesianGaussianMixture(
            n_components=6,
            covariance_type="spherical",
            weight_concentration_prior_type="dirichlet_process",
            weight_concentration_prior=concentration,
            mean_prior=[0.0],
            mean_precision_prior=share,
            covariance_prior=share,
            init_params="k-means++",
            max_iter=1000,
            random_state=0,
        ).fit(points)
        gaps.append(fit.bounds[-1] - evidence_bound(model, points, concentration, share))
    assert np.ptp(gaps) < VARIATIONAL_BOUND


def evidence_bound(model, points, concentration, share):
    """The lower bound of the log evidence, by its definition."""
    shares = model.predict_proba(points)
    first, second = model.weight_concentration_
    sticks, beta = f.Beta(), f.Beta().to_natural(a=first, b=second)
    logs = sticks.mean_parameters(beta)  # E log V, E log (1 - V)
    log_weights = logs[:, 0] + np.concatenate([[0.0], np.cumsum(logs[:-1, 1])])
    family, dof = f.NormalWishart(1), model.degrees_of_freedom_
    inverse = (model.covariances_ * dof)[:, None, None]
    own = family.to_natural(mean=model.means_, kappa=model.mean_precision_, inverse_scale=inverse, dof=dof)
    base = family.to_natural(mean=[[0.0]], kappa=[share], inverse_scale=[[[share]]], dof=[1.0])
    linear, quadratic, precision, log_precision = family.mean_parameters(own).T  # E of L m, m L m, L and log L
    distances = points**2 * precision - 2.0 * points * linear + quadratic
    expected = 0.5 * (log_precision - np.log(2.0 * np.pi) - distances)
    likelihood = np.sum(shares * (log_weights + expected)) - np.sum(shares * np.log(np.maximum(shares, 1e-300)))
    prior = sticks.to_natural(a=[1.0], b=[concentration])
    return likelihood - sticks.kl(beta, prior).sum() - family.kl(own, base).sum()


@pytest.mark.parametrize("covariance_type", ["spherical", "diag"])
def test_the_place_and_unit_of_points_change_nothing(covariance_type):
    points = planted.mixtures("point", seed=1).sites
    moved = [cs.Posterior(site.family, 1e-3 * site.natural + 7.0) for site in points]
    method = cs.methods.DirichletProcess(covariance_type=covariance_type, restarts=4)
    assert same(fused(moved, method)[0], fused(points, method)[0])


def test_diagonal_covariances_take_every_coordinate_in_its_own_unit():
    points = planted.mixtures("point", seed=1).sites
    moved = [cs.Posterior(site.family, site.natural * [1e4, 1e-4]) for site in points]
    assert same(*(fused(sites, METHODS["diagonal"])[0] for sites in (points, moved)))


def test_how_sure_a_match_is_is_a_probability():
    outcome, _ = fused(random_sites("gaussian", (5, 4, 5)), MIXTURE)
    confidence = outcome.matching.confidence
    assert np.all((confidence > 0) & (confidence <= 1 + ROUNDING))


def test_settings_that_are_given_are_kept_and_others_are_told():
    sites = planted.mixtures(seed=2).sites
    assert fused(sites, cs.methods.DirichletProcess(concentration=0.3, restarts=1))[0].details["concentration"] == 0.3
    assert {"concentration", "share", "violations"} <= set(fused(sites, MIXTURE)[0].details)


# -- Planted clusters.


@every_method
@pytest.mark.parametrize("family", ["normal-wishart", "gaussian", "point"])
def test_planted_clusters_are_found(family, method):
    sites = planted.mixtures(family, seed=7, n_sites=8)
    outcome, _ = fused(sites.sites, METHODS[method])
    assert adjusted_rand_score(sites.all_truth, outcome.matching.labels) == 1.0
    assert outcome.details["violations"] == 0


@every_method
def test_planted_topics_are_found(method):
    sites = planted.topics(seed=1, n_sites=8)
    assert adjusted_rand_score(sites.all_truth, fused(sites.sites, METHODS[method])[0].matching.labels) == 1.0


# -- Awkward sites.


@every_method
@pytest.mark.parametrize("family", ["normal-wishart", "dirichlet", "point", "gamma"])
def test_components_that_are_all_the_same_are_one(family, method):
    kind = ZOO[family]
    eta = kind.draw(np.random.default_rng(3), 1)
    outcome, _ = fused([cs.Posterior(kind.family, np.repeat(eta, size, axis=0)) for size in (2, 1, 3)], METHODS[method])
    assert_array_equal(outcome.matching.labels, 0)
    assert_allclose(outcome.posterior.natural, eta, rtol=ROOT_FINDING)
    assert outcome.details["violations"] == 3
    assert outcome.status is cs.results.Status.CONVERGED


@every_method
@pytest.mark.parametrize("family", ["normal-wishart", "dirichlet", "point"])
def test_sites_of_one_component_each_are_clustered(family, method):
    rng, kind = np.random.default_rng(4), ZOO[family]
    eta = kind.draw(rng, 2)
    truth = np.arange(10) % 2
    sites = [cs.Posterior(kind.family, kind.near(rng, eta[[one]], 0.01)) for one in truth]
    assert adjusted_rand_score(truth, fused(sites, METHODS[method])[0].matching.labels) == 1.0


@every_method
@pytest.mark.parametrize("family", ["normal-wishart", "gaussian", "point"])
def test_one_component_far_out_is_a_cluster_of_its_own(family, method):
    """And the others are not all the same for that."""
    sites = planted.mixtures(family, seed=7, n_sites=8)
    kind = planted.family_named(family)
    far = planted.conjugate_site(kind, [1e5 + np.random.default_rng(5).normal(size=(60, 2))])
    outcome, _ = fused([*sites.sites, far], METHODS[method])
    *others, alone = outcome.matching.labels
    assert alone not in others
    assert np.all(np.isfinite(outcome.posterior.natural))
    assert adjusted_rand_score(sites.all_truth, others) == 1.0


def test_weak_components_are_left_out():
    sites = planted.mixtures(seed=7, n_sites=8).sites
    weak = cs.Posterior(sites[0].family, sites[0].natural, counts=np.r_[0.5, sites[0].counts[1:]], prior=sites[0].prior)
    outcome, _ = fused([weak, *sites[1:]], MEANS)
    assert outcome.matching.labels[0] == -1
    assert outcome.details["left_out"] == 1


def test_a_truncation_that_is_full_is_reported():
    sites = planted.mixtures(seed=7, n_sites=8).sites
    outcome, _ = fused(sites, cs.methods.DirichletProcess(max_components=2, restarts=2))
    assert outcome.posterior.n_components == 2
    assert outcome.status is cs.results.Status.AT_CAPACITY


@pytest.mark.parametrize("assignment", ["variational", "means"])
def test_a_start_cut_short_is_reported(assignment):
    sites = planted.topics(seed=1, n_sites=8).sites
    outcome, _ = fused(sites, cs.methods.DirichletProcess(assignment=assignment, max_iterations=1))
    assert outcome.status is cs.results.Status.MAX_ITERATIONS


# -- Options.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"assignment": "soft"}, "option assignment must be 'variational' or 'means', found 'soft'"),
        ({"covariance_type": "full"}, "option covariance_type must be 'diag' or 'spherical', found 'full'"),
        ({"concentration": 0.0}, "option concentration must be a positive number or None, found 0.0"),
        ({"concentration": 1.0, "assignment": "means"}, "option concentration must be None with `assignment='means'`"),
        ({"penalty": -1.0, "assignment": "means"}, "option penalty must be a number that is not negative, or None"),
        ({"penalty": 0.1}, "option penalty must be None with `assignment='variational'`"),
        ({"max_components": 0}, "option max_components must be a positive integer or None, found 0"),
        ({"restarts": 1.5}, "option restarts must be a positive integer, found 1.5"),
        ({"max_iterations": True}, "option max_iterations must be a positive integer, found True"),
        ({"direction": "both"}, "option direction must be 'forward' or 'reverse', found 'both'"),
        ({"min_matching_count": None}, "option min_matching_count must be a number that is not negative, found None"),
    ],
)
def test_options_out_of_range_are_named(options, text):
    with pytest.raises(cs.errors.OptionError, match=f"^dp: {text}"):
        cs.methods.DirichletProcess(**options)
