"""Shards: the posteriors of very many sites, known by where they lie and loaded where the work is.

Three inputs become the same list of shards: packed files (see ``shard_file``), folders or patterns of posterior files,
and addresses of either. A shard is a run of whole sites of about as many bytes as asked for, so that the same input
gives the same shards on every engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array, is_count
from consilience.core.provenance import file_digest
from consilience.errors import FileFormatError, InputError, OptionError
from consilience.files.remote import ListedFile, is_remote, list_files, local_copy
from consilience.posteriors.columns import Block, Kind, Ragged
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sharded.file import is_shard, read_shard, read_shard_summary
from consilience.posteriors.sharded.header import differences, kind_of
from consilience.posteriors.sharded.packed_sites import Packed, ShardSummary

SHARD_BYTES = 64 * 2**20
"""Bytes of a shard where nobody says otherwise."""

_SUFFIXES = (".safetensors", ".parquet")
_FEW = 20


@dataclass(frozen=True)
class ShardSource:
    """Where a shard lies: a run of sites of a packed file, or posterior files.

    Parameters
    ----------
    kind
        What its sites are expected to share with all others.
    paths
        One packed file, or posterior files, a site each, as they were given.
    folder
        What local paths are relative to, wherever they are read.
    first, end
        Of a packed file: sites, or row groups of Parquet; None for the end reads to the last.
    packed
        Which of the two it is.
    size
        Bytes on disk, about.
    """

    kind: Kind
    paths: tuple[str, ...]
    folder: str
    first: int = 0
    end: int | None = None
    packed: bool = True
    size: int = 0

    def place(self, path: str) -> str:
        """Return where one of the paths is."""
        return path if is_remote(path) else os.path.join(self.folder, path)


@dataclass(frozen=True)
class Shards:
    """The posteriors of many sites, not loaded.

    Parameters
    ----------
    kind
        What all sites share.
    sources
        Where each shard lies, in order.
    n_sites
        Number J of sites.
    """

    kind: Kind
    sources: tuple[ShardSource, ...] = field(repr=False)
    n_sites: int

    @property
    def files(self) -> tuple[str, ...]:
        """The files in which they lie, in order."""
        return tuple(dict.fromkeys(path for source in self.sources for path in source.paths))


def open_shards(where: Any, shard_bytes: int = SHARD_BYTES) -> Shards:
    """Return the shards of files, of a folder or a pattern of files, or of addresses, from their headers alone.

    Parameters
    ----------
    where
        Packed shards (``consilience pack``) or posterior files, not both: a path, a folder, a pattern, an address that
        fsspec opens, or a list of these.
    shard_bytes
        Bytes of a shard, about; never less than a site.

    Raises
    ------
    InputError
        For files that are missing, are neither, or do not go together.
    OptionError
        For a number of bytes that is not positive, and where an optional package is missing.
    """
    if not is_count(shard_bytes):
        raise OptionError(f"shard_bytes: expected a positive integer, found {shard_bytes!r}")
    files = list_files(where, _SUFFIXES)
    if not files:
        raise InputError("nothing to open: no file was given")
    with local_copy(files[0].path) as first:
        packed = is_shard(first) or files[0].path.endswith(".parquet")
    return _of_packed(files, shard_bytes) if packed else _of_posteriors(files, shard_bytes)


def _of_packed(files: Sequence[ListedFile], shard_bytes: int) -> Shards:
    sources: list[ShardSource] = []
    problems: list[str] = []
    kind: Kind | None = None
    total = 0
    for file in files:
        try:
            with local_copy(file.path) as path:
                if not is_shard(path) and not file.path.endswith(".parquet"):
                    problems.append(f"{file.path}: is no shard as {files[0].path} is; pack all, or fuse files alone")
                    continue
                summary = read_shard_summary(path, file.path)
        except FileFormatError as error:
            problems += error.problems
            continue
        kind = summary.kind if kind is None else kind
        problems += [f"{file.path}: {text} as {files[0].path}" for text in differences(kind, summary.kind)]
        total += summary.n_sites
        sources += _runs(kind, file, summary, shard_bytes)
    if problems or kind is None:
        raise InputError(problems[:_FEW])
    return Shards(kind, tuple(sources), total)


def _runs(kind: Kind, file: ListedFile, summary: ShardSummary, shard_bytes: int) -> Iterator[ShardSource]:
    """Return runs of the sites of a packed file; one that comes from afar comes as a whole."""
    parquet = file.path.endswith(".parquet")
    units = len(summary.groups) if parquet else summary.n_sites
    parts = 1 if is_remote(file.path) else min(units, max(1, round(file.size / shard_bytes)))
    edges = np.linspace(0, units, parts + 1).astype(np.int64).tolist()
    for first, end in pairwise(edges):
        yield ShardSource(kind, (file.path,), os.getcwd(), first, end, size=file.size // parts)


def _of_posteriors(files: Sequence[ListedFile], shard_bytes: int) -> Shards:
    with local_copy(files[0].path) as path:
        kind = kind_of(_read(path, files[0].path))
    sources: list[ShardSource] = []
    run: list[str] = []
    size = 0
    for file in files:
        if run and size + file.size > shard_bytes:
            sources.append(ShardSource(kind, tuple(run), os.getcwd(), packed=False, size=size))
            run, size = [], 0
        run.append(file.path)
        size += file.size
    sources.append(ShardSource(kind, tuple(run), os.getcwd(), packed=False, size=size))
    return Shards(kind, tuple(sources), len(files))


def load_shard(source: ShardSource) -> Packed:
    """Return a shard with everything checked, its values' domain included.

    Raises
    ------
    InputError
        Naming file, site and component of what is not valid.
    """
    if not source.packed:
        return _load_posteriors(source)
    called = source.paths[0]
    with local_copy(source.place(called)) as path:
        packed = read_shard(path, called, source.first, source.end)
    if problems := [f"{called}: {text}" for text in differences(source.kind, packed.block.kind)]:
        raise InputError(problems)
    if problems := list(_faults(packed, called)):
        raise InputError(problems[:_FEW])
    return packed


def _load_posteriors(source: ShardSource) -> Packed:
    posteriors, digests = [], []
    problems: list[str] = []
    for called in source.paths:
        with local_copy(source.place(called)) as path:
            try:
                posterior = _read(path, called)
            except InputError as error:
                shard = is_shard(path)
                problems += [f"{called}: is a shard beside posterior files; pack all"] if shard else error.problems
                continue
            digests.append(bytes.fromhex(file_digest(path)))
        problems += [f"{called}: {text}" for text in differences(source.kind, kind_of(posterior))]
        posteriors.append(posterior)
    if problems:
        raise InputError(problems[:_FEW])
    stacked = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)
    return Packed(stack(source.kind, posteriors), source.paths, stacked)


def _read(path: Path, called: str) -> Posterior:
    """Return the posterior of a file, with errors that call it as it was given."""
    try:
        return read_posterior(path)[0]
    except InputError as error:
        raise type(error)([problem.replace(str(path), called) for problem in error.problems]) from error


def stack(kind: Kind, posteriors: Sequence[Posterior], dtype: str = "float64") -> Block:
    """Return the posteriors of sites of one kind as a block."""
    sizes = np.array([one.n_components for one in posteriors])
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    columns = {name: np.concatenate([getattr(one, name) for one in posteriors]) for name in kind.stated}
    prior = columns["prior"].reshape(len(posteriors), -1) if "prior" in columns else None
    if prior is not None and np.all(prior == prior[0]):
        prior = prior[0]
    attached = {}
    for name, (_axes, rule, _lengths) in kind.attached.items():
        own = [one.attached[name] for one in posteriors]
        values = np.concatenate([each.values.ravel() for each in own])
        precise = [each.precision.ravel() for each in own if each.precision is not None]
        attached[name] = Ragged(values, np.concatenate(precise) if rule == "precision-mean" else None)
    return Block(
        kind,
        np.concatenate([one.natural for one in posteriors]).astype(dtype),
        offsets,
        columns.get("counts"),
        columns.get("weights"),
        prior,
        attached,
    )


def joined(packs: Sequence[Packed]) -> Packed:
    """Return sites of several shards of one kind as one."""
    if len(packs) == 1:
        return packs[0]
    blocks = [one.block for one in packs]
    kind = blocks[0].kind
    columns: dict[str, Array] = {
        name: np.concatenate([getattr(block, name) for block in blocks])
        for name in ("counts", "weights")
        if name in kind.stated
    }
    prior: Array | None = None
    if "prior" in kind.stated:
        size = kind.family.size
        rows = [np.broadcast_to(np.asarray(block.prior), (block.n_sites, size)) for block in blocks]
        prior = np.concatenate(rows)
        prior = prior[0] if np.all(prior == prior[0]) else prior
    attached = {}
    for name, (_axes, rule, _lengths) in kind.attached.items():
        own = [block.attached[name] for block in blocks]
        precise = [one.precision for one in own if one.precision is not None]
        precision = np.concatenate(precise) if rule == "precision-mean" else None
        attached[name] = Ragged(np.concatenate([one.values for one in own]), precision)
    starts = np.cumsum([0, *(int(block.offsets[-1]) for block in blocks)])
    offsets = [block.offsets[:-1] + start for block, start in zip(blocks, starts[:-1], strict=True)]
    natural = np.concatenate([block.natural for block in blocks])
    block = Block(
        kind, natural, np.concatenate([*offsets, starts[-1:]]), columns.get("counts"), columns.get("weights"), prior,
        attached,
    )  # fmt: skip
    names = tuple(name for one in packs for name in one.names)
    return Packed(block, names, np.concatenate([one.digests for one in packs]))


def _faults(packed: Packed, called: str) -> Iterator[str]:
    """Say which values are not of their domain."""
    block = packed.block
    family = block.kind.family
    for first, end in block.chunks():
        rows = slice(int(block.offsets[first]), int(block.offsets[end]))
        for row, text in family.check(np.asarray(block.natural[rows], dtype=np.float64)):
            site = int(np.searchsorted(block.offsets, rows.start + row, side="right")) - 1
            place = rows.start + row - int(block.offsets[site])
            yield f"{called}: {packed.names[site]}: component {place} {text}"
    for name, values in (("counts", block.counts), ("weights", block.weights)):
        if values is None:
            continue
        for row in np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[:_FEW]:
            site = int(np.searchsorted(block.offsets, row, side="right")) - 1
            yield f"{called}: {packed.names[site]}: has {name} {values[row]}, which must be finite and not negative"
    if block.prior is not None and not np.all(np.isfinite(block.prior)):
        yield f"{called}: a prior has NaN or infinite natural parameters"
    for name, ragged in block.attached.items():
        fine = np.all(np.isfinite(ragged.values))
        if ragged.precision is not None:
            fine = fine and np.all(np.isfinite(ragged.precision) & (ragged.precision > 0))
        if not fine:
            yield f"{called}: attached array {name!r} has NaN or infinite values, or a precision that is not positive"
