"""First guesses of fused components: k-means++ with divergences for squared distances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from consilience.checks import Array, Labels


def greedy_plus_plus(
    divergences: Callable[[Labels], Array], weights: Array, count: int, rng: np.random.Generator
) -> Labels:
    """Return the rows (at most `count`) chosen as first centres.

    The first is drawn by weight; each further one is the best of 2 + floor(log count) candidates drawn in proportion
    to weight times divergence from the nearest centre (Arthur & Vassilvitskii 2007, with greedy trials). Stops early
    when every row coincides with a centre.

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
    trials = 2 + int(np.log(count))
    chosen = [int(rng.choice(len(weights), p=weights / weights.sum()))]
    nearest = divergences(np.array(chosen))[0]
    while len(chosen) < count:
        mass = weights * nearest
        total = mass.sum()
        if not total > 0:
            break
        candidates = np.unique(rng.choice(len(mass), size=trials, p=mass / total))
        shrunk = np.minimum(nearest, divergences(candidates))
        best = int((shrunk @ weights).argmin())
        chosen.append(int(candidates[best]))
        nearest = shrunk[best]
    return np.array(chosen)
