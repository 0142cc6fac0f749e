"""How much copies differ between sites, planted and found again, block by block, in any units."""

import numpy as np
import pytest
from consilience.posteriors.methods.kl.heterogeneity import estimate_heterogeneity
from numpy.testing import assert_allclose
from scipy import stats

from consilience import families as f
from tests import tolerances
from tests.posteriors.matchings import stacked

SITES, COMPONENTS = 30, 4
LABELS = np.tile(np.arange(COMPONENTS), SITES)
SIZES = [COMPONENTS] * SITES
NOTHING = 0.2  # times what the other block was given
scale_amounts = pytest.mark.parametrize("amount", [0.003, 0.01, 0.03])
amounts = pytest.mark.parametrize("amount", [0.003, 0.03, 0.3])


def found(family, eta):
    return estimate_heterogeneity(stacked(family, eta, SIZES), LABELS)


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


@pytest.mark.parametrize("off", [(2.0, -2.0), (-2.0, 2.0), (0.5, 0.5), (-1.0, -1.0)], ids=str)
def test_searching_near_a_value_ends_at_the_same_place(off):
    """From starts at most e^2 times off."""
    family, eta = normal_wishart(0.2, 0.02)
    here = found(family, eta)
    near = estimate_heterogeneity(stacked(family, eta, SIZES), LABELS, here * np.exp(off))
    assert_allclose(near, here, rtol=tolerances.PLANTED)
