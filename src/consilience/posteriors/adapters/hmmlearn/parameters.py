"""Parameters of hmmlearn's models, checked: finite, positive, probabilities, counts beyond a prior, expected visits.

Each check raises with the name of the attribute, and where it can the state at fault.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array
from consilience.errors import InputError
from consilience.posteriors.posterior import Posterior

_SUM_TOLERANCE = 1e-6
"""Rows of probabilities may miss one by this much, as hmmlearn's own check allows."""

_RELATIVE_ROUNDING = 1e-9
"""Numbers that differ by less than this share of themselves are meant to be the same. Chosen by hand, far above the
rounding of float64."""


def as_shape(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return values of this shape in float64, or raise naming `name`."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise InputError(name, f"expected an array of shape {shape}, found {array.shape}", code="E-SHAPE")
    return array


def as_finite(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return finite values of this shape in float64, or raise naming `name`.

    Examples
    --------
    >>> as_finite("means_", [[0, 1], [2, 3]], (2, 2)).dtype
    dtype('float64')
    """
    array = as_shape(name, values, shape)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        text = f"expected finite numbers, found {array[tuple(bad[0])]} at {bad[0].tolist()}"
        raise InputError(name, text, "fit again, with fewer states where one was never visited", "E-NUMBER")
    return array


def as_positive(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return finite positive values of this shape in float64, or raise naming `name`."""
    array = as_finite(name, values, shape)
    if not np.all(array > 0.0):
        raise InputError(name, f"expected positive values, found {array.min():.6g}", code="E-NUMBER")
    return array


def as_probabilities(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return probabilities of this shape that sum to one over the last axis, or raise naming `name`.

    Rows of a matrix may be all zero: hmmlearn leaves them so when a state was never visited, or never left.

    Examples
    --------
    >>> as_probabilities("transmat_", [[0.5, 0.5], [0.0, 0.0]], (2, 2)).sum(axis=1)
    array([1., 0.])
    """
    array = as_finite(name, values, shape)
    if np.any(array < 0.0):
        raise InputError(name, f"expected probabilities, found {array.min():.6g}", code="E-NUMBER")
    totals = np.atleast_1d(array.sum(axis=-1))
    wrong = np.flatnonzero((np.abs(totals - 1.0) > _SUM_TOLERANCE) & ((totals != 0.0) | (array.ndim == 1)))
    if len(wrong):
        expected = "a sum of 1" if array.ndim == 1 else f"row {wrong[0]} to sum to 1"
        raise InputError(name, f"expected {expected}, found {totals[wrong[0]]:.6g}", code="E-NUMBER")
    return array


def normalised_counts(counts: Array) -> Array:
    """Return counts divided by their sum over the last axis; uniform probabilities where there are none.

    Examples
    --------
    >>> normalised_counts(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(totals > 0.0, counts, 1.0) / np.where(totals > 0.0, totals, counts.shape[-1]))


def counts_beyond_prior(name: str, posterior: ArrayLike, prior: Array) -> Array:
    """Return what a posterior has beyond its prior, in counts that are not negative, or raise naming `name`.

    Examples
    --------
    >>> counts_beyond_prior("startprob_posterior_", [1.5, 0.5], np.array([0.5, 0.5]))
    array([1., 0.])
    """
    counts: Array = as_finite(name, posterior, prior.shape) - prior
    if np.any(counts < -_RELATIVE_ROUNDING * np.maximum(prior, 1.0)):
        text = f"is {-counts.min():.6g} below its prior, which no data can do"
        raise InputError(name, text, "fit the model with these parameters among those of params", "E-NUMBER")
    return np.maximum(counts, 0.0)


def common_value(name: str, values: Array) -> Array:
    """Return the value (...) that all states have in `values` (K, ...), or raise naming `name` where they differ."""
    first: Array = values[0]
    if not np.allclose(values, first, rtol=_RELATIVE_ROUNDING, atol=0.0):
        text = "differs between states, which cannot follow states that are matched"
        raise InputError(name, text, "fit with one value for all", "E-MISMATCH")
    return first


def prior_of(posterior: Posterior) -> Array:
    """Return the natural parameters (1, P) of what every state has before data; `KeyError` where there are none."""
    if posterior.prior is None:
        raise KeyError("prior")
    return posterior.prior[None]


def expected_visits(start: Array, transitions: Array, frames: float) -> Array:
    """Return how often a chain is expected to be in each state (K,): sum_{t < n} pi A^t over n frames.

    By doubling: sums over 2, 4, 8, ... steps from powers of A, so it takes about log2(n) products. The start is pi
    (K,), transitions are A (K, K) from rows to columns, every row with a positive sum. A fraction of frames is rounded
    for the sum, which is then scaled.

    Examples
    --------
    >>> expected_visits(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [0.0, 1.0]]), 10)
    array([1., 9.])
    """
    n_steps = remaining = max(1, round(frames))
    law, visits = start / start.sum(), np.zeros(len(start))  # law of the next frame not yet summed (K,)
    power, power_sum = transitions / transitions.sum(axis=1, keepdims=True), np.eye(len(start))
    # At bit b of n: power = A^(2^b) and power_sum = I + A + .. + A^(2^b - 1).
    while remaining:
        if remaining & 1:
            visits, law = visits + law @ power_sum, law @ power
        power_sum = power_sum + power @ power_sum
        power = power @ power
        power = power / power.sum(axis=1, keepdims=True)  # or rounding would add up over millions of frames
        remaining >>= 1
    return np.asarray(visits * (frames / n_steps))
