"""The methods of the R package parallelMCMCcombine (Miroshnikov and Conlon 2014), from their papers' formulas.

They take draws as they come, in the parameters' own coordinates, (J, T, d), and give (T, d).
"""

from __future__ import annotations

import numpy as np


def sample_average(draws, rng):
    """sampleAvg: theta_t = 1/J sum_j theta_jt."""
    return draws.mean(axis=0)


def consensus_independent(draws, rng):
    """ConsensusMCindep (Scott et al. 2016): weights 1/variance, parameter by parameter."""
    weights = 1.0 / draws.var(axis=1, ddof=1)  # (J, d)
    return np.einsum("jtd,jd->td", draws, weights) / weights.sum(axis=0)


def consensus_covariance(draws, rng):
    """ConsensusMCcov (Scott et al. 2016): weights are inverse covariances."""
    weights = np.stack([np.linalg.inv(np.atleast_2d(np.cov(own, rowvar=False))) for own in draws])
    return np.linalg.solve(weights.sum(axis=0), np.einsum("jtd,jde->te", draws, weights).T).T


def semiparametric(draws, rng):
    """SemiparamDPE (Neiswanger, Wang and Xing 2014, section 3.3 and algorithm 1), one chain, h = i^(-1/(4 + d))."""
    n_sites, n_draws, d = draws.shape
    means = draws.mean(axis=1)
    covariances = np.stack([np.atleast_2d(np.cov(own, rowvar=False)) for own in draws])
    precisions = np.linalg.inv(covariances)
    product = np.linalg.inv(precisions.sum(axis=0))
    mean = product @ np.einsum("jab,jb->a", precisions, means)
    log_normal = [
        -0.5 * np.einsum("ta,ab,tb->t", own - m, p, own - m) for own, m, p in zip(draws, means, precisions, strict=True)
    ]

    def log_weight(chosen, h):
        selected = draws[np.arange(n_sites), chosen]
        centre = selected.mean(axis=0)
        widened = product + h**2 / n_sites * np.eye(d)
        value = -0.5 * np.sum((selected - centre) ** 2) / h**2
        value -= 0.5 * (centre - mean) @ np.linalg.solve(widened, centre - mean)
        return value - sum(log_normal[j][chosen[j]] for j in range(n_sites)), centre

    chosen = rng.integers(n_draws, size=n_sites)
    result = np.empty((n_draws, d))
    for i in range(n_draws):
        h = (i + 1.0) ** (-1.0 / (4.0 + d))
        value, centre = log_weight(chosen, h)
        for j in range(n_sites):
            proposal = chosen.copy()
            proposal[j] = rng.integers(n_draws)
            proposed, moved = log_weight(proposal, h)
            if np.log(rng.random()) < proposed - value:
                chosen, value, centre = proposal, proposed, moved
        covariance = np.linalg.inv(n_sites / h**2 * np.eye(d) + precisions.sum(axis=0))
        location = covariance @ (n_sites / h**2 * centre + precisions.sum(axis=0) @ mean)
        result[i] = rng.multivariate_normal(location, covariance)
    return result


BASELINES = {
    "sampleAvg": sample_average,
    "consensusMCindep": consensus_independent,
    "consensusMCcov": consensus_covariance,
    "semiparamDPE": semiparametric,
}
