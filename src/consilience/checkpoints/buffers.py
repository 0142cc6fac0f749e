"""Buffers of a streaming merge: the readers and the memory of one piece of a tensor, and the bound on all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from consilience.checkpoints.methods.base import BLOCK_ENTRIES, Floats
from consilience.checkpoints.numbers import FLOAT_TYPES, FloatType
from consilience.checkpoints.plan import TensorTask
from consilience.checkpoints.tensor_reader import ByteArray, TensorReader
from consilience.errors import Problem

PIECE_ENTRIES = 8 * BLOCK_ENTRIES
"""Entries of a tensor that are read at once, unless many models share the memory. Chosen by hand; no byte depends on
it."""

N_PIECE_BUFFERS = 4
"""Pieces in flight at once: one is read, some are merged, one is written. Chosen by hand; no byte depends on it."""

MAX_BUFFER_BYTES = 128 * 2**20
"""Bytes of all buffers together, where a block of each model fits into them. Chosen by hand: two models of bfloat16
take about 70 MB, fifty 350 MB (docs/guides/checkpoints.md)."""

MERGE_ENTRY_BYTES = 8
"""Bytes of an entry that is written, at most (float64)."""


@dataclass(frozen=True, eq=False)
class TensorReaders:
    """One tensor in all models, in the base and in the Fisher diagonals."""

    models: tuple[TensorReader, ...]  # (J,), the tensor in every model
    base: TensorReader | None = None  # the tensor in the common start
    information: tuple[TensorReader, ...] = ()  # (J,), its Fisher diagonal in every model

    @property
    def all(self) -> tuple[TensorReader, ...]:
        """All readers: models, base, Fisher diagonals, in this order."""
        return (*self.models, *(() if self.base is None else (self.base,)), *self.information)


def needs_float64(task: TensorTask, readers: TensorReaders) -> bool:
    """Return whether a tensor is computed in 64 bits: where the method asks for it, or any type has more than 16.

    Of types up to 16 bits, a mean in 32 bits has an error of 2**-24 of its terms before the one rounding at 2**-9 or
    2**-12 (docs/adr/0015).
    """
    method = task.treatment.method
    types = [FLOAT_TYPES[task.dtype], *(FLOAT_TYPES[reader.dtype] for reader in readers.all)]
    return method is None or method.double or any(float_type.itemsize > 2 for float_type in types)


def fits_single(readers: TensorReaders) -> bool:
    """Return whether all that is read has at most 32 bits."""
    return all(FLOAT_TYPES[reader.dtype].itemsize <= 4 for reader in readers.all)


@dataclass(eq=False)
class PieceBuffers:
    """Buffers of one piece of a tensor: its bytes in every reader, and the bytes that are written."""

    read: list[ByteArray] = field(default_factory=list)
    written: ByteArray = field(default_factory=lambda: np.empty(0, dtype=np.uint8))


def grown(buffer: ByteArray, length: int) -> ByteArray:
    """Return a buffer that is long enough: this one, or a new one."""
    return buffer if len(buffer) >= length else np.empty(length, dtype=np.uint8)


def all_finite(values: Floats) -> bool:
    """Return whether all values are finite; the largest and the smallest show it."""
    return not len(values) or (isfinite(values.max()) and isfinite(values.min()))


def all_stored_finite(float_type: FloatType, stored: ByteArray) -> bool:
    """Return whether no stored number is infinite."""
    return bool(np.isfinite(stored.view(float_type.dtype)).all())


def non_finite_problem(tensor: str, model: str) -> Problem:
    """Return the problem of a tensor with values that no model should have."""
    remedy = "leave this model out, or copy the tensor from another"
    return Problem(model, f"{tensor} has NaN or infinite values", remedy, "E-NUMBER")


def piece_length(entry_bytes: int, max_entries: int = PIECE_ENTRIES) -> int:
    """Return the entries of a piece: as many whole blocks as the buffers hold, at least one.

    `entry_bytes` are those of an entry in all readers together.

    Examples
    --------
    >>> piece_length(4) // BLOCK_ENTRIES, piece_length(400) // BLOCK_ENTRIES
    (8, 1)
    """
    block_bytes = (entry_bytes + MERGE_ENTRY_BYTES) * BLOCK_ENTRIES
    return min(max_entries, max(1, MAX_BUFFER_BYTES // (N_PIECE_BUFFERS * block_bytes)) * BLOCK_ENTRIES)


def buffer_bytes(entry_bytes: int, n_readers: int, threads: int) -> int:
    """Return the bytes that buffers take at most.

    `entry_bytes` are those of an entry in all readers together: models, base and Fisher diagonals.
    """
    pieces = N_PIECE_BUFFERS * piece_length(entry_bytes) * (entry_bytes + MERGE_ENTRY_BYTES)
    # Each thread has a block in 64 bits of every reader, as much again for what a method makes of it, and a few more.
    blocks = threads * BLOCK_ENTRIES * 8 * (2 * n_readers + 6)
    return pieces + blocks
