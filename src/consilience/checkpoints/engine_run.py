"""Shards of a merge on an engine: every file of the output is written where the engine has a worker.

A worker opens the inputs by their paths and writes its file into the hidden folder of the merge, so all machines see
one file system. What a file holds depends on nothing but the request and the inputs, so the bytes are those of a merge
in one process. Digests of inputs are taken on the workers too, since no machine reads all of a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from consilience.checkpoints.inputs import MergeInputs
from consilience.checkpoints.output import PartialOutput
from consilience.checkpoints.request import MergeRequest, PreparedMerge, prepare
from consilience.checkpoints.tensor_reader import InputFiles
from consilience.checks import Array
from consilience.core.provenance import file_digest
from consilience.engines import Engine
from consilience.errors import InputError

_WAVE = 16
"""Files that are written before the journal has them: what an interrupted merge can lose. Chosen by hand."""


@dataclass(frozen=True)
class ShardSource:
    """What a worker needs to write a file of a merge."""

    request: MergeRequest  # with absolute paths
    output: Path  # of the merge
    folder: Path  # where the file is written
    name: str  # of the file
    files: tuple[tuple[str, int, int, str], ...]  # the inputs as the caller sees them


@dataclass(frozen=True)
class WrittenShard:
    """What a worker says of a file that it wrote."""

    sha256: str
    changes: Mapping[str, Array]  # sums of changes by tensor
    notes: Mapping[str, str]  # on weights that are held in parts


WriteShard = Callable[[PreparedMerge, InputFiles, ShardSource], WrittenShard]
"""Writes a file of a merge; the inputs are open."""


def write_on_engine(
    engine: Engine,
    prepared: PreparedMerge,
    output: Path,
    partial_output: PartialOutput,
    write: WriteShard,
    on_written: Callable[[int], None],
) -> dict[str, str]:
    """Write all files that are not finished; return notes on weights that are held in parts.

    `on_written` is called with the number of bytes of finished files.
    """
    request = _with_absolute_paths(prepared.request)
    shards = [shard for shard in prepared.plan.shards if shard.name not in partial_output.finished]
    seen = files_seen(prepared.inputs)
    notes: dict[str, str] = {}
    for start in range(0, len(shards), _WAVE):
        wave = shards[start : start + _WAVE]
        sources = [
            ShardSource(request, output.resolve(), partial_output.folder.resolve(), shard.name, seen) for shard in wave
        ]
        placed = engine.place(_same, sources)
        for shard, written in zip(wave, engine.map(_write, placed, write), strict=True):
            partial_output.finish(shard.name, written.sha256, written.changes)
            notes |= written.notes
            on_written(sum(task.nbytes for task in shard.tasks))
    return notes


def digests_on_engine(engine: Engine, inputs: MergeInputs) -> dict[Path, str]:
    """Return the SHA-256 of every input file by its resolved path, taken on the workers."""
    paths = [file.path.resolve() for file in inputs.files]
    return dict(zip(paths, engine.map(file_digest, engine.place(_same, paths)), strict=True))


def files_seen(inputs: MergeInputs) -> tuple[tuple[str, int, int, str], ...]:
    """Return what identifies the input files without reading them: path, length, time of change, header."""
    return tuple((str(file.path.resolve()), file.nbytes, file.modified, file.header.digest) for file in inputs.files)


def _same(source: ShardSource | Path) -> ShardSource | Path:
    return source


def _write(source: ShardSource, write: WriteShard) -> WrittenShard:
    """Write a file of the output, on a worker."""
    prepared = prepare(source.request, source.output)
    if files_seen(prepared.inputs) != source.files:
        raise InputError("engine", "a worker sees other input files than the caller", "give all one file system")
    with ThreadPoolExecutor(1, "digest-in") as hashing:
        input_files = InputFiles(prepared.inputs.files, hashing, takes_digests=False)
        try:
            written = write(prepared, input_files, source)
            input_files.refuse_changed()
        finally:
            input_files.close()
    return written


def _with_absolute_paths(request: MergeRequest) -> MergeRequest:
    """Return a request that means the same in any working directory."""

    def absolute(paths: Sequence[Path]) -> tuple[Path, ...]:
        return tuple(_absolute(path) for path in paths)

    base = None if request.base is None else _absolute(request.base)
    return replace(request, models=absolute(request.models), base=base, fishers=absolute(request.fishers))


def _absolute(path: Path) -> Path:
    """Return an absolute path; of BASE+ADAPTER, which is none, of every part."""
    if os.path.exists(path) or "+" not in str(path):
        return path.absolute()
    return Path("+".join(str(Path(part).absolute()) for part in str(path).split("+")))
