"""Methods that look at the weight of a linear map as a matrix: one tensor of all models in memory at a time.

    theta = base + scaling * merged(D_1, ..., D_J),      D_k (m, n) the change of model k as a matrix

with m outputs and n inputs; the weight of a convolution is one of (outputs, everything else). Of vectors, embeddings,
heads and positions the weighted mean is taken. Query, key and value in one tensor are three matrices. Matrices that a
checkpoint stores with the inputs first (GPT-2) are transposed before and after.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorMethod, TensorSetting
from consilience.checks import Array, is_finite
from consilience.core.methods import Requirement
from consilience.errors import InputError

_NO_MAP = re.compile(
    r"embed|wte|wpe|position|lm_head|classifier|score|shared|text_projection|token_type", re.IGNORECASE
)
"""Parts of the names of tensors that are tables of rows, or heads of a task."""
_WEIGHT = re.compile(r"(^|[._])weight$")
_FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|Wqkv)\.weight)$")
"""Names of weights that hold query, key and value, one after another."""
RANK_CUT = 1e-10
"""Singular values below this share of the largest are rounding, their directions arbitrary (in 64 bits)."""


def is_linear_map(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is the weight of a linear map or of a convolution, by name and shape.

    Examples
    --------
    >>> is_linear_map("layers.0.mlp.up_proj.weight", (8, 4)), is_linear_map("embed_tokens.weight", (100, 4))
    (True, False)
    """
    return len(shape) > 1 and prod(shape) > 0 and _WEIGHT.search(name) is not None and not _NO_MAP.search(name)


def stores_inputs_first(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a checkpoint stores matrices as (inputs, outputs): biases are as long as their rows.

    Examples
    --------
    >>> stores_inputs_first({"c_fc.weight": (4, 16), "c_fc.bias": (16,)})
    True
    """
    for name, shape in shapes.items():
        bias = shapes.get(f"{name.removesuffix('weight')}bias", ())
        if name.endswith(".weight") and len(shape) == 2 and shape[0] != shape[1] and len(bias) == 1:
            return bias[0] == shape[1]
    return False


def is_turned(name: str, shapes: Mapping[str, tuple[int, ...]], inputs_first: bool) -> bool:
    """Return whether a weight is stored with its inputs first, where a checkpoint stores matrices so: not convolutions.

    `inputs_first` is what `stores_inputs_first` says of the checkpoint.

    Examples
    --------
    >>> shapes = {"c_fc.weight": (4, 16), "c_fc.bias": (16,), "conv.weight": (8, 3, 2, 2), "conv.bias": (8,)}
    >>> is_turned("c_fc.weight", shapes, True), is_turned("conv.weight", shapes, True)
    (True, False)
    """
    return inputs_first and len(shapes[name]) == 2 and f"{name.removesuffix('weight')}bias" in shapes


@dataclass(eq=False)
class _Gathered:
    """The same entries of a tensor in all models, as they come in from its blocks."""

    start: int  # number of the first entry
    values: Array  # (J, entries of the part)
    size: int  # of the tensor

    def __add__(self, other: _Gathered) -> _Gathered:
        """Return both together; room for the whole tensor is made once."""
        whole = self
        if self.values.shape[1] < self.size:
            whole = _Gathered(0, np.empty((len(self.values), self.size)), self.size)
            whole.values[:, self.start : self.start + self.values.shape[1]] = self.values
        whole.values[:, other.start : other.start + other.values.shape[1]] = other.values
        return whole


@dataclass(frozen=True)
class MatrixMethod(TensorMethod):
    """A method that needs the weight of a linear map whole.

    Facts that it is given: "inputs_first", whether the tensor is stored so; "moments", by model what is known of its
    inputs (groups, n, n), for methods that use it.
    """

    whole_matrices: ClassVar[bool] = True

    @property
    def divides_by_sum(self) -> bool:
        """Of what is no matrix the weighted mean is taken."""
        return True

    @property
    def surveys(self) -> int:
        """One pass, which gathers the tensor."""
        return 1

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Any:
        """Return the entries of a block, where the tensor is a linear map."""
        if not self.is_matrix(setting, facts):
            return np.zeros(0)
        values = np.stack(block.models).astype(np.float64, copy=False)
        if block.base is not None:
            values -= block.base
        return _Gathered(block.start, values, setting.size)

    def is_matrix(self, setting: TensorSetting, facts: Facts) -> bool:
        """Return whether a tensor is looked at as a matrix."""
        return is_linear_map(setting.tensor, setting.shape)

    def conclude(self, number: int, total: Any, setting: TensorSetting, facts: Facts) -> Facts:
        """Return what is added to the origin, as "change" (size,)."""
        if not isinstance(total, _Gathered):
            return facts
        matrices = total.values.reshape(len(total.values), setting.shape[0], -1)
        turned = bool(facts.get("inputs_first"))
        if turned:
            matrices = matrices.transpose(0, 2, 1)
        outputs, inputs = matrices.shape[1:]
        n_parts = 3 if _FUSED.search(setting.tensor) and outputs == 3 * inputs else 1
        try:
            merged = [self.merged(part, setting, facts) for part in np.split(matrices, n_parts, axis=1)]
        except np.linalg.LinAlgError as error:
            text = f"its decomposition did not end ({error})"
            raise InputError(setting.tensor, text, "give another method for it", "E-NUMBER") from error
        change = np.concatenate(merged)
        return {**facts, "change": np.ascontiguousarray(change.T if turned else change).reshape(-1)}

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return origin + scaling * change (n,)."""
        change: Any
        if "change" in facts:
            change = facts["change"][block.start : block.start + len(block.models[0])]
        else:
            origin = 0.0 if block.base is None else block.base
            pairs = zip(setting.normalised_weights, block.models, strict=True)
            change = sum((weight * (model - origin) for weight, model in pairs if weight), start=np.float64(0.0))
        return self.put_back(block, change)

    def put_back(self, block: TensorBlock, merged: Any) -> Floats:
        """Return the merged entries (n,), where there is no base as they are."""
        return np.asarray(merged)

    @abstractmethod
    def merged(self, matrices: Array, setting: TensorSetting, facts: Facts) -> Array:
        """Return one matrix (m, n), from those of the models (J, m, n)."""


@dataclass(frozen=True)
class ChangeMatrixMethod(MatrixMethod):
    """A merge of the changes of a common start, as matrices."""

    needs_base: ClassVar[bool] = True
    needs: ClassVar[str] = "checkpoints trained from one start, and that start as the base"

    scaling: float = 1.0  # the factor of the combined change

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("scaling", is_finite(self.scaling), "a number")

    def put_back(self, block: TensorBlock, merged: Any) -> Floats:
        """Return base + scaling * change (n,)."""
        assert block.base is not None  # noqa: S101  (plans give one to every method that needs it)
        return np.asarray(block.base + (merged if self.scaling == 1.0 else merged * self.scaling))


def triples(matrix: Array, count: int | None = None) -> tuple[Array, Array, Array]:
    """Return the leading singular triples U (m, r), s (r,) and V (n, r), those that are rounding left out.

    `count` is how many at most; None for all.
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    kept = int(np.count_nonzero(values > RANK_CUT * values[0])) if values[0] > 0 else 0
    kept = kept if count is None else min(kept, count)
    return left[:, :kept], values[:kept], right[:kept].T


def partial_isometry(matrix: Array) -> Array:
    """Return the nearest matrix (m, r) whose singular values are 1, or 0 where the matrix's are rounding."""
    if not matrix.size:
        return matrix
    left, _, right = triples(matrix)
    isometry: Array = left @ right.T
    return isometry
