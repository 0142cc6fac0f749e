"""First guesses of fused components: k-means++ with divergences for squared distances."""

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
    trials = 2 + int(np.log(count))
    chosen = [int(rng.choice(len(weights), p=weights / weights.sum()))]
    nearest = divergences(np.array(chosen))[0]
    while len(chosen) < count:
        mass = weights * nearest
        total = mass.sum()
        if not total > 0:
            others = np.setdiff1d(np.arange(len(weights)), chosen)
            chosen += others[: count - len(chosen)].tolist()
            break
        candidates = np.unique(rng.choice(len(mass), size=trials, p=mass / total))
        shrunk = np.minimum(nearest, divergences(candidates))
        best = int((shrunk @ weights).argmin())
        chosen.append(int(candidates[best]))
        nearest = shrunk[best]
    return np.array(chosen)
