"""Nested linear assignment: units that hold units of their own, such as attention heads and what lies inside a head.

For every pair of outer units the inner ones are assigned at least cost; those costs are added to the outer ones, whose
assignment then is optimal for both levels at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import assign_block


@dataclass(frozen=True, eq=False)
class NestedAssignment:
    """Columns of outer rows, and of the rows inside them.

    Parameters
    ----------
    outer : Labels of shape (n,)
        Column of each outer row, all different.
    inner : mapping of str to Labels of shape (n * size,)
        Columns of the inner rows, by name: those of an outer row stay inside the column that it gets.
    """

    outer: Labels
    inner: Mapping[str, Labels]


def assign_nested(costs: Array, inside: Mapping[str, Array]) -> NestedAssignment:
    """Return the assignment of least total cost: the units inside are assigned best for every pair of outer ones.

    Parameters
    ----------
    costs
        Of the outer units alone (n, n); (n, G) with n <= G where nothing is inside.
    inside
        By name, costs between the units inside (n * size, n * size), numbered (outer unit, own number).

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
        blocks = values.reshape(n_outer, size, n_outer, size).transpose(
            0, 2, 1, 3
        )  # (outer row, outer column, size, size)
        inner_columns[name] = np.array([[assign_block(block) for block in row] for row in blocks])
        costs = costs + np.take_along_axis(blocks, inner_columns[name][..., None], axis=3)[..., 0].sum(axis=2)
    outer = assign_block(costs)
    rows = np.arange(len(outer))
    inner = {
        name: (outer[:, None] * columns.shape[2] + columns[rows, outer]).ravel()
        for name, columns in inner_columns.items()
    }
    return NestedAssignment(outer, inner)
