"""How much copies differ between sites, planted and found again, block by block, in any units."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

from consilience import families as f
from consilience.posteriors.evidence.random_effects import SMALLEST_LOG_STEP, RandomEffects, strict_prior
from tests import tolerances
from tests.posteriors.matchings import stacked

SITES, COMPONENTS = 30, 4
LABELS = np.tile(np.arange(COMPONENTS), SITES)
SIZES = [COMPONENTS] * SITES
NOTHING = 0.2  # times what the other block was given
scale_amounts = pytest.mark.parametrize("amount", [0.003, 0.01, 0.03])
amounts = pytest.mark.parametrize("amount", [0.003, 0.03, 0.3])


def found(family, eta, start=0.1, constant=0.0):
    """What is found from a start in units of the family, a constant added to the evidence."""
    problem = RandomEffects(stacked(family, eta, SIZES))
    prior = replace(strict_prior(SITES), constant=constant)
    return problem.fit_heterogeneity(LABELS, start * problem.unit, prior)[0]


@amounts
@pytest.mark.parametrize("family", [f.SphericalGaussian(3), f.DiagonalGaussian(3), f.Gaussian(3)], ids=lambda x: x.name)
def test_the_variance_between_sites_is_found(family, amount):
    """In Gaussian components: variances v of their own, and h between sites."""
    rng = np.random.default_rng(0)
    centres, variances = rng.normal(0, 5, (COMPONENTS, 3)), rng.uniform(0.001, 0.01, len(LABELS))
    means = rng.normal(centres[LABELS], np.sqrt(variances + amount)[:, None])
    spread = {
        f.SphericalGaussian: {"variance": variances},
        f.DiagonalGaussian: {"variance": np.repeat(variances[:, None], 3, axis=1)},
        f.Gaussian: {"covariance": variances[:, None, None] * np.eye(3)},
    }[type(family)]
    assert_allclose(found(family, family.to_natural(mean=means, **spread)), amount, rtol=tolerances.PLANTED)


def normal_wishart(location, scale, unit=1.0, shift=0.0, n=200.0):
    """Copies whose means and covariances differ as if each had been seen in n' observations, 1 / n' = 1 / n + h."""
    rng, family = np.random.default_rng(1), f.NormalWishart(2)
    centres = rng.normal(0, 8, (COMPONENTS, 2))
    covariances = np.stack([[[1.5, a], [a, 0.7]] for a in (-0.8, 0.0, 0.4, 0.9)])
    noise = rng.multivariate_normal(np.zeros(2), np.eye(2), len(LABELS)) * np.sqrt(1 / n + location)
    means = centres[LABELS] + np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[LABELS], noise)
    degrees = 1 / (1 / n + scale)
    seen = np.stack([stats.wishart(degrees - 1, covariances[g] / degrees).rvs(random_state=rng) for g in LABELS])
    size = np.full(len(LABELS), n)
    means, seen = unit * (means + shift), unit**2 * seen
    return family, family.to_natural(mean=means, kappa=size, inverse_scale=n * seen, dof=size)


@amounts
def test_how_much_means_differ_is_found_apart_from_how_much_covariances_do(amount):
    location, scale = found(*normal_wishart(amount, 0.0))
    assert_allclose(location, amount, rtol=tolerances.PLANTED)
    assert scale < NOTHING * amount


@scale_amounts
def test_how_much_covariances_differ_is_found_apart_from_how_much_means_do(amount):
    location, scale = found(*normal_wishart(0.0, amount))
    assert location < NOTHING * amount
    assert_allclose(scale, amount, rtol=tolerances.PLANTED)


def test_both_blocks_are_found_together():
    location, scale = found(*normal_wishart(0.2, 0.02))
    assert_allclose([location, scale], [0.2, 0.02], rtol=tolerances.PLANTED)


@pytest.mark.parametrize(("unit", "shift"), [(1e-3, 0.0), (1e4, 0.0), (1.0, 300.0)])
def test_heterogeneity_of_gaussian_components_has_no_unit(unit, shift):
    here, there = found(*normal_wishart(0.2, 0.02)), found(*normal_wishart(0.2, 0.02, unit, shift))
    assert_allclose(there, here, rtol=tolerances.FLAT_MINIMUM)


@scale_amounts
@pytest.mark.parametrize("spherical", [False, True])
def test_variances_that_differ_by_dimension_are_found(amount, spherical):
    """What n' observations tell of a variance is a Gamma variable of (n' - 1) / 2, less D where D share it."""
    rng, n = np.random.default_rng(2), 200.0
    rates = 1 if spherical else 2
    family = f.SphericalNormalGamma(2) if spherical else f.NormalGamma(2)
    centres, variances = rng.normal(0, 8, (COMPONENTS, 2)), rng.uniform(0.5, 2, (COMPONENTS, rates))
    degrees = 1 / (1 / n + amount)
    lost = 2 / rates  # to the mean
    seen = variances[LABELS] * rng.gamma((degrees - lost) / 2, 2 / degrees, (len(LABELS), rates))
    means = rng.normal(centres[LABELS], np.sqrt(variances[LABELS] / n))
    size = np.full(len(LABELS), n)
    rate = n / 2 * seen
    eta = family.to_natural(mean=means, kappa=size, shape=size / 2, rate=rate[:, 0] if spherical else rate)
    location, scale = found(family, eta)
    assert location < NOTHING * amount
    assert_allclose(scale, amount, rtol=tolerances.PLANTED)


@pytest.mark.parametrize("amount", [0.003, 0.03])
def test_how_much_topics_differ_is_found(amount):
    """A site's own topic is drawn about the common one with a total concentration of 1 / h."""
    rng, family, words = np.random.default_rng(3), f.Dirichlet(12), 5000
    topics = rng.dirichlet(np.full(12, 2.0), COMPONENTS)
    own = np.stack([rng.dirichlet(topics[g] / amount) for g in LABELS])
    counts = np.stack([rng.multinomial(words, p) for p in own])
    assert_allclose(found(family, family.to_natural(concentration=counts + 0.1)), amount, rtol=tolerances.PLANTED)


@amounts
def test_how_much_rates_differ_is_found(amount):
    rng, family, n = np.random.default_rng(4), f.Gamma(), 2000.0
    rates = np.array([0.1, 1.0, 8.0, 60.0])
    waiting = rng.gamma(1 / (1 / n + amount), 1 / n + amount, len(LABELS)) / rates[LABELS]
    eta = family.to_natural(shape=np.full(len(LABELS), n), rate=n * waiting)
    assert_allclose(found(family, eta), amount, rtol=tolerances.PLANTED)


@pytest.mark.parametrize("start", [0.005, 0.05, 0.5])
def test_searches_from_other_starts_end_at_the_same_place(start):
    family, eta = normal_wishart(0.2, 0.02)
    assert_allclose(np.log(found(family, eta, start)), np.log(found(family, eta)), atol=2 * SMALLEST_LOG_STEP)


@pytest.mark.parametrize("constant", [1e3, -12345.678, 1e5])
@pytest.mark.parametrize("start", [0.05, 0.5])
def test_a_constant_in_the_evidence_moves_nothing(start, constant):
    """Nor its rounding: a search along a plateau ends where it ends without the constant."""
    family, eta = normal_wishart(0.2, 0.02)
    assert_allclose(np.log(found(family, eta, start, constant)), np.log(found(family, eta, start)), rtol=1e-9)


# -- Against another way to maximise the evidence.


@pytest.mark.parametrize("seed", range(4))
def test_the_heterogeneity_is_that_of_the_greatest_marginal_likelihood(seed):
    """m_l ~ N(mu_g, v_l + h), mu_g ~ N(m, w), w + v + h the variance of all: scipy's normals and scipy's search."""
    rng, sizes, labels = np.random.default_rng([seed, 5]), (3,) * 8, np.tile(np.arange(3), 8)
    variances = rng.uniform(0.1, 0.5, 24)
    means = rng.normal(0, 4, 3)[labels] + np.sqrt(variances + 0.5) * rng.normal(size=24)

    def minus_log_marginal(log_h):
        widened = variances + np.exp(log_h)
        rows = [np.flatnonzero(labels == g) for g in range(3)]
        law = widened.mean() + means.var()
        joint = [stats.multivariate_normal(np.full(8, means.mean()), law + np.diag(widened[r])) for r in rows]
        return -sum(one.logpdf(means[r]) for one, r in zip(joint, rows, strict=True))

    family = f.SphericalGaussian(1)
    problem = RandomEffects(stacked(family, family.to_natural(mean=means[:, None], variance=variances), sizes))
    best = optimize.minimize_scalar(minus_log_marginal, bounds=(-8, 4), method="bounded")
    amount = problem.fit_heterogeneity(labels, 0.5 * problem.unit, strict_prior(8))[0]
    assert_allclose(np.log(amount[0]), best.x, atol=SMALLEST_LOG_STEP)
    assert minus_log_marginal(np.log(amount[0])) <= best.fun + 0.1


def test_both_blocks_are_where_the_evidence_in_plain_formulas_is_greatest():
    family, eta = normal_wishart(0.2, 0.02)

    def minus_evidence(log_h):
        discounted = family.discounted(eta, np.exp(log_h))
        base = family.law_of(discounted)
        sums = np.stack([(discounted[g == LABELS] - family.flat).sum(axis=0) for g in range(COMPONENTS)])
        marginal = family.log_normalizer(base + sums).sum() - COMPONENTS * family.log_normalizer(base[None])[0]
        return family.log_normalizer(discounted).sum() - marginal

    best = optimize.minimize(minus_evidence, np.log([0.05, 0.05]), method="Nelder-Mead")
    amount = found(family, eta)
    assert_allclose(np.log(amount), best.x, atol=SMALLEST_LOG_STEP)
    assert minus_evidence(np.log(amount)) <= best.fun + 0.5


def test_where_no_component_has_a_copy_there_is_none():
    """What differs is explained by the law that components come from."""
    family, eta = normal_wishart(0.2, 0.02)
    problem = RandomEffects(stacked(family, eta[:12], (4, 4, 4)))
    amount = problem.fit_heterogeneity(np.arange(12), 0.1 * problem.unit, strict_prior(3))[0]
    assert amount[0] < 1e-4
