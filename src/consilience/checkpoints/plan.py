"""What a merge will do with every tensor, from headers alone: the plan, or everything that is in the way of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from consilience.checkpoints.header import Stored, header_bytes
from consilience.checkpoints.inputs import Ingredients
from consilience.checkpoints.methods.average import TensorAverage
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.numbers import FLOATS


@dataclass(frozen=True)
class Treatment:
    """How tensors are merged: a method and weights, or a copy of one model's.

    Parameters
    ----------
    method
        None for a copy.
    weights
        How much each model counts (J,).
    source
        Number of the model that is copied.
    """

    method: TensorMethod | None
    weights: tuple[float, ...]
    source: int = 0


@dataclass(frozen=True)
class Task:
    """One tensor of the output.

    Parameters
    ----------
    name, shape
        As in the models.
    dtype
        Of the output, as safetensors calls it.
    treatment
        How it is made.
    compared
        Whether a copied tensor (integers, truth values) is compared with those of the other models.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    treatment: Treatment
    compared: bool = False

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """One file of the output, and its tensors in the order of their bytes."""

    name: str
    tasks: tuple[Task, ...]

    @property
    def header(self) -> bytes:
        """What the file starts with."""
        listed = [(task.name, task.dtype, task.shape, task.nbytes) for task in self.tasks]
        return header_bytes(listed, {"format": "pt"})

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return len(self.header) + sum(task.nbytes for task in self.tasks)


@dataclass(frozen=True)
class Plan:
    """What a merge does, known from headers.

    Parameters
    ----------
    shards
        The files of the output.
    bytes_in, bytes_out
        What is read and written; a tensor that is read more than once (to find a threshold or an angle) counts once.
    memory
        Bytes that are allocated at most, beside what Python and NumPy take anyway.
    notes
        What one should know of it.
    """

    shards: tuple[Shard, ...]
    bytes_in: int
    bytes_out: int
    memory: int
    notes: tuple[str, ...] = field(default=())

    @property
    def tensors(self) -> int:
        """Number of tensors."""
        return sum(len(shard.tasks) for shard in self.shards)


def planned_tasks(ingredients: Ingredients, treatments: Mapping[str, Treatment], dtype: str | None) -> list[Task]:
    """Return what is done for every tensor, in the order of the first model's bytes.

    Parameters
    ----------
    ingredients
        The models, already checked against one another.
    treatments
        By tensor.
    dtype
        Of floating tensors, as safetensors calls it; None keeps the first model's.
    """
    tasks = []
    for name, (_, stored) in ingredients.models[0].tensors.items():
        treatment = treatments[name]
        floating = stored.dtype in FLOATS
        if treatment.method is None or not floating:
            source = ingredients.models[treatment.source if treatment.method is None else 0].tensors[name][1]
            kept = dtype is None or source.dtype not in FLOATS or source.dtype == dtype
            if kept:
                copied = Treatment(None, treatment.weights, treatment.source if treatment.method is None else 0)
                compared = not floating and treatment.method is not None
                tasks.append(Task(name, source.shape, source.dtype, source.nbytes, copied, compared))
                continue
        if treatment.method is None:  # a copy in other numbers is the mean of which only one counts
            only = tuple(float(number == treatment.source) for number in range(len(ingredients.models)))
            treatment = Treatment(TensorAverage(), only)
        tasks.append(_floating(name, stored, dtype or stored.dtype, treatment))
    return tasks


def _floating(name: str, stored: Stored, dtype: str, treatment: Treatment) -> Task:
    return Task(name, stored.shape, dtype, stored.size * FLOATS[dtype].itemsize, treatment)


def sharded(tasks: Sequence[Task], shard_bytes: int, single: str | None) -> tuple[Shard, ...]:
    """Return the files: filled one after another, a tensor larger than a file has one to itself.

    In a file the tensors of wider numbers come first, so that each starts at a multiple of its width.

    Parameters
    ----------
    tasks
        The tensors.
    shard_bytes
        Bytes of tensors in a file, at most.
    single
        Name of the only file; None for as many as it takes.
    """
    groups: list[list[Task]] = [[]]
    filled = 0
    for task in tasks:
        if single is None and groups[-1] and filled + task.nbytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(task)
        filled += task.nbytes
    if single is not None or len(groups) == 1:
        names = [single or "model.safetensors"]
    else:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    return tuple(
        Shard(name, tuple(sorted(group, key=lambda task: -_width(task))))
        for name, group in zip(names, groups, strict=True)
    )


def _width(task: Task) -> int:
    return task.nbytes // task.size if task.size else 1
