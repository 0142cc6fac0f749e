"""Initialisation of the sticky HDP-HMM: rows of data for every state, and no transitions yet.

States start from clusters of rows (k-means) or from random blocks of time, the "random examples" of Hughes et al. 2015
made longer. Transitions have their prior; the first local step fills them.
"""

from __future__ import annotations

import numpy as np

from consilience.checks import Array
from consilience.posteriors.hidden_markov.sticky_transitions import TransitionCounts, uniform_sticks
from consilience.posteriors.hidden_markov.variational_steps import GlobalFactors, HMMProblem

MAX_CLUSTER_STEPS = 10
"""Steps of k-means at most: a start need not be a converged clustering. Chosen by hand."""


def initial_factors(problem: HMMProblem, n_states: int, rng: np.random.Generator, *, clusters: bool) -> GlobalFactors:
    """Return factors of `n_states` states, or fewer when there are fewer different rows.

    Parameters
    ----------
    problem : HMMProblem
        Data and priors.
    n_states : int
        States at most.
    rng : Generator
        Source of randomness.
    clusters : bool
        True gives every state a cluster of rows, by a few steps of k-means with columns scaled by their standard
        deviations; False a random block of time, half as long as would cover all rows together.
    """
    membership = (
        _cluster_membership(problem.rows, n_states, rng)
        if clusters
        else _block_membership(len(problem.rows), n_states, rng)
    )
    size = membership.shape[1]
    no_counts = TransitionCounts(np.zeros((size, size)), np.zeros(size))
    # Prior plus the statistics of each state's rows: (K, n) @ (n, P)
    return GlobalFactors(
        problem.prior + membership.T @ problem.statistics, no_counts, uniform_sticks(size, problem.transition_prior)
    )


def _cluster_membership(rows: Array, n_states: int, rng: np.random.Generator) -> Array:
    """Return the cluster of every row, one-hot (n, K)."""
    from sklearn.cluster import KMeans

    deviations = rows.std(axis=0)  # (D,); 0 for a constant column, which is left as it is
    scaled = rows / np.where(deviations > 0.0, deviations, 1.0)
    size = min(n_states, len(np.unique(scaled, axis=0)))
    seed = int(rng.integers(2**31))
    clusters = KMeans(size, n_init=1, max_iter=MAX_CLUSTER_STEPS, random_state=seed).fit_predict(scaled)
    return np.eye(size)[clusters]


def _block_membership(n_rows: int, n_states: int, rng: np.random.Generator) -> Array:
    """Return which rows are in the block of which state (n, K); blocks may overlap."""
    size = min(n_states, n_rows)
    length = max(1, n_rows // (2 * size))
    first_rows = rng.choice(n_rows - length + 1, size, replace=False)
    membership = np.zeros((n_rows, size))
    for step in range(length):
        membership[first_rows + step, np.arange(size)] = 1.0
    return membership
