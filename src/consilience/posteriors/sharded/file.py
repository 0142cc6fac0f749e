"""Shard files: the posteriors of many sites in one file, as safetensors or as Parquet, with the same columns in both.

This module tells the two forms apart, and turns whatever a reader raises for a damaged file into a FileFormatError that
names the file and says what to do.

**Safetensors shards**: every column of all sites is one tensor.

Tensors ``natural`` (L, P) in float32 or float64, ``offsets`` (J + 1,), and where sites state them ``counts`` (L,),
``weights`` (L,), ``prior`` (P,) or (J, P), ``attached.NAME`` flattened with ``attached.NAME.precision``; ``names`` is
the JSON list of the sites' names and ``digests`` (J, 32) the SHA-256 of their files, both as bytes. The header document
is the metadata entry of the file. Rows of tensors are read, so a run of sites costs its own bytes only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from consilience.checks import AnyArray
from consilience.errors import FileFormatError, OptionError, Problem
from consilience.files.arrays import write_arrays
from consilience.files.document import PARQUET, parse_document
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.posteriors.columns import ComponentColumns, RaggedColumn
from consilience.posteriors.sharded.header import (
    REMEDY,
    PackedSites,
    ShardSummary,
    column_problems,
    header_text,
    parse_kind,
    refuse_columns,
    site_digests,
    site_names,
)
from consilience.posteriors.sharded.parquet import read_parquet, read_parquet_summary, write_parquet

Form = Literal["safetensors", "parquet"]
SUFFIXES: dict[Form, str] = {"safetensors": ".safetensors", "parquet": PARQUET}
"""Suffix of the files of each form."""


def write_shard(path: Path, packed: PackedSites, form: Form) -> None:
    """Write the sites of a shard in a form, whole or not at all."""
    if form == "parquet":
        write_parquet(path, packed)
    else:
        write_safetensors(path, packed)


def is_shard(where: Path | SafetensorsFile) -> bool:
    """Return whether a file is a shard, by its suffix and its header alone."""
    file = as_file(where)
    if _is_parquet(file.path, file.label):
        return True
    try:
        return file.format == "consilience-shard"
    except FileFormatError:
        return False


def read_shard_summary(file: SafetensorsFile) -> ShardSummary:
    """Return the header of a shard and the numbers of its sites and components.

    The file may be Parquet, too, and its path a temporary copy of the address that is its name in messages.
    """
    if _is_parquet(file.path, file.label):
        return read_parquet_summary(file.path, file.label)
    return read_safetensors_summary(file)


def read_shard(
    path: Path, display_name: str, first: int = 0, end: int | None = None, summary: ShardSummary | None = None
) -> PackedSites:
    """Return some sites of a shard, everything checked but that values are in the domain of their family.

    They are sites `first` to `end`, not included; of Parquet: row groups. A header that was read before is given as its
    `summary`. Messages call the file `display_name`.
    """
    try:
        if _is_parquet(path, display_name):
            packed = read_parquet(path, display_name, first, end)
        else:
            packed = read_safetensors(path, display_name, first, end, summary)
    except READ_ERRORS as error:
        if isinstance(error, FileFormatError | OptionError):
            raise
        reason = str(error).partition("\n")[0]
        raise FileFormatError(display_name, f"cannot be read as a shard ({reason})", REMEDY) from error
    if problems := list(column_problems(packed)):
        raise FileFormatError([Problem(display_name, f"{problem}", REMEDY) for problem in problems])
    return packed


READ_ERRORS = (
    SafetensorError, OSError, MemoryError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""Exceptions of readers for files that are damaged, contradict their header, or shrink while they are read."""


def _is_parquet(path: Path, display_name: str) -> bool:
    """Return whether a file is Parquet, by the suffix of its path or of its name."""
    return path.suffix == SUFFIXES["parquet"] or display_name.endswith(SUFFIXES["parquet"])


def write_safetensors(path: Path, packed: PackedSites) -> None:
    """Write a shard, whole or not at all."""
    tensors: dict[str, AnyArray] = {
        **packed.components.arrays(),
        "offsets": packed.components.offsets.astype(np.int64),
        "names": np.frombuffer(json.dumps(packed.names).encode(), dtype=np.uint8),
        "digests": packed.digests,
    }
    arrays = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    write_arrays(path, arrays, header_text(path, packed.components.kind, arrays))


def read_safetensors_summary(file: SafetensorsFile) -> ShardSummary:
    """Return what the header of a shard states."""
    display_name, document = file.label, file.parsed_document(REMEDY)
    if document is None:
        raise FileFormatError(display_name, "has no consilience metadata, so it is not a shard", REMEDY)
    schema, header = parse_kind(display_name, document), file.header()
    natural, offsets = header.shapes.get("natural"), header.shapes.get("offsets")
    if natural is None or offsets is None or len(natural) != 2 or len(offsets) != 1 or offsets[0] < 2:
        raise FileFormatError(display_name, "has no posteriors", REMEDY)
    rows = {"counts": natural[0], "weights": natural[0], "digests": offsets[0] - 1}
    for name, expected in rows.items():
        actual = header.shapes.get(name, (expected,))
        if actual[:1] != (expected,):
            raise FileFormatError(display_name, f"{name} have shape {actual}, expected {expected} rows", REMEDY)
    return ShardSummary(schema, offsets[0] - 1, natural[0], (offsets[0] - 1,), header)


def read_safetensors(
    path: Path, display_name: str, first: int, end: int | None, summary: ShardSummary | None = None
) -> PackedSites:
    """Return sites `first` to `end` of a shard; None reads to the last.

    Its header is not read again where its `summary` is given, but found to be the same. Columns that do not fit it are
    a ValueError; ``read_shard`` names the file.
    """
    if summary is None:
        summary = read_safetensors_summary(SafetensorsFile(path, display_name))
    schema, header = summary.kind, summary.header
    assert header is not None  # noqa: S101  (narrows the type)
    names = set(header.shapes)
    refuse_columns(schema, names - {"offsets", "names", "digests"})
    with SafetensorsFile(path, display_name, header).rows(REMEDY) as rows:
        offsets = rows("offsets")
        last = len(offsets) - 1 if end is None else end
        _refuse_offsets(display_name, offsets, header.shapes["natural"][0])
        start, stop = int(offsets[first]), int(offsets[last])
        columns = {column: rows(column, start, stop) for column in ("natural", "counts", "weights") if column in names}
        prior = None
        if "prior" in names:
            prior = rows("prior", first, last) if len(header.shapes["prior"]) == 2 else rows("prior")
        local_offsets = offsets[first : last + 1] - offsets[first]  # (sites + 1,)
        # Where attached arrays of these sites begin follows from the offsets of all sites of the file.
        starts_by_name = ComponentColumns(schema, columns["natural"][:0], offsets).attached_starts
        attached = {}
        for name, starts in starts_by_name.items():
            entries = int(starts[first]), int(starts[last])
            precision_name = f"attached.{name}.precision"
            precision = rows(precision_name, *entries) if precision_name in names else None
            attached[name] = RaggedColumn(rows(f"attached.{name}", *entries), precision)
        site_name_list = None
        if "names" in names:
            site_name_list = parse_document(Path(display_name), rows("names").tobytes(), "list of names", REMEDY)
        digests = rows("digests", first, last) if "digests" in names else None
    counts, weights = columns.get("counts"), columns.get("weights")
    components = ComponentColumns(schema, columns["natural"], local_offsets, counts, weights, prior, attached)
    return PackedSites(components, site_names(site_name_list, first, last), site_digests(digests, last - first))


def _refuse_offsets(display_name: str, offsets: NDArray[Any], n_components: int) -> None:
    """Raise unless offsets rise from 0 to the number of components."""
    is_offsets_array = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype == np.int64
    if not is_offsets_array or offsets[0] != 0 or offsets[-1] != n_components or np.any(np.diff(offsets) < 1):
        raise FileFormatError(display_name, f"its offsets do not rise from 0 to its {n_components} components", REMEDY)
