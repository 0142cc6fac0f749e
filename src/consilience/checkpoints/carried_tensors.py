"""Tensors that a merge carries over: integers, truth values, and constants with infinities.

They have no mean, so all models must have the same; counters of batches take the largest count (as in a fusion of
networks in memory, `networks.carried_arrays`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checkpoints.buffers import TensorReaders, all_finite, non_finite_problem
from consilience.checkpoints.numbers import FLOAT_TYPES, FloatType
from consilience.checkpoints.plan import OutputShard, TensorTask
from consilience.checkpoints.tensor_reader import ByteArray, TensorReader
from consilience.errors import InputError, Problem
from consilience.files.arrays import DTYPES
from consilience.networks.carried_arrays import CARRIED_REMEDY
from consilience.networks.entry_names import is_counter, is_extra_state

_COMPARED_BYTES = 2**22
"""Bytes of a tensor that are compared at once. Chosen by hand."""

_GLANCE_BYTES = 2**12
"""Bytes by which trained tensors are told to differ before all are compared. Chosen by hand."""


def with_carried_tensors(
    shards: Sequence[OutputShard], readers_of: Callable[[TensorTask], TensorReaders]
) -> list[OutputShard]:
    """Return the files of the output with the models that counters are copied from.

    Raises InputError, naming all tensors of integers and truth values that are not the same in all models.
    """
    problems: list[Problem] = []

    def carried(task: TensorTask) -> TensorTask:
        if not task.compared or is_extra_state(task.name):
            return task
        first, *others = readers_of(task).models
        have_one_type = {reader.dtype for reader in others} <= {first.dtype}
        if is_counter(task.name) and task.size == 1 and have_one_type:
            counts = [int(_integers(reader, 1)[0]) for reader in (first, *others)]
            source = max(range(len(counts)), key=counts.__getitem__)
            return replace(task, treatment=replace(task.treatment, source=source))
        for other in others:
            same = (
                _are_same(first, other, task.nbytes)
                if have_one_type
                else np.array_equal(_integers(first, task.size), _integers(other, task.size))
            )
            if not same:
                text = f"{task.name} is not the same as in {first.name}, and {first.dtype} has no mean"
                problems.append(
                    Problem(other.name, text, f"{CARRIED_REMEDY}, or copy one model's by a pattern", "E-MISMATCH")
                )
        return task

    result = [replace(shard, tasks=tuple(map(carried, shard.tasks))) for shard in shards]
    if problems:
        raise InputError(problems)
    return result


def is_constant(readers: TensorReaders, stored: Sequence[ByteArray]) -> bool:
    """Return whether a piece of a tensor is to the bit the same in all models and in the base, and not finite.

    `stored` is the piece in every reader.
    """
    compared = len(readers.models) + (readers.base is not None)
    first, *others = stored[:compared]
    if not others or len({reader.dtype for reader in readers.all[:compared]}) > 1:
        return False
    if not all(np.array_equal(first[:_GLANCE_BYTES], other[:_GLANCE_BYTES]) for other in others):
        return False
    return all(np.array_equal(first, other) for other in others) and not all_finite(
        _decoded(first, readers.all[0].dtype)
    )


def convert(stored: ByteArray, stored_type: FloatType, written_type: FloatType, into: ByteArray) -> bool:
    """Write the numbers of some bytes as another type; return whether it has them: NaN stays with its own type."""
    if stored_type == written_type:
        into[:] = stored
        return True
    values = np.empty(len(stored) // stored_type.itemsize, dtype=np.float64)
    stored_type.decode(stored, values)
    if np.isnan(values).any() or written_type.saturates:
        return False
    written_type.encode(values, into)
    return True


def refuse_other_constant(name: str, models: Sequence[TensorReader], size: int) -> None:
    """Raise for a tensor that has NaN or infinite values and is not to the bit the same in all models.

    Raises InputError, naming every model.
    """
    first, *others = models
    nbytes = size * FLOAT_TYPES[first.dtype].itemsize  # of one type, or no piece would have been the same
    if not all(_are_same(first, other, nbytes) for other in others):
        raise InputError(non_finite_problem(name, model.name) for model in models)


def _are_same(first: TensorReader, other: TensorReader, nbytes: int) -> bool:
    """Return whether a tensor of two models is the same to the bit."""
    pairs = zip(_pieces(first, nbytes), _pieces(other, nbytes), strict=True)
    return all(np.array_equal(one, two) for one, two in pairs)


def _pieces(reader: TensorReader, nbytes: int) -> Iterator[ByteArray]:
    """Yield all bytes of a tensor, some at a time."""
    for start in range(0, nbytes, _COMPARED_BYTES):
        into = np.empty(min(_COMPARED_BYTES, nbytes - start), dtype=np.uint8)
        if (hashing := reader.fill(into, start)) is not None:
            hashing.result()
        yield into


def _integers(reader: TensorReader, size: int) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """Return all entries (size,) of a tensor of integers or truth values."""
    dtype = np.dtype(DTYPES[reader.dtype])
    return np.concatenate([np.empty(0, np.uint8), *_pieces(reader, size * dtype.itemsize)]).view(dtype)


def _decoded(stored: ByteArray, dtype: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = np.empty(len(stored) // FLOAT_TYPES[dtype].itemsize, dtype=np.float64)
    FLOAT_TYPES[dtype].decode(stored, values)
    return values
