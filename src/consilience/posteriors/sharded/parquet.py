"""Shards as Parquet: a row for each site, every column of it as bytes, in row groups.

Columns: ``natural``, of the type that the schema's metadata names, and where sites state them ``counts``, ``weights``,
``prior``, ``attached.NAME`` and ``attached.NAME.precision``, all float64; the ``name`` of the site and the ``sha256``
of its file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Labels
from consilience.errors import FileFormatError, OptionError
from consilience.files.atomic import write_atomically
from consilience.files.document import METADATA_KEY
from consilience.posteriors.columns import Block, Kind, Ragged
from consilience.posteriors.sharded.header import REMEDY, header_text, parse_kind, refuse_columns
from consilience.posteriors.sharded.packed_sites import DIGEST, Packed, ShardSummary, site_digests, site_names

ROW_GROUP = 5000
"""Sites in a row group."""


def write_parquet(path: Path, packed: Packed) -> None:
    """Write a shard, whole or not at all.

    Raises
    ------
    OptionError
        Where pyarrow is not installed.
    """
    pyarrow, parquet = arrow(path)
    block = packed.block
    one = np.dtype(block.natural.dtype).itemsize * block.natural.shape[1]
    columns: dict[str, Any] = {
        "natural": _binary(pyarrow, np.ascontiguousarray(block.natural), block.offsets * one),
        "name": pyarrow.array([name.encode(errors="replace").decode() for name in packed.names], pyarrow.string()),
        "sha256": _binary(pyarrow, packed.digests, np.arange(block.n_sites + 1) * DIGEST),
    }
    for name, values in (("counts", block.counts), ("weights", block.weights)):
        if values is not None:
            columns[name] = _binary(pyarrow, values, block.offsets * 8)
    if block.prior is not None:
        width = block.natural.shape[1]
        rows = np.broadcast_to(block.prior, (block.n_sites, width))
        columns["prior"] = _binary(pyarrow, np.ascontiguousarray(rows), np.arange(block.n_sites + 1) * 8 * width)
    for name, ragged in block.attached.items():
        starts = block.attached_starts[name] * 8
        columns[f"attached.{name}"] = _binary(pyarrow, ragged.values, starts)
        if ragged.precision is not None:
            columns[f"attached.{name}.precision"] = _binary(pyarrow, ragged.precision, starts)
    metadata = {METADATA_KEY: header_text(block.kind), "dtype": np.dtype(block.natural.dtype).name}
    table = pyarrow.table(columns).replace_schema_metadata(metadata)
    with write_atomically(path) as partial:
        parquet.write_table(table, partial, row_group_size=ROW_GROUP, compression="none", use_dictionary=False,
                            write_statistics=False)  # fmt: skip


def _binary(pyarrow: Any, values: NDArray[Any], starts: Labels) -> Any:
    """Return a column of bytes, of fixed length where all are as long, without a copy."""
    data, lengths = pyarrow.py_buffer(values.reshape(-1).view(np.uint8)), np.diff(starts)
    if len(lengths) and lengths[0] > 0 and np.all(lengths == lengths[0]):
        return pyarrow.Array.from_buffers(pyarrow.binary(int(lengths[0])), len(lengths), [None, data])
    offsets = pyarrow.py_buffer(starts.astype(np.int64))
    return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(lengths), [None, offsets, data])


def read_parquet_summary(path: Path, called: str) -> ShardSummary:
    """Return what the header of a shard says; `called` is its name in messages."""
    file = _parquet_file(path, called)
    groups = tuple(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups))
    return ShardSummary(_parquet_kind(file, called)[0], file.metadata.num_rows, None, groups)


def read_parquet(path: Path, called: str, first: int, end: int | None) -> Packed:
    """Return the sites in row groups `first` to `end` of a shard."""
    file = _parquet_file(path, called)
    kind, dtype = _parquet_kind(file, called)
    groups = list(range(file.metadata.num_row_groups))[first:end]
    table = file.read_row_groups(groups).combine_chunks()
    if not len(table):
        raise ValueError("has no sites")
    refuse_columns(kind, set(table.column_names) - {"name", "sha256"})
    columns = {name: _bytes_of(table.column(name), name) for name in table.column_names if name != "name"}
    natural, lengths = columns["natural"]
    width = np.dtype(dtype).itemsize * kind.family.size
    if np.any(lengths % width) or not lengths.all():
        raise ValueError("natural parameters of a site have a length that is not that of whole components")
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths // width)])
    floats = {
        name: values.view(np.float64)
        for name, (values, _) in columns.items()
        if name not in ("natural", "sha256")
    }  # fmt: skip
    prior = floats["prior"].reshape(len(lengths), -1) if "prior" in floats else None
    if prior is not None and len(prior) and np.all(prior == prior[0]):
        prior = prior[0]
    attached = {
        name: Ragged(floats[f"attached.{name}"], floats.get(f"attached.{name}.precision")) for name in kind.attached
    }
    values = natural.view(dtype).reshape(-1, kind.family.size)
    block = Block(kind, values, offsets, floats.get("counts"), floats.get("weights"), prior, attached)
    for name, (_, found) in columns.items():
        if name != "natural" and np.any(found != _lengths(block, name)):
            raise ValueError(f"{name} of a site has another length than its components ask for")
    names = table.column("name").to_pylist() if "name" in table.column_names else None
    digests = columns["sha256"][0].reshape(len(lengths), -1) if "sha256" in columns else None
    return Packed(block, site_names(names, 0, len(lengths)), site_digests(digests, len(lengths)))


def _lengths(block: Block, name: str) -> Labels:
    """Return the bytes that a column has for each site (J,)."""
    if name == "sha256":
        return np.full(block.n_sites, DIGEST)
    if name == "prior":
        return np.full(block.n_sites, 8 * block.kind.family.size)
    if name in ("counts", "weights"):
        return 8 * block.sizes
    attached = name.removeprefix("attached.")
    known = attached if attached in block.attached_starts else attached.removesuffix(".precision")
    return 8 * np.diff(block.attached_starts[known])


def _bytes_of(column: Any, name: str) -> tuple[NDArray[np.uint8], Labels]:
    """Return the bytes of a column, one value after another, and the length of each."""
    import pyarrow

    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if array.null_count:
        raise ValueError(f"{name} of a site is missing")
    binary = (pyarrow.types.is_binary, pyarrow.types.is_large_binary, pyarrow.types.is_fixed_size_binary)
    if not any(kind(array.type) for kind in binary):
        raise ValueError(f"{name} is {array.type}, expected binary")
    if pyarrow.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * size : (array.offset + len(array)) * size]
        return data, np.full(len(array), size, dtype=np.int64)
    large = array.cast(pyarrow.large_binary())
    starts = np.frombuffer(large.buffers()[1], np.int64)[large.offset : large.offset + len(large) + 1]
    data = np.frombuffer(large.buffers()[2] or b"", np.uint8)[starts[0] : starts[-1]]
    return np.ascontiguousarray(data), np.diff(starts)


def arrow(path: Path | str) -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet.

    Raises
    ------
    OptionError
        Where they are not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OptionError(f"{path}: pyarrow is not installed; pip install 'consilience[scale]'") from error
    return pyarrow, parquet


def _parquet_file(path: Path, called: str) -> Any:
    pyarrow, parquet = arrow(called)
    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"{called}: cannot be read as Parquet ({reason}); {REMEDY}") from error


def _parquet_kind(file: Any, called: str) -> tuple[Kind, str]:
    metadata = file.schema_arrow.metadata or {}
    dtype = metadata.get(b"dtype", b"").decode(errors="replace")
    if METADATA_KEY.encode() not in metadata or dtype not in ("float32", "float64"):
        raise FileFormatError(f"{called}: has no consilience metadata, so it is not a shard; {REMEDY}")
    return parse_kind(called, metadata[METADATA_KEY.encode()]), dtype
