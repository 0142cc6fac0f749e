"""Segments, axes, layouts and unit groups: the parts of a network's symmetry.

A *group* g is k_g units that may be renumbered without changing what the network computes. Every axis of every array is
a list of *segments*, and a segment of group g is laid out in row-major order as

    (outer, k_g, inner)        so that unit u of copy c has the entries (c * k_g + u) * inner + 0 .. inner - 1.

A convolution's channels are (1, k, 1), channels flattened together with their positions (1, k, positions), the stacked
gates of an LSTM (4, k, 1). Concatenated layers are several segments on one axis. A segment without a group never moves.
Offsets follow from shapes, so that one symmetry serves networks of different widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from consilience.checks import Array

Side = Literal["output", "input", "both"]
"""Role of an axis for its units: "output" makes them (rows, biases), "input" reads them (columns), "both" does both (a
tied embedding)."""

Action = Literal["permute", "sign", "scale"]
"""Action on the units of a group: renumber them, flip their signs, multiply them by positive numbers."""


@dataclass(frozen=True)
class Segment:
    """A stretch of an axis with the row-major layout (outer, units, inner).

    Parameters
    ----------
    group : str or None
        Name of the group whose units it holds; None for a stretch that never moves.
    outer : int, optional
        Number of copies of all units one after the other, such as the gates of a recurrent cell. Default: 1.
    inner : int, optional
        Number of neighbouring entries of one unit in one copy, such as the positions of a flattened channel. A stretch
        that never moves has ``outer * inner`` entries. Default: 1.
    odd : tuple of int, optional
        Which of the ``outer`` copies change sign with the unit; None for all. Of the gates of an LSTM or a GRU only the
        one that proposes the new state does: the unit's state is multiplied by -1 while its other gates open as before.
    """

    group: str | None
    outer: int = 1
    inner: int = 1
    odd: tuple[int, ...] | None = None

    def length(self, units: Mapping[str, int]) -> int:
        """Return its number of entries in a network with these numbers of units by group."""
        return self.outer * self.inner * (1 if self.group is None else units[self.group])

    def along(self, values: Array) -> Array:
        """Return one value per entry, (outer * k * inner,), from one value per unit (k,)."""
        return np.tile(np.repeat(values, self.inner), self.outer)


@dataclass(frozen=True)
class Axis:
    """One axis of an array.

    Parameters
    ----------
    segments : tuple of Segment
        Its stretches in order.
    side : {"output", "input", "both"}, optional
        Whether the array makes the units along this axis, reads them, or both. Default: "output".
    """

    segments: tuple[Segment, ...]
    side: Side = "output"

    # A symmetry is asked these at every array of every network, and they follow from its fields.
    @cached_property
    def moves(self) -> bool:
        """Whether any stretch follows a group."""
        return any(segment.group is not None for segment in self.segments)

    @cached_property
    def units_of(self) -> str | None:
        """The group whose units the entries are, one each: the common case, without copies, positions or stretches."""
        first = self.segments[0] if len(self.segments) == 1 else None
        return first.group if first is not None and first.outer == first.inner == 1 else None

    def length(self, units: Mapping[str, int]) -> int:
        """Return its length in a network with these numbers of units by group."""
        return sum(segment.length(units) for segment in self.segments)

    def along(self, values: Mapping[str, Array], units: Mapping[str, int], other: float) -> Array:
        """Return one value per entry, from one value per unit (k,) of some groups; `other` for all other entries."""
        parts = (
            segment.along(values[segment.group])
            if segment.group is not None and segment.group in values
            else np.full(segment.length(units), other)
            for segment in self.segments
        )
        return np.concatenate(list(parts))


@dataclass(frozen=True)
class Layout:
    """The axes of one array.

    Parameters
    ----------
    axes : tuple of Axis
        Every axis of the array, in order.
    blocks : int, optional
        Number of blocks of a grouped convolution's weight whose input channels move too. The axes then are those of the
        dense, block-diagonal weight; the array holds only the blocks, so that its axis 1 is shorter by this factor.
        Default: 1, the array itself.
    split : tuple of int, optional
        (n, outer): axis n is stored as two, of lengths outer and the rest, such as heads and the units inside them.
        Default: None, where every axis is one of the array.
    """

    axes: tuple[Axis, ...]
    blocks: int = 1
    split: tuple[int, int] | None = None

    @property
    def is_as_stored(self) -> bool:
        """Whether its axes are those of the array."""
        return self.blocks == 1 and self.split is None

    @cached_property
    def moving_axes(self) -> tuple[tuple[int, Axis], ...]:
        """The axes that follow a group, each with its number."""
        return tuple((number, axis) for number, axis in enumerate(self.axes) if axis.moves)

    def shape(self, units: Mapping[str, int]) -> tuple[int, ...]:
        """Return the array's shape in a network with these numbers of units by group."""
        lengths = [axis.length(units) for axis in self.axes]
        if self.blocks > 1:
            lengths[1] //= self.blocks
        if self.split is not None:
            number, outer = self.split
            lengths[number : number + 1] = [outer, lengths[number] // outer]
        return tuple(lengths)

    def lengths(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the lengths of its axes for an array of this shape; none where the array has other axes."""
        lengths = list(shape)
        if len(lengths) != len(self.axes) + (self.split is not None):
            return ()
        if self.blocks > 1:
            lengths[1] *= self.blocks
        if self.split is not None:
            number = self.split[0]
            lengths[number : number + 2] = [lengths[number] * lengths[number + 1]]
        return tuple(lengths)


@dataclass(frozen=True)
class Group:
    """Units that move together.

    Parameters
    ----------
    name : str
        Its name in messages and results: that of the array that makes its units, without ``.weight``.
    size : int
        Number of units in the network that was traced; per unit of the parent, if it has one.
    order : int
        Its position in the order of computation, from 0.
    parent : str, optional
        Name of the group that contains it: what is inside an attention head follows its head. Unit u of parent unit h
        has the number ``h * size + u``, and units may be renumbered differently inside every unit of the parent.
    actions : tuple of {"permute", "sign", "scale"}, optional
        What may be done to its units without changing any output; each was proved. Default: ("permute",).
    resizable : bool, optional
        Whether networks may differ in its number of units. Default: True.
    """

    name: str
    size: int
    order: int
    parent: str | None = None
    actions: tuple[Action, ...] = ("permute",)
    resizable: bool = True


@dataclass(frozen=True)
class Place:
    """Position of a segment: array, axis, and number of the segment on that axis.

    Parameters
    ----------
    array : str
        Name of the array.
    axis : int
        Number of the axis.
    segment : int
        Number of the segment on that axis.
    side : {"output", "input", "both"}
        Side of the axis.
    """

    array: str
    axis: int
    segment: int
    side: Side

    def __str__(self) -> str:
        return f"{self.array} axis {self.axis}"


@dataclass(frozen=True)
class Proof:
    """Record that random changes of every group left the outputs as they were.

    Parameters
    ----------
    digest : str
        `Symmetry.digest` of the symmetry that was proved; the proof holds for no other.
    deviation : float
        Largest difference of outputs over all changes, relative to the largest output.
    trials : int
        Number of random inputs and arrays on which each group was changed.
    """

    digest: str
    deviation: float
    trials: int


def fixed_axes(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return axes of an array of this shape that never move."""
    return tuple(Axis((Segment(None, inner=length),)) for length in shape)
