"""Transports of units between networks: permutations, injections and couplings applied to the axes of arrays.

Let Pi be a coupling (k_new, k_old) of the units of a group, with marginals 1 / k_new and 1 / k_old. A weight that a
unit *receives* belongs to the unit: where units meet, their rows are averaged. A weight that a unit *sends* is read by
others: where a unit is spread over several places, its column is split among them, so that its readers receive the same
sum. The two sides of a transport are therefore

    T = diag(Pi 1)^-1 Pi         output side (rows, biases): rows sum to 1
    S = Pi diag(Pi^T 1)^-1       input side (columns): columns sum to 1

and a weight W of the layers l - 1 -> l becomes T_l W S_{l-1}^T. For permutations T = S, and moving one model into a
network of twice its width leaves its function unchanged.

Departure from the source: formula (9) of the Wasserstein paper (Akash et al. 2022), as printed, averages on both sides,
k_l k_{l-1} Pi_l W Pi_{l-1}^T. Its input side sums to k_new / k_old instead of 1, which multiplies every sum over units
by the change of width but not the biases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, Labels
from consilience.networks.symmetry.axes import Axis, Layout, Segment, Side


class Transport(ABC):
    """How the units of a group of one model become units of the fused network.

    A subclass states two matrices, T and S of the module's docstring; all that fusion asks follows from them. It may
    override what it can do faster. ``consilience.testing.check_transport`` holds a subclass to the laws.
    """

    signs: Array | None = None
    """Factors 1 or -1, where units change their sign; entries that do not change sign with their unit move by
    `unsigned`."""

    @property
    @abstractmethod
    def receiving(self) -> Array:
        """Matrix T of the output side (k_new, k_old): what units receive."""

    @property
    @abstractmethod
    def sending(self) -> Array:
        """Matrix S of the input side (k_new, k_old): what units send."""

    @cached_property
    def width(self) -> int:
        """Number of new units k_new."""
        return int(self.receiving.shape[0])

    @cached_property
    def owned(self) -> Array:
        """Mask (k_new,): 1 for new units that come from an old one, 0 for those that the model lacks."""
        return (self.receiving != 0).any(axis=1).astype(np.float64)

    @cached_property
    def labels(self) -> Labels:
        """New unit that takes most of each old one (k_old,); -1 for a unit that is dropped."""
        parts = np.abs(self.sending)
        return np.where(parts.any(axis=0), parts.argmax(axis=0), -1)

    @cached_property
    def owns_all(self) -> bool:
        """Whether every new unit comes from an old one."""
        return bool(self.owned.all())

    @property
    def is_soft(self) -> bool:
        """Whether a unit may be spread over several places, or share its place with others of its model."""
        return True

    @cached_property
    def plan(self) -> Array:
        """Mass (k_new, k_old) between new and old units: not negative, 1 in all where any unit is kept."""
        parts = np.abs(self.sending)
        return parts / max(float(parts.sum()), np.finfo(np.float64).tiny)

    @property
    def unit_signs(self) -> Array | None:
        """Sign (k_old,) of each old unit in the new one that takes most of it; None where none changes its sign."""
        return self.signs

    @property
    def inverse(self) -> Transport | None:
        """Inverse of a permutation; None for any other transport."""
        return None

    @property
    def unsigned(self) -> Transport:
        """The same transport without signs."""
        return self if self.signs is None else MatrixTransport(np.abs(self.receiving), np.abs(self.sending))

    @property
    def squared(self) -> Transport:
        """Transport of squared weights."""
        return MatrixTransport(self.receiving**2, self.sending**2)

    def then(self, later: Injection) -> Transport:
        """Return this transport followed by a permutation of the new units."""
        return MatrixTransport(later.receiving @ self.receiving, later.sending @ self.sending, self.unit_signs)

    def cost(self, costs: Array) -> float:
        """Return < C, plan > of the costs (k_new, k_old) between new and old units."""
        return float((costs * self.plan).sum())

    def move(self, values: AnyArray, axis: int, side: Side) -> AnyArray:
        """Return an array with the units along an axis of length k_old moved, by T or by S."""
        xp = array_namespace(values)
        matrix = xp.asarray(self.receiving if side == "output" else self.sending, device=values.device)
        units_first = xp.moveaxis(values, axis, 0)  # (k_old, ...)
        rows = xp.reshape(units_first, (units_first.shape[0], -1))
        moved = xp.matmul(xp.astype(matrix, values.dtype), rows)  # (k_new, entries per unit)
        return xp.moveaxis(xp.reshape(moved, (self.width, *units_first.shape[1:])), 0, axis)


@dataclass(frozen=True, eq=False)
class MatrixTransport(Transport):
    """Transport by two matrices, such as a transport followed by another.

    Parameters
    ----------
    output_side, input_side : ndarray of shape (k_new, k_old)
        T and S.
    signs : ndarray of shape (k_old,), optional
        Factor 1 or -1 of each old unit, which both sides have already; None where none changes its sign.
    """

    output_side: Array
    input_side: Array
    signs: Array | None = None

    @property
    def receiving(self) -> Array:
        """Matrix T."""
        return self.output_side

    @property
    def sending(self) -> Array:
        """Matrix S."""
        return self.input_side


@dataclass(frozen=True, eq=False)
class Scaling(Transport):
    """Transport of every unit to itself, multiplied by a positive factor.

    Parameters
    ----------
    factors : ndarray of shape (k,)
        What each unit receives is multiplied by its factor, and what it sends is divided by it.
    """

    factors: Array

    @property
    def receiving(self) -> Array:
        """Matrix T (k, k): the factors on the diagonal."""
        return np.diag(self.factors)

    @property
    def sending(self) -> Array:
        """Matrix S (k, k): their inverses."""
        return np.diag(1.0 / self.factors)

    @cached_property
    def width(self) -> int:
        """Number of units k."""
        return len(self.factors)

    @property
    def is_soft(self) -> bool:
        """No unit is spread."""
        return False

    @property
    def inverse(self) -> Scaling:
        """The inverse factors."""
        return Scaling(1.0 / self.factors)

    def move(self, values: AnyArray, axis: int, side: Side) -> AnyArray:
        """Return an array with the units along an axis multiplied or divided by their factors."""
        xp = array_namespace(values)
        factors = xp.asarray(self.factors, dtype=values.dtype, device=values.device)
        factors = xp.reshape(factors, (-1, *[1] * (values.ndim - axis - 1)))
        return values / factors if side == "input" else values * factors


@dataclass(frozen=True, eq=False)
class Injection(Transport):
    """Transport of every old unit to a new number of its own: a permutation, or one padded with zero units.

    Parameters
    ----------
    slots : ndarray of int, shape (k_old,)
        New number of each old unit, all different.
    width : int
        Number of new units k_new, at least k_old; equal to it for a permutation.
    signs : ndarray of shape (k_old,), optional
        Factor 1 or -1 of each old unit; None where none changes its sign.
    """

    slots: Labels
    width: int = field()  # without a default: `Transport.width` would be taken for one
    signs: Array | None = None

    @cached_property
    def owned(self) -> Array:
        """Mask (k_new,): 1 for new units that come from an old one, 0 for the others."""
        owned = np.zeros(self.width)
        owned[self.slots] = 1.0
        return owned

    @property
    def owns_all(self) -> bool:
        """Whether it is a permutation, since old units have different places."""
        return len(self.slots) == self.width

    @cached_property
    def order(self) -> Labels:
        """Old number of each new unit (k_new,); k_old, one past the last, where there is none."""
        order = np.full(self.width, len(self.slots), dtype=np.int64)
        order[self.slots] = np.arange(len(self.slots))
        return order

    @cached_property
    def unmoved(self) -> bool:
        """Whether every unit keeps its number and its sign."""
        return self.signs is None and self.keeps_order

    @cached_property
    def keeps_order(self) -> bool:
        """Whether every unit keeps its number."""
        return len(self.slots) == self.width and bool((self.slots == np.arange(self.width)).all())

    @property
    def receiving(self) -> Array:
        """Matrix T (k_new, k_old): 1, or the sign of the unit, where an old unit becomes a new one."""
        matrix = np.zeros((self.width, len(self.slots)))
        matrix[self.slots, np.arange(len(self.slots))] = 1.0 if self.signs is None else self.signs
        return matrix

    @property
    def sending(self) -> Array:
        """Matrix S: T, since no unit is averaged or split."""
        return self.receiving

    @property
    def labels(self) -> Labels:
        """New number of each old unit (k_old,)."""
        return self.slots

    @property
    def is_soft(self) -> bool:
        """Every unit has a place of its own."""
        return False

    def cost(self, costs: Array) -> float:
        """Return the mean cost of the old units at their places."""
        return float(costs[self.slots, np.arange(len(self.slots))].sum()) / len(self.slots)

    def then(self, later: Injection) -> Injection:
        """Return this transport followed by another one of its new units."""
        signs = self.signs
        if later.signs is not None:
            # Signs are numbered by old units: those of the later step are looked up where each unit has gone.
            signs = later.signs[self.slots] * (1.0 if signs is None else signs)
        return Injection(later.slots[self.slots], later.width, signs)

    @property
    def inverse(self) -> Injection | None:
        """Inverse of a permutation; None where new units lack an old one."""
        if len(self.slots) < self.width:
            return None
        return Injection(self.order, self.width, None if self.signs is None else self.signs[self.order])

    @property
    def unsigned(self) -> Injection:
        """The same transport without signs: for squares, and for whatever does not change sign with the unit."""
        return self if self.signs is None else Injection(self.slots, self.width)

    @property
    def squared(self) -> Injection:
        """Transport of squared weights on the input side."""
        return self.unsigned

    def move(self, values: AnyArray, axis: int, _side: Side) -> AnyArray:
        """Return an array with the units along an axis of length k_old moved; new units without an old one are zero."""
        if self.unmoved:
            return values
        xp = array_namespace(values)
        if self.signs is not None:
            signs = xp.asarray(self.signs, dtype=values.dtype, device=values.device)
            values = values * xp.reshape(signs, (-1, *[1] * (values.ndim - axis - 1)))
        if self.width > len(self.slots):
            # One zero entry more along the axis, which `order` refers to by the number k_old.
            shape = list(values.shape)
            shape[axis] = 1
            values = xp.concat([values, xp.zeros(tuple(shape), dtype=values.dtype, device=values.device)], axis=axis)
        return values if self.keeps_order else _taken(values, self.order, axis)


@dataclass(frozen=True, eq=False)
class Spread(Transport):
    """Transport of every old unit to several new ones, by a coupling.

    Parameters
    ----------
    coupling : ndarray of shape (k_new, k_old)
        Coupling with marginals 1 / k_new and 1 / k_old.
    scale : float, optional
        Sum of each column of the input side: 1, which splits what units send, or k_old / k_new for squares of weights.
        Formula (9) of Akash et al. (2022) has k_new / k_old in print, which scales networks with biases wrongly.
        Default: 1.
    signs : ndarray of shape (k_new, k_old), optional
        Sign of the mass between each new and old unit: 1 or -1, or a value between them where a part of the mass
        changes sign; None where nothing does.
    """

    coupling: Array
    scale: float = 1.0
    signs: Array | None = None

    @cached_property
    def width(self) -> int:
        """Number of new units."""
        return int(self.coupling.shape[0])

    @cached_property
    def owned(self) -> Array:
        """Mask (k_new,) of ones: every new unit receives something."""
        return np.ones(self.width)

    @cached_property
    def plan(self) -> Array:
        """The coupling."""
        return self.coupling

    @property
    def unit_signs(self) -> Array | None:
        """Sign of the mass between each old unit and the new one that takes most of it."""
        return None if self.signs is None else np.sign(self.signs[self.labels, np.arange(self.coupling.shape[1])])

    @cached_property
    def labels(self) -> Labels:
        """New unit that receives most of each old one (k_old,)."""
        return self.coupling.argmax(axis=0)

    @cached_property
    def receiving(self) -> Array:
        """Matrix T of the output side (k_new, k_old): rows sum to 1, before signs."""
        return self._signed(self.coupling / self.coupling.sum(axis=1, keepdims=True))

    @cached_property
    def sending(self) -> Array:
        """Matrix S of the input side (k_new, k_old): columns sum to `scale`, before signs."""
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
        """The same transport without signs."""
        return self if self.signs is None else Spread(self.coupling, self.scale)

    @property
    def squared(self) -> Spread:
        """Transport of squared weights on the input side.

        A unit spread evenly over m = k_new / k_old new ones sends w / m from each, whose squares sum to w**2 / m. So
        the columns of this transport sum to ``scale**2 * k_old / k_new``.
        """
        return Spread(self.coupling, self.scale**2 * self.coupling.shape[1] / self.width)


def permutation(order: Labels) -> Injection:
    """Return the permutation whose new unit u is the old unit ``order[u]``, for an order of shape (k,)."""
    slots = np.empty(len(order), dtype=np.int64)
    slots[order] = np.arange(len(order))
    return Injection(slots, len(order))


def laid_out(values: AnyArray, layout: Layout) -> AnyArray:
    """Return an array with the axes of its layout; one that is stored so is returned as it is.

    Of a grouped convolution stored as (out, in / blocks, ...) that is the block-diagonal weight (out, in, ...), of an
    axis that is stored as two that axis.
    """
    if layout.is_as_stored:
        return values
    xp = array_namespace(values)
    if layout.split is not None:
        before, after = values.shape[: layout.split[0]], values.shape[layout.split[0] + 2 :]
        return xp.reshape(values, (*before, -1, *after))
    blocks, rows, columns = layout.blocks, values.shape[0] // layout.blocks, values.shape[1]  # rows, columns of a block
    block_rows = []
    for block in range(blocks):
        weights = values[block * rows : (block + 1) * rows]
        left = xp.zeros((rows, block * columns, *values.shape[2:]), dtype=values.dtype, device=values.device)
        right_columns = (blocks - block - 1) * columns
        right = xp.zeros((rows, right_columns, *values.shape[2:]), dtype=values.dtype, device=values.device)
        block_rows.append(xp.concat([left, weights, right], axis=1))  # (out / blocks, in, ...)
    return xp.concat(block_rows, axis=0)


def _taken(values: AnyArray, order: Labels, axis: int) -> AnyArray:
    """Return the entries of an array along an axis in another order."""
    xp = array_namespace(values)
    index = xp.asarray(order, device=values.device)
    if axis == values.ndim - 1 and axis > 0 and hasattr(values, "gather"):
        # Along its last axis torch selects single entries in four times the time that it gathers them.
        return values.gather(axis, index.expand(*values.shape[:-1], len(order)))
    return xp.take(values, index, axis=axis)


def as_stored(values: AnyArray, layout: Layout) -> AnyArray:
    """Return an array as it is stored, of one with the axes of its layout; inverse of `laid_out`."""
    if layout.is_as_stored:
        return values
    xp = array_namespace(values)
    if layout.split is not None:
        number, outer = layout.split
        return xp.reshape(values, (*values.shape[:number], outer, -1, *values.shape[number + 1 :]))
    rows, columns = values.shape[0] // layout.blocks, values.shape[1] // layout.blocks
    return xp.concat(
        [values[b * rows : (b + 1) * rows, b * columns : (b + 1) * columns] for b in range(layout.blocks)], axis=0
    )


def move_axis(
    values: AnyArray, number: int, axis: Axis, transports: Mapping[str, Transport], units: Mapping[str, int]
) -> AnyArray:
    """Return an array with one axis moved by the transports of its groups; groups without a transport stay.

    Parameters
    ----------
    values : array
        The array, as it is laid out.
    number : int
        Number of the axis.
    axis : Axis
        Its segments and its side. A tied axis ("both") moves as an output side.
    transports : mapping of str to Transport
        Transport of the units of each group that moves.
    units : mapping of str to int
        Number of units of every group before.
    """
    side: Side = "input" if axis.side == "input" else "output"
    if axis.units_of is not None:  # without a reshape
        units_transport = transports.get(axis.units_of)
        return values if units_transport is None else units_transport.move(values, number, side)
    if not any(segment.group in transports for segment in axis.segments):
        return values
    xp = array_namespace(values)
    before, after = tuple(values.shape[:number]), tuple(values.shape[number + 1 :])
    stretches: list[AnyArray] = []
    start = 0
    for segment in axis.segments:
        length = segment.length(units)
        stretch = values[(slice(None),) * number + (slice(start, start + length),)]
        start += length
        transport = None if segment.group is None else transports.get(segment.group)
        if transport is not None:
            split = (*before, segment.outer, length // (segment.outer * segment.inner), segment.inner, *after)
            moved = _move_copies(xp.reshape(stretch, split), number, segment, transport, side)
            stretch = xp.reshape(moved, (*before, segment.outer * transport.width * segment.inner, *after))
        stretches.append(stretch)
    return stretches[0] if len(stretches) == 1 else xp.concat(stretches, axis=number)


def _move_copies(values: AnyArray, number: int, segment: Segment, transport: Transport, side: Side) -> AnyArray:
    """Return an array (..., outer, k_new, inner, ...) from one (..., outer, k_old, inner, ...).

    `number` is that of the axis `outer`. Copies of the units that are not odd move without changes of sign.
    """
    if transport.signs is None or segment.odd is None:
        return transport.move(values, number + 1, side)
    xp = array_namespace(values)
    before = (slice(None),) * number
    copies = []
    for copy in range(segment.outer):
        copy_transport = transport if copy in segment.odd else transport.unsigned
        copies.append(copy_transport.move(values[(*before, slice(copy, copy + 1))], number + 1, side))
    return xp.concat(copies, axis=number)


def move(values: AnyArray, layout: Layout, transports: Mapping[str, Transport], units: Mapping[str, int]) -> AnyArray:
    """Return an array with all its axes moved.

    Parameters
    ----------
    values : array
        The array, as stored.
    layout : Layout
        Its axes.
    transports : mapping of str to Transport
        Transport of the units of each group that moves; the others stay.
    units : mapping of str to int
        Number of units of every group before.
    """
    if not any(segment.group in transports for _, axis in layout.moving_axes for segment in axis.segments):
        return values
    return as_stored(move_laid_out(values, layout, transports, units), layout)


def move_laid_out(
    values: AnyArray, layout: Layout, transports: Mapping[str, Transport], units: Mapping[str, int]
) -> AnyArray:
    """Return an array with all axes of its layout moved as `move` does, but not as it is stored."""
    values = laid_out(values, layout)
    for number, axis in layout.moving_axes:
        values = move_axis(values, number, axis, transports, units)
    return values
