"""Shards as safetensors: every column of all sites is one tensor.

Tensors ``natural`` (L, P) in float32 or float64, ``offsets`` (J + 1,), and where sites state them ``counts`` (L,),
``weights`` (L,), ``prior`` (P,) or (J, P), ``attached.NAME`` flattened with ``attached.NAME.precision``; ``names`` is
the JSON list of the sites' names and ``digests`` (J, 32) the SHA-256 of their files, both as bytes.
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
from consilience.posteriors.columns import Block, Kind, Ragged
from consilience.posteriors.sharded.header import REMEDY, header_text, parse_kind, refuse_columns
from consilience.posteriors.sharded.packed_sites import Packed, ShardSummary, site_digests, site_names


def write_safetensors(path: Path, packed: Packed) -> None:
    """Write a shard, whole or not at all."""
    block = packed.block
    tensors: dict[str, Any] = {"natural": block.natural, "offsets": block.offsets.astype(np.int64)}
    tensors |= {"counts": block.counts, "weights": block.weights, "prior": block.prior}
    for name, ragged in block.attached.items():
        tensors |= {f"attached.{name}": ragged.values, f"attached.{name}.precision": ragged.precision}
    tensors["names"] = np.frombuffer(json.dumps(packed.names).encode(), dtype=np.uint8)
    tensors["digests"] = packed.digests
    arrays = {name: np.ascontiguousarray(values) for name, values in tensors.items() if values is not None}
    try:
        with write_atomically(path) as partial:
            save_file(arrays, partial, {METADATA_KEY: header_text(block.kind)})
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


def read_safetensors_summary(path: Path, called: str) -> ShardSummary:
    """Return what the header of a shard says; `called` is its name in messages."""
    with open_safetensors(path, REMEDY) as file:
        kind = _safetensors_kind(file, called)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a dict)
    natural, offsets = shapes.get("natural"), shapes.get("offsets")
    if natural is None or offsets is None or len(natural) != 2 or len(offsets) != 1 or offsets[0] < 2:
        raise FileFormatError(f"{called}: has no posteriors; {REMEDY}")
    return ShardSummary(kind, offsets[0] - 1, natural[0], (offsets[0] - 1,))


def read_safetensors(path: Path, called: str, first: int, end: int | None) -> Packed:
    """Return sites `first` to `end` of a shard."""
    with open_safetensors(path, REMEDY) as file:
        kind = _safetensors_kind(file, called)
        offsets = np.asarray(file.get_tensor("offsets"))
        last = len(offsets) - 1 if end is None else end
        _refuse_offsets(called, offsets, file.get_slice("natural").get_shape()[0])
        rows = slice(int(offsets[first]), int(offsets[last]))
        names = set(file.keys())
        refuse_columns(kind, names - {"offsets", "names", "digests"})
        columns = {one: file.get_slice(one)[rows] for one in ("natural", "counts", "weights") if one in names}
        prior = file.get_tensor("prior") if "prior" in names else None
        if prior is not None and prior.ndim == 2:
            prior = prior[first:last]
        own = offsets[first : last + 1] - offsets[first]
        frame = Block(kind, columns["natural"], own)
        whole = Block(kind, columns["natural"][:0], offsets).attached_starts
        attached = {}
        for name, starts in whole.items():
            part = slice(int(starts[first]), int(starts[last]))
            precise = f"attached.{name}.precision"
            precision = file.get_slice(precise)[part] if precise in names else None
            attached[name] = Ragged(file.get_slice(f"attached.{name}")[part], precision)
        called_names = None
        if "names" in names:
            called_names = parse_document(path, file.get_tensor("names").tobytes(), "list of names", REMEDY)
        digests = file.get_slice("digests")[first:last] if "digests" in names else None
    counts, weights = columns.get("counts"), columns.get("weights")
    block = Block(kind, frame.natural, own, counts, weights, prior, attached)
    return Packed(block, site_names(called_names, first, last), site_digests(digests, last - first))


def _refuse_offsets(called: str, offsets: NDArray[Any], total: int) -> None:
    rising = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype == np.int64
    if not rising or offsets[0] != 0 or offsets[-1] != total or np.any(np.diff(offsets) < 1):
        raise FileFormatError(f"{called}: its offsets do not rise from 0 to its {total} components; {REMEDY}")


def _safetensors_kind(file: Any, called: str) -> Kind:
    metadata: Mapping[str, str] = file.metadata() or {}
    if METADATA_KEY not in metadata:
        raise FileFormatError(f"{called}: has no consilience metadata, so it is not a shard; {REMEDY}")
    return parse_kind(called, metadata[METADATA_KEY])
