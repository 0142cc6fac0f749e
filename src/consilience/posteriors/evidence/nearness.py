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

N_TURNS = 20
"""Random turns, which give the deviation to a sixth of itself."""
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
    spans, rng = _spans(means, [len(site) for site in sites]), np.random.default_rng(0)
    is_same_site = owner[rows][:, None] == owner[rows]
    by_turn = np.array([_log_nearest(_turned(spans, means.shape, rng), is_same_site) for _ in range(N_TURNS)])
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


def _spans(means: Array, sizes: list[int]) -> list[tuple[Labels, Array]]:
    """Return, for every size k, the rows of the sites of that size (m, k) and their coordinates (m, r, k).

    The coordinates are in an orthonormal basis of what a site's rows span, of r = min(k, D) dimensions.
    """
    starts, spans = np.cumsum([0, *sizes[:-1]]), []
    for size in np.unique(sizes).tolist():
        rows = starts[np.array(sizes) == size][:, None] + np.arange(size)
        spans.append((rows, np.linalg.qr(means[rows].transpose(0, 2, 1))[1]))
    return spans


def _turned(spans: list[tuple[Labels, Array]], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return centred means (n, D) with each site turned about the origin by a random rotation of its own."""
    turned = np.empty(shape)
    for rows, coordinates in spans:
        basis, triangle = np.linalg.qr(rng.standard_normal((len(rows), shape[1], coordinates.shape[1])))
        uniform = basis * np.sign(np.diagonal(triangle, axis1=1, axis2=2))[:, None, :]  # (m, D, r), by Haar's measure
        turned[rows] = (uniform @ coordinates).transpose(0, 2, 1)
    return turned


def _log_nearest(means: Array, is_same_site: Array) -> float:
    """Return T of means (n, D)."""
    squares = np.sum(means**2, axis=1)
    distances = squares[:, None] + squares - 2.0 * (means @ means.T)
    distances[is_same_site] = np.inf
    return float(np.log(np.maximum(distances.min(axis=1), SMALLEST_SQUARE)).mean())
