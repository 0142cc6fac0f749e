"""Linear assignment problems: min over distinct columns of sum_l C[l, column(l)], one, in batches, or nested.

Solved by SciPy's modified Jonker-Volgenant algorithm, unless every row's cheapest column is a different one. Nested
are units that hold units of their own, such as attention heads and what lies inside a head: for every pair of outer
units the inner ones are assigned at least cost, and those costs are added to the outer ones, whose assignment then is
optimal for both levels at once. In the step of one site (`Openings`), row l takes one of G groups, which gains B_lg, or
opens a new one, which is worth o_l: one rectangular assignment of (k, G + new) gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    return np.asarray(linear_sum_assignment(costs)[1])


def assign_blocks(costs: Array, offsets: Labels, prices: Array | None = None) -> Labels:
    """Return optimal columns (L,) for every block of rows ``offsets[j]:offsets[j + 1]``, different inside a block.

    Prices (G,) are added to the costs of every row (L, G).

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


@dataclass(frozen=True, eq=False)
class NestedAssignment:
    """Columns of outer rows, and of the rows inside them."""

    outer: Labels  # column of each outer row, all different (n,)
    # Columns of the inner rows (n * size,), by name: those of an outer row stay inside the column that it gets.
    inner: Mapping[str, Labels]


def assign_nested(costs: Array, inside: Mapping[str, Array]) -> NestedAssignment:
    """Return the assignment of least total cost: the units inside are assigned best for every pair of outer ones.

    Costs are those of the outer units alone (n, n), or (n, G) with n <= G where nothing is inside; inside are, by name,
    costs between the units inside (n * size, n * size), numbered (outer unit, own number).

    Examples
    --------
    >>> inner = np.array([[9.0, 9, 1, 0], [9, 9, 0, 1], [0, 1, 9, 9], [1, 0, 9, 9]])
    >>> result = assign_nested(np.zeros((2, 2)), {"head": inner})
    >>> result.outer, result.inner["head"]
    (array([1, 0]), array([3, 2, 0, 1]))
    """
    inner_columns: dict[str, Labels] = {}
    for name, values in inside.items():
        n_outer = len(costs)
        size = len(values) // n_outer
        # (outer row, outer column, size, size)
        blocks = values.reshape(n_outer, size, n_outer, size).transpose(0, 2, 1, 3)
        inner_columns[name] = np.array([[assign_block(block) for block in row] for row in blocks])
        costs = costs + np.take_along_axis(blocks, inner_columns[name][..., None], axis=3)[..., 0].sum(axis=2)
    outer = assign_block(costs)
    rows = np.arange(len(outer))
    of_outer = ((name, outer[:, None] * one.shape[2] + one[rows, outer]) for name, one in inner_columns.items())
    inner = {name: columns.ravel() for name, columns in of_outer}
    return NestedAssignment(outer, inner)


@dataclass(frozen=True)
class Openings:
    """Which new groups a site may open: up to so many groups in all, 0 for none but those there are; else any number.

    There must be room for the components of a site.
    """

    max_groups: int | None = None

    def assign(self, gains: Array, opening: Array) -> Labels:
        """Return for each row its group 0 ... G - 1, all different, or G + its own number where it opens a new one.

        Maximises the sum of `gains` (k, G) and `opening` (k,) of what is chosen. Where the best choices do not collide
        and new groups are not short, they are the optimum.
        """
        n_rows, n_groups = gains.shape
        row_range = np.arange(n_rows)
        max_new = n_rows if self.max_groups is None else max(0, min(n_rows, self.max_groups - n_groups))
        if n_groups:
            best_groups = gains.argmax(axis=1)
            is_new = opening > gains[row_range, best_groups]
            chosen = np.where(is_new, n_groups + row_range, best_groups)
        else:
            is_new, chosen = np.ones(n_rows, dtype=np.bool_), n_groups + row_range
        n_new = np.count_nonzero(is_new)
        if len(set(chosen.tolist())) == n_rows and n_new <= max_new:
            return chosen
        new_gains = np.repeat(opening[:, None], max_new, axis=1)
        columns: Labels = linear_sum_assignment(np.concatenate([gains, new_gains], axis=1), maximize=True)[1]
        return np.where(columns < n_groups, columns, n_groups + row_range)

    def assigned_gain(self, gains: Array, opening: Array, chosen: Labels) -> float:
        """Return what a choice adds, as ``assign`` counts it."""
        n_groups = gains.shape[1]
        is_new = chosen >= n_groups
        matched_rows = np.flatnonzero(~is_new)
        return float(gains[matched_rows, chosen[matched_rows]].sum() + opening[is_new].sum())


UNLIMITED = Openings()
"""As many new groups as pay."""

NO_NEW_GROUPS = Openings(max_groups=0)
"""None but those that are there."""
