"""The weights among the units of one group: hidden-to-hidden matrices, which are indexed twice by the same units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.axes import Place, Segment
from consilience.networks.symmetry.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class Among:
    """Weights among the units of a group.

    Parameters
    ----------
    matrices
        One for each gate (G, k, k): what a unit (row) receives from a unit (column).
    flips
        For every gate, whether its rows change sign with the unit that receives (G,).
    """

    matrices: Array
    flips: tuple[bool, ...]


def loops(symmetry: Symmetry, group: str) -> list[tuple[Place, Place]]:
    """Return the arrays that hold a group on two axes, and nothing else that moves: (rows, columns) of each."""
    by_array: dict[str, list[Place]] = {}
    for place in symmetry.places(group):
        by_array.setdefault(place.array, []).append(place)
    found = []
    for array, places in by_array.items():
        layout = symmetry.layouts[array]
        alone = all(len(layout.axes[place.axis].segments) == 1 for place in places)
        if len(places) != 2 or not alone or layout.blocks > 1 or symmetry.beside(places[0]) != {group}:
            continue
        rows, columns = sorted(places, key=lambda place: place.side == "input")
        if rows.axis != columns.axis and _segment(symmetry, columns).odd is None:
            found.append((rows, columns))
    return found


def unseen_loops(symmetry: Symmetry, group: str) -> set[str]:
    """Return the arrays that hold a group on two axes, but beside something else on one: they are not looked at."""
    axes: dict[str, set[int]] = {}
    for place in symmetry.places(group):
        axes.setdefault(place.array, set()).add(place.axis)
    return {array for array, numbers in axes.items() if len(numbers) > 1} - {
        rows.array for rows, _ in loops(symmetry, group)
    }


def weights_among(symmetry: Symmetry, arrays: Mapping[str, AnyArray], group: str, count: int) -> Among:
    """Return the weights among the units of a group of so many, float64; no matrix where there are none."""
    matrices, flips = [], []
    for rows, columns in loops(symmetry, group):
        if rows.array not in arrays:
            continue
        made, read = _segment(symmetry, rows), _segment(symmetry, columns)
        values = np.moveaxis(to_numpy(arrays[rows.array]), (rows.axis, columns.axis), (0, 1))
        split = values.reshape(made.outer, count, made.inner, read.outer, count, read.inner, -1)
        gates = split.transpose(0, 2, 3, 5, 6, 1, 4)
        matrices.append(gates.reshape(-1, count, count))
        each = len(matrices[-1]) // made.outer
        flips += [made.odd is None or copy in made.odd for copy in range(made.outer) for _ in range(each)]
    if not matrices:
        return Among(np.zeros((0, count, count)), ())
    return Among(matrices[0] if len(matrices) == 1 else np.concatenate(matrices), tuple(flips))


def _segment(symmetry: Symmetry, place: Place) -> Segment:
    return symmetry.layouts[place.array].axes[place.axis].segments[place.segment]
