"""What an array says of each unit of a group, as rows of a matrix, and arrays of some units only."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray
from consilience.networks.symmetry.axes import Layout, Place
from consilience.networks.symmetry.transport import dense, undense


def odd_columns(shape: tuple[int, ...], layout: Layout, place: Place) -> NDArray[np.bool_]:
    """Return which entries of `unit_rows` change sign with the unit (F,), for a dense array of this shape."""
    segment = layout.axes[place.axis].segments[place.segment]
    odd = np.zeros(
        (prod(shape[: place.axis]), segment.outer, segment.inner * prod(shape[place.axis + 1 :])), dtype=bool
    )
    odd[:, slice(None) if segment.odd is None else list(segment.odd)] = True
    return odd.ravel()


def unit_rows(values: AnyArray, layout: Layout, place: Place, units: Mapping[str, int]) -> AnyArray:
    """Return what an array says of each unit at one of its places: a matrix (k, entries per unit).

    Parameters
    ----------
    values
        The array, dense.
    layout
        Its layout.
    place
        The place.
    units
        Number of units of every group in this array.
    """
    xp = array_namespace(values)
    axis = layout.axes[place.axis]
    lengths = [segment.length(units) for segment in axis.segments]
    start, length = sum(lengths[: place.segment]), lengths[place.segment]
    segment = axis.segments[place.segment]
    piece = values
    if len(lengths) > 1:
        piece = values[(slice(None),) * place.axis + (slice(start, start + length),)]
    count = length // (segment.outer * segment.inner)
    if segment.outer * segment.inner == 1:
        front = xp.moveaxis(piece, place.axis, 0)
    else:
        before, after = tuple(piece.shape[: place.axis]), tuple(piece.shape[place.axis + 1 :])
        split = xp.reshape(piece, (*before, segment.outer, count, segment.inner, *after))
        front = xp.moveaxis(split, place.axis + 1, 0)
    return xp.reshape(front, (count, -1))


def take_units(values: AnyArray, layout: Layout, masks: Mapping[str, NDArray[np.bool_]]) -> AnyArray:
    """Return an array with the entries of some units only.

    Parameters
    ----------
    values
        The array.
    layout
        Its layout.
    masks
        By group, which units stay (k,).
    """
    found = dense(values, layout)
    xp = array_namespace(found)
    for number, axis in enumerate(layout.axes):
        if axis.moves:
            parts = [
                np.ones(segment.inner * segment.outer)
                if segment.group is None
                else segment.along(masks[segment.group].astype(np.float64))
                for segment in axis.segments
            ]
            kept = np.flatnonzero(np.concatenate(parts))
            found = xp.take(found, xp.asarray(kept, device=found.device), axis=number)
    return undense(found, layout)
