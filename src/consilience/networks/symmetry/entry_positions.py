"""Where the entries of an array go when units are renumbered, for what travels with the array entry by entry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consilience.checks import Array, Labels
from consilience.networks.symmetry.axes import Layout
from consilience.networks.symmetry.transport import Transport, move


def moved_entries(
    layout: Layout, transports: Mapping[str, Transport], units: Mapping[str, int]
) -> tuple[Labels | None, Array | None]:
    """Return where the entries of an array come from when its units are renumbered, for what travels with it.

    Parameters
    ----------
    layout
        The array's axes.
    transports
        How the units of groups move: each onto a place of its own, none left over.
    units
        Number of units of every group.

    Returns
    -------
    entries
        Old number of every new entry, both counted through (size,); None where all stay as they are.
    signs
        By which each entry is multiplied (size,); None where none changes its sign.
    """
    shape = layout.shape(units)
    numbers = np.arange(1.0, np.prod(shape, dtype=np.int64) + 1).reshape(shape)
    moved = move(numbers, layout, transports, units).ravel()
    if np.array_equal(moved, numbers.ravel()):
        return None, None
    signs = np.sign(moved)
    return np.abs(moved).astype(np.int64) - 1, None if np.all(signs > 0) else signs
