"""Batches of small assignment problems, all solved in one place."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels


def assign_block(costs: Array) -> Labels:
    """Return the columns (n,), all different, that minimise the total cost of a block (n, G), n <= G.

    Where every row's cheapest column is a different one, that already is the optimum.
    """
    cheapest = costs.argmin(axis=1)
    if len(set(cheapest.tolist())) == costs.shape[0]:
        return cheapest
    columns: Labels = linear_sum_assignment(costs)[1]
    return columns


def assign_blocks(costs: Array, offsets: Labels) -> Labels:
    """Return optimal columns (L,) for every block of rows ``offsets[j]:offsets[j + 1]``, different inside a block.

    Examples
    --------
    >>> assign_blocks(np.array([[0.0, 1.0], [0.1, 2.0], [3.0, 0.0]]), np.array([0, 2, 3]))
    array([1, 0, 1])
    """
    cheapest = costs.argmin(axis=1)
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    keys, counts = np.unique(owner * costs.shape[1] + cheapest, return_counts=True)
    for block in np.unique(keys[counts > 1] // costs.shape[1]):
        rows = slice(offsets[block], offsets[block + 1])
        cheapest[rows] = linear_sum_assignment(costs[rows])[1]
    return cheapest
