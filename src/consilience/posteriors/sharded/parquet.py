"""Parquet shards: a row for each site, every column of it as bytes, in row groups.

Columns: ``natural``, of the type that the schema's metadata names, and where sites state them ``counts``, ``weights``,
``prior``, ``attached.NAME`` and ``attached.NAME.precision``, all float64; the ``name`` of the site and the ``sha256``
of its file. A column is fixed-length binary where all sites have as many bytes, which is the fastest form to read and
needs no copy, and large binary otherwise. Nothing is compressed: parameters are as good as random.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Labels
from consilience.errors import FileFormatError, OptionError
from consilience.files.atomic import write_atomically
from consilience.files.document import METADATA_KEY, parse_document
from consilience.files.parquet import open_parquet
from consilience.posteriors.columns import ComponentColumns, RaggedColumn, ShardSchema, one_if_alike
from consilience.posteriors.ensemble import offsets_of
from consilience.posteriors.sharded.header import (
    DIGEST_BYTES,
    REMEDY,
    PackedSites,
    ShardSummary,
    header_text,
    parse_kind,
    refuse_columns,
    site_digests,
    site_names,
)

FLOAT_BYTES = 8
"""Bytes of a float64."""

ROW_GROUP_SITES = 5000
"""Sites in a row group, the least that can be read by itself.

Chosen from measurements of reading 100,000 records of 4 KB, before this module was written; no comparison of sizes is
kept.
"""


def write_parquet(path: Path, packed: PackedSites) -> None:
    """Write a shard, whole or not at all; raise OptionError where pyarrow is not installed."""
    pyarrow, parquet = import_pyarrow(path)
    components = packed.components
    arrays = {**components.arrays(), "sha256": packed.digests}
    if components.priors is not None:
        arrays["prior"] = components.priors
    columns = {
        name: _binary(pyarrow, np.ascontiguousarray(values), offsets_of(_site_bytes(components, name)))
        for name, values in arrays.items()
    }
    names = pyarrow.array(list(packed.names), pyarrow.string())
    first = {"natural": columns.pop("natural"), "name": names, "sha256": columns.pop("sha256")}
    text = header_text(path, components.kind, {"natural": components.natural})
    metadata = {METADATA_KEY: text, "dtype": np.dtype(components.natural.dtype).name}
    table = pyarrow.table({**first, **columns}).replace_schema_metadata(metadata)
    with write_atomically(path) as partial:
        parquet.write_table(table, partial, row_group_size=ROW_GROUP_SITES, compression="none", use_dictionary=False,
                            write_statistics=False)  # fmt: skip


def _binary(pyarrow: Any, values: NDArray[Any], starts: Labels) -> Any:
    """Return a binary column whose value i is the bytes `starts[i]` to `starts[i + 1]` of `values`, without a copy."""
    data, lengths = pyarrow.py_buffer(values.reshape(-1).view(np.uint8)), np.diff(starts)
    if len(lengths) and lengths[0] > 0 and np.all(lengths == lengths[0]):
        return pyarrow.Array.from_buffers(pyarrow.binary(int(lengths[0])), len(lengths), [None, data])
    offsets = pyarrow.py_buffer(starts.astype(np.int64))
    return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(lengths), [None, offsets, data])


def read_parquet_summary(path: Path, display_name: str) -> ShardSummary:
    """Return what the header of a shard states; `display_name` is its name in messages."""
    file = _parquet_file(path, display_name)
    return ShardSummary(_parquet_kind(file, display_name)[0], file.metadata.num_rows, None, _sites_by_group(file))


def _sites_by_group(file: Any) -> tuple[int, ...]:
    """Return the number of sites in each row group."""
    return tuple(file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups))


def read_parquet(path: Path, display_name: str, first: int, end: int | None) -> PackedSites:
    """Return the sites in row groups `first` to `end` of a shard.

    Columns that do not fit the header or one another are a ValueError; ``file.read_shard`` names the file.
    """
    file = _parquet_file(path, display_name)
    kind, dtype = _parquet_kind(file, display_name)
    row_groups = list(range(file.metadata.num_row_groups))[first:end]
    table = file.read_row_groups(row_groups).combine_chunks()
    if not len(table):
        raise ValueError("has no sites")
    refuse_columns(kind, set(table.column_names) - {"name", "sha256"})
    columns = {name: _bytes_of(table.column(name), name) for name in table.column_names if name != "name"}
    components = _components_of(kind, dtype, columns)
    for name, (_, lengths) in columns.items():
        if np.any(lengths != _site_bytes(components, name)):
            raise ValueError(f"{name} of a site has another length than its components ask for")
    n_sites = components.n_sites
    if "name" in table.column_names:
        names = site_names(table.column("name").to_pylist(), 0, n_sites)
    else:  # numbered by the places of these sites in the whole file
        first_site = sum(_sites_by_group(file)[:first])
        names = site_names(None, first_site, first_site + n_sites)
    digests = columns["sha256"][0].reshape(n_sites, -1) if "sha256" in columns else None
    return PackedSites(components, names, site_digests(digests, n_sites))


def _components_of(
    kind: ShardSchema, dtype: str, columns: Mapping[str, tuple[NDArray[np.uint8], Labels]]
) -> ComponentColumns:
    """Return the components of sites from the bytes of all sites and those of each (J,), by column."""
    natural, lengths = columns["natural"]
    width = np.dtype(dtype).itemsize * kind.family.size
    if np.any(lengths % width) or not lengths.all():
        raise ValueError("natural parameters of a site have a length that is not that of whole components")
    floats = {name: columns[name][0].view(np.float64) for name in columns if name not in ("natural", "sha256")}
    return ComponentColumns(
        kind,
        natural.view(dtype).reshape(-1, kind.family.size),
        offsets_of(lengths // width),
        floats.get("counts"),
        floats.get("weights"),
        one_if_alike(floats["prior"].reshape(len(lengths), -1)) if "prior" in floats else None,
        {
            name: RaggedColumn(floats[f"attached.{name}"], floats.get(f"attached.{name}.precision"))
            for name in kind.attached
        },
    )


def _site_bytes(components: ComponentColumns, name: str) -> Labels:
    """Return the bytes that a column has for each site (J,)."""
    if name == "natural":
        return components.sizes * components.natural.dtype.itemsize * components.natural.shape[1]
    if name == "sha256":
        return np.full(components.n_sites, DIGEST_BYTES)
    if name == "prior":
        return np.full(components.n_sites, FLOAT_BYTES * components.kind.family.size)
    if name in ("counts", "weights"):
        return FLOAT_BYTES * components.sizes
    attached = name.removeprefix("attached.")
    array_name = attached if attached in components.attached_starts else attached.removesuffix(".precision")
    return FLOAT_BYTES * np.diff(components.attached_starts[array_name])


def _bytes_of(column: Any, name: str) -> tuple[NDArray[np.uint8], Labels]:
    """Return the bytes of a binary column, all sites one after another, and the bytes of each site (J,)."""
    import pyarrow

    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if array.null_count:
        raise ValueError(f"{name} of a site is missing")
    binary_types = (pyarrow.types.is_binary, pyarrow.types.is_large_binary, pyarrow.types.is_fixed_size_binary)
    if not any(is_type(array.type) for is_type in binary_types):
        raise ValueError(f"{name} is {array.type}, expected binary")
    if pyarrow.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * size : (array.offset + len(array)) * size]
        return data, np.full(len(array), size, dtype=np.int64)
    large_array = array.cast(pyarrow.large_binary())
    # Arrow: buffers are validity, offsets and data; an array may be a slice of a longer one, from `offset` on.
    starts = np.frombuffer(large_array.buffers()[1], np.int64)[
        large_array.offset : large_array.offset + len(large_array) + 1
    ]
    data = np.frombuffer(large_array.buffers()[2] or b"", np.uint8)[starts[0] : starts[-1]]
    return np.ascontiguousarray(data), np.diff(starts)


def import_pyarrow(path: Path | str) -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet; raise OptionError where they are not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise OptionError(path, "pyarrow is not installed", "pip install 'consilience[scale]'", "E-EXTRA") from error
    return pyarrow, parquet


def _parquet_file(path: Path, display_name: str) -> Any:
    """Return the opened file."""
    import_pyarrow(display_name)
    return open_parquet(path, display_name, REMEDY, is_plain=True)


def _parquet_kind(file: Any, display_name: str) -> tuple[ShardSchema, str]:
    """Return the kind of a shard and the type of its parameters, from the metadata of its schema."""
    metadata = file.schema_arrow.metadata or {}
    dtype = metadata.get(b"dtype", b"").decode(errors="replace")
    if METADATA_KEY.encode() not in metadata or dtype not in ("float32", "float64"):
        raise FileFormatError(display_name, "has no consilience metadata, so it is not a shard", REMEDY)
    document = parse_document(Path(display_name), metadata[METADATA_KEY.encode()], remedy=REMEDY)
    return parse_kind(display_name, document), dtype
