"""Packing: many small posterior files become a few shards, which are read some sixty times as fast.

Small files are slow since opening and parsing each takes most of the time (docs/sites/scale.md, the table of storage).
Rows of parameters are copied, or rounded to float32 with the Kullback-Leibler divergence that this costs computed for
every component. The new folder appears whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import is_count
from consilience.core.progress import Progress, shown
from consilience.drawing.words import printable
from consilience.errors import InputError, OptionError, Problem
from consilience.files.atomic import write_folder_atomically
from consilience.posteriors.columns import ShardSchema
from consilience.posteriors.sharded.file import SUFFIXES, Form, write_shard
from consilience.posteriors.sharded.header import PackedSites
from consilience.posteriors.sharded.parquet import import_pyarrow
from consilience.posteriors.sharded.shards import MAX_PROBLEMS, Shards, concatenate_sites, load_shard
from consilience.posteriors.sharded.shards import shards as open_shards

PACK_BYTES = 256 * 2**20
"""Bytes of natural parameters in a packed file where nobody says otherwise.

Chosen by hand, as large as one read of an engine may be; sizes between were not compared.
"""

DTYPES = ("float64", "float32")
"""Types in which natural parameters are stored; all other columns are float64."""


@dataclass(frozen=True)
class Packing:
    """The files that ``pack`` wrote."""

    folder: Path  # the folder of the shards
    files: tuple[str, ...]  # their names, in order
    # Numbers of sites and of components in all.
    n_sites: int
    n_components: int
    bytes: int  # size of all files
    # Largest Kullback-Leibler divergence, in nats, of a stored component from the exact one: the cost of float32; 0
    # for float64.
    divergence: float


def pack(
    where: Any,
    folder: str | Path,
    *,
    shard_bytes: int = PACK_BYTES,
    dtype: str = "float64",
    form: Form = "safetensors",
    progress: bool | Progress = False,
) -> Packing:
    """Write many posterior files as a few shards, into a new folder that appears whole or not at all.

    Parameters
    ----------
    where : str, Path, or sequence of these
        Posterior files, as ``shards`` takes them (or shards, to pack them otherwise).
    folder : str or Path
        Folder to write; it must not exist or be empty.
    shard_bytes : int, optional
        Bytes of parameters in a file, about. Default: `PACK_BYTES`.
    dtype : {"float64", "float32"}, optional
        ``"float64"`` keeps every bit; ``"float32"`` halves the size. Default: ``"float64"``.
    form : {"safetensors", "parquet"}, optional
        Form of the files. Default: ``"safetensors"``.
    progress : bool or callable, optional
        True shows a bar on a terminal; a callable is told (sites done, sites in all).

    Returns
    -------
    Packing
        What was written; its `divergence` says, in nats, by how much float32 moved the component it moved most.

    Raises
    ------
    InputError
        For files that cannot be read, do not go together, stand twice, or leave their family's domain in float32.
    OptionError
        For a form, type or size that does not exist.
    """
    if form not in SUFFIXES:
        raise OptionError("form", f"expected one of {', '.join(map(repr, SUFFIXES))}, found {form!r}")
    if form == "parquet":
        import_pyarrow(folder)
    if dtype not in DTYPES:
        raise OptionError("dtype", f"expected one of {', '.join(map(repr, DTYPES))}, found {dtype!r}")
    if not is_count(shard_bytes):
        raise OptionError("shard_bytes", f"expected a positive integer, found {shard_bytes!r}")
    target = Path(folder)
    with shown(progress, "packing", "site") as report:
        shards = open_shards(where, shard_bytes=shard_bytes * 8 // np.dtype(dtype).itemsize)
        with write_folder_atomically(target) as partial:
            written = _write(shards, partial, dtype, form, shard_bytes, report)
    return replace(written, folder=target)


def _write(shards: Shards, folder: Path, dtype: str, form: Form, shard_bytes: int, progress: Progress) -> Packing:
    """Write all shards into a folder and return what was written."""
    files, n_sites, n_components, n_bytes, divergence = [], 0, 0, 0, 0.0
    name_of_digest: dict[bytes, str] = {}
    for number, (exact, stored) in enumerate(_files_to_write(shards, dtype, shard_bytes)):
        if problems := list(_duplicates(stored, name_of_digest)):
            raise InputError(problems[:MAX_PROBLEMS])
        divergence = max(divergence, _rounding_divergence(exact, stored))
        name = f"shard-{number:05d}{SUFFIXES[form]}"
        write_shard(folder / name, stored, form)
        files.append(name)
        n_sites += stored.components.n_sites
        n_components += len(stored.components.natural)
        n_bytes += (folder / name).stat().st_size
        progress(n_sites, shards.n_sites)
    return Packing(folder, tuple(files), n_sites, n_components, n_bytes, divergence)


def _files_to_write(shards: Shards, dtype: str, shard_bytes: int) -> Iterator[tuple[PackedSites, PackedSites]]:
    """Yield the sites of each file, with exact parameters and with those that are stored."""
    row_bytes = np.dtype(dtype).itemsize * shards.kind.family.size
    # Names in packed files are kept as they are; those of posterior files are shortened if all stay distinct.
    is_unique = len({os.path.basename(name) for name in shards.files}) == len(shards.files)
    is_shortened = is_unique and not shards.sources[0].packed
    pending: list[PackedSites] = []
    for number, source in enumerate(shards.sources):
        pending.append(load_shard(source))
        rows = sum(len(sites.components.natural) for sites in pending)
        # A file is written once it has half of its bytes: shards of posterior files count the bytes of their headers
        # too.
        if 2 * rows * row_bytes >= shard_bytes or number + 1 == len(shards.sources):
            packed, pending = concatenate_sites(pending), []
            with np.errstate(over="ignore"):  # infinities are refused by _rounding_divergence
                natural = np.asarray(packed.components.natural).astype(dtype)
            names = tuple(os.path.basename(name) for name in packed.names) if is_shortened else packed.names
            yield (
                packed,
                replace(
                    packed, names=tuple(map(_as_text, names)), components=replace(packed.components, natural=natural)
                ),
            )


def _as_text(name: str) -> str:
    """Return a file's name as a text that every file can hold: of bytes that are no UTF-8, what messages show."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return printable(name)
    return name


def _duplicates(packed: PackedSites, name_of_digest: dict[bytes, str]) -> Iterator[str]:
    """Yield which files stand twice, a line each, and add the digests of all to `name_of_digest`."""
    for name, digest in zip(packed.names, packed.digests, strict=True):
        key = digest.tobytes()
        if any(key) and key in name_of_digest:
            yield Problem(name, f"is the same file as {name_of_digest[key]}", "leave one out", "E-TWICE")
        name_of_digest[key] = name


def _rounding_divergence(exact: PackedSites, stored: PackedSites) -> float:
    """Return the largest divergence of a stored component from the exact one, in nats; refuse one that is none."""
    components, rounded = exact.components, stored.components
    if rounded.natural.dtype == components.natural.dtype:
        return 0.0
    kind: ShardSchema = components.kind
    largest = 0.0
    for _, rows in components.chunks():
        before, after = (np.asarray(columns.natural[rows], dtype=np.float64) for columns in (components, rounded))
        if faults := kind.family.check(after):
            site_name = exact.names[components.place_of(rows.start + faults[0][0])[0]]
            raise InputError(site_name, f"in float32 a component {faults[0][1]}", "pack as float64", "E-NUMBER")
        largest = max(largest, float(kind.family.kl_pairs(before, after).max()))
    return largest
