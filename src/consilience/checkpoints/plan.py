"""Merge plans: the method, the type and the output file of every tensor, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from consilience.checkpoints.header import StoredTensor, header_bytes
from consilience.checkpoints.inputs import MergeInputs
from consilience.checkpoints.methods.average import TensorAverage
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.numbers import COMPLEX_TYPES, FLOAT_TYPES
from consilience.networks.weight_parts import WeightParts


@dataclass(frozen=True)
class Treatment:
    """How a tensor is merged: a method and weights, or a copy of one model's tensor."""

    method: TensorMethod | None  # the method; None for a copy
    weights: tuple[float, ...]  # (J,), weight of each model that the tensor is merged of: of the first J
    source: int = 0  # number of the model that is copied


@dataclass(frozen=True)
class MergedPart:
    """A part of a weight that is merged as a whole."""

    weight: WeightParts  # the weight and its parts
    treatment: Treatment  # how the weight is merged


@dataclass(frozen=True)
class TensorTask:
    """One tensor of the output."""

    name: str  # its name, the same in all models
    shape: tuple[int, ...]  # its shape
    dtype: str  # type in the output, in the words of safetensors
    nbytes: int  # number of its bytes in the output
    treatment: Treatment  # how it is merged
    compared: bool = False  # whether a copied tensor (integers, truth values) must be the same in all models
    # The weight that the tensor is a part of, after whose merge it is copied from memory.
    part: MergedPart | None = None
    # Type of a complex tensor in the output; shape and type are then those of its pairs of real numbers. Default: None,
    # for any other tensor.
    complex_type: str | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)


@dataclass(frozen=True)
class OutputShard:
    """One file of the output, and its tensors in the order of their bytes."""

    name: str
    tasks: tuple[TensorTask, ...]
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})  # of the file

    @property
    def header(self) -> bytes:
        """Bytes of the file before those of its first tensor."""
        entries = [
            (task.name, task.dtype, task.shape, task.nbytes)
            if task.complex_type is None
            else (task.name, task.complex_type, task.shape[:-1], task.nbytes)
            for task in self.tasks
        ]
        return header_bytes(entries, self.metadata)

    @property
    def nbytes(self) -> int:
        """Length of the file in bytes."""
        return len(self.header) + sum(task.nbytes for task in self.tasks)


@dataclass(frozen=True)
class MergePlan:
    """What a merge does, from headers alone."""

    shards: tuple[OutputShard, ...]  # the files of the output
    # Bytes that are read and written; a tensor that is read more than once (for a threshold or an angle) counts once.
    bytes_in: int
    bytes_out: int
    memory: int  # bytes that are allocated at most, beside what Python and NumPy take anyway
    notes: tuple[str, ...] = field(default=())  # what a user should know of the merge, a line each

    @property
    def tensors(self) -> int:
        """Number of tensors."""
        return sum(len(shard.tasks) for shard in self.shards)


def plan_tasks(
    inputs: MergeInputs,
    treatments: Mapping[str, Treatment],
    dtype: str | None,
    parts: Mapping[str, MergedPart] = MappingProxyType({}),
) -> list[TensorTask]:
    """Return what is done for every tensor, in the order of the first model's bytes.

    The models were checked against one another. `dtype` is in the words of safetensors; None keeps the first model's
    types. `parts` are the tensors that are parts of a weight.
    """
    return [_task(inputs, name, treatments[name], dtype, parts.get(name)) for name in inputs.models[0].tensors]


def _task(
    inputs: MergeInputs, name: str, treatment: Treatment, dtype: str | None, part: MergedPart | None
) -> TensorTask:
    """Return what is done for one tensor."""
    stored = inputs.models[0].tensors[name][1]
    if part is not None:
        copy = Treatment(None, treatment.weights)
        return replace(_floating_task(name, stored, dtype or stored.dtype, copy), part=part)
    is_copied = treatment.method is None
    if stored.dtype in COMPLEX_TYPES and not is_copied:
        # No type of the output but their own holds complex numbers.
        task = _floating_task(name, stored.real_pairs, COMPLEX_TYPES[stored.dtype], treatment)
        return replace(task, complex_type=stored.dtype)
    is_floating = stored.dtype in FLOAT_TYPES
    if is_copied or not is_floating:
        # Copied: on request, or because integers and truth values have no mean (then the first model's).
        number = treatment.source if is_copied else 0
        source = inputs.models[number].tensors[name][1]
        if dtype is None or source.dtype not in FLOAT_TYPES or source.dtype == dtype:
            copy, compared = Treatment(None, treatment.weights, number), not is_floating and not is_copied
            return TensorTask(name, source.shape, source.dtype, source.nbytes, copy, compared)
    if is_copied:  # in another type: the mean with all weight on one model
        weights = tuple(float(number == treatment.source) for number in range(len(treatment.weights)))
        treatment = Treatment(TensorAverage(), weights)
    return _floating_task(name, stored, dtype or stored.dtype, treatment)


def _floating_task(name: str, stored: StoredTensor, dtype: str, treatment: Treatment) -> TensorTask:
    return TensorTask(name, stored.shape, dtype, stored.size * FLOAT_TYPES[dtype].itemsize, treatment)


def assign_shards(tasks: Sequence[TensorTask], shard_bytes: int, single: str | None) -> tuple[OutputShard, ...]:
    """Return the files of the output, filled one after another; a tensor larger than a file has one to itself.

    In a file the tensors of wider numbers come first, so that each starts at a multiple of its width.

    `single` is the name of the only file; None for as many as are needed.
    """
    groups: list[list[TensorTask]] = [[]]
    group_bytes = 0
    for task in tasks:
        # A tensor that does not fit opens a new file; an empty file takes it whatever its length.
        if single is None and groups[-1] and group_bytes + task.nbytes > shard_bytes:
            groups.append([])
            group_bytes = 0
        groups[-1].append(task)
        group_bytes += task.nbytes
    # Names as save_pretrained gives them, by which readers find the files.
    if single is not None or len(groups) == 1:
        names = [single or "model.safetensors"]
    else:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    return tuple(
        OutputShard(name, tuple(sorted(group, key=lambda task: -_itemsize(task))))
        for name, group in zip(names, groups, strict=True)
    )


def _itemsize(task: TensorTask) -> int:
    return task.nbytes // task.size if task.size else 1
