"""Weights that checkpoints hold in parts (weight and spectral normalisation, pruning), merged as weights.

The weight of every model is computed from its parts, all are merged by the method of the tensor, and the parts that
stand for the result are written under their names (`consilience.networks.weight_parts`). One weight is in memory at a
time, in float64, for every model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checkpoints.buffers import TensorReaders
from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import MergeInputs
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.plan import MergedPart, TensorTask, Treatment
from consilience.checkpoints.stream import Stream
from consilience.checkpoints.tensor_reader import ArrayTensorReader, float64_reader
from consilience.checks import Array
from consilience.networks.weight_parts import WeightParts

ReadTensor = Callable[[Checkpoint, str], Array]
"""Gives a tensor of a checkpoint by its name, in float64."""
MoveUnits = Callable[[Array, str, int], Array]
"""Gives a weight with its units moved, by its name and the number of the model."""
_DOUBLE = "F64"


def merged_parts(treatments: Mapping[str, Treatment], weights: list[WeightParts]) -> dict[str, MergedPart]:
    """Return the parts of weights that are merged and not copied; the treatments of a weight's parts are the same."""
    return {
        name: MergedPart(weight, treatments[weight.main])
        for weight in weights
        if treatments[weight.main].method is not None
        for name in weight.names
    }


@dataclass(eq=False)
class WeightMerger:
    """Merges weights that are held in parts."""

    inputs: MergeInputs  # the checkpoints
    stream: Stream  # merges tensors
    read: ReadTensor  # gives a tensor
    move: MoveUnits  # gives a weight with the units of a model moved

    def __post_init__(self) -> None:
        self._last: tuple[str, Mapping[str, Array]] = ("", {})
        self.notes: dict[str, str] = {}

    def part(self, task: TensorTask) -> TensorReaders:
        """Return the merged values of a part of a weight, in the type of the output."""
        assert task.part is not None  # noqa: S101  (asked of parts only)
        weight = task.part.weight
        if self._last[0] != weight.name:  # parts of a weight follow one another, as a rule
            self._last = (weight.name, self._merged(task.part))
        values = np.ascontiguousarray(self._last[1][task.name], dtype=np.float64).reshape(-1)
        written = np.empty(task.nbytes, dtype=np.uint8)
        FLOAT_TYPES[task.dtype].encode(values.copy(), written)
        return TensorReaders((ArrayTensorReader(written, task.dtype, task.name),))

    def _merged(self, part: MergedPart) -> Mapping[str, Array]:
        """Return the parts of the merged weight by name."""
        weight, base = part.weight, self.inputs.base
        models = self.inputs.models[: len(part.treatment.weights)]
        parts_of_models = [{name: self.read(model, name) for name in weight.names} for model in models]
        weights = [self.move(weight.combine(parts), weight.name, j) for j, parts in enumerate(parts_of_models)]
        method = part.treatment.method
        readers = TensorReaders(
            tuple(float64_reader(values, model.name) for values, model in zip(weights, models, strict=True))
        )
        if method is not None and (method.needs_base or method.takes_base) and base is not None:
            readers = replace(readers, base=float64_reader(combined(base, weight, self.read), base.name))
        task = TensorTask(weight.name, weights[0].shape, _DOUBLE, weights[0].nbytes, part.treatment)
        merged = self.stream.merged_bytes(task, readers).view(np.float64).reshape(task.shape)
        split = weight.split(merged, parts_of_models)
        if split.note:
            self.notes[weight.name] = split.note
        return split.parts


def combined(checkpoint: Checkpoint, weight: WeightParts, read: ReadTensor) -> Any:
    """Return the weight that a checkpoint holds in parts, in float64."""
    return weight.combine({name: read(checkpoint, name) for name in weight.names})
