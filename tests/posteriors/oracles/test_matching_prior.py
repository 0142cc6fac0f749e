"""Laws of matchings against integrals over inclusion probabilities, and against Poisson counts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad

from consilience.posteriors.evidence.random_effects import (
    COMPONENT_LOG_ODDS,
    CONCENTRATIONS,
    fit_lenient_prior,
    lenient_prior,
    strict_prior,
)
from tests import tolerances
from tests.posteriors.matchings import matchings

every_number_of_sites = pytest.mark.parametrize("n_sites", [1, 2, 5, 12])
every_concentration = pytest.mark.parametrize("concentration", [1.0, 0.25, 3.0, 40.0])


def log_law(concentration):
    """Of log c, up to a constant: a normal of standard deviation 2."""
    return -0.125 * np.log(concentration) ** 2


@every_number_of_sites
def test_under_the_strict_prior_inclusion_probabilities_are_uniform(n_sites):
    level = strict_prior(n_sites).level
    for n in range(1, n_sites + 1):
        expected = quad(lambda p, n=n: p**n * (1 - p) ** (n_sites - n), 0, 1)[0]
        assert_allclose(level[n] + COMPONENT_LOG_ODDS, np.log(expected), rtol=tolerances.QUADRATURE)


@every_number_of_sites
@every_concentration
def test_under_the_lenient_prior_they_are_a_poisson_process(n_sites, concentration):
    """Of intensity gamma c p^-1 (1 - p)^(c - 1): of groups that some site holds, less their mean number."""
    intensity = 1.7
    prior = lenient_prior(n_sites, intensity, concentration)

    def rate(n):
        """gamma c times the integral of p^(n - 1) (1 - p)^(J - n + c - 1), substituted to be smooth at 1."""
        power = 1 / min(concentration, 1.0)  # 1 - p = u^power
        exponent = (n_sites - n + concentration) * power - 1
        return intensity * concentration * quad(lambda u: power * (1 - u**power) ** (n - 1) * u**exponent, 0, 1)[0]

    rates = np.array([rate(n) for n in range(1, n_sites + 1)])
    assert_allclose(prior.level[1:], np.log(rates), rtol=tolerances.QUADRATURE, atol=tolerances.QUADRATURE)
    choices = [stats.binom(n_sites, 0.5).pmf(n) * 2.0**n_sites for n in range(1, n_sites + 1)]
    assert_allclose(log_law(concentration) - prior.constant, rates @ choices, rtol=tolerances.QUADRATURE)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3, 2), (4, 4)], ids=str)
@every_concentration
def test_components_of_two_sites_are_three_poisson_counts(sizes, concentration):
    """Of the first site alone, of the second alone, of both: summed over the matchings of so many components."""
    prior = lenient_prior(2, 1.3, concentration)
    logs = [prior.total(np.bincount(labels)) - log_law(concentration) for labels in matchings(sizes)]
    found = np.exp(logs).sum() / np.prod([*range(1, sizes[0] + 1), *range(1, sizes[1] + 1)])
    alone, both = (stats.poisson(1.3 * concentration**k / (1 + concentration)) for k in (1, 0))
    expected = sum(both.pmf(k) * alone.pmf(sizes[0] - k) * alone.pmf(sizes[1] - k) for k in range(min(sizes) + 1))
    assert_allclose(found, expected, rtol=tolerances.ROUNDING * 10)


def test_the_lenient_prior_of_two_sites_sums_to_one():
    prior, total = lenient_prior(2, 0.2, 0.8), 0.0
    for n in range(5):
        for m in range(5):
            shares = 1 / np.prod([*range(1, n + 1), *range(1, m + 1)])
            logs = [prior.total(np.bincount(one) if len(one) else np.zeros(0, int)) for one in matchings((n, m))]
            total += shares * np.exp(np.array(logs) - log_law(0.8)).sum()
    assert_allclose(total, 1.0, atol=1e-4)  # five and more components of a site are left out


@pytest.mark.parametrize("sizes", [[1] * 15, [5, 5, 5], [1, 1, 2, 3, 5], [4]], ids=str)
def test_the_fitted_lenient_prior_is_the_likeliest(sizes):
    sizes = np.array(sizes)
    best = fit_lenient_prior(sizes, 5).total(sizes)
    for concentration in CONCENTRATIONS:
        shares = concentration / (concentration + np.arange(5.0))
        totals = [
            lenient_prior(5, g, concentration).total(sizes) for g in len(sizes) / shares.sum() * np.exp([-0.1, 0, 0.1])
        ]
        assert totals[1] == max(totals)  # gamma = G / H
        assert best >= max(totals) - tolerances.ROUNDING


@pytest.mark.parametrize("n_sites", [2, 3, 10, 100])
def test_the_strict_prior_never_pays_for_a_split(n_sites):
    level = strict_prior(n_sites).level
    for n in range(2, n_sites + 1):
        first = np.arange(1, n)
        assert np.all(level[first] + level[n - first] <= level[n] - COMPONENT_LOG_ODDS)


def test_the_strict_prior_charges_what_sites_do_not_share_and_the_lenient_one_hardly():
    """Fifteen components of one of five sites each, and three of all five."""
    apart, shared = np.ones(15, dtype=int), np.full(3, 5)
    assert [-strict_prior(5).total(sizes) for sizes in (apart, shared)] == pytest.approx([126, 20], abs=0.5)
    assert all(-fit_lenient_prior(sizes, 5).total(sizes) < 3 for sizes in (apart, shared))
