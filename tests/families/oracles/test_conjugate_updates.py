"""Textbook conjugate updates, observation by observation: a site's posterior less its prior is what its data say."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from consilience import families as f
from tests import tolerances
from tests.families.zoo import D, V


def near(actual, expected, rtol=tolerances.CONJUGATE_UPDATE):
    assert_allclose(actual, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def sites_data(seed, draw):
    rng = np.random.default_rng(seed)
    return [draw(rng, n) for n in (12, 30, 7)]


def check_update(family, posterior_of, alone_of, data):
    """Sites' posteriors say what their data do, and together with the prior they make the posterior of all data."""
    prior = family.to_natural(**posterior_of([]))
    sites = np.concatenate([family.to_natural(**posterior_of(x)) for x in data])
    alone = family.without_prior(sites, np.repeat(prior, len(data), axis=0))
    expected = np.concatenate([family.to_natural(**alone_of(x)) for x in data])
    near(alone, expected)
    pooled = prior + (alone - family.flat).sum(axis=0)
    near(pooled, family.to_natural(**posterior_of(np.concatenate(data))))


def scatter(data, about):
    total = np.zeros((D, D))
    for x in data:
        total += np.outer(x - about, x - about)
    return total


def mean_of(data):
    total = np.zeros(D)
    for x in data:
        total += x
    return total / len(data)


def test_the_normal_wishart_update_of_the_textbook():
    """Murphy, "Conjugate Bayesian analysis of the Gaussian distribution" (2007), section 8; W^-1 adds up."""
    m0, kappa0, nu0, inverse0 = np.array([1.0, -2.0]), 0.7, 4.5, np.array([[2.0, 0.3], [0.3, 1.0]])

    def posterior(data):
        n = len(data)
        m = mean_of(data) if n else m0
        inverse = inverse0 + (scatter(data, m) if n else 0.0) + kappa0 * n / (kappa0 + n) * np.outer(m - m0, m - m0)
        mean = (kappa0 * m0 + n * m) / (kappa0 + n)
        return {"mean": [mean], "kappa": [kappa0 + n], "inverse_scale": [inverse], "dof": [nu0 + n]}

    def alone(data):
        m, n = mean_of(data), len(data)
        return {"mean": [m], "kappa": [n], "inverse_scale": [scatter(data, m)], "dof": [n]}

    data = sites_data(14, lambda rng, n: rng.normal([5.0, 3.0], 2.0, (n, D)))
    check_update(f.NormalWishart(D), posterior, alone, data)


@pytest.mark.parametrize("spherical", [False, True])
def test_the_normal_gamma_update_of_the_textbook(spherical):
    """Murphy (2007), section 3, per dimension; a spherical precision sees every dimension of every observation."""
    m0, kappa0, shape0, rate0 = np.array([1.0, -2.0]), 0.7, 2.5, np.array([2.0, 1.5])
    per_observation = D / 2 if spherical else 1 / 2

    def pooled(rates):
        return [rates.sum()] if spherical else [rates]

    def posterior(data):
        n = len(data)
        m = mean_of(data) if n else m0
        squares = np.diag(scatter(data, m)) if n else np.zeros(D)
        rate = rate0 + squares / 2 + kappa0 * n * (m - m0) ** 2 / (2 * (kappa0 + n))
        mean, shape = (kappa0 * m0 + n * m) / (kappa0 + n), shape0 + n * per_observation
        return {"mean": [mean], "kappa": [kappa0 + n], "shape": [shape], "rate": pooled(rate)}

    def alone(data):
        m, n = mean_of(data), len(data)
        rate = np.diag(scatter(data, m)) / 2
        return {"mean": [m], "kappa": [n], "shape": [n * per_observation], "rate": pooled(rate)}

    data = sites_data(15, lambda rng, n: rng.normal([5.0, 3.0], 2.0, (n, D)))
    check_update(f.SphericalNormalGamma(D) if spherical else f.NormalGamma(D), posterior, alone, data)


def test_the_gamma_update_of_poisson_counts():
    def posterior(data):
        return {"shape": [1.5 + sum(data)], "rate": [0.3 + len(data)]}

    def alone(data):
        return {"shape": [sum(data)], "rate": [len(data)]}

    check_update(f.Gamma(), posterior, alone, sites_data(16, lambda rng, n: rng.poisson(4.0, n)))


def test_the_gaussian_update_of_a_mean():
    """Observations of one mean with a known covariance: precisions add, and so do precision-weighted means."""
    noise, prior = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[9.0, -1.0], [-1.0, 4.0]])
    m0 = np.array([1.0, -2.0])

    def posterior(data):
        precision = np.linalg.inv(prior) + len(data) * np.linalg.inv(noise)
        linear = np.linalg.inv(prior) @ m0
        for x in data:
            linear = linear + np.linalg.inv(noise) @ x
        return {"mean": [np.linalg.solve(precision, linear)], "covariance": [np.linalg.inv(precision)]}

    def alone(data):
        return {"mean": [mean_of(data)], "covariance": [noise / len(data)]}

    data = sites_data(17, lambda rng, n: rng.normal([5.0, 3.0], 1.0, (n, D)))
    check_update(f.Gaussian(D), posterior, alone, data)


def test_the_dirichlet_update_of_category_counts():
    """Concentrations add up from zero, so that a prior is worth as many observations as it says."""
    family, rng = f.Dirichlet(V), np.random.default_rng(18)
    prior, counts = np.full((1, V), 0.5), np.zeros((3, V))
    for site, n in enumerate((12, 30, 7)):
        for category in rng.integers(0, V, n):
            counts[site, category] += 1
    said = family.to_natural(concentration=counts + 1e-6) - family.flat
    together = family.to_natural(concentration=prior) + said.sum(axis=0)
    near(together, family.to_natural(concentration=prior + counts.sum(axis=0)), tolerances.FLAT_MINIMUM)
