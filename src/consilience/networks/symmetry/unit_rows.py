"""Unit rows: the weights of each unit of a group as a matrix, and arrays restricted to some units.

An array touches the k units of a group at a *place*, one segment of one axis with the layout (outer, k, inner). Its
unit rows there are the matrix (k, F) whose row u holds all entries of unit u, F = (array size) / k for an axis of one
segment. Costs of matchings, norms and affinities are computed on these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array, Labels
from consilience.networks.symmetry.axes import Layout, Place
from consilience.networks.symmetry.transport import Transport, move, to_blocks, to_dense


def odd_columns(shape: tuple[int, ...], layout: Layout, place: Place) -> NDArray[np.bool_]:
    """Return which columns of `unit_rows` change sign with the unit.

    They (F,) are in the order of the columns of `unit_rows`: axes before, outer, inner and axes after; `shape` is that
    of the dense array.
    """
    segment = layout.axes[place.axis].segments[place.segment]
    odd = np.zeros(
        (prod(shape[: place.axis]), segment.outer, segment.inner * prod(shape[place.axis + 1 :])), dtype=bool
    )
    # (entries before, outer, inner and entries after): the columns of `unit_rows` before they are flattened.
    odd[:, slice(None) if segment.odd is None else list(segment.odd)] = True
    return odd.ravel()


def unit_rows(values: AnyArray, layout: Layout, place: Place, units: Mapping[str, int]) -> AnyArray:
    """Return the entries of each unit at one of its places as the rows of a matrix (k, F).

    The array is dense; `units` are numbers of units by group.
    """
    axis = layout.axes[place.axis]
    if place.axis == 0 and values.ndim == 2 and len(axis.segments) == 1:
        segment = axis.segments[0]
        if segment.outer == segment.inner == 1:  # they are the rows as they stand
            return values
    xp = array_namespace(values)
    lengths = [segment.length(units) for segment in axis.segments]
    start, length = sum(lengths[: place.segment]), lengths[place.segment]
    segment = axis.segments[place.segment]
    stretch = values
    if len(lengths) > 1:
        stretch = values[(slice(None),) * place.axis + (slice(start, start + length),)]
    n_units = length // (segment.outer * segment.inner)
    if segment.outer * segment.inner == 1:  # the axis is the units, no reshape is needed
        units_first = xp.moveaxis(stretch, place.axis, 0)
    else:
        before, after = tuple(stretch.shape[: place.axis]), tuple(stretch.shape[place.axis + 1 :])
        split = xp.reshape(stretch, (*before, segment.outer, n_units, segment.inner, *after))
        units_first = xp.moveaxis(split, place.axis + 1, 0)  # (k, *before, outer, inner, *after)
    return xp.reshape(units_first, (n_units, -1))


def row_squares(rows: AnyArray) -> AnyArray:
    """Return the squared length (k,) of every row of a matrix (k, F), in one pass over it."""
    return array_namespace(rows).linalg.vecdot(rows, rows)


def take_units(values: AnyArray, layout: Layout, masks: Mapping[str, NDArray[np.bool_]]) -> AnyArray:
    """Return an array restricted to some units of each group.

    The array is as stored; `masks` (k,) say by group which units stay.
    """
    taken = to_dense(values, layout)
    xp = array_namespace(taken)
    for number, axis in enumerate(layout.axes):
        if axis.moves:
            entry_masks = [
                np.ones(segment.inner * segment.outer)
                if segment.group is None
                else segment.along(masks[segment.group].astype(np.float64))
                for segment in axis.segments
            ]
            entries = np.flatnonzero(np.concatenate(entry_masks))
            taken = xp.take(taken, xp.asarray(entries, device=taken.device), axis=number)
    return to_blocks(taken, layout)


def entry_permutation(
    layout: Layout, transports: Mapping[str, Transport], units: Mapping[str, int]
) -> tuple[Labels | None, Array | None]:
    """Return the permutation and signs of an array's entries that transports of its units induce.

    What travels beside an array entry by entry in a flattened order (Fisher factors, singular directions) is no array
    of its shape, and is reindexed so. The permutation is read off by moving an array that holds the numbers 1 .. size:
    each new entry then names the old one in its absolute value, and its own change of sign in its sign. Transports are
    permutations, with signs or without. Returned are the old flat index of every new entry (size,), None where all
    stay, and the factor 1 or -1 of every new entry (size,), None where none changes its sign.
    """
    shape = layout.shape(units)
    # Numbers start at 1, so that the sign of each survives.
    numbers = np.arange(1.0, np.prod(shape, dtype=np.int64) + 1).reshape(shape)
    moved = move(numbers, layout, transports, units).ravel()  # (size,)
    if np.array_equal(moved, numbers.ravel()):
        return None, None
    signs = np.sign(moved)
    return np.abs(moved).astype(np.int64) - 1, None if np.all(signs > 0) else signs
