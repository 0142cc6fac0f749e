"""Assignment of units that hold units of their own: attention heads, and what lies inside a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import assign_block


@dataclass(frozen=True, eq=False)
class NestedAssignment:
    """Which column each row gets.

    Parameters
    ----------
    outer
        Column of each row (n,), all different.
    inner
        By name, the same for the units inside (n * size,): those of a row stay inside what the row gets.
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
    >>> found = assign_nested(np.zeros((2, 2)), {"head": inner})
    >>> found.outer, found.inner["head"]
    (array([1, 0]), array([3, 2, 0, 1]))
    """
    best: dict[str, Labels] = {}
    for name, values in inside.items():
        count = len(costs)
        size = len(values) // count
        blocks = values.reshape(count, size, count, size).transpose(0, 2, 1, 3)
        best[name] = np.array([[assign_block(block) for block in row] for row in blocks])
        costs = costs + np.take_along_axis(blocks, best[name][..., None], axis=3)[..., 0].sum(axis=2)
    outer = assign_block(costs)
    rows = np.arange(len(outer))
    inner = {name: (outer[:, None] * columns.shape[2] + columns[rows, outer]).ravel() for name, columns in best.items()}
    return NestedAssignment(outer, inner)
