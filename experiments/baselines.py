"""Fits that several experiments compare with: told the true number of components, on all data or on local components.

On the data of all sites together they are what no site could compute, the upper reference; on local components they are
clustering whoever these come from. The same fits, told the local number, are what sites start from.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture

MIXTURE_STARTS = 16  # as the code of the authors of KL-fusion
KMEANS = {"n_init": 8, "max_iter": 1000}


def mixture(rows: np.ndarray, count: int, seed: int, starts: int = MIXTURE_STARTS) -> BayesianGaussianMixture:
    """Return the variational mixture of `count` Gaussians of some rows (n, D), by the best of `starts`."""
    model = BayesianGaussianMixture(
        n_components=count,
        weight_concentration_prior_type="dirichlet_distribution",
        n_init=starts,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows)


def kmeans(points: np.ndarray, count: int, seed: int, **settings: Any) -> KMeans:
    """Return the k-means of some points (n, D), with `settings` in place of ``KMEANS`` where they are given."""
    return KMeans(n_clusters=count, random_state=seed, **KMEANS | settings).fit(points)


def topic_model(documents: Any, count: int, seed: int, **settings: Any) -> LatentDirichletAllocation:
    """Return the topics of some documents, word counts (n, V)."""
    return LatentDirichletAllocation(n_components=count, random_state=seed, **settings).fit(documents)
