"""Distances of draws from reference draws, parameter by parameter, in standard deviations of the reference."""

from __future__ import annotations

import numpy as np

from consilience.checks import Array

N_LEVELS = 999
"""Levels at which quantile functions are compared. Draws are some thousands; chosen by hand."""


def mean_distances(draws: Array, reference: Array) -> Array:
    """Return |mean - mean of the reference| (d,) of draws (n, d) and (m, d), in its standard deviations."""
    result: Array = np.abs(draws.mean(axis=0) - reference.mean(axis=0)) / reference.std(axis=0)
    return result


def width_ratios(draws: Array, reference: Array) -> Array:
    """Return the ratio (d,) of standard deviations."""
    result: Array = draws.std(axis=0) / reference.std(axis=0)
    return result


def wasserstein_distances(draws: Array, reference: Array) -> Array:
    """Return Wasserstein-1 distances (d,) of marginals, in standard deviations: the mean gap of quantile functions."""
    levels = (np.arange(N_LEVELS) + 0.5) / N_LEVELS
    gaps = np.quantile(draws, levels, axis=0) - np.quantile(reference, levels, axis=0)
    result: Array = np.abs(gaps).mean(axis=0) / reference.std(axis=0)
    return result
