"""KL-fusion finds the number of components, whatever the family, the order, the names and the units."""

import functools
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from tests import tolerances
from tests.copies import COPIES
from tests.families.zoo import NAMES, ZOO
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

SEEDS = range(2)


def found(sites, **options):
    return cs.fuse(sites, regularization="auto", **options)


def assert_true(fusion, truth, n_components=4):
    """The true number, and the true matches up to the names of components."""
    assert fusion.n_components == n_components
    assert fusion.status is cs.results.Status.CONVERGED
    assert adjusted_rand_score(truth, fusion.matching.labels) == 1.0
    assert "outliers" not in fusion.details


def content(fusion):
    p = fusion.posterior
    arrays = (p.natural, p.counts, p.weights, fusion.history, np.array(fusion.objective))
    return [None if array is None else np.asarray(array).tobytes() for array in arrays]


# -- Copies.


@COPIES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n_components", "n_copies"), [(1, 3), (4, 2), (3, 5)])
def test_copies_of_one_model_give_it_back(name, n_components, n_copies):
    rng, kind = np.random.default_rng(0), ZOO[name]
    eta = kind.draw(rng, n_components)
    if name == "dirichlet":  # topics are told apart by their tokens, of which these have a dozen
        eta = kind.family.reweighted(eta, 1000.0)
    orders = [rng.permutation(n_components) for _ in range(n_copies)]
    fusion = found([cs.Posterior(kind.family, eta[order]) for order in orders])
    assert fusion.n_components == n_components
    for site, order in enumerate(orders):
        back = fusion.posterior.natural[fusion.matching.of_site(site)]
        assert_allclose(back, eta[order], rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING * np.abs(eta).max())


# -- Planted components, no site with all of them.


@pytest.mark.slow
@pytest.mark.parametrize("name", planted.NORMAL)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_true_components_of_mixtures_are_found(name, seed):
    truth = planted.mixtures(name, seed)
    assert_true(found(truth.sites), truth.all_truth)


@pytest.mark.parametrize("between", [0.0, 0.1, 1.0])
def test_the_number_does_not_depend_on_how_much_sites_differ(between):
    truth = planted.mixtures(between=between, apart=10.0)
    assert_true(found(truth.sites), truth.all_truth)


@pytest.mark.parametrize("n", [20, 2000, 200000])
def test_more_data_do_not_make_more_components(n):
    """Sites differ by more than their posteriors admit, and the more so the more data they have."""
    rng = np.random.default_rng(3)
    truth = planted.mixtures(n=40, between=0.4)
    family = planted.family_named("normal-wishart")
    sites = []
    for site in truth.sites:
        p, size = family.from_natural(site.natural), np.full(site.n_components, float(n))
        typical = np.linalg.inv(p["scale"]) / p["dof"][:, None, None]
        eta = family.to_natural(mean=p["mean"], kappa=size, inverse_scale=n * typical, dof=size)
        order = rng.permutation(len(eta))
        sites.append(cs.Posterior(family, eta[np.argsort(order)][order]))
    assert_true(found(sites), truth.all_truth)


@pytest.mark.parametrize("between", [0.0005, 0.003])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_true_topics_are_found(seed, between):
    truth = planted.topics(seed, between=between)
    assert_true(found(truth.sites), truth.all_truth)


@pytest.mark.parametrize("between", [0.01, 0.05])
def test_topics_that_differ_between_sites_stay_apart_as_far_as_that_tells_words(between):
    """No two true topics become one, and nothing that matters is lost; given the number, who is who is right."""
    truth = planted.topics(0, between=between)
    fusion = found(truth.sites)
    for group in range(fusion.n_components):
        assert len(np.unique(truth.all_truth[fusion.matching.labels == group])) == 1
    assert fusion.objective < 0.05
    told = cs.fuse(truth.sites, n_components=4)
    assert adjusted_rand_score(truth.all_truth, told.matching.labels) == 1.0


# -- Models that scikit-learn fitted.


@functools.cache
def site_data(seed=0, n_sites=6):
    """Observations of every site (a list of arrays), and which components each holds."""
    rng = np.random.default_rng([seed, 23])
    centres = planted.centres_apart(rng, 4, 9.0)
    held = planted.who_holds_what(rng, n_sites, 4)
    local = [centres[own] + 0.3 * rng.normal(size=(len(own), 2)) for own in held]
    data = [np.concatenate([rng.normal(m, 1.0, (70, 2)) for m in means]) for means in local]
    return data, held, centres


def nearest(means, centres):
    return np.argmin(((means[:, None] - centres) ** 2).sum(axis=2), axis=1)


def fitted(make):
    data, held, centres = site_data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, that it has not converged
        models = [make(len(own)).fit(X) for X, own in zip(data, held, strict=True)]
    places = [getattr(model, "means_", getattr(model, "cluster_centers_", None)) for model in models]
    return models, [len(X) for X in data], np.concatenate([nearest(place, centres) for place in places])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_variational_mixtures_give_the_true_components(kind):
    models, _, truth = fitted(
        lambda k: BayesianGaussianMixture(n_components=k, covariance_type=kind, n_init=2, random_state=0)
    )
    assert_true(found(models), truth)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_maximum_likelihood_mixtures_give_the_true_components(kind):
    models, samples, truth = fitted(lambda k: GaussianMixture(k, covariance_type=kind, n_init=2, random_state=0))
    assert_true(found(models, n_observations=samples), truth)


def test_cluster_centres_give_the_true_clusters():
    models, _, truth = fitted(lambda k: KMeans(k, n_init=5, random_state=0))
    assert_true(found(models), truth)


@pytest.mark.slow
def test_topic_models_give_the_true_topics():
    """Fitted to documents, with sites' topic mixtures of their own."""
    rng, words = np.random.default_rng(5), 24
    common = np.full((4, words), 0.05)
    for topic in range(4):
        common[topic, 6 * topic : 6 * topic + 6] = 1.0
    common /= common.sum(axis=1, keepdims=True)
    held = planted.who_holds_what(rng, 5, 4)
    models = []
    for own in held:
        shares = rng.dirichlet(np.full(len(own), 0.1), 80)
        X = np.stack([rng.multinomial(60, share @ common[own]) for share in shares])
        fits = [LatentDirichletAllocation(len(own), random_state=seed).fit(X) for seed in range(2)]
        models.append(max(fits, key=lambda fit: fit.score(X)))
    truth = np.concatenate([(m.components_ @ common.T).argmax(axis=1) for m in models])
    names = [f"word {number}" for number in range(words)]
    assert_true(found([cs.describe(model, features=names) for model in models]), truth)


# -- Names, order, units.


def test_relabelling_components_changes_only_labels():
    truth, rng = planted.mixtures(), np.random.default_rng(6)
    plain = found(truth.sites)
    orders = [rng.permutation(site.n_components) for site in truth.sites]
    other = found([site.take(order) for site, order in zip(truth.sites, orders, strict=True)])
    assert content(other) == content(plain)
    for number, order in enumerate(orders):
        assert_array_equal(other.matching.of_site(number), plain.matching.of_site(number)[order])


def test_the_order_of_sites_changes_only_the_order_of_labels():
    truth = planted.mixtures()
    order = np.random.default_rng(7).permutation(len(truth.sites))
    plain, other = found(truth.sites), found([truth.sites[number] for number in order])
    assert content(other) == content(plain)
    for place, number in enumerate(order):
        assert_array_equal(other.matching.of_site(place), plain.matching.of_site(number))
        sure = plain.matching.confidence[plain.matching.owner == number]
        assert_array_equal(other.matching.confidence[other.matching.owner == place], sure)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal-wishart", "gaussian", "point"])
@pytest.mark.parametrize(("unit", "shift"), [(1e-4, 0.0), (1e5, 0.0), (1.0, 1e4)])
def test_units_and_origins_do_not_matter(name, unit, shift):
    """Not even to components that are hard to tell apart."""
    few = functools.partial(planted.mixtures, name, apart=3.0)
    here, there = found(few().sites), found(few(unit=unit, shift=shift).sites)
    assert adjusted_rand_score(here.matching.labels, there.matching.labels) == 1.0
    assert_allclose(there.matching.confidence, here.matching.confidence, atol=tolerances.CALIBRATION)


# -- Weights of sites.


@COPIES
def test_a_site_of_no_weight_has_no_vote():
    """It may have anything to say: the others' number and matches are what they are without it."""
    truth = planted.mixtures()
    alone = found(truth.sites)
    strange = truth.sites[0].take(np.arange(2))
    weights = [1.0] * len(truth.sites) + [0.0]
    together = found([*truth.sites, strange], weights=weights)
    assert together.n_components == alone.n_components
    own = together.matching.labels[: len(alone.matching.labels)]
    assert_array_equal(own, alone.matching.labels)
    assert_allclose(together.posterior.natural, alone.posterior.natural, rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("weights", [(0.2, 1, 1, 1, 1, 1), (4, 1, 2, 1, 1, 3), (1, 1, 1, 1, 1, 10)], ids=str)
def test_unequal_weights_find_the_true_components(weights):
    truth = planted.mixtures()
    assert_true(found(truth.sites, weights=weights), truth.all_truth)
