"""The pieces that go through a stream: which bytes belong together, where they are kept, and how much that takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from consilience.checkpoints.methods.base import BLOCK, Floats
from consilience.checkpoints.numbers import FLOATS, FloatType
from consilience.checkpoints.plan import Task
from consilience.checkpoints.tensor_reader import Bytes, Strip

PIECE = 8 * BLOCK
"""Entries of a piece, unless many models share the memory."""

SLOTS = 4
"""Pieces on their way at once."""

BUFFERS = 128 * 2**20
"""Bytes of all buffers together, where a block of each model fits into them."""


@dataclass(frozen=True, eq=False)
class Strips:
    """One tensor in all models, in the base and in Fisher diagonals."""

    models: tuple[Strip, ...]
    base: Strip | None = None
    information: tuple[Strip, ...] = ()

    @property
    def all(self) -> tuple[Strip, ...]:
        """All of them, models first."""
        return (*self.models, *(() if self.base is None else (self.base,)), *self.information)


def double(task: Task, strips: Strips) -> bool:
    """Return whether a tensor is calculated in 64 bits: where the method asks, or anything has more than 16."""
    method = task.treatment.method
    types = [FLOATS[task.dtype], *(FLOATS[strip.dtype] for strip in strips.all)]
    return method is None or method.double or any(one.itemsize > 2 for one in types)


@dataclass(eq=False)
class Slot:
    """Buffers of one piece: what was read, by strip, and what is written."""

    read: list[Bytes] = field(default_factory=list)
    written: Bytes = field(default_factory=lambda: np.empty(0, dtype=np.uint8))


def of_length(buffer: Bytes, length: int) -> Bytes:
    """Return a buffer that is long enough: this one, or a new one."""
    return buffer if len(buffer) >= length else np.empty(length, dtype=np.uint8)


def finite(values: Floats) -> bool:
    """Return whether all values are finite; the largest and the smallest show it."""
    return not len(values) or (isfinite(values.max()) and isfinite(values.min()))


def finite_patterns(kind: FloatType, stored: Bytes) -> bool:
    """Return whether no stored number is infinite."""
    patterns = stored.view(kind.bits) & (2 ** (8 * kind.itemsize - 1) - 1)
    return bool(patterns.max() <= kind.largest)


def not_finite(tensor: str, model: str) -> str:
    """Return what is said of a tensor with values that no model should have."""
    return f"{model}: {tensor} has NaN or infinite values; leave this model out, or copy the tensor from another"


def piece_length(width: int, most: int = PIECE) -> int:
    """Return the entries of a piece: as many as the buffers hold of tensors of so many bytes an entry, at most `most`.

    Examples
    --------
    >>> piece_length(4) // BLOCK, piece_length(400) // BLOCK
    (8, 1)
    """
    return min(most, max(1, BUFFERS // (SLOTS * (width + 8) * BLOCK)) * BLOCK)


def memory_bound(width: int, strips: int, threads: int) -> int:
    """Return the bytes that buffers take at most.

    Parameters
    ----------
    width
        Bytes of an entry in all strips together.
    strips
        Models, base and Fisher diagonals.
    threads
        How many calculate.
    """
    return SLOTS * piece_length(width) * (width + 8) + threads * BLOCK * 8 * (2 * strips + 6)
