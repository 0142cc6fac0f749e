"""Sites with draws of subposteriors whose product is known: the oracles share no code with the library."""

import numpy as np
from scipy import stats

import consilience as cs


def gaussian_sites(n_sites=4, dim=3, n_draws=4000, seed=0, *, chains=2, prior=None, spread=0.3, **told):
    """Return draws of Gaussian subposteriors, and mean and covariance of their product."""
    rng = np.random.default_rng(seed)
    sites, precision, shift = [], np.zeros((dim, dim)), np.zeros(dim)
    for _ in range(n_sites):
        mixing = rng.normal(size=(dim, dim))
        covariance = mixing @ mixing.T + np.eye(dim)
        mean = spread * rng.normal(size=dim)
        draws = rng.multivariate_normal(mean, covariance, size=(chains, n_draws // chains))
        sites.append(cs.Draws({"beta": draws}, prior=prior or 1.0 / n_sites, **told))
        inverse = np.linalg.inv(covariance)
        precision += inverse
        shift += inverse @ mean
    return sites, np.linalg.solve(precision, shift), np.linalg.inv(precision)


def poisson_rate_sites(n_sites=5, rows=4, rate=3.0, n_draws=4000, seed=0, shape=2.0, scale_rate=1.0, power=None):
    """Return draws of gamma posteriors of a Poisson rate, prior^(1/J), and the full posterior."""
    rng = np.random.default_rng(seed)
    y = rng.poisson(rate, size=(n_sites, rows))
    power = 1.0 / n_sites if power is None else power
    sites = []
    for own in y:
        # density rate^(power (a - 1) + sum y) exp(-(power b + n) rate)
        draws = rng.gamma(
            power * (shape - 1) + own.sum() + 1, 1.0 / (power * scale_rate + rows), size=(2, n_draws // 2)
        )
        sites.append(draws)
    return sites, stats.gamma(shape + y.sum(), scale=1.0 / (scale_rate + n_sites * rows))


def flat(fusion, name="beta"):
    """Return fused draws of a variable (T, d)."""
    values = fusion.draws.variables[name]
    return values.reshape(values.shape[0] * values.shape[1], -1)
