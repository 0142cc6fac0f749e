"""Safetensors shards: every column of all sites is one tensor.

Tensors ``natural`` (L, P) in float32 or float64, ``offsets`` (J + 1,), and where sites state them ``counts`` (L,),
``weights`` (L,), ``prior`` (P,) or (J, P), ``attached.NAME`` flattened with ``attached.NAME.precision``; ``names`` is
the JSON list of the sites' names and ``digests`` (J, 32) the SHA-256 of their files, both as bytes. The header document
is the metadata entry of the file. Slices of tensors are read, so a run of sites costs its own bytes only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from consilience.errors import FileFormatError, InputError
from consilience.files.atomic import write_atomically
from consilience.files.document import METADATA_KEY, open_safetensors, parse_document
from consilience.posteriors.columns import ComponentColumns, RaggedColumn, ShardSchema
from consilience.posteriors.sharded.header import REMEDY, header_text, parse_kind, refuse_columns
from consilience.posteriors.sharded.packed_sites import PackedSites, ShardSummary, site_digests, site_names


def write_safetensors(path: Path, packed: PackedSites) -> None:
    """Write a shard, whole or not at all.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    components = packed.components
    tensors: dict[str, Any] = {"natural": components.natural, "offsets": components.offsets.astype(np.int64)}
    tensors |= {"counts": components.counts, "weights": components.weights, "prior": components.prior}
    for name, ragged in components.attached.items():
        tensors |= {f"attached.{name}": ragged.values, f"attached.{name}.precision": ragged.precision}
    tensors["names"] = np.frombuffer(json.dumps(packed.names).encode(), dtype=np.uint8)
    tensors["digests"] = packed.digests
    arrays = {name: np.ascontiguousarray(values) for name, values in tensors.items() if values is not None}
    try:
        with write_atomically(path) as partial:
            save_file(arrays, partial, {METADATA_KEY: header_text(components.kind)})
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


def read_safetensors_summary(path: Path, display_name: str) -> ShardSummary:
    """Return what the header of a shard states; `display_name` is its name in messages."""
    with open_safetensors(path, REMEDY) as file:
        kind = _safetensors_kind(file, display_name)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a dict)
    natural, offsets = shapes.get("natural"), shapes.get("offsets")
    if natural is None or offsets is None or len(natural) != 2 or len(offsets) != 1 or offsets[0] < 2:
        raise FileFormatError(f"{display_name}: has no posteriors; {REMEDY}")
    return ShardSummary(kind, offsets[0] - 1, natural[0], (offsets[0] - 1,))


def read_safetensors(path: Path, display_name: str, first: int, end: int | None) -> PackedSites:
    """Return sites `first` to `end` of a shard; None reads to the last.

    Raises
    ------
    FileFormatError
        For offsets that do not rise, or a header that is none.
    ValueError
        For columns that do not fit the header; ``file.read_shard`` names the file.
    """
    with open_safetensors(path, REMEDY) as file:
        kind = _safetensors_kind(file, display_name)
        offsets = np.asarray(file.get_tensor("offsets"))
        last = len(offsets) - 1 if end is None else end
        _refuse_offsets(display_name, offsets, file.get_slice("natural").get_shape()[0])
        rows = slice(int(offsets[first]), int(offsets[last]))
        names = set(file.keys())
        refuse_columns(kind, names - {"offsets", "names", "digests"})
        columns = {
            column: file.get_slice(column)[rows] for column in ("natural", "counts", "weights") if column in names
        }
        prior = file.get_tensor("prior") if "prior" in names else None
        if prior is not None and prior.ndim == 2:
            prior = prior[first:last]
        local_offsets = offsets[first : last + 1] - offsets[first]  # (sites + 1,)
        # Where attached arrays of these sites begin follows from the offsets of all sites of the file.
        starts_by_name = ComponentColumns(kind, columns["natural"][:0], offsets).attached_starts
        attached = {}
        for name, starts in starts_by_name.items():
            entries = slice(int(starts[first]), int(starts[last]))
            precision_name = f"attached.{name}.precision"
            precision = file.get_slice(precision_name)[entries] if precision_name in names else None
            attached[name] = RaggedColumn(file.get_slice(f"attached.{name}")[entries], precision)
        site_name_list = None
        if "names" in names:
            site_name_list = parse_document(path, file.get_tensor("names").tobytes(), "list of names", REMEDY)
        digests = file.get_slice("digests")[first:last] if "digests" in names else None
    counts, weights = columns.get("counts"), columns.get("weights")
    components = ComponentColumns(kind, columns["natural"], local_offsets, counts, weights, prior, attached)
    return PackedSites(components, site_names(site_name_list, first, last), site_digests(digests, last - first))


def _refuse_offsets(display_name: str, offsets: NDArray[Any], n_components: int) -> None:
    """Raise unless offsets rise from 0 to the number of components."""
    is_offsets_array = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype == np.int64
    if not is_offsets_array or offsets[0] != 0 or offsets[-1] != n_components or np.any(np.diff(offsets) < 1):
        raise FileFormatError(
            f"{display_name}: its offsets do not rise from 0 to its {n_components} components; {REMEDY}"
        )


def _safetensors_kind(file: Any, display_name: str) -> ShardSchema:
    """Return the kind of a shard, from the metadata of its file."""
    metadata: Mapping[str, str] = file.metadata() or {}
    if METADATA_KEY not in metadata:
        raise FileFormatError(f"{display_name}: has no consilience metadata, so it is not a shard; {REMEDY}")
    return parse_kind(display_name, metadata[METADATA_KEY])
