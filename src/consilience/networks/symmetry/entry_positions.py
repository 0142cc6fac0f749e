"""Entry permutations: where each entry of an array goes when units are renumbered.

Companions that travel beside an array entry by entry in a flattened order (Fisher factors, singular directions) are not
arrays of its shape, so that no transport applies to them. They are reindexed by the permutation of entries that the
transports of the array induce. It is read off by moving an array that holds the numbers 1 .. size: each new entry then
names the old one in its absolute value, and its own change of sign in its sign.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consilience.checks import Array, Labels
from consilience.networks.symmetry.axes import Layout
from consilience.networks.symmetry.transport import Transport, move


def entry_permutation(
    layout: Layout, transports: Mapping[str, Transport], units: Mapping[str, int]
) -> tuple[Labels | None, Array | None]:
    """Return the permutation and signs of an array's entries that transports of its units induce.

    Parameters
    ----------
    layout : Layout
        The array's axes.
    transports : mapping of str to Transport
        By group, a permutation of its units, with signs or without.
    units : mapping of str to int
        Number of units of every group.

    Returns
    -------
    entries : ndarray of int, shape (size,), or None
        Old flat index of every new entry; None where all stay as they are.
    signs : ndarray of shape (size,), or None
        Factor 1 or -1 of every new entry; None where none changes its sign.
    """
    shape = layout.shape(units)
    # Numbers start at 1, so that the sign of each survives.
    numbers = np.arange(1.0, np.prod(shape, dtype=np.int64) + 1).reshape(shape)
    moved = move(numbers, layout, transports, units).ravel()  # (size,)
    if np.array_equal(moved, numbers.ravel()):
        return None, None
    signs = np.sign(moved)
    return np.abs(moved).astype(np.int64) - 1, None if np.all(signs > 0) else signs
