"""Diagnostics of draws: rank-normalised split R-hat, effective sample sizes, skewness, separate modes, overlap.

R-hat and effective sample sizes are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021): chains are split
into halves, draws replaced by normal scores of their ranks, z = Phi^-1((r - 3/8) / (S + 1/4)) (their equation 14).
R-hat is the larger one of the scores (bulk) and of those of |x - median| (tail), and

    S_eff = S / tau,    tau = -1 + 2 sum_{t=0}^{K} P_t,    P_t = rho_2t + rho_{2t+1},

with Geyer's (1992) initial positive and monotone sequence (their equations 10 to 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtri

from consilience.checks import Array, Labels

MAX_RHAT = 1.05
"""R-hat above which chains have not mixed. The authors advise 1.01 for inference; a site's draws are refused later."""
MAX_DIVERGENT = 0.01
"""Share of divergent transitions above which a chain is refused."""
MIN_CHAIN_LENGTH = 100
"""Least draws of a chain."""

MIN_SHARE = 0.05
"""Least share of draws that a mode of its own holds. Chosen by hand."""
VALLEY = 0.5
"""Density between two modes, as a part of the lower one, below which they are apart: of two equal Gaussians at a
distance of 3.3 standard deviations it is that. A skewed law is fitted better by two Gaussians too, with no valley."""
MAX_CHAIN_DISTANCE = 2.0
"""Distance of the means of two chains, in standard deviations within chains, above which they are in two modes."""
MODE_DRAWS = 2000
"""Draws, evenly spaced, to which two Gaussians are fitted: enough for a share of 5 %, and seconds are saved."""
MAX_EM_STEPS = 200
"""A bound on the steps of EM; where it is reached, the fit is as good as any for a valley."""

GAUSSIAN_SKEWNESS = 0.3
"""Greatest |skewness| of a coordinate of subposteriors that look Gaussian. Judged in experiments/draws."""


def split_chains(draws: Array) -> Array:
    """Return halves of chains as chains (2 C, T // 2, D) of draws (C, T, D), without the middle draw of odd lengths."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]], axis=0)


def normal_scores(draws: Array) -> Array:
    """Return Phi^-1((rank - 3/8) / (S + 1/4)), column by column over all chains (C, T, D)."""
    flat = draws.reshape(-1, draws.shape[2])
    ranks = np.stack([_average_ranks(column) for column in flat.T], axis=1)
    return ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def _average_ranks(values: Array) -> Array:
    """Return ranks from 1 of values (n,), equal values sharing their mean; ``scipy.stats`` is slow to import."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - 0.5 * (counts - 1.0))[place]
    return ranks


def rank_rhat(draws: Array) -> Array:
    """Return rank-normalised split R-hat (D,) of draws (C, T, D): the larger one of bulk and tail.

    NaN for columns that do not vary.
    """
    split = split_chains(draws)
    folded = np.abs(split - np.median(split, axis=(0, 1)))
    return np.fmax(_rhat(normal_scores(split)), _rhat(normal_scores(folded)))


def _rhat(chains: Array) -> Array:
    """Return sqrt(((T - 1)/T W + B/T) / W) (D,) of chains (C, T, D)."""
    length = chains.shape[1]
    between = length * chains.mean(axis=1).var(axis=0, ddof=1)
    within = chains.var(axis=1, ddof=1).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(((length - 1) / length * within + between / length) / within)


def bulk_ess(draws: Array) -> Array:
    """Return the effective sample size (D,) of the normal scores of draws (C, T, D); NaN where they do not vary."""
    return _ess(normal_scores(split_chains(draws)))


def _ess(chains: Array) -> Array:
    n_chains, length, _ = chains.shape
    covariances = _autocovariances(chains)  # (C, T, D)
    within = covariances[:, 0].mean(axis=0) * length / (length - 1.0)
    total = within * (length - 1.0) / length
    if n_chains > 1:
        total = total + chains.mean(axis=1).var(axis=0, ddof=1)
    n_total = n_chains * length
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (within - covariances.mean(axis=0)) / total  # (T, D)
    rho[0] = 1.0
    result = np.full(chains.shape[2], np.nan)
    for column in np.flatnonzero(total > 0):
        result[column] = n_total / max(_autocorrelation_time(rho[:, column]), 1.0 / np.log10(n_total))
    return result


def _autocorrelation_time(rho: Array) -> float:
    """Return tau of autocorrelations (T,): the pairs P_t while they are positive, made to fall."""
    pairs = rho[: len(rho) // 2 * 2].reshape(-1, 2).sum(axis=1)
    is_negative = pairs < 0
    end = int(np.argmax(is_negative)) if is_negative.any() else len(pairs) - 1
    end = min(end, max((len(rho) - 3) // 2, 1))
    falling = np.minimum.accumulate(pairs[:end])
    # Of the first pair that is left out, its even term is kept where it is positive (as Stan's code has it).
    return float(-1.0 + 2.0 * falling.sum() + max(rho[2 * end], 0.0))


def _autocovariances(chains: Array) -> Array:
    """Return autocovariances (C, T, D) of chains (C, T, D), biased, by the fast Fourier transform."""
    length = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    size = 2 ** int(np.ceil(np.log2(2 * length)))
    spectrum = np.fft.rfft(centred, n=size, axis=1)
    products: Array = np.fft.irfft(spectrum * np.conj(spectrum), n=size, axis=1)[:, :length]
    return products / length


def skewness(draws: Array) -> Array:
    """Return the skewness (D,) of all draws (C, T, D)."""
    flat = draws.reshape(-1, draws.shape[2])
    centred = flat - flat.mean(axis=0)
    second = np.mean(centred**2, axis=0)
    return np.mean(centred**3, axis=0) / np.where(second > 0, second, 1.0) ** 1.5


def separate_modes(draws: Array) -> Labels:
    """Return which columns of draws (C, T, D) have two modes that are apart.

    Two chains whose means differ by more than `MAX_CHAIN_DISTANCE`; or two Gaussians that fit better than one by the
    Bayesian information criterion, each with `MIN_SHARE` of the draws, with a valley between them.
    """
    means, spread = draws.mean(axis=1), np.sqrt(draws.var(axis=1).mean(axis=0))
    far = np.ptp(means, axis=0) > MAX_CHAIN_DISTANCE * spread
    flat = draws.reshape(-1, draws.shape[2])
    flat = flat[:: max(1, len(flat) // MODE_DRAWS)]
    return np.flatnonzero(far | _is_bimodal(flat))


def _is_bimodal(rows: Array) -> Array:
    """Return for each column (D,) of rows (n, D) whether two Gaussians with a valley between them fit it better."""
    scale = rows.std(axis=0)
    z = np.ascontiguousarray(((rows - rows.mean(axis=0)) / np.where(scale > 0, scale, 1.0)).T)
    share, mean, variance, likelihood = _two_gaussians(z)
    n = len(rows)
    one = -0.5 * n * (np.log(2 * np.pi) + 1.0)  # of standardised columns
    is_better = likelihood - one > 1.5 * np.log(n)  # three parameters more, half of log n each
    grid = mean[0] + np.linspace(0.0, 1.0, 101)[:, None] * (mean[1] - mean[0])  # (101, D)
    between = (share / np.sqrt(variance) * np.exp(-0.5 * (grid[:, None] - mean) ** 2 / variance)).sum(axis=1)
    is_apart = between.min(axis=0) < VALLEY * np.minimum(between[0], between[-1])
    return is_better & is_apart & (share.min(axis=0) >= MIN_SHARE) & (scale > 0)


def _two_gaussians(z: Array) -> tuple[Array, Array, Array, Array]:
    """Return shares, means and variances (2, D) of two Gaussians fitted to each row of z (D, n), and the likelihood.

    By EM from the quartiles; a row is left as it is when a step no longer raises its likelihood. The log ratio of two
    Gaussians is a quadratic of z, so that one exponential tells the weights and the likelihood.
    """
    size, n = z.shape
    mean, variance, share = np.quantile(z, [0.25, 0.75], axis=1), np.full((2, size), 0.5), np.full((2, size), 0.5)
    likelihood, moments = np.full(size, -np.inf), np.stack([np.ones_like(z), z, z**2])  # (3, D, n)
    going = np.arange(size)
    for _ in range(MAX_EM_STEPS):
        m, v, sums = mean[:, going], variance[:, going], moments.sum(axis=2)
        logs = np.log(share[:, going]) - 0.5 * np.log(2 * np.pi * v) - 0.5 * m**2 / v
        terms = np.stack([logs, m / v, -0.5 / v])  # (3, 2, D): the log density is their sum with the moments
        ratio = np.einsum("td,tdn->dn", terms[:, 1] - terms[:, 0], moments)
        small = np.exp(-np.abs(ratio))
        reached = (terms[:, 0] * sums).sum(axis=0) + (np.maximum(ratio, 0.0) + np.log1p(small)).sum(axis=1)
        rises = reached - likelihood[going] >= 1e-6 * n
        likelihood[going] = reached
        if not rises.any():
            break
        weight = np.where(ratio > 0, 1.0, small) / (1.0 + small)
        upper = np.einsum("dn,tdn->td", weight, moments)
        count, first, second = (np.stack([total - part, part]) for total, part in zip(sums, upper, strict=True))
        count = np.maximum(count, 1e-9)
        mean[:, going], share[:, going] = first / count, count / n
        variance[:, going] = np.maximum(second / count - (first / count) ** 2, 1e-6)
        if not rises.all():
            going, moments = going[rises], np.ascontiguousarray(moments[:, rises])
    return share, mean, variance, likelihood


@dataclass(frozen=True, eq=False)
class Overlap:
    """How far the subposteriors of sites overlap.

    Parameters
    ----------
    coefficient : float
        The least Bhattacharyya coefficient of two sites in one coordinate, from 1 (equal) to 0 (apart).
    coordinate : int
        Where that is.
    sites : tuple of two int
        Between which sites.
    q, p_value : float
        Cochran's Q = sum_j (m_j - m)^T S_j^-1 (m_j - m) and its chi-squared tail: whether means differ more than their
        widths admit.
    degrees_of_freedom : int
        (J - 1) D.
    """

    coefficient: float
    coordinate: int
    sites: tuple[int, int]
    q: float
    p_value: float
    degrees_of_freedom: int

    @property
    def i2(self) -> float:
        """Share of Q beyond its expectation."""
        return max(0.0, 1.0 - self.degrees_of_freedom / self.q) if self.q > 0 else 0.0


def overlap(means: Array, covariances: Array) -> Overlap:
    """Return the overlap of subposteriors with these means (J, D) and covariances (J, D, D), taken as Gaussian.

    In one coordinate the Bhattacharyya coefficient is sqrt(2 s t / (s^2 + t^2)) exp(-(m - n)^2 / (4 (s^2 + t^2))).
    """
    n_sites, dim = means.shape
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    worst = (np.inf, 0, (0, 0))
    for site in range(n_sites - 1):
        total = variances[site] + variances[site + 1 :]  # (J - site - 1, D)
        coefficients = np.sqrt(2.0 * np.sqrt(variances[site] * variances[site + 1 :]) / total)
        coefficients = coefficients * np.exp(-((means[site] - means[site + 1 :]) ** 2) / (4.0 * total))
        other, coordinate = np.unravel_index(int(np.argmin(coefficients)), coefficients.shape)
        worst = min(worst, (float(coefficients[other, coordinate]), int(coordinate), (site, site + 1 + int(other))))
    precisions = np.linalg.inv(covariances)
    centre = np.linalg.solve(precisions.sum(axis=0), np.einsum("jab,jb->a", precisions, means))
    offsets = means - centre
    q = float(np.einsum("ja,jab,jb->", offsets, precisions, offsets))
    dof = (n_sites - 1) * dim
    return Overlap(worst[0], worst[1], worst[2], q, float(chdtrc(dof, q)), dof)


def divergent_chains(diverging: Array | None) -> list[int]:
    """Return the chains of which more than `MAX_DIVERGENT` of the transitions diverged."""
    return [] if diverging is None else np.flatnonzero(np.mean(diverging, axis=1) > MAX_DIVERGENT).tolist()


def distant_chains(draws: Array, columns: Sequence[int]) -> list[int]:
    """Return the chains whose means lie farther from the median of all chains' than a standard deviation in a column.

    Those are the ones to look at where R-hat is large; all of them differ where none does.
    """
    chosen = draws[:, :, list(columns)]
    means, spread = chosen.mean(axis=1), np.sqrt(chosen.var(axis=1).mean(axis=0))
    offsets = np.abs(means - np.median(means, axis=0)) / np.where(spread > 0, spread, 1.0)
    return np.flatnonzero(np.any(offsets > 1.0, axis=1)).tolist()
