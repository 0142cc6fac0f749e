"""Merges of LoRA adapters, carried out: module by module, written by the stream that writes checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checkpoints import changes
from consilience.checkpoints.buffers import TensorReaders, non_finite_problem
from consilience.checkpoints.card import merge_provenance, short_name
from consilience.checkpoints.folder import ADAPTER_CONFIG, Checkpoint
from consilience.checkpoints.inputs import MergeInputs, locate_tensor
from consilience.checkpoints.lora.config import merged_config
from consilience.checkpoints.lora.factors import (
    BIAS,
    Losses,
    LowRankAdapter,
    base_name,
    factorised,
    least_rank,
    product_gram,
    singular_values,
    squared_change,
    stack,
    truncated,
)
from consilience.checkpoints.lora.folder import streaming, write_records
from consilience.checkpoints.lora.into_base import name_in
from consilience.checkpoints.lora.plan import AS_IT_IS, PreparedAdapters, is_sum, replanned
from consilience.checkpoints.lora.residual import ADAPTER, BASE, ChangedBase, mean_of_factors
from consilience.checkpoints.numbers import FLOAT_TYPES, Floats, rounded_to
from consilience.checkpoints.output import (
    copy_companions_of,
    merge_identity,
    open_partial_output,
    publish,
    refuse_full_disk,
)
from consilience.checkpoints.plan import MergePlan, TensorTask, Treatment
from consilience.checkpoints.request import SINGLE_FILE_SUFFIX
from consilience.checkpoints.run import FinishedMerge, run, unequal
from consilience.checkpoints.stream import Stream
from consilience.checkpoints.tensor_reader import (
    ArrayTensorReader,
    FileTensorReader,
    InputFiles,
    TensorReader,
    float64_reader,
    read_tensor,
    whole_tensor,
)
from consilience.checks import Array, Json
from consilience.core.progress import Progress
from consilience.errors import InputError

_SAID_FROM = 1e-6
"""Relative change from which a note says so: rounding to 32 bits stays below, to 16 bits it is at 1e-3."""


def run_adapters(prepared: PreparedAdapters, output: Path, progress: Progress) -> tuple[FinishedMerge, MergePlan]:
    """Merge the adapters, and put the whole folder in the output's place; return what was written and its plan.

    Raises InputError for values that are not finite or that the type of the output cannot hold, and files that changed.
    """
    request = prepared.request
    inputs = MergeInputs(tuple(adapter.checkpoint for adapter in prepared.adapters), prepared.base)
    identity = merge_identity([request.document(), [file.header.digest for file in inputs.files]])
    with open_partial_output(output, identity, resume=False) as partial:
        with streaming(inputs, request.seed) as (input_files, stream):
            if isinstance(request.rank, float):
                ranks = _Execution(prepared, input_files, stream, progress).ranks_of_share(request.rank)
                prepared = replanned(prepared, ranks, output)
            plan = prepared.whole_plan
            refuse_full_disk(output, sum(shard.nbytes for shard in plan.shards))
            folder = partial.folder if prepared.changed_base is None else partial.folder / ADAPTER
            folder.mkdir(exist_ok=True)
            execution = _Execution(prepared, input_files, stream, progress)
            (shard,) = prepared.plan.shards
            digest = stream.write_shard(
                shard, folder / shard.name, execution.readers_of, lambda _: {}, execution.position,
                execution.on_written,
            )  # fmt: skip
            digests = input_files.digests()
            input_files.refuse_changed()
        details = execution.details()
        notes = [*prepared.plan.notes, *copy_companions_of(inputs.models[0], folder, {ADAPTER_CONFIG})]
        notes += [*execution.notes(), *execution.alarms(details)]
        files = {shard.name: digest}
        if prepared.changed_base is not None:
            base = _write_base(prepared, prepared.changed_base, partial.folder / BASE, execution)
            lost = prepared.changed_base.losses
            details["base"] = {"output": dict(base.digests), "rounding": lost.errors, "error": lost.error}
            notes += [note for note in base.notes if note not in prepared.changed_base.merge.plan.notes]
            notes += _rounding_notes(prepared.changed_base)
            files = {f"{ADAPTER}/{name}": digest for name, digest in files.items()}
            files |= {f"{BASE}/{name}": digest for name, digest in base.digests.items()}
        record = merge_provenance(request.document(), inputs, digests, files, details, notes)
        write_records(folder, _config_of_output(prepared, output), record, output.suffix == SINGLE_FILE_SUFFIX)
        publish(partial, output, output.suffix == SINGLE_FILE_SUFFIX)
    return FinishedMerge(files, record, tuple(notes), 0), plan


def _write_base(prepared: PreparedAdapters, changed: ChangedBase, folder: Path, execution: _Execution) -> FinishedMerge:
    """Write the base that takes what the means of factors leave out."""
    before, total = execution.written, prepared.whole_plan.bytes_out

    def progress(written: int, _: int) -> None:
        execution.progress(before + written, total)

    return run(changed.merge, folder, resume=False, progress=progress)


def _rounding_notes(changed: ChangedBase) -> list[str]:
    """Return that rounding the base changes the products, where it shows."""
    if changed.losses.error <= _SAID_FROM:
        return []
    text = f"rounding the base changes the mean of the products by {changed.losses.error:.1e} of its size"
    return [f"{text}; a wider dtype keeps more"]


def _config_of_output(prepared: PreparedAdapters, output: Path) -> dict[str, Json] | None:
    """Return the configuration of peft of the output; None for files without one."""
    adapters = prepared.adapters
    if adapters[0].convention != "peft":
        return None
    if prepared.changed_base is not None:
        place = {"base_model_name_or_path": f"{output.name}/{BASE}", "revision": None, "inference_mode": True}
        return {**adapters[0].config, **place}
    return merged_config(
        [adapter.config for adapter in adapters if adapter.convention == "peft"],
        [list(adapter.factors) for adapter in adapters],
        prepared.ranks,
        lora_bias=any(adapter.has_factor_biases for adapter in adapters),
    )


@dataclass(eq=False)
class _Execution:
    """A merge of adapters under way: what its tensors are, and how far it is."""

    prepared: PreparedAdapters
    input_files: InputFiles
    stream: Stream
    progress: Progress
    losses: Losses = field(default_factory=Losses)
    written: int = 0
    _grams: dict[str, Array] = field(default_factory=dict)
    _last: tuple[str, dict[str, Floats]] = ("", {})

    @cached_property
    def modules(self) -> dict[str, str]:
        """Modules by the names of the tensors of the output that are their factors."""
        found: dict[str, str] = {}
        for module, names in self.prepared.names.items():
            found |= dict.fromkeys(names.all, module)
        return found

    def position(self, task: TensorTask) -> int:
        """Return when a tensor's turn is: factors of a module follow one another."""
        module = self.modules.get(task.name)
        return len(self.prepared.ranks) if module is None else list(self.prepared.ranks).index(module)

    def on_written(self, nbytes: int) -> None:
        """Tell that so many more bytes are written."""
        self.written += nbytes
        self.progress(self.written, self.prepared.whole_plan.bytes_out)

    def readers_of(self, task: TensorTask) -> TensorReaders:
        """Return the readers of what a tensor is merged of: computed factors, or what was trained as a whole."""
        if (module := self.modules.get(task.name)) is not None:
            if self._last[0] != module:
                self._last = (module, self._module(module))
            return TensorReaders((float64_reader(self._last[1][task.name], module),))
        owners = [adapter for adapter in self.prepared.adapters if task.name in adapter.others]
        if task.treatment.method is None or task.treatment is AS_IT_IS:
            return TensorReaders((self._same_in_all(task, owners),))
        base = None
        if self.prepared.base is not None:
            base = self._stored(self.prepared.base, name_in(self.prepared.base, base_name(task.name)) or "")
        lacking = base or self._stored(owners[0].checkpoint, task.name)  # without a base, of adapters that do not count
        models = [
            self._stored(adapter.checkpoint, task.name) if task.name in adapter.others else lacking
            for adapter in self.prepared.adapters
        ]
        method = task.treatment.method
        return TensorReaders(tuple(models), base if method.needs_base or method.takes_base else None)

    def _stored(self, checkpoint: Checkpoint, name: str) -> TensorReader:
        file, stored = locate_tensor(checkpoint, name)
        return FileTensorReader(self.input_files, file, stored.start, stored.dtype, checkpoint.name)

    def _same_in_all(self, task: TensorTask, owners: Sequence[LowRankAdapter]) -> TensorReader:
        """Return the reader of a tensor that was not trained; raise where adapters have another."""
        first, *others = (locate_tensor(adapter.checkpoint, task.name) for adapter in owners)
        data = read_tensor(self.input_files, *first)
        for adapter, (file, stored) in zip(owners[1:], others, strict=True):
            if stored.dtype != first[1].dtype or not np.array_equal(read_tensor(self.input_files, file, stored), data):
                text = f"{task.name} is another than in {owners[0].name}, so the bases differ"
                raise InputError(adapter.name, text, "merge adapters of one base", "E-MISMATCH")
        return ArrayTensorReader(data, first[1].dtype, owners[0].name)

    def _owners(self, module: str) -> list[tuple[LowRankAdapter, float]]:
        """Return the adapters that change a module, with what their products are multiplied by."""
        pairs = zip(self.prepared.adapters, self.prepared.shares, strict=True)
        return [(adapter, share) for adapter, share in pairs if module in adapter.factors and share]

    def _module(self, module: str) -> dict[str, Floats]:
        """Return the merged tensors of a module in float64, and note what they lose."""
        owners = self._owners(module)
        rank, names, scale = self.prepared.ranks[module], self.prepared.names[module], self.prepared.scales[module]
        factors, scales = self._factors(module)
        coefficients = [share * own for (_, share), own in zip(owners, scales, strict=True)]
        if self.prepared.changed_base is not None:
            whole_a, whole_b = stack(factors, coefficients)
            a, b = mean_of_factors(factors, coefficients, [share for _, share in owners], scale)
            gram = product_gram([*zip(factors, scales, strict=True)], (whole_a, whole_b))
            self._grams[module] = self._with_room(gram, [adapter for adapter, _ in owners])
        elif is_sum(self.prepared.request.method):
            whole_a, whole_b = stack(factors, coefficients)
            a, b = truncated(whole_a, whole_b, rank) if rank < len(whole_a) else (whole_a, whole_b)
            gram = product_gram([*zip(factors, scales, strict=True)], (whole_a, whole_b))
            self._grams[module] = self._with_room(gram, [adapter for adapter, _ in owners])
        else:
            merged = self._merged_product(module, factors, scales)
            a, b = factorised(merged, rank)
            a, b = a.reshape(rank, *factors[0][0].shape[1:]), b.reshape(len(b), rank, *factors[0][1].shape[2:])
            whole_a, whole_b = np.eye(merged.shape[1]), merged
        b = b if self.prepared.changed_base is not None else b / scale
        rounded_a, rounded_b = self._rounded(names.a, a), self._rounded(names.b, b)
        self.losses.squares[module] = squared_change(whole_a, whole_b, rounded_a, scale * rounded_b)
        tensors = {names.a: a, names.b: b}
        if names.alpha is not None:
            tensors[names.alpha] = np.array(scale * rank)
        if names.bias is not None:
            tensors[names.bias] = self._bias(module, coefficients, len(b)) / scale
        return tensors

    def ranks_of_share(self, share: float) -> dict[str, int]:
        """Return the smallest rank of every module that keeps a share of the energy of its merged product."""
        ranks = {}
        for module, highest in self.prepared.ranks.items():
            factors, scales = self._factors(module)
            if is_sum(self.prepared.request.method):
                pairs = zip(self._owners(module), scales, strict=True)
                values = singular_values(*stack(factors, [share_of * own for (_, share_of), own in pairs]))
            else:
                values = np.linalg.svd(self._merged_product(module, factors, scales), compute_uv=False)
            ranks[module] = min(highest, least_rank(values, share))
        self.stream.take_changes()  # these merges are made again
        return ranks

    def _factors(self, module: str) -> tuple[list[tuple[Floats, Floats]], list[float]]:
        """Return the factors A and B of the adapters that change a module, in the shapes of the first's, and scales."""
        factors: list[tuple[Floats, Floats]] = []
        for adapter, _ in self._owners(module):
            a, b = adapter.read(module, partial(self._read, adapter))
            first_a, first_b = factors[0] if factors else (a, b)
            factors.append((a.reshape(len(a), *first_a.shape[1:]), b.reshape(len(b), len(a), *first_b.shape[2:])))
        return factors, [adapter.scale(module) for adapter, _ in self._owners(module)]

    def _bias(self, module: str, coefficients: Sequence[float], size: int) -> Floats:
        """Return the merged biases of a factor B (outputs,), 0 where an adapter has none."""
        total = np.zeros(size)
        for (adapter, _), coefficient in zip(self._owners(module), coefficients, strict=True):
            if BIAS in adapter.factors[module]:
                total = total + coefficient * self._read(adapter, adapter.factors[module][BIAS])
        return total

    def _with_room(self, gram: Floats, owners: Sequence[LowRankAdapter]) -> Array:
        """Return the inner products of some adapters and of the merge as `changes` has them, the base being zero."""
        adapters = self.prepared.adapters
        places = [*(adapters.index(adapter) for adapter in owners), len(adapters)]
        padded = np.zeros((len(adapters) + 3, len(adapters) + 2))
        padded[np.ix_(places, places)] = gram
        return padded

    def _merged_product(self, module: str, factors: list[tuple[Floats, Floats]], scales: list[float]) -> Array:
        """Return the merge (outputs, inputs) of the adapters' products, by a method that looks at their entries."""
        method, products = self.prepared.request.method, []
        owners = [id(adapter) for adapter, _ in self._owners(module)]
        shape = len(factors[0][1]), factors[0][0][0].size
        for adapter in self.prepared.adapters:
            product = np.zeros(shape)
            if id(adapter) in owners:
                number = owners.index(id(adapter))
                a, b = factors[number]
                product = scales[number] * (b.reshape(len(b), -1) @ a.reshape(len(a), -1))
            products.append(float64_reader(product, adapter.name))
        base = float64_reader(np.zeros(shape), "") if method.needs_base or method.takes_base else None
        treatment = Treatment(method, self.prepared.weights)
        task = TensorTask(f"{module}.weight", shape, "F64", 8 * shape[0] * shape[1], treatment)
        merged = self.stream.merged_bytes(task, TensorReaders(tuple(products), base)).view(np.float64).reshape(shape)
        return np.array(merged)

    def _read(self, adapter: LowRankAdapter, name: str) -> Floats:
        """Return a tensor in float64; raise for values that are not finite."""
        values: Floats = whole_tensor(self.input_files, adapter.checkpoint, name)
        if not np.isfinite(values).all():
            raise InputError(non_finite_problem(name, adapter.name))
        return values

    def _rounded(self, name: str, values: Floats) -> Floats:
        """Return values as the output's type has them."""
        return rounded_to(FLOAT_TYPES[self._dtypes[name]], values)

    @cached_property
    def _dtypes(self) -> dict[str, str]:
        return {task.name: task.dtype for task in self.prepared.plan.shards[0].tasks}

    @property
    def _what_is_lost(self) -> str:
        if self.prepared.changed_base is not None:
            return "residual"
        return "rank and rounding" if self._is_reduced else "rounding"

    @property
    def _is_reduced(self) -> bool:
        return self.prepared.request.rank is not None or not is_sum(self.prepared.request.method)

    def details(self) -> dict[str, Json]:
        """Return ranks, errors, and how far the merge and its models are from no change."""
        what = self._what_is_lost
        lost: dict[str, Json] = {"ranks": self.prepared.ranks, what: self.losses.errors, "error": self.losses.error}
        found: dict[str, Json] = {"adapters": lost}
        grams = {**self._grams, **self.stream.take_changes()}
        if summary := changes.summary(grams, unequal([short_name(one.checkpoint) for one in self.prepared.adapters])):
            found["changes"] = summary
        return found

    def alarms(self, details: Mapping[str, Any]) -> list[str]:
        """Return that the merge goes far, where it does."""
        found = details.get("changes", {})
        return changes.sentences(found) if changes.is_far(found) else []

    def notes(self) -> list[str]:
        """Return what a lower rank or rounding loses, a line each."""
        worst = self.losses.worst
        if self.losses.errors[worst] <= _SAID_FROM:
            return []
        if self.prepared.changed_base is not None:
            size = f"{self.losses.error:.1e} of the mean of products"
            return [f"the adapter alone misses {size}, which its base holds: load it with {BASE}, no other"]
        what = "ranks and rounding change" if self._is_reduced else "rounding changes"
        most = f"up to {self.losses.errors[worst]:.1e} in {worst}"
        return [f"{what} the merged products by {self.losses.error:.1e} of their size, {most}"]
