"""Class probabilities of whatever a classifier returns: the softmax of logits, or its outputs where they are such."""

from __future__ import annotations

import numpy as np

from consilience.checks import Array

IS_A_DISTRIBUTION = 1e-4
"""Rows that are not negative and sum to one within this are probabilities already, in single precision. Chosen by
hand."""
SMALLEST_PROBABILITY = 1e-12
"""Probabilities count as at least this in logarithms, which are then finite. Chosen by hand."""


def as_probabilities(outputs: Array) -> Array:
    """Return outputs (n, C) as class probabilities: the softmax, or as they are where they are a distribution."""
    sums = outputs.sum(axis=1)
    if (outputs >= 0).all() and np.allclose(sums, 1.0, atol=IS_A_DISTRIBUTION):
        normalised: Array = outputs / sums[:, None]
        return normalised
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    probabilities: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities
