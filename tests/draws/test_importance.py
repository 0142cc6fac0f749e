"""The generalised Pareto fit and smoothing of importance weights against the published formulas, written as loops."""

import math

import numpy as np
import pytest
from scipy import stats

from consilience.draws.importance import fit_generalised_pareto, pareto_smoothed
from tests.tolerances import LOGARITHM, ROUNDING


def published_fit(ascending):
    """Zhang and Stephens (2009), with the prior of Vehtari et al. (2024): ten observations of shape 1/2."""
    n = len(ascending)
    m = 30 + math.isqrt(n)
    quartile = ascending[math.floor(n / 4 + 0.5) - 1]
    thetas = [1 / ascending[-1] + (1 - math.sqrt(m / (j - 0.5))) / (3 * quartile) for j in range(1, m + 1)]
    shapes = [sum(math.log1p(-theta * x) for x in ascending) / n for theta in thetas]
    logs = [n * (math.log(-theta / k) - k - 1) for theta, k in zip(thetas, shapes, strict=True)]
    weights = [1 / sum(math.exp(other - one) for other in logs) for one in logs]
    theta = sum(w * t for w, t in zip(weights, thetas, strict=True))
    k = sum(math.log1p(-theta * x) for x in ascending) / n
    return (n * k + 10 * 0.5) / (n + 10), -k / theta


@pytest.mark.parametrize("n", [5, 23, 400])
@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.9])
def test_the_fitted_law_is_the_published_estimate(n, shape):
    ascending = np.sort(stats.genpareto(shape, scale=2.0).rvs(n, random_state=np.random.default_rng(n)))
    np.testing.assert_allclose(fit_generalised_pareto(ascending), published_fit(ascending.tolist()), rtol=1e-10)


@pytest.mark.parametrize("n", [60, 500])
@pytest.mark.parametrize("largest", [0.0, -700.0])
def test_smoothing_puts_quantiles_of_the_fitted_law_in_place_of_the_largest_weights(n, largest):
    logs = np.log(stats.genpareto(0.5).rvs(n, random_state=np.random.default_rng(n)))
    logs += largest - logs.max()
    found, k = pareto_smoothed(logs)
    ascending = np.sort(logs)
    m = math.ceil(min(n / 5, 3 * math.sqrt(n)))
    cutoff = math.exp(ascending[-m - 1] - largest)
    shape, scale = fit_generalised_pareto(np.exp(ascending[-m:] - largest) - cutoff)
    quantiles = cutoff + stats.genpareto(shape, scale=scale).ppf((np.arange(m) + 0.5) / m)
    assert k == shape
    assert np.array_equal(np.sort(found)[:-m], ascending[:-m])
    np.testing.assert_allclose(
        np.sort(found)[-m:], np.log(np.minimum(quantiles, 1.0)) + largest, rtol=ROUNDING, atol=LOGARITHM
    )
    assert np.array_equal(np.argsort(found, kind="stable"), np.argsort(logs, kind="stable"))


def test_weights_of_which_fewer_than_five_are_apart_are_left_as_they_are():
    logs = np.zeros(100)
    logs[:4] = 1.0, 2.0, 3.0, 4.0
    found, k = pareto_smoothed(logs)
    assert np.array_equal(found, logs)
    assert k == -np.inf
