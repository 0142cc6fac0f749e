"""Moving the units of a group: into another order, into other places, or spread over the units of another network.

A weight that a unit *receives* belongs to the unit: where the unit goes, its row goes, and where units meet, their rows
are averaged. A weight that a unit *sends* is read by others: where a unit is spread over several places, its column is
split among them, so that what the readers receive stays the same. So the output side of a transport has rows that sum
to 1 and its input side splits; for equal widths both are the same permutation or k times the same coupling. Formula (9)
of the Wasserstein paper averages on both sides instead, which multiplies sums by k_new / k_old; `paper_scaling` of the
methods asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, Labels
from consilience.networks.symmetry.axes import Axis, Layout, Segment, Side


@dataclass(frozen=True, eq=False)
class Injection:
    """Every old unit goes to a place of its own.

    Parameters
    ----------
    slots
        The new number of each old unit (k_old,), all different.
    width
        Number of new units, at least k_old; equal to it for a permutation.
    signs
        1 or -1 for each old unit (k_old,): whether it changes sign on its way; None where none does.
    """

    slots: Labels
    width: int
    signs: Array | None = None

    @cached_property
    def owned(self) -> Array:
        """1 for new units that an old one became, 0 for the others (k_new,)."""
        owned = np.zeros(self.width)
        owned[self.slots] = 1.0
        return owned

    @cached_property
    def order(self) -> Labels:
        """The old number of each new unit (k_new,); k_old where there is none."""
        order = np.full(self.width, len(self.slots), dtype=np.int64)
        order[self.slots] = np.arange(len(self.slots))
        return order

    @cached_property
    def unmoved(self) -> bool:
        """Whether every unit stays where it is, as it is."""
        return (
            self.signs is None
            and len(self.slots) == self.width
            and bool(np.array_equal(self.slots, np.arange(self.width)))
        )

    @property
    def labels(self) -> Labels:
        """The new number of each old unit (k_old,)."""
        return self.slots

    def then(self, later: Injection) -> Injection:
        """Return this transport followed by another."""
        signs = self.signs
        if later.signs is not None:
            signs = later.signs[self.slots] * (1.0 if signs is None else signs)
        return Injection(later.slots[self.slots], later.width, signs)

    @property
    def inverse(self) -> Injection:
        """The transport that undoes a permutation."""
        return Injection(self.order, self.width, None if self.signs is None else self.signs[self.order])

    @property
    def unsigned(self) -> Injection:
        """The same without changes of sign: how squares move, and what is the same for either sign."""
        return self if self.signs is None else Injection(self.slots, self.width)

    @property
    def squared(self) -> Injection:
        """How squares of weights move on the input side."""
        return self.unsigned

    def move(self, values: AnyArray, axis: int, _side: Side) -> AnyArray:
        """Return an array with the units along an axis of length k_old moved; places without a unit are zero."""
        if self.unmoved:
            return values
        xp = array_namespace(values)
        if self.signs is not None:
            signs = xp.asarray(self.signs, dtype=values.dtype, device=values.device)
            values = values * xp.reshape(signs, (-1, *[1] * (values.ndim - axis - 1)))
        if self.width > len(self.slots):
            shape = list(values.shape)
            shape[axis] = 1
            values = xp.concat([values, xp.zeros(tuple(shape), dtype=values.dtype, device=values.device)], axis=axis)
        return xp.take(values, xp.asarray(self.order, device=values.device), axis=axis)


@dataclass(frozen=True, eq=False)
class Spread:
    """Every old unit is spread over the new ones by a coupling.

    Parameters
    ----------
    coupling
        Plan (k_new, k_old) with marginals 1 / k_new and 1 / k_old.
    scale
        What the columns of the input side sum to: 1 splits what units send. Formula (9) as printed averages instead,
        which is k_new / k_old.
    signs
        1 or -1 for each new and old unit (k_new, k_old): whether what goes this way changes sign, between the two where
        parts do and parts do not; None where none does.
    """

    coupling: Array
    scale: float = 1.0
    signs: Array | None = None

    @property
    def width(self) -> int:
        """Number of new units."""
        return int(self.coupling.shape[0])

    @property
    def owned(self) -> Array:
        """1 for every new unit (k_new,): all receive something."""
        return np.ones(self.width)

    @property
    def labels(self) -> Labels:
        """The new unit that receives most of each old one (k_old,)."""
        labels: Labels = self.coupling.argmax(axis=0)
        return labels

    @cached_property
    def receiving(self) -> Array:
        """The output side (k_new, k_old): rows sum to 1, apart from signs."""
        return self._signed(self.coupling / self.coupling.sum(axis=1, keepdims=True))

    @cached_property
    def sending(self) -> Array:
        """The input side (k_new, k_old): columns sum to `scale`, apart from signs."""
        return self._signed(self.coupling * (self.scale / self.coupling.sum(axis=0, keepdims=True)))

    def _signed(self, values: Array) -> Array:
        return values if self.signs is None else values * self.signs

    def then(self, later: Injection) -> Spread:
        """Return this transport followed by a permutation."""
        signs = None if self.signs is None else self.signs[later.order]
        if later.signs is not None:
            signs = later.signs[later.order, None] * (np.ones_like(self.coupling) if signs is None else signs)
        return Spread(self.coupling[later.order], self.scale, signs)

    @property
    def unsigned(self) -> Spread:
        """The same without changes of sign."""
        return self if self.signs is None else Spread(self.coupling, self.scale)

    @property
    def squared(self) -> Spread:
        """How squares of weights move on the input side, so that they sum to the mean squares under the coupling."""
        return Spread(self.coupling, self.scale**2 * self.coupling.shape[1] / self.width)

    def move(self, values: AnyArray, axis: int, side: Side) -> AnyArray:
        """Return an array with the units along an axis of length k_old spread over k_new."""
        xp = array_namespace(values)
        matrix = xp.asarray(self.receiving if side == "output" else self.sending, device=values.device)
        front = xp.moveaxis(values, axis, 0)
        moved = xp.matmul(xp.astype(matrix, values.dtype), xp.reshape(front, (front.shape[0], -1)))
        return xp.moveaxis(xp.reshape(moved, (self.width, *front.shape[1:])), 0, axis)


Transport = Injection | Spread


def permutation(order: Labels) -> Injection:
    """Return the transport that puts old unit ``order[u]`` at place u."""
    slots = np.empty(len(order), dtype=np.int64)
    slots[order] = np.arange(len(order))
    return Injection(slots, len(order))


def dense(values: AnyArray, layout: Layout) -> AnyArray:
    """Return the weight of a grouped convolution with its zeros outside the blocks; anything else as it is."""
    if layout.blocks == 1:
        return values
    xp = array_namespace(values)
    blocks, rows, columns = layout.blocks, values.shape[0] // layout.blocks, values.shape[1]
    parts = []
    for block in range(blocks):
        part = values[block * rows : (block + 1) * rows]
        left = xp.zeros((rows, block * columns, *values.shape[2:]), dtype=values.dtype, device=values.device)
        right_columns = (blocks - block - 1) * columns
        right = xp.zeros((rows, right_columns, *values.shape[2:]), dtype=values.dtype, device=values.device)
        parts.append(xp.concat([left, part, right], axis=1))
    return xp.concat(parts, axis=0)


def undense(values: AnyArray, layout: Layout) -> AnyArray:
    """Return only the blocks of a dense weight, where the layout has blocks."""
    if layout.blocks == 1:
        return values
    xp = array_namespace(values)
    rows, columns = values.shape[0] // layout.blocks, values.shape[1] // layout.blocks
    return xp.concat(
        [values[b * rows : (b + 1) * rows, b * columns : (b + 1) * columns] for b in range(layout.blocks)],
        axis=0,
    )


def move_axis(
    values: AnyArray, number: int, axis: Axis, transports: Mapping[str, Transport], units: Mapping[str, int]
) -> AnyArray:
    """Return an array with one axis moved by the transports of its groups; groups without one stay.

    Parameters
    ----------
    values
        The array, dense.
    number
        Which axis.
    axis
        What it is made of.
    transports
        How the units of groups move.
    units
        Number of units of every group before.
    """
    if not any(segment.group in transports for segment in axis.segments):
        return values
    side: Side = "input" if axis.side == "input" else "output"
    if len(axis.segments) == 1 and axis.segments[0].outer == axis.segments[0].inner == 1:
        return transports[str(axis.segments[0].group)].move(values, number, side)
    xp = array_namespace(values)
    before, after = tuple(values.shape[:number]), tuple(values.shape[number + 1 :])
    pieces: list[AnyArray] = []
    start = 0
    for segment in axis.segments:
        length = segment.length(units)
        piece = values[(slice(None),) * number + (slice(start, start + length),)]
        start += length
        one = None if segment.group is None else transports.get(segment.group)
        if one is not None:
            split = (*before, segment.outer, length // (segment.outer * segment.inner), segment.inner, *after)
            moved = _move_copies(xp.reshape(piece, split), number, segment, one, side)
            piece = xp.reshape(moved, (*before, segment.outer * one.width * segment.inner, *after))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=number)


def _move_copies(values: AnyArray, number: int, segment: Segment, one: Transport, side: Side) -> AnyArray:
    """Return an array with units along axis ``number + 1`` moved, where axis `number` counts the copies of a segment.

    Copies that are not odd move without changes of sign.
    """
    if one.signs is None or segment.odd is None:
        return one.move(values, number + 1, side)
    xp = array_namespace(values)
    before = (slice(None),) * number
    copies = [
        (one if copy in segment.odd else one.unsigned).move(values[(*before, slice(copy, copy + 1))], number + 1, side)
        for copy in range(segment.outer)
    ]
    return xp.concat(copies, axis=number)


def move(values: AnyArray, layout: Layout, transports: Mapping[str, Transport], units: Mapping[str, int]) -> AnyArray:
    """Return an array with all its axes moved; see `move_axis`."""
    if not any(segment.group in transports for axis in layout.axes for segment in axis.segments):
        return values
    moved = dense(values, layout)
    for number, axis in enumerate(layout.axes):
        moved = move_axis(moved, number, axis, transports, units)
    return undense(moved, layout)
