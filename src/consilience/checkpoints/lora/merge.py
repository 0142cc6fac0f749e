"""Merges of LoRA adapters: one adapter whose product is the weighted mean, or sum, of the products.

Modules that some adapters lack have fewer blocks: there these change nothing. Tensors that were trained as a whole
(``modules_to_save``, biases) have a mean over the adapters that have them. Whatever cannot be stacked is refused by
name before anything is written. Factors are read, stacked and written module by module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from consilience.checkpoints.buffers import non_finite_problem
from consilience.checkpoints.card import merge_provenance, model_card
from consilience.checkpoints.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_folder, open_adapter
from consilience.checkpoints.header import StoredTensor
from consilience.checkpoints.inputs import MergeInputs, locate_tensor
from consilience.checkpoints.lora.config import (
    AGREEING,
    config_problems,
    disagreements,
    merged_config,
    module_scale,
)
from consilience.checkpoints.lora.factors import (
    A_NAMES,
    B_NAMES,
    BIAS,
    LowRankAdapter,
    module_problems,
    read_factors,
    relative,
    squared_change,
    stack,
)
from consilience.checkpoints.methods.average import TensorAverage
from consilience.checkpoints.methods.task_vectors import TaskArithmetic
from consilience.checkpoints.numbers import FLOAT_TYPES, Floats
from consilience.checkpoints.output import (
    PROVENANCE,
    PartialOutput,
    as_json,
    copy_companions_of,
    merge_identity,
    open_partial_output,
    publish,
    refuse_full_disk,
)
from consilience.checkpoints.plan import MergePlan, OutputShard, TensorTask, Treatment, assign_shards
from consilience.checkpoints.request import SINGLE_FILE_SUFFIX, MergeRequest
from consilience.checkpoints.run import FinishedMerge
from consilience.checkpoints.tensor_reader import InputFiles, read_tensor
from consilience.core.progress import Progress
from consilience.drawing.words import first_names
from consilience.errors import InputError, OptionError, Problem
from consilience.files.atomic import write_bytes

_MAX_LISTED = 3
"""Names that a message has; more are counted. Chosen by hand."""

_MERGE_INTO_BASE = "merge checkpoints with their adapters in place, as BASE+ADAPTER"


@dataclass(frozen=True, eq=False)
class PreparedAdapters:
    """A merge of adapters whose headers have been read and checked."""

    request: MergeRequest  # the request
    adapters: tuple[LowRankAdapter, ...]  # (J,), the adapters
    weights: tuple[float, ...]  # (J,), what each product is multiplied by, beside its own scale
    ranks: dict[str, int]  # rank of every module of the output
    plan: MergePlan  # what is written


def are_adapters(request: MergeRequest) -> bool:
    """Return whether a merge is one of adapters.

    Raises InputError for adapters beside whole models, naming them.
    """
    paths = [*request.models, *(() if request.base is None else (request.base,))]
    adapters = [path for path in paths if adapter_folder(path) is not None]
    others = [path for path in paths if adapter_folder(path) is None]
    if adapters and others:
        raise InputError(
            Problem(path, f"is an adapter, and {others[0]} is none", _MERGE_INTO_BASE, "E-ADAPTER") for path in adapters
        )
    return bool(adapters)


def prepare_adapters(request: MergeRequest, output: Path) -> PreparedAdapters:
    """Return what a merge of adapters will do, from headers and configurations alone.

    Raises InputError with everything that keeps the adapters from being stacked. Raises OptionError for methods and
    options that are not for adapters.
    """
    _refuse_options(request, output)
    weights = request.method.weights_of(request.weights, len(request.models), "weights")
    adapters = _read_all(request)
    _refuse_misfits(request, adapters)
    shares = _shares(request, weights)
    ranks = {
        module: rank
        for module in dict.fromkeys(module for adapter in adapters for module in adapter.factors)
        if (rank := sum(adapter.shape(adapter.parts(module)[0])[0] for adapter, _ in _owners(adapters, shares, module)))
    }
    tasks = _tasks(request, adapters, ranks, tuple(shares))
    shards = assign_shards(tasks, 0, ADAPTER_WEIGHTS)
    inputs = MergeInputs(tuple(adapter.checkpoint for adapter in adapters))
    largest = max(
        (sum(prod(adapter.shape(name)) for adapter in adapters for name in adapter.factors.get(module, {}).values()))
        for module in ranks
    )
    plan = MergePlan(
        shards,
        sum(checkpoint.nbytes for checkpoint in inputs.all),
        sum(shard.nbytes for shard in shards),
        # Factors of a module as read, stacked, rounded, and what rounding changed, in 64 bits each.
        5 * 8 * largest,
        _notes(adapters),
    )
    return PreparedAdapters(request, tuple(adapters), tuple(shares), ranks, plan)


def _read_all(request: MergeRequest) -> list[LowRankAdapter]:
    """Return the adapters of a merge, or raise with everything that is wrong with single ones."""
    problems: list[Problem] = []
    adapters: list[LowRankAdapter] = []
    for path in request.models:
        try:
            adapters.append(read_factors(open_adapter(adapter_folder(path) or path)))
        except InputError as error:
            problems += error.problems
    if not problems:
        for adapter in adapters:
            problems += list(config_problems(adapter.name, adapter.config)) or _factor_problems(adapter)
    if problems:
        raise InputError(problems)
    return adapters


_BASE_FIELDS = ("base_model_name_or_path", "revision")
"""Fields that name the base."""


def _refuse_misfits(request: MergeRequest, adapters: Sequence[LowRankAdapter]) -> None:
    """Raise for adapters that differ in what they must have in common."""
    fatal = [field for field in AGREEING if not (request.allow_differences and field in _BASE_FIELDS)]
    problems = [*_disagreements(adapters, fatal), *_shape_problems(adapters)]
    if not getattr(request.method, "normalize", True) and (whole := _whole_tensors(adapters)):
        text = f"{first_names(whole, _MAX_LISTED)} were trained as a whole, and a sum of changes needs their base"
        remedy = "use method average, or merge the adapters into their base first"
        problems.append(Problem(adapters[0].name, text, remedy))
    if problems:
        raise InputError(problems)


def _disagreements(adapters: Sequence[LowRankAdapter], fields: Sequence[str]) -> Iterator[Problem]:
    """Yield the fields in which an adapter differs from the first."""
    return disagreements([adapter.name for adapter in adapters], [adapter.config for adapter in adapters], fields)


def _notes(adapters: Sequence[LowRankAdapter]) -> tuple[str, ...]:
    """Return notes on bases that are taken as one, and on tensors that not all adapters have."""
    others = _disagreements(adapters, _BASE_FIELDS)
    notes = [f"{problem.subject}: {problem.text}; taken as one base" for problem in others]
    for tensor in _whole_tensors(adapters):
        lacking = ", ".join(adapter.name for adapter in adapters if tensor not in adapter.others)
        notes += [f"{tensor} is not in {lacking}; it is the mean of those that have it"] if lacking else []
    return tuple(notes)


def _refuse_options(request: MergeRequest, output: Path) -> None:
    """Raise for methods and options that products of factors do not have."""
    if request.method.name not in (TensorAverage.name, TaskArithmetic.name):
        text = (
            "looks at the entries of the product B A, which adapters have only as factors: there are "
            f"{TensorAverage.name} and {TaskArithmetic.name} for adapters"
        )
        raise OptionError(f"method {request.method.name!r}", text, _MERGE_INTO_BASE, "E-ADAPTER")
    values = {
        "base": request.base, "fishers": request.fishers, "symmetry": request.symmetry, "patterns": request.rules,
    }  # fmt: skip
    if given := [name for name, value in values.items() if value not in (None, ())]:
        raise OptionError(", ".join(given), "is for whole models, and these are adapters", "leave it out")
    if output.suffix == SINGLE_FILE_SUFFIX:
        raise OptionError("output", f"an adapter is a folder, found {output}", "give a folder")


def _shares(request: MergeRequest, weights: Sequence[float]) -> list[float]:
    """Return what each product is multiplied by: weights that sum to 1, or as given and times the scaling."""
    method = request.method
    total = sum(weights)
    scaling = method.scaling if isinstance(method, TaskArithmetic) else 1.0
    is_mean = getattr(method, "normalize", True)
    return [scaling * weight / (total if is_mean else 1.0) for weight in weights]


def _owners(
    adapters: Sequence[LowRankAdapter], shares: Sequence[float], module: str
) -> list[tuple[LowRankAdapter, float]]:
    """Return the adapters that change a module, with their shares, where these are not zero."""
    pairs = zip(adapters, shares, strict=True)
    return [(adapter, share) for adapter, share in pairs if module in adapter.factors and share]


def _whole_tensors(adapters: Sequence[LowRankAdapter]) -> list[str]:
    """Return the tensors that were trained as a whole, in any adapter."""
    return list(dict.fromkeys(name for adapter in adapters for name in adapter.others if not adapter.is_of_base(name)))


def _factor_problems(adapter: LowRankAdapter) -> list[Problem]:
    """Return what is wrong with the factors of one adapter."""
    problems = []
    if adapter.unknown:
        text = f"{first_names(adapter.unknown, _MAX_LISTED)}: no factors A and B, which alone can be stacked"
        problems.append(Problem(adapter.name, text, _MERGE_INTO_BASE))
    if not adapter.factors:
        problems.append(Problem(adapter.name, "has no factors lora_A and lora_B", "save the adapter again", "E-NEEDED"))
    return [*problems, *module_problems(adapter)]


def _shape_problems(adapters: Sequence[LowRankAdapter]) -> list[Problem]:
    """Return which modules have factors of other shapes than in the first adapter that has them."""
    problems = []
    first_with: dict[str, tuple[LowRankAdapter, tuple[int, ...]]] = {}
    for adapter in adapters:
        ends = {}
        for module in adapter.factors:
            a_name, b_name = adapter.parts(module)
            is_embedding = A_NAMES[1] in adapter.factors[module]
            ends[module] = (adapter.shape(b_name)[0], *adapter.shape(a_name)[1:], is_embedding)
        ends |= {name: adapter.shape(name) for name in adapter.others}
        for place, end in ends.items():
            first, expected = first_with.setdefault(place, (adapter, end))
            if end != expected:
                text = f"{place} has outputs and inputs {list(end)}, in {first.name} {list(expected)}"
                problems.append(Problem(adapter.name, text, "merge adapters of one base", "E-MISMATCH"))
    return problems


def _tasks(
    request: MergeRequest, adapters: Sequence[LowRankAdapter], ranks: dict[str, int], shares: tuple[float, ...]
) -> list[TensorTask]:
    """Return the tensors of the output: factors module by module, then those that were trained as a whole."""
    treatment = Treatment(request.method, shares)
    tasks = []

    def add(owner: LowRankAdapter, name: str, shape: tuple[int, ...], typed_as: str) -> None:
        stored = owner.checkpoint.tensors[typed_as][1]
        is_floating = stored.dtype in FLOAT_TYPES
        dtype = request.dtype if request.dtype is not None and is_floating else stored.dtype
        itemsize = FLOAT_TYPES[dtype].itemsize if is_floating else stored.nbytes // max(1, stored.size)
        kept = not is_floating or owner.is_of_base(name)
        how = Treatment(None, shares) if kept else treatment
        tasks.append(TensorTask(name, shape, dtype, prod(shape) * itemsize, how, compared=kept))

    for module, rank in ranks.items():
        owner = next(adapter for adapter in adapters if module in adapter.factors)
        a_name, b_name = owner.parts(module)
        a_shape, b_shape = owner.shape(a_name), owner.shape(b_name)
        add(owner, a_name, (rank, *a_shape[1:]), a_name)
        add(owner, b_name, (b_shape[0], rank, *b_shape[2:]), b_name)
        if (bias := _bias_name(adapters, b_name)) is not None:
            add(owner, bias, (b_shape[0],), owner.factors[module].get(BIAS, b_name))
    for name in dict.fromkeys(name for adapter in adapters for name in adapter.others):
        owner = next(adapter for adapter in adapters if name in adapter.others)
        add(owner, name, owner.shape(name), name)
    return tasks


def _bias_name(adapters: Sequence[LowRankAdapter], b_name: str) -> str | None:
    """Return the name of the bias of a factor B where any adapter trained such; None for embeddings, which have none.

    peft gives one to every module of an adapter with lora_bias. Where an adapter has none, it is 0.
    """
    if not b_name.endswith(B_NAMES[0]) or not any(adapter.has_factor_biases for adapter in adapters):
        return None
    return b_name.removesuffix(B_NAMES[0]) + BIAS


def run_adapters(prepared: PreparedAdapters, output: Path, progress: Progress) -> FinishedMerge:
    """Stack the adapters, and put the whole folder in the output's place.

    Raises InputError for values that are not finite or that the type of the output cannot hold, and files that changed.
    """
    request, plan = prepared.request, prepared.plan
    inputs = MergeInputs(tuple(adapter.checkpoint for adapter in prepared.adapters))
    (shard,) = plan.shards
    identity = merge_identity([request.document(), [file.header.digest for file in inputs.files]])
    with open_partial_output(output, identity, resume=False) as partial, ThreadPoolExecutor(1) as hashing:
        refuse_full_disk(output, shard.nbytes)
        input_files = InputFiles(inputs.files, hashing)
        try:
            errors, sha256 = _write(prepared, shard, partial, input_files, progress)
            digests = input_files.digests()
            input_files.refuse_changed()
        finally:
            input_files.close()
        files = {shard.name: sha256}
        notes = [*plan.notes, *copy_companions_of(inputs.models[0], partial, {ADAPTER_CONFIG})]
        if (worst := max(errors.values(), default=0.0)) > _SAID_FROM:
            notes.append(f"rounding changes the merged products by up to {worst:.1e} of their size")
        config = merged_config(
            [adapter.config for adapter in prepared.adapters],
            [list(adapter.factors) for adapter in prepared.adapters],
            prepared.ranks,
            lora_bias=any(adapter.has_factor_biases for adapter in prepared.adapters),
        )
        write_bytes(partial.folder / ADAPTER_CONFIG, f"{as_json(config)}\n".encode())
        details = {"adapters": {"ranks": prepared.ranks, "rounding": errors}}
        record = merge_provenance(request.document(), inputs, digests, files, details, notes)
        write_bytes(partial.folder / PROVENANCE, f"{as_json(record)}\n".encode())
        write_bytes(partial.folder / "README.md", model_card(record).encode())
        publish(partial, output, single=False)
    return FinishedMerge(files, record, tuple(notes), 0)


_SAID_FROM = 1e-6
"""Relative change by rounding from which a note says so: 32 bits stay below, 16 bits are at 1e-3."""


def _write(
    prepared: PreparedAdapters, shard: OutputShard, partial: PartialOutput, input_files: InputFiles, progress: Progress
) -> tuple[dict[str, float], str]:
    """Write the file of factors; return what rounding changed in each module, and the SHA-256 of the file."""
    with (partial.folder / shard.name).open("w+b") as stream:
        stream.write(shard.header)
        writer = _Writer(prepared, shard, stream, input_files, progress)
        errors = {module: writer.write_module(module) for module in prepared.ranks}
        for name in dict.fromkeys(name for adapter in prepared.adapters for name in adapter.others):
            writer.write_whole(name)
        stream.flush()
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return errors, digest


def _mean(values: Sequence[tuple[Floats, float]]) -> Floats:
    """Return the mean of arrays by their weights; alike where these sum to zero."""
    total = sum(weight for _, weight in values)
    return np.asarray(sum((weight / total if total else 1 / len(values)) * array for array, weight in values))


class _Writer:
    """Writes merged tensors to their places in a file, and tells how far it is."""

    def __init__(
        self,
        prepared: PreparedAdapters,
        shard: OutputShard,
        stream: BinaryIO,
        input_files: InputFiles,
        progress: Progress,
    ) -> None:
        self._prepared, self._stream, self._input_files, self._progress = prepared, stream, input_files, progress
        self._tasks = {task.name: task for task in shard.tasks}
        self._starts, position = {}, len(shard.header)
        for task in shard.tasks:
            self._starts[task.name] = position
            position += task.nbytes
        self._written, self._total = len(shard.header), position

    def write_module(self, module: str) -> float:
        """Write the factors of a module, and the bias of B; return what rounding changed."""
        adapters = self._prepared.adapters
        owners = _owners(adapters, self._prepared.weights, module)
        a_name, b_name = owners[0][0].parts(module)
        factors = [tuple(self._read(adapter, name) for name in adapter.parts(module)) for adapter, _ in owners]
        coefficients = [
            share * module_scale(adapter.config, module, len(a))
            for (adapter, share), (a, _) in zip(owners, factors, strict=True)
        ]
        a, b = stack(factors, coefficients)  # type: ignore[arg-type]
        rounded = [self._put(name, values) for name, values in ((a_name, a), (b_name, b))]
        if (bias_name := _bias_name(adapters, b_name)) is not None:
            terms = [
                coefficient * self._read(adapter, adapter.factors[module][BIAS])
                for (adapter, _), coefficient in zip(owners, coefficients, strict=True)
                if BIAS in adapter.factors[module]
            ]
            self._put(bias_name, sum(terms, np.zeros(len(b))))
        return relative(*squared_change(a, b, *rounded))

    def write_whole(self, name: str) -> None:
        """Write a tensor that has no factors: the mean over adapters, or what all have alike."""
        owned = zip(self._prepared.adapters, self._prepared.weights, strict=True)
        owners = [(adapter, weight) for adapter, weight in owned if name in adapter.others]
        if self._tasks[name].compared:
            self._copy(name, [adapter for adapter, _ in owners])
        else:
            self._put(name, _mean([(self._read(adapter, name), weight) for adapter, weight in owners]))

    def _raw(self, adapter: LowRankAdapter, name: str) -> tuple[StoredTensor, Any]:
        """Return a stored tensor, and its bytes."""
        file, stored = locate_tensor(adapter.checkpoint, name)
        return stored, read_tensor(self._input_files, file, stored)

    def _read(self, adapter: LowRankAdapter, name: str) -> Floats:
        """Return a tensor in float64; raise for values that are not finite."""
        stored, data = self._raw(adapter, name)
        values = np.empty(stored.size, dtype=np.float64)
        FLOAT_TYPES[stored.dtype].decode(data, values)
        if not np.isfinite(values).all():
            raise InputError(non_finite_problem(name, adapter.name))
        return values.reshape(stored.shape)

    def _put(self, name: str, values: Floats) -> Floats:
        """Write rounded values; return them as they were rounded, in their shape."""
        task = self._tasks[name]
        float_type = FLOAT_TYPES[task.dtype]
        encoded = np.empty(task.nbytes, dtype=np.uint8)
        float_type.encode(values.reshape(-1).copy(), encoded)
        rounded = np.empty(values.size, dtype=np.float64)
        float_type.decode(encoded, rounded)
        if not np.isfinite(rounded).all():
            largest = float(np.abs(values).max())
            text = f"merged values reach {largest:.3g}, beyond {float_type.name}"
            raise InputError(name, text, "choose another dtype", "E-NUMBER")
        self._write(task, encoded.tobytes())
        return rounded.reshape(values.shape)

    def _copy(self, name: str, owners: Sequence[LowRankAdapter]) -> None:
        """Write a tensor that is the same in all adapters; raise where it is not."""
        task, first = self._tasks[name], owners[0]
        stored, data = self._raw(first, name)
        for adapter in owners[1:]:
            other, other_data = self._raw(adapter, name)
            if other.dtype != stored.dtype or not np.array_equal(other_data, data):
                text = f"{name} is another than in {first.name}, so the bases differ"
                raise InputError(adapter.name, text, "merge adapters of one base", "E-MISMATCH")
        if task.dtype != stored.dtype:
            values = np.empty(prod(task.shape), dtype=np.float64)
            FLOAT_TYPES[stored.dtype].decode(data, values)
            data = np.empty(task.nbytes, dtype=np.uint8)
            FLOAT_TYPES[task.dtype].encode(values, data)
        self._write(task, data.tobytes())

    def _write(self, task: TensorTask, data: bytes) -> None:
        self._stream.seek(self._starts[task.name])
        self._stream.write(data)
        self._written += task.nbytes
        self._progress(self._written, self._total)
