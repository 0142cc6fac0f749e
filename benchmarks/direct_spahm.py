"""SPAHM as one would write it from the paper with NumPy: algorithm 1 with vectorised costs and SciPy's assignment.

Sites are matched in a random order for a fixed number of rounds, each followed by the closed-form estimates (10). The
prior of who holds what is the exact one, without the published log k, so that the objective is the library's own. It
shares no code with the library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import betaln


@dataclass
class Result:
    """Labels of every site, and the law estimated."""

    labels: list[np.ndarray]
    mean: np.ndarray
    within: np.ndarray
    between: np.ndarray


def value(
    total: np.ndarray, count: np.ndarray, mean: np.ndarray, within: np.ndarray, between: np.ndarray
) -> np.ndarray:
    """Return twice the log marginal of groups, equation (8), from sums (..., D) and numbers (..., 1) of members."""
    top = between / within * total**2 + 2.0 * mean * total - count * mean**2
    scale = count * between + within
    return (top / scale - np.log(scale) + np.log(within)).sum(axis=-1)


def fuse(sites: list[np.ndarray], rounds: int, rng: np.random.Generator) -> Result:
    """Match the points of all sites from s = s0 = 1."""
    n_sites, dim = len(sites), sites[0].shape[1]
    everything = np.concatenate(sites)
    mean, within, between = everything.mean(axis=0), np.ones(dim), np.ones(dim)
    squares = (everything**2).sum(axis=0)
    labels: list[np.ndarray | None] = [None] * n_sites
    sums, counts = np.zeros((0, dim)), np.zeros(0)

    def match(site: int) -> None:
        nonlocal sums, counts
        points, law = sites[site], (mean, within, between)
        old = value(sums, counts[:, None], *law)
        new = value(sums[None] + points[:, None], counts[None, :, None] + 1.0, *law)
        gains = new - old + 2.0 * np.log(counts / (n_sites - counts))
        fresh = value(points, np.ones((len(points), 1)), *law) - 2.0 * np.log(n_sites)
        gains = np.concatenate([gains, np.repeat(fresh[:, None], len(points), axis=1)], axis=1)
        columns = linear_sum_assignment(gains, maximize=True)[1]
        opened = columns >= len(counts)
        columns[opened] = len(counts) + np.arange(opened.sum())
        sums = np.concatenate([sums, np.zeros((int(opened.sum()), dim))])
        counts = np.concatenate([counts, np.zeros(int(opened.sum()))])
        sums[columns] += points
        counts[columns] += 1.0
        labels[site] = columns

    def leave(site: int) -> None:
        nonlocal sums, counts
        sums[labels[site]] -= sites[site]
        counts[labels[site]] -= 1.0
        kept = counts > 0
        if not kept.all():
            numbers = np.cumsum(kept) - 1
            sums, counts = sums[kept], counts[kept]
            for other in range(n_sites):
                if other != site:
                    labels[other] = numbers[labels[other]]

    def estimate() -> None:
        nonlocal mean, within, between
        means = sums / counts[:, None]
        mean = means.mean(axis=0)
        if len(everything) > len(counts):
            within = np.maximum(
                (squares - (sums**2 / counts[:, None]).sum(axis=0)) / (len(everything) - len(counts)), 1e-10
            )
        between = np.maximum(((means - mean) ** 2).mean(axis=0) - within * np.mean(1.0 / counts), 1e-10)

    for site in np.argsort([-len(points) for points in sites], kind="stable"):
        match(site)
    estimate()
    for _ in range(rounds):
        for site in rng.permutation(n_sites):
            leave(site)
            match(site)
        estimate()
    return Result(labels, mean, within, between)


def log_posterior(labels: np.ndarray, points: np.ndarray, n_sites: int, law: tuple[np.ndarray, ...]) -> float:
    """Return the log posterior of a matching under a law (mean, within, between), up to P(v)."""
    mean, within, between = law
    groups = np.unique(labels, return_inverse=True)[1]
    sums = np.zeros((groups.max() + 1, points.shape[1]))
    np.add.at(sums, groups, points)
    counts = np.bincount(groups).astype(float)
    marginal = value(sums, counts[:, None], mean, within, between).sum() - (points**2 / within).sum()
    noise = len(points) * (points.shape[1] * np.log(2.0 * np.pi) + np.log(within).sum())
    return float(0.5 * (marginal - noise) + betaln(counts, n_sites - counts + 1.0).sum())
