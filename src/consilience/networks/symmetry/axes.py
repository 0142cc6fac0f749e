"""What a symmetry is made of: segments of axes, the axes of an array, groups of units, and where these stand.

An axis is a list of *segments*. A segment is laid out as (outer, units, inner) in row-major order: a convolution's
channels are (1, units, 1), channels flattened together with their positions (1, units, positions), the stacked gates of
an LSTM (4, units, 1); concatenated layers are several segments. Offsets follow from shapes, so that one symmetry serves
networks of different widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from consilience.checks import Array

Side = Literal["output", "input", "both"]
"""What an axis is to its units: it makes them (rows, biases), reads them (columns), or both (a tied embedding)."""

Action = Literal["permute", "sign", "scale"]
"""What may be done to the units of a group: renumber, flip the sign, multiply by a positive number."""


@dataclass(frozen=True)
class Segment:
    """A stretch of an axis.

    Parameters
    ----------
    group
        The group whose units it holds; None for a stretch that never moves.
    outer
        How often the units are repeated as a whole: the gates of a recurrent cell.
    inner
        How many neighbouring entries belong to one unit: the positions of a flattened channel. The length of a
        stretch that never moves is ``outer * inner``.
    odd
        Which of the ``outer`` copies change sign with the unit; None for all. Of the gates of a recurrent cell only
        the one that proposes the new state does: a unit of an LSTM or a GRU turns with its sign while its other gates
        open as before.
    """

    group: str | None
    outer: int = 1
    inner: int = 1
    odd: tuple[int, ...] | None = None

    def length(self, units: Mapping[str, int]) -> int:
        """Return how many entries it covers in a network with so many units by group."""
        return self.outer * self.inner * (1 if self.group is None else units[self.group])

    def along(self, values: Array, signed: bool = False) -> Array:
        """Return a value for every entry, given one for every unit; with `signed`, 1 in copies that are not odd."""
        copies = np.repeat(values, self.inner)
        if not signed or self.odd is None:
            return np.tile(copies, self.outer)
        return np.concatenate([copies if n in self.odd else np.ones_like(copies) for n in range(self.outer)])


@dataclass(frozen=True)
class Axis:
    """One axis of an array: its segments in order, and what it is to their units."""

    segments: tuple[Segment, ...]
    side: Side = "output"

    @property
    def moves(self) -> bool:
        """Whether any stretch follows a group."""
        return any(segment.group is not None for segment in self.segments)

    def length(self, units: Mapping[str, int]) -> int:
        """Return its length in a network with so many units by group."""
        return sum(segment.length(units) for segment in self.segments)


@dataclass(frozen=True)
class Layout:
    """The axes of one array.

    Parameters
    ----------
    axes
        One for every axis of the array.
    blocks
        For the weight of a grouped convolution whose input channels move too: the number of blocks. The axes then are
        those of the dense weight, which is zero outside the blocks; the array holds only the blocks, so that its axis 1
        is shorter by that factor. 1 for everything else.
    """

    axes: tuple[Axis, ...]
    blocks: int = 1

    def shape(self, units: Mapping[str, int]) -> tuple[int, ...]:
        """Return the array's shape in a network with so many units by group."""
        lengths = [axis.length(units) for axis in self.axes]
        if self.blocks > 1:
            lengths[1] //= self.blocks
        return tuple(lengths)


@dataclass(frozen=True)
class Group:
    """Units that move together.

    Parameters
    ----------
    name
        What it is called in messages and results: the array that makes its units, without ``.weight``.
    size
        Number of units in the network that was traced; inside one unit of the parent, if it has one.
    order
        Its place in the order of computation, from 0.
    parent
        The group whose units its own lie in: what is inside an attention head follows its head. Units are then
        numbered (parent's unit, own unit), and may be renumbered differently inside every unit of the parent.
    actions
        What may be done to its units without changing any output; each was proved.
    resizable
        Whether networks may differ in its number of units.
    """

    name: str
    size: int
    order: int
    parent: str | None = None
    actions: tuple[Action, ...] = ("permute",)
    resizable: bool = True


@dataclass(frozen=True)
class Place:
    """A segment by where it stands: array, axis, and number of the segment on that axis."""

    array: str
    axis: int
    segment: int
    side: Side

    def __str__(self) -> str:
        return f"{self.array} axis {self.axis}"


@dataclass(frozen=True)
class Proof:
    """That random changes of every group left the outputs as they were.

    Parameters
    ----------
    digest
        `Symmetry.digest` of what was proved; a proof of anything else is worth nothing.
    deviation
        Largest difference of outputs seen, relative to their size.
    trials
        Number of random changes of each group.
    """

    digest: str
    deviation: float
    trials: int


def fixed_axes(shape: tuple[int, ...], side: Side = "output") -> tuple[Axis, ...]:
    """Return axes of an array of this shape that never move."""
    return tuple(Axis((Segment(None, inner=length),), side) for length in shape)
