"""The bound of sticky transitions: below what sampling gives, with the slopes that differences have; its maximum."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import gammaln
from scipy.stats import beta, dirichlet

from consilience.posteriors.hidden_markov import sticky_transitions
from consilience.posteriors.hidden_markov.sticky_transitions import (
    Sticks,
    StickyPrior,
    TransitionCounts,
    canonical_sticks,
    dirichlet_parameters,
    expected_logs,
    fit_sticks,
    sticks_bound,
    sticks_from_weights,
    uniform_sticks,
)
from tests.tolerances import DIFFERENCES, FLAT_MINIMUM, ROUNDING, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

PRIORS = {
    "plain": StickyPrior(kappa=0.0),
    "hardly sticky": StickyPrior(kappa=1e-3, gamma=1.0),
    "sticky": StickyPrior(),
    "very sticky": StickyPrior(kappa=100.0, eta=3.0, start=0.5),
}
every_prior = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)


def made(size=5, seed=0):
    rng = np.random.default_rng(seed)
    counts = TransitionCounts(rng.gamma(0.3, 10.0, (size, size)), rng.gamma(0.3, 2.0, size))
    return counts, Sticks(rng.uniform(0.1, 0.9, size), rng.gamma(5.0, 3.0, size))


def log_constant(concentrations):
    return gammaln(concentrations.sum(axis=-1)) - gammaln(concentrations).sum(axis=-1)


def sampled(sticks, counts, prior, size=40_000):
    """What the bound is below: log p(u) - log q(u) and the log constants of all rows, less those of q(pi)."""
    rng = np.random.default_rng(0)
    a, b = sticks.rho * sticks.omega, (1.0 - sticks.rho) * sticks.omega
    u = rng.beta(a, b, (size, len(a)))
    ones = np.ones((size, 1))
    weights = np.concatenate([u, ones], axis=1) * np.concatenate([ones, np.cumprod(1.0 - u, axis=1)], axis=1)
    values = (beta.logpdf(u, 1.0, prior.gamma) - beta.logpdf(u, a, b)).sum(axis=1)
    values += log_constant(prior.start * weights)
    for state in range(len(a)):
        row = prior.eta * weights
        row[:, state] += prior.kappa
        values += log_constant(row)
    start, transition = dirichlet_parameters(counts, sticks.weights, prior)
    return values - log_constant(start) - log_constant(transition).sum()


@every_prior
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_below_what_it_bounds(prior, seed):
    counts, sticks = made(seed=seed)
    values = sampled(sticks, counts, prior)
    assert sticks_bound(sticks, counts, prior) < values.mean() + STANDARD_ERRORS * values.std() / np.sqrt(len(values))


@every_prior
def test_where_the_sticks_are_sure_only_the_chords_of_log_gamma_are_given_away(prior):
    counts, sticks = made()
    sure = replace(sticks, omega=np.full(5, 1e8))
    weights, total = sure.weights, prior.eta + prior.kappa
    rows = prior.eta * weights + prior.kappa * np.eye(5, 6)
    chord = gammaln(1.0 + total) - gammaln(1.0 + prior.kappa) - gammaln(1.0 + prior.eta)
    given_away = gammaln(1.0 + total) - gammaln(1.0 + rows).sum(axis=1) - (1.0 - weights[:5]) * chord
    start = gammaln(1.0 + prior.start) - gammaln(1.0 + prior.start * weights).sum()
    assert np.all(given_away >= 0.0)
    values = sampled(sure, counts, prior, size=4000)
    error = STANDARD_ERRORS * values.std() / np.sqrt(len(values))
    gap = values.mean() - sticks_bound(sure, counts, prior)
    assert_allclose(gap, given_away.sum() + start, atol=error)
    assert error < 0.05 * gap


@every_prior
def test_slopes_are_those_of_differences(prior):
    counts, sticks = made()
    _, by_rho, by_omega = sticky_transitions._bound_and_gradient(sticks, counts, prior)
    step = 1e-4
    for name, slopes in (("rho", by_rho), ("omega", by_omega)):
        for state in range(5):
            moved = [
                replace(sticks, **{name: getattr(sticks, name) + factor * step * np.eye(5)[state]})
                for factor in (-2, -1, 1, 2)
            ]
            far_below, below, above, far_above = (sticks_bound(one, counts, prior) for one in moved)
            slope = (8.0 * (above - below) - (far_above - far_below)) / (12.0 * step)
            assert_allclose(slopes[state], slope, rtol=DIFFERENCES, atol=DIFFERENCES)


@pytest.mark.slow
@every_prior
def test_fitting_finds_the_maximum_and_never_lowers_the_bound(prior):
    counts, sticks = made()
    found = fit_sticks(counts, prior, sticks)

    def negative(point):
        return -sticks_bound(Sticks(1.0 / (1.0 + np.exp(-point[:5])), np.exp(point[5:])), counts, prior)

    start = np.concatenate([np.zeros(5), np.full(5, 3.0)])
    options = {"maxiter": 6000, "maxfev": 6000, "adaptive": True}
    expected = minimize(negative, start, method="Nelder-Mead", options=options)  # no slopes, no bounds
    assert sticks_bound(found, counts, prior) >= -expected.fun - FLAT_MINIMUM
    for steps in (1, 2, 5):
        assert sticks_bound(fit_sticks(counts, prior, sticks, steps), counts, prior) >= sticks_bound(
            sticks, counts, prior
        )
    again = fit_sticks(counts, prior, found)
    assert_allclose(again.weights, found.weights, atol=FLAT_MINIMUM)


@every_prior
def test_weights_sum_to_one_with_the_remainder(prior):
    counts, _ = made()
    for sticks in (uniform_sticks(5, prior), fit_sticks(counts, prior, uniform_sticks(5, prior))):
        assert sticks.weights.shape == (6,)
        assert_allclose(sticks.weights.sum(), 1.0, rtol=ROUNDING)
        assert np.all(sticks.weights > 0.0)
    assert_allclose(uniform_sticks(5, prior).weights, 1.0 / 6.0, rtol=ROUNDING)
    assert_allclose(sticks_from_weights(sticks.weights, 3.0).weights, sticks.weights, rtol=ROUNDING)


@every_prior
def test_rows_are_counts_and_the_mass_of_the_prior(prior):
    counts, sticks = made()
    start, transition = dirichlet_parameters(counts, sticks.weights, prior)
    assert_allclose(start.sum(), counts.starts.sum() + prior.start, rtol=ROUNDING)
    assert_allclose(transition.sum(axis=1), counts.transitions.sum(axis=1) + prior.eta + prior.kappa, rtol=ROUNDING)
    assert_allclose(
        np.diagonal(transition) - np.diagonal(counts.transitions), prior.eta * sticks.weights[:5] + prior.kappa
    )


def test_expected_logs_are_those_of_samples():
    concentrations = np.array([0.7, 2.0, 5.0, 1.0])
    draws = np.log(dirichlet.rvs(concentrations, size=40_000, random_state=0)[:, :-1])
    errors = STANDARD_ERRORS * draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(expected_logs(concentrations) - draws.mean(axis=0)) < errors)
    assert_allclose(expected_logs(concentrations[None])[0], expected_logs(concentrations), rtol=ROUNDING)


@every_prior
def test_the_order_of_states_does_not_matter(prior):
    counts, _ = made()
    order = np.random.default_rng(1).permutation(5)
    found, expected = np.empty(5), np.empty(5)
    sticks, places = canonical_sticks(counts, prior)
    expected[places] = sticks.weights[:-1]
    sticks, places = canonical_sticks(counts.take(order), prior)
    found[places] = sticks.weights[:-1]
    assert found.tolist() == expected[order].tolist()


def test_without_stickiness_the_bound_is_the_published_one():
    """Hughes et al. 2015: E log of the constant of Dirichlet(eta beta) is at least K log eta + sum_l E log beta_l."""
    counts, sticks = made()
    prior = StickyPrior(kappa=0.0)
    log_u, log_rest = sticks.mean_logs
    logs = np.append(log_u, 0.0) + np.concatenate([[0.0], np.cumsum(log_rest)])
    expected = sum(5 * np.log(concentration) + logs.sum() for concentration in [prior.eta] * 5 + [prior.start])
    start, transition = dirichlet_parameters(counts, sticks.weights, prior)
    expected -= log_constant(start) + log_constant(transition).sum()
    a, b = sticks.rho * sticks.omega, (1.0 - sticks.rho) * sticks.omega
    expected += (beta(a, b).entropy() + np.log(prior.gamma) + (prior.gamma - 1.0) * log_rest).sum()
    assert_allclose(sticks_bound(sticks, counts, prior), expected, rtol=ROUNDING)
    almost = replace(prior, kappa=1e-12)
    assert_allclose(sticks_bound(sticks, counts, almost), expected, rtol=1e-9)


def test_more_gamma_leaves_more_to_states_that_are_not_used():
    counts, sticks = made()
    left = [fit_sticks(counts, StickyPrior(gamma=gamma), sticks).weights[-1] for gamma in (0.5, 5.0, 50.0)]
    assert left == sorted(left)


def test_hyper_parameters_default_to_those_of_the_paper():
    assert astuple(StickyPrior()) == (5.0, 0.5, 10.0, 5.0)
