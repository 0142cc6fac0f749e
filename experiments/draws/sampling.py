"""Samplers of the targets: an affine-invariant ensemble, and grids in two dimensions.

Stretch move (Goodman and Weare 2010): walker x moves to y = c + z (x - c) about a walker c of the other half of the
ensemble, z with density 1/sqrt(z) on [1/2, 2], and y is accepted with probability min(1, z^(d-1) p(y) / p(x)).
"""

from __future__ import annotations

import numpy as np

N_WALKERS, N_STEPS = 60, 3000
"""Of which the second half is kept."""


def ensemble_draws(log_density, start, n_draws, rng, n_steps=N_STEPS):
    """Return draws (n_draws, d) of a log density, a function of points (n, d), from about a point (d,)."""
    d = len(start)
    half = N_WALKERS // 2
    walkers = start + 0.1 * rng.normal(size=(2, half, d))
    values = np.stack([log_density(part) for part in walkers])
    kept = []
    for step in range(n_steps):
        for part in (0, 1):
            centres = walkers[1 - part][rng.integers(half, size=half)]
            z = (1.0 + rng.random(half)) ** 2 / 2.0
            proposal = centres + z[:, None] * (walkers[part] - centres)
            proposed = log_density(proposal)
            is_accepted = np.log(rng.random(half)) < (d - 1) * np.log(z) + proposed - values[part]
            walkers[part][is_accepted] = proposal[is_accepted]
            values[part][is_accepted] = proposed[is_accepted]
        if step >= n_steps // 2:
            kept.append(walkers.reshape(-1, d).copy())
    draws = np.concatenate(kept)
    return draws[rng.permutation(len(draws))[:n_draws]]


def grid_draws(log_density, ranges, n_draws, rng, size=600):
    """Return draws (n_draws, 2) of a log density in two dimensions: cells of a grid over ranges, jittered."""
    axes = [np.linspace(low, high, size) for low, high in ranges]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    values = log_density(points)
    weights = np.exp(values - values.max())
    chosen = points[rng.choice(len(points), size=n_draws, p=weights / weights.sum())]
    steps = np.array([axis[1] - axis[0] for axis in axes])
    return chosen + steps * (rng.random((n_draws, 2)) - 0.5)
