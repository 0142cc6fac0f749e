"""AMPS against every alignment, one linear assignment and the posterior of pooled data; growth against every matching.

The log normalisers are written out from the standard parameters.
"""

import functools
import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln, multigammaln

import consilience as cs
from consilience import families as f
from consilience.posteriors.average import conjugate_groups
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances
from tests.families.zoo import ZOO
from tests.posteriors.matchings import matchings
from tests.posteriors.planted import conjugate_site

pytestmark = pytest.mark.covering(2)

EXACT = tolerances.KL_MATRIX_PRODUCT
FAMILIES = ("dirichlet", "normal-wishart", "gaussian", "gamma")
every_family = pytest.mark.parametrize("name", FAMILIES)


def log_normaliser(family, eta):
    """A (n,) up to a constant of the family."""
    p = family.from_natural(np.atleast_2d(eta))
    match family:
        case f.Dirichlet():
            return gammaln(p["concentration"]).sum(axis=1) - gammaln(p["concentration"].sum(axis=1))
        case f.Gamma():
            return gammaln(p["shape"]) - p["shape"] * np.log(p["rate"])
        case f.Gaussian():
            squares = np.einsum("ni,nij,nj->n", p["mean"], np.linalg.inv(p["covariance"]), p["mean"])
            return (squares + np.linalg.slogdet(p["covariance"])[1]) / 2
        case f.NormalWishart():
            dim, dof = p["mean"].shape[1], p["dof"]
            volume = dof / 2 * np.linalg.slogdet(p["scale"])[1] + dof * dim / 2 * np.log(2)
            return volume + multigammaln_rows(dof / 2, dim) - dim / 2 * np.log(p["kappa"])


def multigammaln_rows(a, dim):
    return np.array([multigammaln(one, dim) for one in a])


def agents(name, seed, sizes, near=None, spread=1.0):
    """Posteriors under one prior: of unlike components, or of copies of the same ones that differ by `near`."""
    kind, rng = ZOO[name], np.random.default_rng([seed, 51])
    weak = kind.prior
    prior = weak + 0.1 * (kind.draw(rng, 1)[0] - weak)
    shared = kind.draw(rng, max(sizes))
    sites = []
    for size in sizes:
        eta = (
            kind.draw(rng, size) if near is None else kind.near(rng, shared, near)[rng.permutation(len(shared))[:size]]
        )
        counts = rng.uniform(0.3, 20.0, size) * spread
        sites.append(cs.Posterior(kind.family, eta + prior - weak, prior=prior, counts=counts))
    return sites


def merged(sites, rows):
    """Bayes' product of one component of each of some agents: rows is a list of (agent, component)."""
    prior = sites[0].prior
    return prior + sum(sites[i].natural[k] - prior for i, k in rows)


def weight(sites, rows):
    """log of what the product weighs, A(merged) - A(prior)."""
    eta = np.stack([merged(sites, rows), sites[0].prior])
    top, base = log_normaliser(sites[0].family, eta)
    return top - base


def best_alignment(sites):
    """The largest sum of weights over all permutations; the first agent's order is that of the groups."""
    size = sites[0].n_components
    known = functools.cache(lambda rows: weight(sites, rows))
    orders = itertools.product(*[list(itertools.permutations(range(size)))] * (len(sites) - 1))
    groups = ([tuple(enumerate(g)) for g in zip(range(size), *chosen, strict=True)] for chosen in orders)
    return max(sum(map(known, group)) for group in groups)


def aligned(sites, fusion):
    """The groups of a fusion as rows."""
    groups = [[] for _ in range(fusion.n_components)]
    for i in range(len(sites)):
        for k, g in enumerate(fusion.matching.of_site(i)):
            groups[g].append((i, k))
    return groups


# -- The objective and its optimum.


@every_family
@pytest.mark.parametrize("near", [None, 0.1, 0.5])
def test_the_objective_is_minus_the_weight_of_the_product_that_is_returned(name, near):
    for seed in range(3):
        sites = agents(name, seed, (3, 3, 3, 3), near)
        fusion = cs.fuse(sites, method="amps", min_count=0, restarts=2)
        groups = aligned(sites, fusion)
        assert_allclose(fusion.objective, -sum(weight(sites, g) for g in groups), rtol=EXACT, atol=EXACT)
        products = np.stack([merged(sites, g) for g in groups])
        assert_allclose(fusion.posterior.natural, products, rtol=EXACT, atol=EXACT * np.abs(products).max())


@every_family
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_two_agents_are_aligned_by_one_linear_assignment(name, size):
    for seed in range(3):
        sites = agents(name, seed, (size, size), 0.5 if seed else None)
        gain = np.array([[weight(sites, [(0, k), (1, m)]) for m in range(size)] for k in range(size)])
        chosen = linear_sum_assignment(gain, maximize=True)
        fusion = cs.fuse(sites, method="amps", min_count=0, restarts=1)
        assert_allclose(-fusion.objective, gain[chosen].sum(), rtol=EXACT, atol=EXACT)
        if size <= 3:
            assert_allclose(-fusion.objective, best_alignment(sites), rtol=EXACT, atol=EXACT)


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("near", [None, 0.6])
def test_the_best_of_all_alignments_is_found(name, near):
    """Thirty instances for each family: three agents with components that overlap or have nothing in common."""
    for seed in range(15):
        size = 2 + seed % 2
        sites = agents(name, seed, (size,) * 3, near)
        fusion = cs.fuse(sites, method="amps", min_count=0, restarts=15)
        assert_allclose(-fusion.objective, best_alignment(sites), rtol=EXACT, atol=EXACT)


@every_family
def test_mixing_alignments_weighs_no_more_than_the_best(name):
    """The weight is convex in doubly stochastic plans, so that a maximum is an alignment."""
    sites, rng = agents(name, 0, (3, 3, 3), 0.5), np.random.default_rng(0)
    best, family = -cs.fuse(sites, method="amps", min_count=0).objective, sites[0].family
    for _ in range(30):
        total = sites[0].natural.copy()
        for site in sites[1:]:
            shares = rng.dirichlet(np.full(6, 0.3))
            plan = sum(s * np.eye(3)[list(p)] for s, p in zip(shares, itertools.permutations(range(3)), strict=True))
            total += plan @ (site.natural - site.prior)
        value = log_normaliser(family, total).sum() - 3 * log_normaliser(family, sites[0].prior)[0]
        assert value <= best + EXACT * abs(best)


# -- Data that are known.


def test_products_of_topics_are_the_posterior_of_all_words():
    rng, prior = np.random.default_rng(0), np.array([0.4, 0.7, 0.2, 1.0, 0.5, 0.6])
    topics, family = rng.dirichlet(np.full(6, 0.3), 3), f.Dirichlet(6)
    orders = [rng.permutation(3) for _ in range(5)]
    counts = [np.stack([rng.multinomial(200, topics[k]) for k in order]) for order in orders]
    base = family.to_natural(concentration=prior[None])[0]
    sites = [cs.Posterior(family, family.to_natural(concentration=c + prior), prior=base) for c in counts]
    fusion = cs.fuse(sites, method="amps", min_count=0)
    pooled = prior + sum(c[np.argsort(order)] for c, order in zip(counts, orders, strict=True))
    for site, order in enumerate(orders):
        back = fusion.posterior.natural[fusion.matching.of_site(site)]
        expected = family.to_natural(concentration=pooled)[order]
        assert_allclose(back, expected, rtol=tolerances.CONJUGATE_UPDATE)


@pytest.mark.parametrize(
    "family", [f.NormalWishart(2), f.NormalGamma(2), f.SphericalNormalGamma(2)], ids=lambda x: x.name
)
def test_products_of_mixture_components_are_the_posterior_of_all_observations(family):
    rng = np.random.default_rng(1)
    centres = np.array([[0.0, 0.0], [6.0, 1.0], [-2.0, 7.0], [9.0, 9.0]])
    orders = [rng.permutation(4) for _ in range(4)]
    data = [[c + rng.normal(size=(rng.integers(5, 40), 2)) for c in centres[order]] for order in orders]
    fusion = cs.fuse([conjugate_site(family, site) for site in data], method="amps", min_count=0)
    places = [np.argsort(order) for order in orders]
    whole = [np.concatenate([site[place[k]] for site, place in zip(data, places, strict=True)]) for k in range(4)]
    pooled = conjugate_site(family, whole)
    for site, order in enumerate(orders):
        own = fusion.matching.of_site(site)
        scale = np.abs(pooled.natural).max()
        assert_allclose(
            fusion.posterior.natural[own], pooled.natural[order], rtol=tolerances.CONJUGATE_UPDATE, atol=1e-12 * scale
        )
        assert_allclose(fusion.posterior.counts[own], pooled.counts[order])


# -- Growth: a Dirichlet process.


def group_value(sites, rows, concentration):
    """What a group is worth, with the probability that nobody observed it at its bound."""
    count = sum(sites[i].counts[k] for i, k in rows)
    prior = np.log(concentration) * (1 - np.exp(-count)) + gammaln(max(count, 1.0))
    return weight(sites, rows) + prior


def grown(sites, labels, known):
    """What a matching is worth (labels of all components, one agent after another)."""
    rows = [(i, k) for i, site in enumerate(sites) for k in range(site.n_components)]
    groups = [tuple(r for r, own in zip(rows, labels, strict=True) if own == g) for g in np.unique(labels)]
    return sum(map(known, groups))


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("concentration", [0.2, 1.0, 50.0])
def test_growth_mostly_finds_the_best_of_all_matchings_and_never_exceeds_it(name, concentration):
    gaps = []
    for sizes, seed in itertools.product([(2, 2, 2), (3, 1, 2)], range(5)):
        sites = agents(name, seed, sizes, (None, 0.1, 0.3, 0.6, 0.9)[seed], spread=0.2)
        known = functools.cache(lambda rows, sites=sites: group_value(sites, rows, concentration))
        fusion = cs.fuse(sites, method="amps", min_count=0, growth=True, concentration=concentration, restarts=6)
        value = grown(sites, fusion.matching.labels, known)
        assert_allclose(-fusion.objective, value, rtol=EXACT, atol=EXACT)
        gaps.append(max(grown(sites, labels, known) for labels in matchings(sizes)) - value)
    assert min(gaps) >= -EXACT
    assert np.mean(np.array(gaps) <= EXACT) >= 0.9


# -- One pass, as in a stream.


@every_family
@pytest.mark.parametrize("growth", [False, True])
def test_a_single_pass_takes_each_agent_once_in_the_order_of_contents(name, growth):
    """Each is matched exactly to what came before, and never again."""
    for seed in range(5):
        sites = list(
            Ensemble.of(agents(name, seed, (2, 2, 2, 2), 0.6, spread=0.2)).canonical(relabel=True)[0].posteriors
        )
        groups = []
        for i, site in enumerate(sites):

            def worth(rows, sites=sites):
                return group_value(sites, rows, 1.0) if growth else weight(sites, rows)

            size, best = site.n_components, None
            free = len(groups) + (size if growth or i == 0 else 0)
            for chosen in itertools.permutations(range(free), size):
                trial = [list(g) for g in groups] + [[] for _ in range(free - len(groups))]
                for k, g in enumerate(chosen):
                    trial[g].append((i, k))
                trial = [g for g in trial if g]
                value = sum(map(worth, trial))
                if best is None or value > best[0]:
                    best = value, trial
            groups = best[1]
        fusion = cs.fuse(sites, method="amps", min_count=0, growth=growth, revisit=False, restarts=3)
        assert_allclose(-fusion.objective, best[0], rtol=EXACT, atol=EXACT)
        assert len(fusion.history) == 1


@every_family
def test_a_site_of_twice_the_weight_says_twice_as_much(name):
    """Log marginal likelihoods of groups, with what every member's data say taken so many times."""
    sites, weights = agents(name, 7, (2, 3, 2)), np.array([2.0, 0.5, 0.5])
    prior, family = sites[0].prior, sites[0].family
    ensemble = Ensemble.of(sites, weights)
    groups = conjugate_groups(ensemble, np.array([0.0, -1.0, -3.0, -7.0]))
    pieces = np.concatenate([w * (site.natural - prior) for w, site in zip(weights, sites, strict=True)])
    alone = log_normaliser(family, prior)[0]
    for labels in matchings((2, 3, 2))[::7]:
        members = [np.flatnonzero(labels == group) for group in range(labels.max() + 1)]
        values = [log_normaliser(family, prior + pieces[rows].sum(axis=0))[0] - alone for rows in members]
        expected = sum(values) + sum((0.0, -1.0, -3.0, -7.0)[len(rows)] for rows in members)
        assert_allclose(groups.total(labels), expected, rtol=tolerances.ROOT_FINDING, atol=tolerances.ROOT_FINDING)
