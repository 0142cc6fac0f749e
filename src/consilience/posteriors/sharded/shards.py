"""Shards: the posteriors of very many sites, known by where they lie and loaded where the work is.

Three inputs become the same list of shards: packed files (``file``), folders or patterns of posterior files, and
addresses of either. A shard is a run of whole sites of about as many bytes as asked for, known from headers alone, so
that the same input gives the same shards on every engine. Loading checks everything: shapes, types, the domain of the
family; what is wrong is an error that names file, site and component.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import is_count
from consilience.core.provenance import file_digest
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count
from consilience.errors import FileFormatError, InputError, OptionError, Problem
from consilience.files.remote import ListedFile, is_remote, list_files, local_copy
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sharded.file import is_shard, read_shard, read_shard_summary
from consilience.posteriors.sharded.header import PackedSites, ShardSummary, differences, kind_of

SHARD_BYTES = 64 * 2**20
"""Bytes of a shard where nobody says otherwise: with a few workers, tens of shards to a gigabyte. Chosen by hand."""

FILE_SUFFIXES = (".safetensors", ".parquet")
"""Suffixes of the files that are taken from a folder."""

MAX_PROBLEMS = 20
"""Problems that one error lists at most, so that it can be read. Chosen by hand."""


@dataclass(frozen=True)
class ShardSource:
    """Where a shard lies: a run of sites of a packed file, or posterior files."""

    kind: ShardSchema  # what its sites are expected to share with all others
    paths: tuple[str, ...]  # one packed file, or posterior files, a site each, as they were given
    folder: str  # what local paths are relative to, wherever they are read
    first: int = 0  # of a packed file: sites, or row groups of Parquet
    end: int | None = None  # None reads to the last
    packed: bool = True  # whether this is a packed file
    size: int = 0  # bytes on disk, about
    summary: ShardSummary | None = field(default=None, repr=False)  # of a packed file, read once

    def location(self, path: str) -> str:
        """Return the full path or the address of one of the paths."""
        return path if is_remote(path) else os.path.join(self.folder, path)


@dataclass(frozen=True, repr=False)
class Shards(Displayed):
    """The posteriors of many sites, not loaded.

    Parameters
    ----------
    kind : ShardSchema
        What all sites share.
    sources : tuple of ShardSource
        Where each shard lies, in order.
    n_sites : int
        Number J of sites.
    """

    kind: ShardSchema
    sources: tuple[ShardSource, ...] = field(repr=False)
    n_sites: int

    def _headline(self) -> str:
        return f"{format_count(self.n_sites, 'site')} in {format_count(len(self.files), 'file')}, not loaded"

    def _facts(self) -> dict[str, object | None]:
        return {"family": repr(self.kind.family), "files": names_in_line([Path(path).name for path in self.files])}

    @property
    def files(self) -> tuple[str, ...]:
        """The files in which the shards lie, in order."""
        return tuple(dict.fromkeys(path for source in self.sources for path in source.paths))


def shards(where: Any, *, shard_bytes: int = SHARD_BYTES) -> Shards:
    """Return the posteriors of many sites as shards to fuse, known from their headers and not loaded.

    Parameters
    ----------
    where : str, Path, or sequence of these
        Packed shards or posterior files, not both: a path, a folder, a pattern such as ``sites/*.safetensors``, an
        address that fsspec opens (``s3://bucket/sites``), or a list of these.
    shard_bytes : int, optional
        Bytes of a shard, about; never less than one site. Default: `SHARD_BYTES`. The same input in the same shards
        gives the same result on every engine.

    Raises
    ------
    InputError
        For files that are missing, are neither, or do not go together.
    OptionError
        For a size that is not positive, and where an optional package is missing.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from consilience import Posterior, families, fuse, save
    >>> family, rng = families.DiagonalGaussian(dim=2), np.random.default_rng(0)
    >>> folder = tempfile.mkdtemp()
    >>> for site in range(20):
    ...     eta = family.to_natural(mean=rng.normal([[0, 0], [9, 9]], 0.5), variance=np.ones((2, 2)))
    ...     save(Posterior(family, eta), f"{folder}/site-{site}.safetensors")
    >>> shards(folder).n_sites
    20
    >>> fuse(shards(folder), method="spahm").n_components
    2
    """
    if not is_count(shard_bytes):
        raise OptionError("shard_bytes", f"expected a positive integer, found {shard_bytes!r}")
    files = list_files(where, FILE_SUFFIXES)
    if not files:
        raise InputError("nothing to open", "no file was given", code="E-NEEDED")
    with local_copy(files[0].path) as path:
        first = SafetensorsFile(path, files[0].path)
        if is_shard(first):
            return _open_packed(files, first, shard_bytes)
    return _open_posteriors(files, shard_bytes)


def _open_packed(files: Sequence[ListedFile], first: SafetensorsFile, shard_bytes: int) -> Shards:
    """Return the shards of packed files, each a run of sites of one file; the `first` is open."""
    sources: list[ShardSource] = []
    problems: list[Problem] = []
    kind: ShardSchema | None = None
    n_sites = 0
    for position, file in enumerate(files):
        with nullcontext() if position == 0 else local_copy(file.path) as path:
            opened = first if path is None else SafetensorsFile(path, file.path)
            try:
                summary = read_shard_summary(opened)
            except FileFormatError as error:
                is_damaged = is_shard(opened)  # of which its reader says more
                text = f"is no shard as {files[0].path} is"
                no_shard = Problem(file.path, text, "pack all, or fuse files alone", FileFormatError.code)
                problems += error.problems if is_damaged else [no_shard]
                continue
        kind = summary.kind if kind is None else kind
        problems += [Problem(file.path, f"{text} as {files[0].path}") for text in differences(kind, summary.kind)]
        n_sites += summary.n_sites
        sources += _runs(kind, file, summary, shard_bytes)
    if problems or kind is None:
        raise InputError(problems[:MAX_PROBLEMS])
    return Shards(kind, tuple(sources), n_sites)


def _runs(kind: ShardSchema, file: ListedFile, summary: ShardSummary, shard_bytes: int) -> Iterator[ShardSource]:
    """Yield runs of the sites of a packed file; a file at an address is one run, since it is fetched whole."""
    is_parquet = file.path.endswith(".parquet")
    n_units = len(summary.groups) if is_parquet else summary.n_sites  # Parquet is read by row groups
    n_runs = 1 if is_remote(file.path) else min(n_units, max(1, round(file.size / shard_bytes)))
    edges = np.linspace(0, n_units, n_runs + 1).astype(np.int64).tolist()
    for first, end in pairwise(edges):
        size = file.size // n_runs
        yield ShardSource(kind, (file.path,), os.getcwd(), first, end, size=size, summary=summary)


def _open_posteriors(files: Sequence[ListedFile], shard_bytes: int) -> Shards:
    """Return the shards of posterior files, each some files; only the first file is read."""
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


def open_shard_file(file: SafetensorsFile) -> Shards:
    """Return the shards of one packed file."""
    return shards(file.path)


def load_shard(source: ShardSource) -> PackedSites:
    """Return a shard with everything checked, the domain of its values included."""
    if not source.packed:
        return _load_posteriors(source)
    display_name = source.paths[0]
    with local_copy(source.location(display_name)) as path:
        packed = read_shard(path, display_name, source.first, source.end, source.summary)
    if problems := [Problem(display_name, text) for text in differences(source.kind, packed.components.kind)]:
        raise InputError(problems)
    if problems := list(_domain_problems(packed, display_name)):
        raise InputError(problems[:MAX_PROBLEMS])
    return packed


def _load_posteriors(source: ShardSource) -> PackedSites:
    """Return the sites of posterior files."""
    posteriors, digests = [], []
    problems: list[Problem] = []
    for display_name in source.paths:
        with local_copy(source.location(display_name)) as path:
            try:
                posterior = _read(path, display_name)
            except InputError as error:
                is_packed = is_shard(path)
                problems += (
                    [Problem(display_name, "is a shard among posterior files", "pack all")]
                    if is_packed
                    else error.problems
                )
                continue
            digests.append(bytes.fromhex(file_digest(path)))
        problems += [Problem(display_name, text) for text in differences(source.kind, kind_of(posterior))]
        posteriors.append(posterior)
    if problems:
        raise InputError(problems[:MAX_PROBLEMS])
    digest_rows = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)  # (J, 32)
    return PackedSites(stack_posteriors(source.kind, posteriors), source.paths, digest_rows)


def _read(path: Path, display_name: str) -> Posterior:
    """Return the posterior of a file, with `display_name` for its path in errors."""
    try:
        return read_posterior(path)[0]
    except InputError as error:
        raise type(error)(problem.renamed(path, display_name) for problem in error.problems) from error


def stack_posteriors(kind: ShardSchema, posteriors: Sequence[Posterior]) -> ComponentColumns:
    """Return the posteriors of sites of one kind as columns."""
    return ComponentColumns.joined([ComponentColumns.of(kind, posterior) for posterior in posteriors])


def concatenate_sites(parts: Sequence[PackedSites]) -> PackedSites:
    """Return the sites of several packed files of one kind as those of one."""
    if len(parts) == 1:
        return parts[0]
    components = ComponentColumns.joined([part.components for part in parts])
    names = tuple(name for part in parts for name in part.names)
    return PackedSites(components, names, np.concatenate([part.digests for part in parts]))


def _domain_problems(packed: PackedSites, display_name: str) -> Iterator[Problem]:
    """Yield which values are outside their domain, a line each."""
    components = packed.components
    family = components.kind.family
    for _, rows in components.chunks():
        for row, text in family.check(np.asarray(components.natural[rows], dtype=np.float64)):
            site, number = components.place_of(rows.start + row)
            yield Problem(display_name, f"{packed.names[site]}: component {number} {text}")
    for name, values in components.stated_rows.items():
        for row in np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[:MAX_PROBLEMS]:
            site_name = packed.names[components.place_of(row)[0]]
            yield Problem(display_name, f"{site_name}: has {name} {values[row]}, which must be finite and not negative")
    if components.prior is not None and not np.all(np.isfinite(components.prior)):
        yield Problem(display_name, "a prior has NaN or infinite natural parameters")
    for name, ragged in components.attached.items():
        is_valid = np.all(np.isfinite(ragged.values))
        if ragged.precision is not None:
            is_valid = is_valid and np.all(np.isfinite(ragged.precision) & (ragged.precision > 0))
        if not is_valid:
            problem = "has NaN or infinite values, or a precision that is not positive"
            yield Problem(display_name, f"attached array {name!r} {problem}")
