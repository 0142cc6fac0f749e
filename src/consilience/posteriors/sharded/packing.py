"""Packing: many small posterior files become a few shards, which are read twenty times as fast."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import is_count
from consilience.errors import InputError, OptionError
from consilience.posteriors.columns import Kind
from consilience.posteriors.sharded.file import SUFFIXES, Form, refuse_form, write_shard
from consilience.posteriors.sharded.packed_sites import Packed
from consilience.posteriors.sharded.parquet import arrow
from consilience.posteriors.sharded.shards import Shards, joined, load_shard, open_shards

PACK_BYTES = 256 * 2**20
"""Bytes of a packed file where nobody says otherwise."""

DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class Packing:
    """What ``pack`` wrote.

    Parameters
    ----------
    folder
        Where the shards are.
    files
        Their names, in order.
    n_sites, n_components
        Numbers of sites and of components in all.
    bytes
        Of all files.
    divergence
        Largest Kullback-Leibler divergence, in nats, of a component as it is stored from what it was: what float32
        costs; 0 for float64.
    """

    folder: Path
    files: tuple[str, ...]
    n_sites: int
    n_components: int
    bytes: int
    divergence: float


def pack(
    where: Any,
    folder: str | Path,
    *,
    shard_bytes: int = PACK_BYTES,
    dtype: str = "float64",
    form: Form = "safetensors",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Packing:
    """Write many posterior files as a few shards, into a new folder that appears whole or not at all.

    Parameters
    ----------
    where
        Posterior files (or shards, to pack them otherwise): a folder, a pattern, addresses, or a list of these.
    folder
        Where to; it must not exist or be empty.
    shard_bytes
        Bytes of natural parameters in a file, about.
    dtype
        ``"float64"`` keeps every bit; ``"float32"`` halves the size, and `divergence` of the result says at what cost.
    form
        ``"safetensors"`` or ``"parquet"``.
    progress
        Told (sites done, sites in all).

    Returns
    -------
    Packing
        What was written.

    Raises
    ------
    InputError
        For files that cannot be read, do not go together, stand twice, or leave their family's domain in float32.
    OptionError
        For a form, type or size that does not exist.
    """
    refuse_form(form)
    if form == "parquet":
        arrow(folder)
    if dtype not in DTYPES:
        raise OptionError(f"dtype: expected one of {', '.join(map(repr, DTYPES))}, found {dtype!r}")
    if not is_count(shard_bytes):
        raise OptionError(f"shard_bytes: expected a positive integer, found {shard_bytes!r}")
    target = Path(folder)
    taken = target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir())))
    if taken or target.resolve() == Path.cwd():
        raise InputError(f"{target}: cannot be written: it is there already; give a new folder")
    shards = open_shards(where, shard_bytes * 8 // np.dtype(dtype).itemsize)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    try:
        written = _write(shards, partial, dtype, form, shard_bytes, progress)
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o777 & ~umask)
        if target.exists():
            target.rmdir()
        partial.rename(target)
        return replace(written, folder=target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    shards: Shards, folder: Path, dtype: str, form: Form, shard_bytes: int, progress: Callable[[int, int], None]
) -> Packing:
    files, sites, components, size, divergence = [], 0, 0, 0, 0.0
    seen: dict[bytes, str] = {}
    for number, (exact, stored) in enumerate(_rounded(shards, dtype, shard_bytes)):
        if problems := list(_twice(stored, seen)):
            raise InputError(problems[:20])
        divergence = max(divergence, _loss(exact, stored))
        name = f"shard-{number:05d}{SUFFIXES[form]}"
        write_shard(folder / name, stored, form)
        files.append(name)
        sites += stored.block.n_sites
        components += len(stored.block.natural)
        size += (folder / name).stat().st_size
        progress(sites, shards.n_sites)
    return Packing(folder, tuple(files), sites, components, size, divergence)


def _rounded(shards: Shards, dtype: str, shard_bytes: int) -> Iterator[tuple[Packed, Packed]]:
    """Return what goes into each file, as it is and as it is stored."""
    size = np.dtype(dtype).itemsize * shards.kind.family.size
    short = len({os.path.basename(name) for name in shards.files}) == len(shards.files)
    waiting: list[Packed] = []
    for number, source in enumerate(shards.sources):
        waiting.append(load_shard(source))
        rows = sum(len(one.block.natural) for one in waiting)
        if 2 * rows * size >= shard_bytes or number + 1 == len(shards.sources):
            packed, waiting = joined(waiting), []
            with np.errstate(over="ignore"):  # what overflows is no member of its family, and said to be none
                natural = np.asarray(packed.block.natural).astype(dtype)
            names = tuple(os.path.basename(name) for name in packed.names) if short else packed.names
            yield packed, replace(packed, names=names, block=replace(packed.block, natural=natural))


def _twice(packed: Packed, seen: dict[bytes, str]) -> Iterator[str]:
    """Say which files stand twice."""
    for name, digest in zip(packed.names, packed.digests, strict=True):
        key = digest.tobytes()
        if any(key) and key in seen:
            yield f"{name}: is the same file as {seen[key]}; leave one out"
        seen[key] = name


def _loss(exact: Packed, stored: Packed) -> float:
    """Return the largest divergence of a component as it is stored from what it was, or raise where it is none."""
    block, rounded = exact.block, stored.block
    if rounded.natural.dtype == block.natural.dtype:
        return 0.0
    kind: Kind = block.kind
    worst = 0.0
    for first, end in block.chunks():
        rows = slice(int(block.offsets[first]), int(block.offsets[end]))
        old, new = (np.asarray(one.natural[rows], dtype=np.float64) for one in (block, rounded))
        if faults := kind.family.check(new):
            site = int(np.searchsorted(block.offsets, rows.start + faults[0][0], side="right")) - 1
            raise InputError(f"{exact.names[site]}: in float32 a component {faults[0][1]}; pack as float64")
        worst = max(worst, float(kind.family.kl_pairs(old, new).max()))
    return worst
