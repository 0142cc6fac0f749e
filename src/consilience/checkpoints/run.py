"""Execution of a merge: align units, stream the tensors, write the model card, publish the output.

**Weight matching of checkpoints that no memory holds**: every model's units into the order of the first model's.

The coordinate descent of `ReBasin` over lazy arrays (``weight_matching.state``), model by model. Each model is
first matched by what its units receive, from the input to the output, and then by all that touches a unit until no
group of units gains. That start need not be better than the order in which the units came; if the result is not closer
to the first model than that order, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints import changes
from consilience.checkpoints.buffers import PIECE_ENTRIES, TensorReaders
from consilience.checkpoints.card import merge_provenance, model_card, short_name
from consilience.checkpoints.carried_tensors import with_carried_tensors
from consilience.checkpoints.engine_run import ShardSource, WrittenShard, digests_on_engine, write_on_engine
from consilience.checkpoints.fisher_files import diagonal_norms, refuse_mismatched_fishers
from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import InputFactors, locate_tensor, parts_in
from consilience.checkpoints.methods.average import TensorFisher
from consilience.checkpoints.methods.base import Facts
from consilience.checkpoints.methods.matrices import MatrixMethod, is_turned, stores_inputs_first
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.output import (
    PROVENANCE,
    PartialOutput,
    as_json,
    copy_companions,
    merge_identity,
    open_partial_output,
    publish,
    refuse_full_disk,
)
from consilience.checkpoints.parametrised_weights import WeightMerger, combined
from consilience.checkpoints.plan import OutputShard, TensorTask
from consilience.checkpoints.request import SINGLE_FILE_SUFFIX, PreparedMerge, default_threads, units_of
from consilience.checkpoints.stream import Stream
from consilience.checkpoints.tensor_reader import (
    ArrayTensorReader,
    ByteArray,
    FileTensorReader,
    InputFiles,
    TensorReader,
    read_tensor,
    tensor_entries,
    whole_tensor,
)
from consilience.checkpoints.vocabularies import Vocabulary
from consilience.checks import Array, Json
from consilience.core.progress import Progress, silent
from consilience.core.provenance import library_versions
from consilience.engines import Engine
from consilience.files.atomic import write_bytes
from consilience.networks.methods.weight_matching.coordinate_descent import improve_model
from consilience.networks.methods.weight_matching.match import match_incoming
from consilience.networks.methods.weight_matching.state import (
    LazyArrays,
    LazyModel,
    MatchingState,
    RecomputedProducts,
    has_matched_units,
)
from consilience.networks.symmetry.axes import Layout
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, move


@dataclass(frozen=True, eq=False)
class FinishedMerge:
    """The output of a merge."""

    digests: Mapping[str, str]  # SHA-256 of every file of weights, by name
    provenance: Mapping[str, Json]  # how it was made
    notes: tuple[str, ...]  # what a user should know of it, a line each
    resumed: int  # number of files that an interrupted run had finished


def run(
    prepared: PreparedMerge,
    output: Path,
    resume: bool,
    progress: Progress,
    threads: int | None = None,
    piece: int = PIECE_ENTRIES,
    engine: Engine | None = None,
) -> FinishedMerge:
    """Merge, and put the whole in the output's place; when anything goes wrong, finished files can be resumed.

    Parameters
    ----------
    prepared : PreparedMerge
        What to do.
    output : Path
        A folder, or a file whose name ends in ``.safetensors``.
    resume : bool
        Whether finished files of an interrupted run of the same merge are taken.
    progress : callable
        Called with (bytes written, bytes in all).
    threads : int, optional
        Number of threads that compute. Default: one for each core, up to four.
    piece : int
        Entries of a tensor that are read at once. Default: `PIECE_ENTRIES`.
    engine : Engine, optional
        Where the files of the output are written. Default: here, one after another.
    """
    request, inputs, plan = prepared.request, prepared.inputs, prepared.plan
    is_single = output.suffix == SINGLE_FILE_SUFFIX
    with open_partial_output(output, merge_identity(_identity_document(prepared)), resume) as partial_output:
        resumed = len(partial_output.finished)
        bytes_to_write = sum(shard.nbytes for shard in plan.shards if shard.name not in partial_output.finished)
        refuse_full_disk(output, bytes_to_write)
        with ThreadPoolExecutor(1, "digest-in") as input_hashing, ThreadPoolExecutor(1, "digest-out") as output_hashing:
            input_files = InputFiles(inputs.files, input_hashing)
            try:
                if any(inputs.informed) and bytes_to_write:
                    refuse_mismatched_fishers(inputs.models, inputs.fishers, inputs.informed, input_files)
                alignment = _align(prepared, input_files)
                execution = _Execution(prepared, input_files, alignment, progress)
                if engine is None:
                    stream = Stream(threads or default_threads(), output_hashing, request.seed, piece)
                    notes = execution.write_shards(partial_output, stream)
                    digests = input_files.digests()
                else:
                    write = _ShardWriter(alignment, threads, piece)
                    execution.written = execution.total - bytes_to_write
                    parts = write_on_engine(engine, prepared, output, partial_output, write, execution.on_written)
                    notes, digests = list(parts.values()), digests_on_engine(engine, inputs)
                input_files.refuse_changed()  # last, after the last byte was read
            finally:
                input_files.close()
        files = {shard.name: partial_output.finished[shard.name].sha256 for shard in plan.shards}
        notes = [*plan.notes, *notes]
        details: dict[str, Json] = {}
        if found := _changes(prepared, partial_output):
            details["changes"] = found
            notes += changes.sentences(found)
        if alignment is not None:
            details["aligned"] = {"units_moved": list(alignment.moved)}
        if not is_single:
            notes += copy_companions(prepared, partial_output)
        record = merge_provenance(request.document(), inputs, digests, files, details, notes)
        write_bytes(partial_output.folder / PROVENANCE, f"{as_json(record)}\n".encode())
        if not is_single:
            write_bytes(partial_output.folder / "README.md", model_card(record).encode())
        publish(partial_output, output, is_single)
    return FinishedMerge(files, record, tuple(notes), resumed)


def _changes(prepared: PreparedMerge, partial_output: PartialOutput) -> dict[str, Json]:
    """Return how far the merge and its models are from the base; empty without one."""
    finished = [partial_output.finished[shard.name] for shard in prepared.plan.shards]
    models = prepared.inputs.models
    grams = {
        name: changes.of_all(np.array(gram), len(models)) for one in finished for name, gram in one.changes.items()
    }
    return changes.summary(grams, unequal([short_name(model) for model in models]))


def unequal(names: list[str]) -> list[str]:
    """Return names, those that stand before with their number."""
    return [name if name not in names[:number] else f"{name} ({number})" for number, name in enumerate(names)]


def _identity_document(prepared: PreparedMerge) -> dict[str, Json]:
    """Return what makes two merges the same, as JSON values: the request, files as they are now, versions."""
    inputs = prepared.inputs
    versions = library_versions()
    return {
        "request": prepared.request.document(),
        "roles": [
            [checkpoint.name, [str(file.path.resolve()) for file in checkpoint.files]] for checkpoint in inputs.all
        ],
        "files": [[str(file.path.resolve()), file.nbytes, file.modified, file.header.digest] for file in inputs.files],
        "adapters": [[dict(adapter.config) for adapter in checkpoint.adapters] for checkpoint in inputs.all],
        "versions": [versions["consilience"], versions["numpy"]],
    }


def _align(prepared: PreparedMerge, input_files: InputFiles) -> CheckpointAlignment | None:
    """Return where units go; None where the request has no symmetry."""
    symmetry, inputs = prepared.request.symmetry, prepared.inputs
    if symmetry is None:
        return None
    first = inputs.models[0]
    names = {symmetry.aliases.get(name, name): name for name in first.tensors}  # in the checkpoint, by symmetry's name
    floating = {key for key, name in names.items() if first.tensors[name][1].real_pairs.dtype in FLOAT_TYPES}
    weights = {symmetry.aliases.get(weight.name, weight.name): weight for weight in parts_in(first)}
    floating |= set(weights)

    def read(model: int, key: str) -> Any:
        if key in weights:
            weight = combined(inputs.models[model], weights[key], partial(whole_tensor, input_files))
            return weight.astype(np.float32)
        file, stored = locate_tensor(inputs.models[model], names[key])
        stored = stored.real_pairs
        values = np.empty(stored.size, dtype=np.float32)
        FLOAT_TYPES[stored.dtype].decode(read_tensor(input_files, file, stored), values)
        return values.reshape(stored.shape)

    return align(symmetry, units_of(symmetry, inputs), len(inputs.models), read, floating)


@dataclass(eq=False)
class _Execution:
    """A merge under way: where its tensors are read, and how far it is."""

    prepared: PreparedMerge  # what is merged
    input_files: InputFiles  # its files, open
    alignment: CheckpointAlignment | None  # where units go; None where they stay
    progress: Progress  # called with (bytes written, bytes in all)
    written: int = 0

    @cached_property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(task.nbytes for shard in self.prepared.plan.shards for task in shard.tasks)

    @cached_property
    def units(self) -> Mapping[str, int]:
        """Number of units of every group; none where units stay."""
        symmetry = self.prepared.request.symmetry
        return {} if self.alignment is None or symmetry is None else units_of(symmetry, self.prepared.inputs)

    @cached_property
    def norms(self) -> Facts:
        """The norms of the Fisher diagonals."""
        return diagonal_norms(self.prepared.inputs.fishers, partial(tensor_entries, self.input_files))

    def layout_of(self, name: str) -> Layout | None:
        """Return which axes of a tensor move; None where units stay, and for tensors without a symmetry."""
        symmetry = self.prepared.request.symmetry
        if self.alignment is None or symmetry is None:
            return None
        return symmetry.layouts.get(symmetry.aliases.get(name, name))

    def moved(self, values: Any, name: str, model: int) -> Any:
        """Return a tensor's values with the units of a model in the order of the first."""
        layout = self.layout_of(name)
        if self.alignment is None or layout is None:
            return values
        return move(values, layout, self.alignment.transports[model], self.units)

    def reader_of(self, checkpoint: Checkpoint, name: str, model: int | None) -> TensorReader:
        """Return the reader of a tensor, its units moved as those of a model; None and 0 leave them where they are."""
        file, stored = locate_tensor(checkpoint, name)
        layout = self.layout_of(name) if model else None
        if model and layout is not None and any(axis.moves for axis in layout.axes):
            # Moving needs no arithmetic, so integers as wide as the entries stand for numbers of any type.
            itemsize = stored.nbytes // max(1, prod(stored.shape))
            values = read_tensor(self.input_files, file, stored).view(f"u{itemsize}").reshape(stored.shape)
            moved = np.ascontiguousarray(self.moved(values, name, model))
            return ArrayTensorReader(moved.reshape(-1).view(np.uint8), stored.real_pairs.dtype, checkpoint.name)
        if found := checkpoint.changes.get((file.path, stored.start)):
            values = whole_tensor(self.input_files, checkpoint, name)
            for change in found:
                values = change.apply(values, partial(whole_tensor, self.input_files))
            return ArrayTensorReader(values.reshape(-1).view(np.uint8), "F64", checkpoint.name)
        return FileTensorReader(self.input_files, file, stored.start, stored.real_pairs.dtype, checkpoint.name)

    def readers_of(self, task: TensorTask, merger: WeightMerger) -> TensorReaders:
        """Return the readers of all that a tensor is merged of; a part of a weight is read from its merge."""
        if task.part is not None:
            return merger.part(task)
        inputs, method = self.prepared.inputs, task.treatment.method
        vocabulary = self.prepared.vocabulary
        if vocabulary is not None and task.name in vocabulary.tables:
            return self.readers_of_table(task, vocabulary)
        # Of a copy only the source is read, so only it is moved.
        count = len(task.treatment.weights)
        moving = [task.treatment.source] if method is None and not task.compared else range(count)
        models = tuple(
            self.reader_of(checkpoint, task.name, number if number in moving else None)
            for number, checkpoint in enumerate(inputs.models[:count])
        )
        base = None
        information: tuple[TensorReader, ...] = ()
        if method is not None and (method.needs_base or method.takes_base) and inputs.base is not None:
            base = self.reader_of(inputs.base, task.name, None)
        is_informed = method is not None and method.needs_information and not method.uses_factors
        if is_informed and task.name in inputs.fishers[0].tensors:
            information = tuple(
                self.reader_of(fisher, task.name, number) for number, fisher in enumerate(inputs.fishers)
            )
        return TensorReaders(models, base, information)

    def readers_of_table(self, task: TensorTask, vocabulary: Vocabulary) -> TensorReaders:
        """Return the readers of a table of tokens, whose rows are the output's in all checkpoints."""
        inputs, method = self.prepared.inputs, task.treatment.method
        checkpoints = [*inputs.models, *(() if inputs.base is None else (inputs.base,))]

        def read(number: int) -> ByteArray:
            file, _ = locate_tensor(checkpoints[number], task.name)
            return read_tensor(self.input_files, file, vocabulary.tables[task.name][number])

        sums_changes = method is not None and method.needs_base and not method.divides_by_sum
        count, weights = len(inputs.models), task.treatment.weights
        padded = (*weights, *(0.0 for _ in range(count - len(weights))))
        readers = vocabulary.readers(task.name, read, checkpoints, padded, count, sums_changes)
        takes_base = method is not None and (method.needs_base or method.takes_base)
        return TensorReaders(tuple(readers[: len(weights)]), next(iter(readers[count:]), None) if takes_base else None)

    def facts_of(self, task: TensorTask) -> Facts:
        """Return what a method needs to know of all tensors; the norms are computed when the first one needs them."""
        method = task.treatment.method
        if isinstance(method, MatrixMethod):
            return self.facts_of_matrix(task, method)
        return self.norms if isinstance(method, TensorFisher) and method.normalize else {}

    def facts_of_matrix(self, task: TensorTask, method: MatrixMethod) -> Facts:
        """Return how a matrix is stored and, for methods that use them, second moments of its inputs in all models."""
        facts: dict[str, Any] = {"inputs_first": is_turned(task.name, self.shapes, stores_inputs_first(self.shapes))}
        factors = [one for one in self.prepared.inputs.fishers if isinstance(one, InputFactors)]
        if method.uses_factors and all(task.name in one.tensors for one in factors):
            read = partial(tensor_entries, self.input_files)
            facts["moments"] = np.stack(
                [one.matrices(task.name, read(one, task.name, 0, one.tensors[task.name][1].size)) for one in factors]
            )
        return facts

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the models' tensors."""
        return {name: stored.shape for name, (_, stored) in self.prepared.inputs.models[0].tensors.items()}

    def input_position(self, task: TensorTask) -> tuple[int, int]:
        """Return where a tensor lies in the first model, by which tensors are read in their order."""
        number, stored = self.prepared.inputs.models[0].tensors[task.name]
        return number, stored.start

    def on_written(self, nbytes: int) -> None:
        """Tell that so many more bytes are written."""
        self.written += nbytes
        self.progress(self.written, self.total)

    def write_shards(self, partial_output: PartialOutput, stream: Stream) -> list[str]:
        """Write all files that are not finished; return notes on weights that are held in parts."""
        shards = [shard for shard in self.prepared.plan.shards if shard.name not in partial_output.finished]
        self.written = self.total - sum(task.nbytes for shard in shards for task in shard.tasks)
        inputs = self.prepared.inputs
        merger = WeightMerger(inputs, stream, partial(whole_tensor, self.input_files), self.moved)
        try:
            for shard in with_carried_tensors(shards, partial(self.readers_of, merger=merger)):
                digest, changed = self.write_shard(shard, partial_output.folder / shard.name, stream, merger)
                partial_output.finish(shard.name, digest, changed)
        finally:
            stream.close()
        return list(merger.notes.values())

    def write_shard(
        self, shard: OutputShard, path: Path, stream: Stream, merger: WeightMerger
    ) -> tuple[str, Mapping[str, Array]]:
        """Write one file; return its SHA-256 and what its tensors changed."""
        readers_of = partial(self.readers_of, merger=merger)
        digest = stream.write_shard(shard, path, readers_of, self.facts_of, self.input_position, self.on_written)
        return digest, stream.take_changes()


@dataclass(frozen=True, eq=False)
class _ShardWriter:
    """Writes a file of a merge on a worker of an engine."""

    alignment: CheckpointAlignment | None  # where units go; None where they stay
    threads: int | None  # that compute
    piece: int  # entries that are read at once

    def __call__(self, prepared: PreparedMerge, input_files: InputFiles, source: ShardSource) -> WrittenShard:
        """Return what there is to say of the file that was written."""
        planned = next(shard for shard in prepared.plan.shards if shard.name == source.name)
        execution = _Execution(prepared, input_files, self.alignment, silent)
        with ThreadPoolExecutor(1, "digest-out") as hashing:
            stream = Stream(self.threads or default_threads(), hashing, prepared.request.seed, self.piece)
            merger = WeightMerger(prepared.inputs, stream, partial(whole_tensor, input_files), execution.moved)
            try:
                (shard,) = with_carried_tensors([planned], partial(execution.readers_of, merger=merger))
                digest, changed = execution.write_shard(shard, source.folder / shard.name, stream, merger)
            finally:
                stream.close()
        return WrittenShard(digest, changed, merger.notes)


ReadArray = Callable[[int, str], NDArray[np.float32]]
"""Gives an array of a model by the model's number and the array's name."""


@dataclass(frozen=True, eq=False)
class CheckpointAlignment:
    """Where the units of every model go."""

    # (J,): For every model the permutation of each group; the identity for the first model.
    transports: tuple[Mapping[str, Injection], ...]

    @property
    def moved(self) -> tuple[int, ...]:
        """Number of units of every model (J,) that have another number afterwards."""
        return tuple(
            sum(int(np.sum(transport.slots != np.arange(transport.width))) for transport in transports.values())
            for transports in self.transports
        )


def align(
    symmetry: Symmetry, units: Mapping[str, int], count: int, read: ReadArray, floating: set[str]
) -> CheckpointAlignment:
    """Return where the units of every model go so that it comes closest to the first.

    Parameters
    ----------
    symmetry : Symmetry
        Which axes move together.
    units : mapping of str to int
        Number of units of every group, the same in all models.
    count : int
        Number of models.
    read : callable
        Gives an array in float32 by the number of the model and the name of the array.
    floating : set of str
        Names of the arrays of floating-point numbers.
    """
    state = MatchingState(symmetry, units, is_full=True, product_type=RecomputedProducts, linearizes_recurrent=True)
    names = {
        key: None for key, layout in symmetry.layouts.items() if key in floating and has_matched_units(key, layout)
    }
    identity = {name: Injection(np.arange(width), width) for name, width in units.items()}

    def unmoved(number: int) -> LazyModel:
        return LazyModel(LazyArrays(partial(read, number), names, symmetry, units, identity), identity)

    first = unmoved(0)
    remaining = state.remaining_models([(1.0, first)])
    transports: list[Mapping[str, Injection]] = [identity]
    for number in range(1, count):
        model = unmoved(number)
        match_incoming(state, model, remaining)
        improve_model(state, model, remaining)
        is_closer = state.distance(model, first) < state.distance(unmoved(number), first)
        transports.append(model.transports if is_closer else identity)
    return CheckpointAlignment(tuple(transports))
