"""A merge from its plan to its end: align, stream, describe, publish."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checkpoints.align import Aligned, align
from consilience.checkpoints.buffers import PIECE, Strips
from consilience.checkpoints.card import card, provenance
from consilience.checkpoints.fisher_files import norms, refuse_strangers
from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.inputs import located
from consilience.checkpoints.journal import PROVENANCE, Workplace, identity, publish, workplace
from consilience.checkpoints.methods.average import TensorFisher
from consilience.checkpoints.methods.base import Facts
from consilience.checkpoints.numbers import FLOATS
from consilience.checkpoints.output import as_json, copy_companions, refuse_full
from consilience.checkpoints.plan import Task
from consilience.checkpoints.request import SINGLE, Prepared, default_threads, units_of
from consilience.checkpoints.stream import Stream
from consilience.checkpoints.tensor_reader import ArrayStrip, Bytes, FileStrip, Library, Strip
from consilience.core.progress import Progress
from consilience.core.provenance import library_versions
from consilience.files.atomic import write_bytes
from consilience.networks.symmetry.transport import move


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished merge: SHA-256 by file of weights, how it came to be, what to know of it, what an earlier run did."""

    digests: Mapping[str, str]
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]
    resumed: int


def run(
    prepared: Prepared,
    output: Path,
    resume: bool,
    progress: Progress,
    threads: int | None = None,
    piece: int = PIECE,
) -> Outcome:
    """Merge, and put the whole in the output's place; what is unfinished when anything goes wrong can be resumed.

    Parameters
    ----------
    prepared
        What to do.
    output
        A folder, or a file whose name ends in ``.safetensors``.
    resume
        Whether an interrupted run of the same merge is gone on with.
    progress
        Told bytes written and bytes in all.
    threads
        How many calculate; None for as many as there are cores, up to four.
    piece
        Entries of a piece.
    """
    request, ingredients, plan = prepared.request, prepared.ingredients, prepared.plan
    single = output.suffix == SINGLE
    with workplace(output, identity(_identity(prepared)), resume) as work:
        resumed = len(work.finished)
        left = sum(shard.nbytes for shard in plan.shards if shard.name not in work.finished)
        refuse_full(output, left)
        with ThreadPoolExecutor(1, "digest-in") as inputs, ThreadPoolExecutor(1, "digest-out") as outputs:
            library = Library(ingredients.parts, inputs)
            try:
                if any(ingredients.digests) and left:
                    refuse_strangers(ingredients.models, ingredients.fishers, ingredients.digests, library)
                aligned = _aligned(prepared, library)
                _stream(prepared, work, library, outputs, aligned, progress, threads or default_threads(), piece)
                digests = library.digests()
                library.refuse_changed()
            finally:
                library.close()
        files = {shard.name: work.finished[shard.name].sha256 for shard in plan.shards}
        notes = [*plan.notes]
        differing = sorted(name for one in work.finished.values() for name in one.differing)
        if differing:
            notes.append(
                f"{', '.join(differing[:5])}{' and others' if len(differing) > 5 else ''}: not the same in all models; "
                "the first model's"
            )
        details: dict[str, Any] = {}
        if aligned is not None:
            details["aligned"] = {"units_moved": list(aligned.moved), "passes": list(aligned.passes)}
        if not single:
            notes += copy_companions(prepared, work)
        record = provenance(request.document(), ingredients, digests, files, details, notes)
        write_bytes(work.folder / PROVENANCE, f"{as_json(record)}\n".encode())
        if not single:
            write_bytes(work.folder / "README.md", card(record).encode())
        publish(work, output, single)
    return Outcome(files, record, tuple(notes), resumed)


def _identity(prepared: Prepared) -> dict[str, Any]:
    """Return what makes two merges the same, as JSON values: what was asked, files as they are now, versions."""
    ingredients = prepared.ingredients
    versions = library_versions()
    return {
        "request": prepared.request.document(),
        "roles": [[one.name, [str(part.path.resolve()) for part in one.parts]] for one in ingredients.all],
        "files": [
            [str(part.path.resolve()), part.nbytes, part.modified, part.header.digest] for part in ingredients.parts
        ],
        "versions": [versions["consilience"], versions["numpy"]],
    }


def _aligned(prepared: Prepared, library: Library) -> Aligned | None:
    """Return where units go, if anything is to be aligned."""
    symmetry, ingredients = prepared.request.symmetry, prepared.ingredients
    if symmetry is None:
        return None
    first = ingredients.models[0]
    names = {symmetry.aliases.get(name, name): name for name in first.tensors}
    floating = {key for key, name in names.items() if first.tensors[name][1].dtype in FLOATS}

    def read(model: int, key: str) -> Any:
        part, stored = located(ingredients.models[model], names[key])
        values = np.empty(stored.size, dtype=np.float32)
        FLOATS[stored.dtype].decode(_whole(library, part, stored), values)
        return values.reshape(stored.shape)

    return align(symmetry, units_of(symmetry, ingredients), len(ingredients.models), read, floating)


def _whole(library: Library, part: Any, stored: Any) -> Bytes:
    """Return all bytes of a tensor."""
    data = np.empty(stored.nbytes, dtype=np.uint8)
    if stored.nbytes and (hashed := library.read(part, stored.start, data)) is not None:
        hashed.result()
    return data


def _stream(
    prepared: Prepared,
    work: Workplace,
    library: Library,
    outputs: ThreadPoolExecutor,
    aligned: Aligned | None,
    progress: Progress,
    threads: int,
    piece: int,
) -> None:
    """Write all files that are not finished."""
    ingredients, plan, request = prepared.ingredients, prepared.plan, prepared.request
    units = {} if aligned is None or request.symmetry is None else units_of(request.symmetry, ingredients)
    total = sum(task.nbytes for shard in plan.shards for task in shard.tasks)
    written = sum(task.nbytes for shard in plan.shards if shard.name in work.finished for task in shard.tasks)
    facts: dict[str, Facts] = {}

    def strip(one: Checkpoint, name: str, model: int | None) -> Strip:
        part, stored = located(one, name)
        if aligned is not None and model and request.symmetry is not None:
            symmetry = request.symmetry
            layout = symmetry.layouts.get(symmetry.aliases.get(name, name))
            if layout is not None and any(axis.moves for axis in layout.axes):
                width = stored.nbytes // max(1, prod(stored.shape))
                values = _whole(library, part, stored).view(f"u{width}").reshape(stored.shape)
                moved = np.ascontiguousarray(move(values, layout, aligned.transports[model], units))
                return ArrayStrip(moved.reshape(-1).view(np.uint8), stored.dtype, one.name)
        return FileStrip(library, part, stored.start, stored.dtype, one.name)

    def strips_of(task: Task) -> Strips:
        method = task.treatment.method
        if method is None and not task.compared:
            source = task.treatment.source
            own = tuple(
                strip(one, task.name, number if number == source else None)
                for number, one in enumerate(ingredients.models)
            )
            return Strips(own)
        models = tuple(strip(one, task.name, number) for number, one in enumerate(ingredients.models))
        base = None
        information: tuple[Strip, ...] = ()
        if method is not None and method.needs_base and ingredients.base is not None:
            base = strip(ingredients.base, task.name, None)
        if method is not None and method.needs_information and task.name in ingredients.fishers[0].tensors:
            information = tuple(strip(one, task.name, number) for number, one in enumerate(ingredients.fishers))
        return Strips(models, base, information)

    def facts_of(task: Task) -> Facts:
        method = task.treatment.method
        if not (isinstance(method, TensorFisher) and method.normalize):
            return {}
        if "norms" not in facts:
            facts["norms"] = norms(ingredients.fishers, partial(_entries, library))
        return facts["norms"]

    def order(task: Task) -> tuple[int, int]:
        number, stored = ingredients.models[0].tensors[task.name]
        return number, stored.start

    def done(nbytes: int) -> None:
        nonlocal written
        written += nbytes
        progress(written, total)

    stream = Stream(threads, outputs, request.seed, piece)
    try:
        for shard in plan.shards:
            if shard.name not in work.finished:
                digest, differing = stream.write_shard(
                    shard, work.folder / shard.name, strips_of, facts_of, order, done
                )
                work.finish(shard.name, digest, differing)
    finally:
        stream.close()


def _entries(library: Library, one: Checkpoint, name: str, start: int, count: int) -> Any:
    """Return entries of a tensor in 64 bits."""
    part, stored = located(one, name)
    kind = FLOATS[stored.dtype]
    data = np.empty(count * kind.itemsize, dtype=np.uint8)
    if (hashed := library.read(part, stored.start + start * kind.itemsize, data)) is not None:
        hashed.result()
    values = np.empty(count, dtype=np.float64)
    kind.decode(data, values)
    return values
