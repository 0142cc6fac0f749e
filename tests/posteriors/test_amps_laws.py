"""What AMPS must keep: names and order are without meaning, copies align, one component is a Bayes product."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from tests import tolerances
from tests.copies import COPIES
from tests.families.zoo import ZOO
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

EXACT = tolerances.KL_MATRIX_PRODUCT
WIDE = [name for name, kind in ZOO.items() if kind.family.has_width]
every_family = pytest.mark.parametrize("name", WIDE)
every_way = pytest.mark.parametrize("growth", [False, True])


def agents(name, seed, sizes, near=0.3):
    """Copies of the same components that differ, in any order, under the weak prior of their family."""
    kind, rng = ZOO[name], np.random.default_rng([seed, 61])
    shared, sites = kind.draw(rng, max(sizes)), []
    for size in sizes:
        eta = kind.near(rng, shared, near)[rng.permutation(len(shared))[:size]]
        sites.append(cs.Posterior(kind.family, eta, prior=kind.prior, counts=rng.uniform(2.0, 9.0, size)))
    return sites


def amps(sites, restarts=3, **options):
    return cs.fuse(sites, method="amps", restarts=restarts, min_count=0, **options)


@every_family
@every_way
def test_neither_the_order_of_components_nor_that_of_agents_changes_anything_but_labels(name, growth):
    sites, rng = agents(name, 0, (3, 3, 3)), np.random.default_rng(1)
    plain = amps(sites, growth=growth)
    orders, turn = [rng.permutation(3) for _ in sites], rng.permutation(3)
    other = amps([sites[j].take(orders[j]) for j in turn], growth=growth)
    assert_array_equal(other.posterior.natural, plain.posterior.natural)
    assert_array_equal(other.history, plain.history)
    for place, site in enumerate(turn):
        assert_array_equal(other.matching.of_site(place), plain.matching.of_site(site)[orders[site]])


@every_family
@every_way
@pytest.mark.parametrize("sizes", [(5, 5, 5, 5), (1, 1, 1)], ids=str)
def test_the_history_never_rises_and_labels_are_a_matching(name, growth, sizes):
    """Every agent has one component in each group, or at most one where groups may grow."""
    fusion = amps(agents(name, 0, sizes, near=0.8), growth=growth)
    assert np.all(np.diff(fusion.history) <= tolerances.DESCENT * np.abs(fusion.history[:-1]))
    assert_allclose(fusion.history[-1], fusion.objective, rtol=tolerances.DESCENT)
    assert growth or fusion.n_components == sizes[0]
    assert fusion.matching.members.sum() == sum(sizes)
    for number, size in enumerate(sizes):
        assert len(set(fusion.matching.of_site(number).tolist())) == size


@COPIES
@every_family
def test_copies_align_and_multiply(name):
    """N copies give N lambda - (N - 1) lambda0."""
    kind, rng = ZOO[name], np.random.default_rng(2)
    eta = kind.draw(rng, 4)
    orders = [rng.permutation(4) for _ in range(5)]
    fusion = amps([cs.Posterior(kind.family, eta[order], prior=kind.prior) for order in orders])
    expected = 5 * eta - 4 * kind.prior
    for number, order in enumerate(orders):
        back = fusion.posterior.natural[fusion.matching.of_site(number)]
        assert_allclose(back, expected[order], rtol=EXACT, atol=tolerances.ROUNDING * np.abs(expected).max())


@every_family
def test_one_component_is_a_bayes_product(name):
    sites = agents(name, 3, (1, 1, 1, 1))
    fusion = amps(sites)
    expected = sum(site.natural for site in sites) - 3 * sites[0].prior
    assert_allclose(fusion.posterior.natural, expected, rtol=EXACT, atol=tolerances.ROUNDING * np.abs(expected).max())
    counts = sum(site.counts for site in sites)
    assert_allclose(fusion.posterior.counts, counts)


@every_family
def test_a_component_that_saw_nothing_adds_nothing(name):
    """An agent's empty component, equal to the prior, leaves the others' products as they are."""
    sites = agents(name, 4, (3, 3))
    idle = cs.Posterior(sites[0].family, np.tile(sites[0].prior, (3, 1)), prior=sites[0].prior, counts=np.zeros(3))
    scale = tolerances.ROUNDING * np.abs(amps(sites).posterior.natural).max()
    with_it, without = amps([*sites, idle]), amps(sites)
    for number in range(2):
        a, b = (fusion.posterior.natural[fusion.matching.of_site(number)] for fusion in (with_it, without))
        assert_allclose(a, b, rtol=EXACT, atol=scale)
    assert_allclose(with_it.objective, without.objective, rtol=EXACT)


@every_family
def test_an_agent_of_no_weight_says_nothing(name):
    sites = agents(name, 5, (3, 3, 3), near=0.05)
    with_it, without = amps(sites, weights=[1.0, 1.0, 0.0]), amps(sites[:2])
    assert_allclose(with_it.posterior.natural, without.posterior.natural, rtol=EXACT)
    assert len(set(with_it.matching.of_site(2).tolist())) == 3


@every_family
def test_a_barycenter_of_the_same_alignment_can_be_had(name):
    sites = agents(name, 6, (3, 3, 3))
    product, mean = amps(sites), amps(sites, combine="barycenter")
    assert product.objective == mean.objective
    for g in range(3):
        own = [site.natural[mean.matching.of_site(i) == g][0] for i, site in enumerate(sites)]
        scale = tolerances.ROUNDING * np.abs(own).max()
        assert_allclose(mean.posterior.natural[g], np.mean(own, axis=0), rtol=EXACT, atol=scale)


# -- Growth.


@pytest.mark.parametrize("name", ["normal-wishart", "normal-gamma", "spherical-normal-gamma"])
@pytest.mark.parametrize("seed", range(3))
def test_growth_finds_the_components_that_some_agents_have(name, seed):
    """Sites that differ by chance alone hold different components; each is found with all its observations."""
    model = planted.mixtures(name, seed, between=0.0, apart=12.0)
    fusion = amps(model.sites, growth=True)
    assert adjusted_rand_score(model.all_truth, fusion.matching.labels) == 1.0
    seen = np.concatenate([site.counts for site in model.sites])
    assert_allclose(fusion.posterior.counts, np.bincount(fusion.matching.labels, weights=seen))


@pytest.mark.parametrize("name", ["gamma", "dirichlet"])
def test_a_larger_concentration_gives_more_components_on_average(name):
    """With few observations, so that neither sharing nor concentration decides alone."""
    found = []
    for concentration in (1e-6, 1e-2, 1.0, 1e2, 1e6, 1e12):
        given = {"growth": True, "concentration": concentration, "restarts": 2}
        fusions = [amps(agents(name, seed, (3, 2, 3), near=0.5), **given) for seed in range(6)]
        found.append(np.mean([fusion.n_components for fusion in fusions]))
    assert np.all(np.diff(found) >= 0)
    assert found[-1] > found[0]


@every_way
@pytest.mark.parametrize("name", ["normal-wishart", "gamma", "dirichlet"])
def test_visiting_agents_again_never_weighs_less_than_a_single_pass(name, growth):
    for seed in range(3):
        sites = agents(name, seed, (4, 4, 4), near=0.8)
        once, again = (amps(sites, growth=growth, revisit=revisit) for revisit in (False, True))
        assert again.objective <= once.objective + tolerances.DESCENT * abs(once.objective)
