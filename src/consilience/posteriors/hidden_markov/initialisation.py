"""Where the inference of a sticky HDP-HMM starts: some rows for every state, and nothing known of transitions."""

from __future__ import annotations

import numpy as np

from consilience.checks import Array
from consilience.posteriors.hidden_markov.sticky_transitions import Counts, first_sticks
from consilience.posteriors.hidden_markov.variational_steps import Beliefs, Problem

_CLUSTER_STEPS = 10


def first_beliefs(problem: Problem, n_states: int, rng: np.random.Generator, *, clusters: bool) -> Beliefs:
    """Return beliefs of `n_states` states, or fewer when there are fewer different rows.

    Parameters
    ----------
    problem
        Data and priors.
    n_states
        States at most.
    rng
        Source of randomness.
    clusters
        True gives every state a cluster of rows, by a few steps of k-means with columns scaled by their standard
        deviations; False a random block of time, half as long as would cover all rows together.
    """
    member = _clusters(problem.rows, n_states, rng) if clusters else _blocks(len(problem.rows), n_states, rng)
    size = member.shape[1]
    nothing = Counts(np.zeros((size, size)), np.zeros(size))
    return Beliefs(problem.prior + member.T @ problem.statistics, nothing, first_sticks(size, problem.transitions))


def _clusters(rows: Array, n_states: int, rng: np.random.Generator) -> Array:
    from sklearn.cluster import KMeans

    deviations = rows.std(axis=0)
    scaled = rows / np.where(deviations > 0.0, deviations, 1.0)
    size = min(n_states, len(np.unique(scaled, axis=0)))
    seed = int(rng.integers(2**31))
    found = KMeans(size, n_init=1, max_iter=_CLUSTER_STEPS, random_state=seed).fit_predict(scaled)
    return np.eye(size)[found]


def _blocks(count: int, n_states: int, rng: np.random.Generator) -> Array:
    size = min(n_states, count)
    length = max(1, count // (2 * size))
    begin = rng.choice(count - length + 1, size, replace=False)
    member = np.zeros((count, size))
    for step in range(length):
        member[begin + step, np.arange(size)] = 1.0
    return member
