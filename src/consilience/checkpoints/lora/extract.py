"""Extraction of an adapter from a fine-tune: the change of every linear map, in factors of a low rank.

D = W - W_base = U S V^T is cut to its leading singular values, B = U sqrt(S) and A = sqrt(S) V^T, which is the nearest
product of that rank; each module's error is stated. Changes of biases go into those of B; whatever else changed, such
as norms and embeddings, is saved whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from consilience.checkpoints.buffers import TensorReaders
from consilience.checkpoints.card import hub_name, merge_provenance, short_name
from consilience.checkpoints.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Checkpoint, open_checkpoint
from consilience.checkpoints.inputs import MergeInputs
from consilience.checkpoints.lora.config import merged_config
from consilience.checkpoints.lora.factors import BIAS, PREFIX, Losses, as_rank, factorised, squared_change
from consilience.checkpoints.lora.folder import streaming, write_records
from consilience.checkpoints.lora.plan import AS_IT_IS
from consilience.checkpoints.methods.matrices import is_linear_map, is_turned, stores_inputs_first
from consilience.checkpoints.numbers import FLOAT_TYPES, Floats, rounded_to, type_in_files
from consilience.checkpoints.output import (
    copy_companions_of,
    merge_identity,
    open_partial_output,
    publish,
    refuse_full_disk,
    refuse_output,
)
from consilience.checkpoints.plan import TensorTask, assign_shards
from consilience.checkpoints.request import compare_inputs, with_common_names
from consilience.checkpoints.tensor_reader import InputFiles, float64_reader, tensor_entries, whole_tensor
from consilience.checks import Json
from consilience.errors import InputError, OptionError

_CHUNK = 2**22
"""Entries of a tensor that are compared at once. Chosen by hand; a norm's last bits depend on it."""


@dataclass(frozen=True, eq=False)
class Extraction:
    """An adapter that was extracted.

    Parameters
    ----------
    output : Path
        Its folder.
    errors : mapping of str to float
        By module, what its rank and rounding lose, over the size of its change.
    error : float
        The same of all modules together.
    notes : sequence of str
        What a user should know, a line each.
    """

    output: Path
    errors: dict[str, float]
    error: float
    notes: tuple[str, ...]


def extract_adapter(
    model: str | Path,
    base: str | Path,
    output: str | Path,
    *,
    rank: int | float = 16,
    rest: Literal["save", "drop"] = "save",
    dtype: str = "float32",
    allow_differences: bool = False,
    overwrite: bool = False,
) -> Extraction:
    """Write the LoRA adapter nearest to what a fine-tune changed in its base, as peft reads it.

    Parameters
    ----------
    model, base : path
        The fine-tune, and the checkpoint that it was trained from.
    output : path
        The folder of the adapter.
    rank : int or float
        Rank of every module, at most; or a share of energy between 0 and 1: every module gets the smallest rank that
        keeps this share of the squared singular values of its change. Default: 16.
    rest : {"save", "drop"}
        Whether what has no factors and has changed (norms, embeddings, heads) is saved whole. Default: ``"save"``.
    dtype : str
        Type of the adapter. Default: ``"float32"``.
    allow_differences : bool
        Whether configurations that differ are noted instead of refused. Default: False.
    overwrite : bool
        Whether an output that exists may be replaced. Default: False.

    Returns
    -------
    Extraction

    Raises
    ------
    InputError
        For checkpoints that do not fit together, or do not differ.
    OptionError
        For options that do not exist.
    """
    rank = as_rank(rank)
    if rest not in ("save", "drop"):
        raise OptionError("rest", f"expected 'save' or 'drop', found {rest!r}")
    stored_type = type_in_files(dtype)
    target = Path(output)
    refuse_output(target, [Path(model), Path(base)], overwrite)
    inputs = MergeInputs((open_checkpoint(Path(model)),), open_checkpoint(Path(base)))
    inputs, notes, problems = with_common_names(inputs, None)
    problems += inputs.problems()
    differences, noted = compare_inputs(inputs, allow_differences)
    if problems := [*problems, *differences]:
        raise InputError(problems)
    return _Work(inputs, rank, rest == "save", stored_type, [*notes, *noted]).run(target)


@dataclass(eq=False)
class _Work:
    """An extraction under way."""

    inputs: MergeInputs
    rank: int | float  # or share of energy
    saves_rest: bool
    dtype: str
    notes: list[str]
    tensors: dict[str, Floats] = field(default_factory=dict)  # of the adapter, in float64
    ranks: dict[str, int] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    whole: list[str] = field(default_factory=list)  # tensors that are saved as they are

    @property
    def model(self) -> Checkpoint:
        return self.inputs.models[0]

    @property
    def base(self) -> Checkpoint:
        assert self.inputs.base is not None  # noqa: S101  (`extract_adapter` opened one)
        return self.inputs.base

    def run(self, target: Path) -> Extraction:
        """Decompose all changes, and put the folder in the output's place."""
        identity = merge_identity([self.rank, self.dtype, [file.header.digest for file in self.inputs.files]])
        with open_partial_output(target, identity, resume=False) as partial_output:
            with streaming(self.inputs) as (input_files, stream):
                self._decompose(input_files)
                (shard,) = assign_shards([self._task(name) for name in self.tensors], 0, ADAPTER_WEIGHTS)
                refuse_full_disk(target, shard.nbytes)
                readers_of = partial(self._readers_of, input_files)
                path = partial_output.folder / shard.name
                digest = stream.write_shard(shard, path, readers_of, lambda _: {}, lambda _: 0, lambda _: None)
                digests = input_files.digests()
                input_files.refuse_changed()
            self.notes += copy_companions_of(self.model, partial_output.folder, {ADAPTER_CONFIG, "config.json"})
            recipe = {"method": "extract", "rank": self.rank, "dtype": FLOAT_TYPES[self.dtype].name}
            errors, error = self.losses.errors, self.losses.error
            details = {"adapters": {"ranks": self.ranks, "rank and rounding": errors, "error": error}}
            record = merge_provenance(recipe, self.inputs, digests, {shard.name: digest}, details, self.notes)
            write_records(partial_output.folder, self._config(), record, single=False)
            publish(partial_output, target, single=False)
        return Extraction(target, errors, error, tuple(self.notes))

    def _decompose(self, input_files: InputFiles) -> None:
        """Factorise what changed in linear maps, and find out what else did."""
        read = partial(whole_tensor, input_files)
        shapes = {name: stored.shape for name, (_, stored) in self.model.tensors.items()}
        inputs_first = stores_inputs_first(shapes)
        others = []
        biases: dict[str, Floats] = {}
        for name, shape in shapes.items():
            if self.model.tensors[name][1].dtype not in FLOAT_TYPES:
                continue
            if not is_linear_map(name, shape) or not name.endswith(".weight"):
                others.append(name)
                continue
            change = read(self.model, name) - read(self.base, name)
            if not change.any():
                continue
            module = name.removesuffix(".weight")
            matrix = change.reshape(shape[0], -1)
            self._factorise(module, matrix.T if is_turned(name, shapes, inputs_first) else matrix, shape)
        for name in others:
            module, _, part = name.rpartition(".")
            if part == "bias" and module in self.ranks:
                biases[module] = read(self.model, name) - read(self.base, name)
            elif (size := self._change_of(name, input_files)) > 0:
                self._keep(name, size)
        if any(bias.any() for bias in biases.values()):
            for module in self.ranks:
                outputs = len(self.tensors[f"{PREFIX}{module}.lora_B.weight"])
                self.tensors[f"{PREFIX}{module}.{BIAS}"] = biases.get(module, np.zeros(outputs))
        if not self.ranks:
            text = f"changes no linear map of {self.base.name}"
            raise InputError(self.model.name, text, "look whether the two are what was meant", "E-MISMATCH")

    def _factorise(self, module: str, matrix: Floats, shape: Sequence[int]) -> None:
        a, b = factorised(matrix, self.rank)
        a_name, b_name = f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"
        rounded = [rounded_to(FLOAT_TYPES[self.dtype], one) for one in (a, b)]
        self.losses.squares[module] = squared_change(np.eye(matrix.shape[1]), matrix, *rounded)
        self.ranks[module] = len(a)
        if len(shape) > 2:  # of a convolution
            a, b = a.reshape(len(a), *shape[1:]), b.reshape(*b.shape, *[1] * (len(shape) - 2))
        self.tensors |= {a_name: a, b_name: b}

    def _change_of(self, name: str, input_files: InputFiles) -> float:
        """Return the norm of the change of a tensor over its own, read some entries at a time."""
        size = self.model.tensors[name][1].size
        change = own = 0.0
        for start in range(0, size, _CHUNK):
            count = min(_CHUNK, size - start)
            ours, theirs = (tensor_entries(input_files, one, name, start, count) for one in (self.model, self.base))
            change += float(np.sum((ours - theirs) ** 2))
            own += float(np.sum(theirs**2))
        return float((change / own) ** 0.5) if own else float(change > 0)

    def _keep(self, name: str, size: float) -> None:
        """Save a tensor whole, or say that its change is lost."""
        if self.saves_rest:
            self.whole.append(name)
            self.tensors[f"{PREFIX}{name}"] = np.zeros(0)
        else:
            self.notes.append(f"{name} changed by {size:.1e} of its size, which the adapter does not have")

    def _task(self, name: str) -> TensorTask:
        shape, dtype = self.tensors[name].shape, self.dtype
        if (own := name.removeprefix(PREFIX)) in self.whole:
            shape = self.model.tensors[own][1].shape
        itemsize = FLOAT_TYPES[dtype].itemsize
        return TensorTask(name, shape, dtype, int(np.prod(shape)) * itemsize, AS_IT_IS)

    def _readers_of(self, input_files: InputFiles, task: TensorTask) -> TensorReaders:
        own = task.name.removeprefix(PREFIX)
        values = whole_tensor(input_files, self.model, own) if own in self.whole else self.tensors[task.name]
        return TensorReaders((float64_reader(values, self.model.name),))

    def _config(self) -> dict[str, Json]:
        """Return the adapter's configuration."""
        architectures = self.model.config.get("architectures")
        is_causal = isinstance(architectures, list) and any("CausalLM" in str(one) for one in architectures)
        turned = stores_inputs_first({name: stored.shape for name, (_, stored) in self.model.tensors.items()})
        start: dict[str, Json] = {
            "peft_type": "LORA", "base_model_name_or_path": hub_name(self.base) or short_name(self.base),
            "task_type": "CAUSAL_LM" if is_causal else None, "bias": "none", "fan_in_fan_out": turned,
            "use_dora": False, "target_modules": sorted(self.ranks), "lora_dropout": 0.0,
            "modules_to_save": sorted({name.rpartition(".")[0] for name in self.whole}) or None,
        }  # fmt: skip
        has_bias = any(name.endswith(BIAS) for name in self.tensors)
        return merged_config([start], [list(self.ranks)], self.ranks, lora_bias=has_bias)
