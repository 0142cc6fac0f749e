"""Whole fusions by SPAHM against every matching of a few components, and against what was simulated."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln
from scipy.stats import dirichlet_multinomial, multivariate_t
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience import families as f
from consilience.matching.beta_bernoulli import AtomLaw
from tests import tolerances
from tests.matching.log_posterior import LogPosterior, fused, law_of, log_holders, published
from tests.posteriors.matchings import matchings
from tests.posteriors.planted import conjugate_site

pytestmark = pytest.mark.covering(2)

PROCESSES = [(1.0, 1.0), (0.3, 6.0), (4.0, 0.2)]
every_process = pytest.mark.parametrize(("alpha", "mass"), PROCESSES)
EXACT = tolerances.KL_MATRIX_PRODUCT


@pytest.mark.parametrize("options", [{}, {"mass": 5.0, "concentration": 0.5}, {"variances": "scalar"}], ids=str)
def test_the_objective_is_minus_the_log_posterior_at_the_law_that_is_reported(options):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        atoms = rng.normal(2.0, 3.0, (5, 2))
        sites = [atoms[rng.permutation(5)[:k]] + 0.3 * rng.normal(size=(k, 2)) for k in (3, 5, 2, 4)]
        fusion = fused(sites, **options)
        alpha, mass = options.get("concentration", 1.0), options.get("mass", 1.0)
        exact = LogPosterior(np.concatenate(sites), 4, law_of(fusion), alpha, mass)
        assert_allclose(fusion.objective, -exact(fusion.matching.labels), rtol=EXACT)
        assert_allclose(fusion.history[-1], fusion.objective, rtol=EXACT)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 1, 2)], ids=str)
@every_process
def test_the_best_of_all_matchings_is_mostly_found_and_never_exceeded(sizes, alpha, mass):
    """A few starts all end at a matching that no change of one site's improves: 3 in 100 at worst when measured."""
    given = {"optimize": False, "within_variance": (0.4, 0.2), "between_variance": 2.0, "restarts": 6}
    every, gaps = matchings(sizes), []
    for seed in range(10):
        rng = np.random.default_rng([seed, *sizes])
        sites = [rng.normal(0.0, 1.2, (size, 2)) for size in sizes]
        points = np.concatenate(sites)
        fusion = fused(sites, concentration=alpha, mass=mass, **given)
        exact = LogPosterior(
            points, 3, AtomLaw(points.mean(axis=0), np.array([0.4, 0.2]), np.full(2, 2.0)), alpha, mass
        )
        best = max(map(exact, every))
        gaps.append((best + fusion.objective) / abs(best))
    assert min(gaps) >= -EXACT
    assert np.mean(np.array(gaps) <= EXACT) >= 0.9


def test_the_plug_in_form_is_the_published_one_and_its_best_matching_is_found():
    s, s0, every, values = np.array([0.4, 0.2]), np.array([2.0, 1.0]), matchings((2, 2, 1)), []
    given = {"optimize": False, "within_variance": tuple(s), "between_variance": tuple(s0), "restarts": 10}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        sites = [rng.normal(0.5, 1.2, (size, 2)) for size in (2, 2, 1)]
        points, fusion = np.concatenate(sites), fused(sites, marginal=False, **given)

        def value(labels, points=points):
            groups, law = [points[labels == g] for g in np.unique(labels)], AtomLaw(points.mean(axis=0), s, s0)
            plug_in = sum(published(len(v), v.sum(axis=0), law, marginal=False) / 2 for v in groups)
            return plug_in + sum(log_holders(len(v), 3, 1.0, 1.0) for v in groups) - (points**2 / s).sum() / 2

        assert_allclose(-fusion.objective, value(fusion.matching.labels), rtol=EXACT)
        values.append((value(fusion.matching.labels), max(map(value, every))))
    found, best = np.transpose(values)
    assert np.mean(found >= best - EXACT * np.abs(best)) >= 0.9


# -- Any family: what sites observed, with the prior for the base law.


def log_multinomials(counts, prior):
    """log p of tables (n, V) that share their unknown probabilities, one after another, as sequences of tokens."""
    total, seen = 0.0, prior.copy()
    for table in counts:
        ways = gammaln(table.sum() + 1) - gammaln(table + 1).sum()
        total += dirichlet_multinomial(seen, int(table.sum())).logpmf(table) - ways
        seen = seen + table
    return total


def log_students(data, m=0.0, kappa=0.1, dof=2.0, wide=1.0):
    """log p of observations (n, D) under a Normal-Wishart prior, each given those before, without 2 pi."""
    dim, total = data.shape[1], 0.0
    m, inverse = np.full(dim, m), wide * np.eye(dim)
    for x in data:
        df = dof - dim + 1
        total += multivariate_t(m, inverse * (kappa + 1) / (kappa * df), df).logpdf(x) + dim / 2 * np.log(2 * np.pi)
        inverse = inverse + kappa / (kappa + 1) * np.outer(x - m, x - m)
        m, kappa, dof = (kappa * m + x) / (kappa + 1), kappa + 1, dof + 1
    return total


def tables(rng, sizes):
    """Dirichlet posteriors of word counts about two topics, and the log p of what some components counted."""
    topics, prior = rng.dirichlet(np.ones(4), 2), np.array([0.5, 0.3, 0.8, 1.0])
    counts = [rng.multinomial(8, topics[rng.permutation(2)[:size]]) for size in sizes]
    family, rows = f.Dirichlet(4), np.concatenate(counts)
    base = family.to_natural(concentration=prior[None])[0]
    sites = [cs.Posterior(family, family.to_natural(concentration=prior + c), prior=base) for c in counts]
    return sites, lambda members: log_multinomials(rows[members], prior)


def observations(rng, sizes):
    """Normal-Wishart posteriors of six observations about two centres, and the log p of some components' data."""
    centres = rng.normal(0.0, 1.5, (2, 2))
    data = [[c + rng.normal(size=(6, 2)) for c in centres[rng.permutation(2)[:size]]] for size in sizes]
    rows = [x for site in data for x in site]
    sites = [conjugate_site(f.NormalWishart(2), site) for site in data]
    return sites, lambda members: log_students(np.concatenate([rows[i] for i in members]))


@pytest.mark.parametrize("kind", [tables, observations])
@every_process
def test_the_conjugate_form_is_the_marginal_likelihood_of_all_data(kind, alpha, mass):
    """Its objective is that of its matching, and the best of all matchings is not exceeded and mostly found."""
    sizes, gaps = (2, 1, 2), []
    for seed in range(5):
        sites, log_marginal = kind(np.random.default_rng(seed), sizes)
        options = {"likelihood": "conjugate", "concentration": alpha, "mass": mass}
        fusion, known = cs.fuse(sites, method="spahm", **options), {}

        def value(labels, known=known, log_marginal=log_marginal):
            groups = [tuple(np.flatnonzero(labels == g).tolist()) for g in np.unique(labels)]
            for group in groups:
                if group not in known:
                    known[group] = log_marginal(list(group)) + log_holders(len(group), 3, alpha, mass)
            return sum(known[group] for group in groups)

        assert_allclose(-fusion.objective, value(fusion.matching.labels), rtol=EXACT)
        best = max(map(value, matchings(sizes)))
        gaps.append((best + fusion.objective) / abs(best))
    assert min(gaps) >= -EXACT
    assert np.mean(np.array(gaps) <= EXACT) >= 0.8


# -- Simulated atoms.


def simulated(seed, count=120, n_sites=8, dim=4, within=1e-3, between=9.0):
    """Sites that hold each atom with a probability of its own, uniform; every atom is held somewhere."""
    rng = np.random.default_rng(seed)
    scale = 1.0 + np.arange(dim)  # a law of its own for each dimension
    law = AtomLaw(2.0 * scale, within * scale**2, between * scale)
    atoms = rng.normal(law.mean, np.sqrt(law.between), (count, dim))
    held = rng.random((n_sites, count)) < rng.random(count)
    held[rng.integers(n_sites, size=count), np.arange(count)] |= ~held.any(axis=0)
    truth = [rng.permutation(np.flatnonzero(own)) for own in held]
    sites = [atoms[own] + rng.normal(0.0, np.sqrt(law.within), (len(own), dim)) for own in truth]
    return sites, np.concatenate(truth), law


@pytest.mark.parametrize("starts", [{}, {"within_variance": 1.0, "between_variance": 1.0}], ids=["data", "given"])
@pytest.mark.parametrize("seed", range(3))
def test_the_law_and_the_atoms_of_simulated_sites_are_found(seed, starts):
    """Within the standard errors of means and variances of as many draws, whatever the variances start from."""
    sites, truth, law = simulated(seed)
    fusion = fused(sites, restarts=2, **starts)
    assert adjusted_rand_score(truth, fusion.matching.labels) == 1.0
    found, count, extra = law_of(fusion), len(np.unique(truth)), len(truth) - len(np.unique(truth))
    error = tolerances.STANDARD_ERRORS * np.sqrt((law.between + law.within) / count)
    assert np.all(np.abs(found.mean - law.mean) <= error)
    assert np.all(np.abs(found.within / law.within - 1) <= tolerances.STANDARD_ERRORS * np.sqrt(2 / extra))
    assert np.all(np.abs(found.between / law.between - 1) <= tolerances.STANDARD_ERRORS * np.sqrt(2 / count))
    groups = [np.concatenate(sites)[truth == g] for g in np.unique(truth)]
    classical = sum(((v - v.mean(axis=0)) ** 2).sum(axis=0) for v in groups) / extra
    assert_allclose(found.within, classical, rtol=(law.within / law.between).max())  # its correction is of that order


@pytest.mark.parametrize("seed", range(3))
def test_two_variances_for_all_dimensions_are_found(seed):
    sites, truth, law = simulated(seed)
    unit = np.sqrt(law.within)
    fusion = fused([v / unit for v in sites], variances="scalar", restarts=2)
    assert adjusted_rand_score(truth, fusion.matching.labels) == 1.0
    found, extra = law_of(fusion), truth.size - np.unique(truth).size
    assert np.ptp(found.within) == np.ptp(found.between) == 0
    error = tolerances.STANDARD_ERRORS * np.sqrt(2 / (extra * len(unit)))
    assert np.all(np.abs(found.within - 1) <= error)


@pytest.mark.parametrize("seed", range(4))
def test_where_atoms_overlap_the_matching_found_is_likelier_than_the_true_one(seed):
    sites, truth, _ = simulated(seed, within=0.02)
    fusion = fused(sites)
    exact = LogPosterior(np.concatenate(sites), len(sites), law_of(fusion))
    assert exact(fusion.matching.labels) >= exact(np.unique(truth, return_inverse=True)[1])
    assert adjusted_rand_score(truth, fusion.matching.labels) > 0.9
