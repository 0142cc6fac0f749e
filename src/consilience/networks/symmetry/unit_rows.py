"""Unit rows: the weights of each unit of a group as a matrix, arrays restricted to some units, and balanced scales.

An array touches the k units of a group at a *place*, one segment of one axis with the layout (outer, k, inner). Its
unit rows there are the matrix (k, F) whose row u holds all entries of unit u, F = (array size) / k for an axis of one
segment. Costs of matchings, norms and affinities are computed on these rows.

A unit u whose nonlinearity is positively homogeneous may be rescaled: multiply what it receives by s_u > 0 and divide
what it sends by s_u, and the network computes the same function. Networks of the same function may so be far apart as
vectors of weights. The balanced form minimises the total squared weight over the scales of each group,

    minimise_s  sum_u  s_u^2 |received_u|^2 + |sent_u|^2 / s_u^2      at     s_u = (|sent_u|^2 / |received_u|^2)^(1/4),

where every unit receives and sends weights of the same norm. Networks trained with weight decay are near it. Groups
share arrays, so the groups are balanced in turn, for a fixed number of sweeps; a step minimises the total exactly where
the group's units have no weights among themselves. Units that receive or send nothing keep their scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array, Labels
from consilience.networks.network import Network, same_values
from consilience.networks.symmetry.axes import Layout, Place
from consilience.networks.symmetry.transport import Transport, as_stored, laid_out, move


def odd_columns(shape: tuple[int, ...], layout: Layout, place: Place) -> NDArray[np.bool_]:
    """Return which columns of `unit_rows` change sign with the unit.

    They (F,) are in the order of the columns of `unit_rows`: axes before, outer, inner and axes after; `shape` is that
    of the array as it is laid out.
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

    The array is as it is laid out; `units` are numbers of units by group.
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
    taken = laid_out(values, layout)
    xp = array_namespace(taken)
    for number, axis in enumerate(layout.axes):
        if axis.moves:
            entries = np.flatnonzero(axis.along({name: mask.astype(float) for name, mask in masks.items()}, {}, 1.0))
            taken = xp.take(taken, xp.asarray(entries, device=taken.device), axis=number)
    return as_stored(taken, layout)


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


N_BALANCING_SWEEPS = 10
"""Sweeps over the groups. Chosen by hand; nobody has measured other values."""


def shared_groups(networks: Sequence[Network]) -> set[str]:
    """Return the groups whose units are made by the same weights in all networks, such as a frozen embedding.

    Such units are aligned already, in order and in scale. Balancing their scales differently in each model took a
    fusion of networks on AG News from 80 to 71 % (docs/adr/0012).
    """
    first = networks[0]
    shared = set()
    for group in first.symmetry.by_name:
        makers = {place.array for place in first.symmetry.places(group) if place.side == "output"} & set(first.working)
        # A weight must be among them: biases and gains alone may be equal because they are still zeros and ones.
        if any(first.working[key].ndim > 1 for key in makers) and all(
            same_values(first.working[key], other.working[key]) for other in networks[1:] for key in makers
        ):
            shared.add(group)
    return shared


def balanced_networks(networks: Sequence[Network]) -> tuple[Network, ...]:
    """Return the same functions with units of all scalable groups but shared ones in balanced scale."""
    shared, balanced = shared_groups(networks), []
    for network in networks:
        arrays, scales = _balanced(network, shared)
        balanced.append(network.with_arrays(arrays, network.name) if scales else network)
    return tuple(balanced)


def balancing_scales(network: Network, but: Collection[str] = ()) -> dict[str, AnyArray]:
    """Return what balancing multiplies the units of each scalable group by (k,), but for some, all sweeps together."""
    return _balanced(network, but)[1]


def _balanced(network: Network, but: Collection[str]) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Return arrays in balanced scale, and the scale of the units of each scalable group."""
    groups = [name for name, group in network.symmetry.by_name.items() if "scale" in group.actions and name not in but]
    arrays: dict[str, AnyArray] = dict(network.working)
    total: dict[str, AnyArray] = {}
    for _ in range(N_BALANCING_SWEEPS):
        for group in groups:
            places = [place for place in network.symmetry.places(group) if place.array in arrays]
            received = _unit_square_sums(network, arrays, [place for place in places if place.side == "output"])  # (k,)
            sent = _unit_square_sums(network, arrays, [place for place in places if place.side == "input"])  # (k,)
            xp = array_namespace(received)
            connected = (received > 0) & (sent > 0)
            numerator = xp.where(connected, sent, xp.ones_like(sent))
            denominator = xp.where(connected, received, xp.ones_like(received))
            scales = (numerator / denominator) ** 0.25  # the fourth root, since these are squared norms
            for place in places:
                arrays[place.array] = _scale_units(network, arrays[place.array], place, scales)
            total[group] = total[group] * scales if group in total else scales
    return arrays, total


def _unit_square_sums(network: Network, arrays: dict[str, AnyArray], places: list[Place]) -> AnyArray:
    """Return the summed squares of each unit's weights (k,) over some places."""
    total: AnyArray = 0.0
    for place in places:
        layout = network.symmetry.layouts[place.array]
        rows = unit_rows(laid_out(arrays[place.array], layout), layout, place, network.units)  # (k, F)
        total = total + array_namespace(rows).sum(rows**2, axis=1)
    return total


def _scale_units(network: Network, values: AnyArray, place: Place, scales: AnyArray) -> AnyArray:
    """Return an array with its units at one place multiplied (output side) or divided (input side) by scales (k,)."""
    xp = array_namespace(values)
    layout = network.symmetry.layouts[place.array]
    axis = layout.axes[place.axis]
    segment_factors = []
    for number, segment in enumerate(axis.segments):
        length = segment.length(network.units)
        factors = xp.ones((length,), dtype=values.dtype, device=values.device)
        if number == place.segment:
            unit_factors = xp.astype(scales if place.side == "output" else 1.0 / scales, values.dtype)
            factors = xp.tile(xp.repeat(unit_factors, segment.inner), (segment.outer,))  # (outer * k * inner,)
        segment_factors.append(factors)
    dense = laid_out(values, layout)
    shape = tuple(-1 if n == place.axis else 1 for n in range(dense.ndim))
    return as_stored(dense * xp.reshape(xp.concat(segment_factors), shape), layout)
