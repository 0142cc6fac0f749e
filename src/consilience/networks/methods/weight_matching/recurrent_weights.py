"""Recurrent weights of a group: hidden-to-hidden matrices, whose rows and columns are the same units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.axes import Place, Segment
from consilience.networks.symmetry.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class RecurrentWeights:
    """Hidden-to-hidden matrices of the units of a group, gate by gate."""

    matrices: Array  # (gates, k, k): weights with which a unit (row) receives another (column)
    # for every gate, whether its rows change sign with the unit that receives; columns always change sign with the unit
    # that sends
    flips: tuple[bool, ...]


def recurrent_arrays(symmetry: Symmetry, group: str) -> list[tuple[Place, Place]]:
    """Return the arrays in which a group stands on two axes, alone on both, with no other group on any axis.

    Parameters
    ----------
    symmetry : Symmetry
        Which axes move together.
    group : str
        The group.

    Returns
    -------
    list of (Place, Place)
        For every such array its places as (rows, columns): the axis that receives and the axis that sends.
    """
    by_array: dict[str, list[Place]] = {}
    for place in symmetry.places(group):
        by_array.setdefault(place.array, []).append(place)
    pairs = []
    for array, places in by_array.items():
        layout = symmetry.layouts[array]
        is_alone = all(len(layout.axes[place.axis].segments) == 1 for place in places)
        if len(places) != 2 or not is_alone or layout.blocks > 1 or symmetry.beside(places[0]) != {group}:
            continue
        rows, columns = sorted(places, key=lambda place: place.side == "input")
        # FusedGromov assumes that the columns of every gate change sign with the unit that sends.
        if rows.axis != columns.axis and _segment(symmetry, columns).odd is None:
            pairs.append((rows, columns))
    return pairs


def ignored_recurrent_arrays(symmetry: Symmetry, group: str) -> set[str]:
    """Return the arrays that hold a group on two axes and are no recurrent weights: the matching leaves them out."""
    axes: dict[str, set[int]] = {}
    for place in symmetry.places(group):
        axes.setdefault(place.array, set()).add(place.axis)
    return {array for array, numbers in axes.items() if len(numbers) > 1} - {
        rows.array for rows, _ in recurrent_arrays(symmetry, group)
    }


def recurrent_weights(symmetry: Symmetry, arrays: Mapping[str, AnyArray], group: str, n_units: int) -> RecurrentWeights:
    """Return the recurrent weights of a group in float64; no matrix where there are none.

    Parameters
    ----------
    symmetry : Symmetry
        Which axes move together.
    arrays : mapping of str to array
        Arrays of a network; recurrent arrays that are not among them are left out.
    group : str
        The group.
    n_units : int
        Number k of its units in these arrays.
    """
    matrices, flips = [], []
    for rows, columns in recurrent_arrays(symmetry, group):
        if rows.array not in arrays:
            continue
        out, inp = _segment(symmetry, rows), _segment(symmetry, columns)
        values = np.moveaxis(to_numpy(arrays[rows.array]), (rows.axis, columns.axis), (0, 1))
        # (gate, receiving unit, inner) x (copy, sending unit, inner) x what is left of other axes
        blocks = values.reshape(out.outer, n_units, out.inner, inp.outer, n_units, inp.inner, -1)
        gates = blocks.transpose(0, 2, 3, 5, 6, 1, 4)
        matrices.append(gates.reshape(-1, n_units, n_units))  # (gates, unit that receives, unit that sends)
        matrices_per_copy = len(matrices[-1]) // out.outer
        flips += [out.odd is None or copy in out.odd for copy in range(out.outer) for _ in range(matrices_per_copy)]
    if not matrices:
        return RecurrentWeights(np.zeros((0, n_units, n_units)), ())
    return RecurrentWeights(matrices[0] if len(matrices) == 1 else np.concatenate(matrices), tuple(flips))


def _segment(symmetry: Symmetry, place: Place) -> Segment:
    return symmetry.layouts[place.array].axes[place.axis].segments[place.segment]
