"""Linear assignment problems, one or in batches: min over distinct columns of sum_l C[l, column(l)].

Solved by SciPy's modified Jonker-Volgenant algorithm, unless every row's cheapest column is a different one.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.families.chunks import map_rows

CHUNK_ROWS = 2**16
"""Rows whose columns are compared at once. It bounds memory; chosen by hand."""


def assign_block(costs: Array) -> Labels:
    """Return the columns (n,), all different, that minimise the total cost of a block (n, G), n <= G.

    Where every row's cheapest column is a different one, that already is the optimum.
    """
    cheapest = costs.argmin(axis=1)
    if len(set(cheapest.tolist())) == costs.shape[0]:
        return cheapest
    columns: Labels = linear_sum_assignment(costs)[1]
    return columns


def assign_blocks(costs: Array, offsets: Labels, prices: Array | None = None) -> Labels:
    """Return optimal columns (L,) for every block of rows ``offsets[j]:offsets[j + 1]``, different inside a block.

    Parameters
    ----------
    costs : Array of shape (L, G)
        Costs of rows in columns.
    offsets : Labels of shape (J + 1,)
        Where each block starts, and the end.
    prices : Array of shape (G,), optional
        Added to the costs of every row. Default: nothing.

    Examples
    --------
    >>> assign_blocks(np.array([[0.0, 1.0], [0.1, 2.0], [3.0, 0.0]]), np.array([0, 2, 3]))
    array([1, 0, 1])
    """

    def priced(rows: slice) -> Array:
        return costs[rows] if prices is None else costs[rows] + prices

    cheapest = map_rows(len(costs), costs.shape[1], lambda rows: priced(rows).argmin(axis=1))  # (L,)
    # Only blocks in which two rows want one column are assignment problems; the others are solved by the minima.
    for block in _contested_blocks(cheapest, offsets, costs.shape[1]):
        rows = slice(offsets[block], offsets[block + 1])
        cheapest[rows] = linear_sum_assignment(priced(rows))[1]
    return cheapest


def _contested_blocks(columns: Labels, offsets: Labels, n_columns: int) -> list[int]:
    """Return the blocks in which two rows have one column, some blocks after others."""
    contested: list[int] = []
    first, n_blocks = 0, len(offsets) - 1
    while first < n_blocks:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + CHUNK_ROWS, side="right")) - 1)
        owner = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
        keys = owner * n_columns + columns[offsets[first] : offsets[last]]
        keys.sort()
        contested += np.unique(keys[1:][keys[1:] == keys[:-1]] // n_columns).tolist()
        first = last
    return contested
