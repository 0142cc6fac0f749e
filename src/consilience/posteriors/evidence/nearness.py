"""Whether sites share anything: nearer to the components of other sites than they would be by chance.

A fit of the heterogeneity finds copies in anything: of sites that share nothing it makes groups whose members differ as
much as any two components do. What evidence does not know is how near the components of unrelated sites come to each
other by chance. Turning shows it: if sites share nothing, the components of one are as probable turned as a whole about
the common centre. With the mean covariance of a component as the metric,

    T = mean_l log min_{k: site(k) != site(l)} |m_k - m_l|^2,    score = (T - mean(T)) / sd(T),

mean and deviation over random turns of all sites. A turn keeps all distances within a site and from the centre; it says
nothing in one dimension, nor of sites of one component.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from consilience.checks import Array, Labels
from consilience.posteriors.evidence.search import shuffled
from consilience.posteriors.evidence.virtual_loss import VirtualLoss

N_TURNS = 40
"""Random turns, which give the deviation to a ninth of itself."""
MAX_TURNED_ROWS = 400
"""Components of a sample of the sites that are turned, about: more only make clearer what is clear. For its cost."""
SMALLEST_SQUARE = float(np.finfo(np.float64).eps)
"""Squared distance, in widths of a component, below which two are in one place."""


def nearness_score(loss: VirtualLoss, owner: Labels) -> float | None:
    """Return by how many standard deviations components are nearer to other sites' (below zero) than by chance.

    Parameters
    ----------
    loss : VirtualLoss
        Means and covariances of the components, and an order in which those of every site are together.
    owner : Labels of shape (L,)
        Site of each component.

    Returns
    -------
    float or None
        About zero where sites share nothing; None where turns say nothing.
    """
    sites = _sample_of_sites(np.arange(len(owner)) if loss.order is None else loss.order, owner)
    if loss.means.shape[1] < 2 or sum(len(site) > 1 for site in sites) < 2:
        return None
    rows = np.concatenate(sites)
    means = _in_widths(loss.means[rows] - loss.means[rows].mean(axis=0), loss.covariances[rows])  # (n, D)
    sizes = [len(site) for site in sites]
    is_same_site = owner[rows][:, None] == owner[rows]
    rng = np.random.default_rng(0)
    by_turn = np.array([_log_nearest(_turned(means, sizes, rng), is_same_site) for _ in range(N_TURNS)])
    deviation = float(by_turn.std(ddof=1))
    return (_log_nearest(means, is_same_site) - float(by_turn.mean())) / deviation if deviation > 0.0 else None


def _sample_of_sites(order: Labels, owner: Labels) -> list[Labels]:
    """Return the rows of every site, or of as many of them as have about ``MAX_TURNED_ROWS`` together."""
    sites = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    sites = [sites[number] for number in shuffled(len(sites)).tolist()]
    n_rows = np.cumsum([len(site) for site in sites])
    return sites[: max(2, int(np.searchsorted(n_rows, MAX_TURNED_ROWS, side="right")))]


def _in_widths(means: Array, covariances: Array) -> Array:
    """Return means (n, D) in the metric of the mean of covariances (n, D, D), or of variances (n, D)."""
    usual = covariances.mean(axis=0)
    if usual.ndim == 1:
        return means / np.sqrt(usual)
    whitened: Array = solve_triangular(np.linalg.cholesky(usual), means.T, lower=True).T
    return whitened


def _turned(means: Array, sizes: list[int], rng: np.random.Generator) -> Array:
    """Return centred means (n, D) with each site's rows turned about the origin by a random rotation of its own."""
    dim, turned, start = means.shape[1], np.empty_like(means), 0
    for size in sizes:
        site = means[start : start + size]
        # A site spans at most as many dimensions as it has components: a uniform frame of those in place of its own.
        frame, factor = np.linalg.qr(site.T)  # (D, r), (r, size)
        uniform, triangle = np.linalg.qr(rng.standard_normal((dim, frame.shape[1])))
        turned[start : start + size] = (uniform * np.sign(np.diagonal(triangle)) @ factor).T
        start += size
    return turned


def _log_nearest(means: Array, is_same_site: Array) -> float:
    """Return T of means (n, D)."""
    squares = np.sum(means**2, axis=1)
    distances = squares[:, None] + squares - 2.0 * (means @ means.T)
    distances[is_same_site] = np.inf
    return float(np.log(np.maximum(distances.min(axis=1), SMALLEST_SQUARE)).mean())
