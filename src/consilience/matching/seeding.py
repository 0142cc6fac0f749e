"""Initialisation of fused components: greedy k-means++ with divergences for squared distances.

Appendix E of Claici et al. 2020 seeds KL-fusion so; their published code keeps the candidate of the largest remaining
sum, here it is the smallest, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from consilience.checks import Array, Labels


def greedy_plus_plus(
    divergences: Callable[[Labels], Array], weights: Array, count: int, rng: np.random.Generator
) -> Labels:
    """Return the `count` rows chosen as first centres (all rows, if there are fewer).

    The first is drawn by weight; each further one is the best of 2 + floor(log count) candidates drawn in proportion
    to weight times divergence from the nearest centre (Arthur & Vassilvitskii 2007, with greedy trials). Where every
    row coincides with a centre, rows not yet chosen fill up in order.

    Parameters
    ----------
    divergences
        Takes row indices (k,) and returns the divergences of all rows from each of these as centres (k, L).
    weights
        Weight of each row (L,).
    count
        Number of centres asked for.
    rng
        Source of randomness.
    """
    count = min(count, len(weights))
    n_trials = 2 + int(np.log(count))
    chosen = [int(rng.choice(len(weights), p=weights / weights.sum()))]
    nearest = divergences(np.array(chosen))[0]
    while len(chosen) < count:
        mass = weights * nearest  # probabilities of the next centre, unnormalised (L,)
        total = mass.sum()
        if not total > 0:
            unchosen = np.setdiff1d(np.arange(len(weights)), chosen)
            chosen += unchosen[: count - len(chosen)].tolist()
            break
        candidates = np.unique(rng.choice(len(mass), size=n_trials, p=mass / total))
        candidate_nearest = np.minimum(nearest, divergences(candidates))  # (candidates, L)
        best_candidate = int((candidate_nearest @ weights).argmin())
        chosen.append(int(candidates[best_candidate]))
        nearest = candidate_nearest[best_candidate]
    return np.array(chosen)
