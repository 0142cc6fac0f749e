"""Headers of safetensors files, read and parsed in one opening of the file.

A file is eight bytes with the length of the header, the header (JSON), and the bytes of the tensors, one after another
without gaps. What is read here is what the safetensors library takes, and less: whatever is not plainly valid is shown
to the library, whose reason is said. A header costs no more memory than its file is worth (``budget``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from consilience.catalogue import unreadable
from consilience.errors import FileFormatError, Problem
from consilience.files.budget import check_header
from consilience.files.document import dict_of_unique_keys
from consilience.files.foreign_formats import START_BYTES, foreign_problem
from consilience.files.opening import open_file

MAX_HEADER_BYTES = 100_000_000
"""The longest header: the limit of the safetensors library."""

ITEM_BITS: Mapping[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64, "BOOL": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8,
}  # fmt: skip
"""Bits of an entry, by the name of its type in safetensors."""

DATA_SUFFIXES = (
    ".csv", ".tsv", ".parquet", ".feather", ".arrow", ".xlsx", ".xls", ".npy", ".npz", ".dta", ".sav", ".sas7bdat",
)  # fmt: skip
"""Ends of the names of tables and arrays, which newcomers give where a model is asked for."""

_MAX_LENGTH = 2**64
"""Lengths, offsets and products of lengths are below: what 64 bits hold."""


class TensorPlace(NamedTuple):
    """A tensor in a file: its type in the words of safetensors, its shape, and its bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class FileStart:
    """The start of a safetensors file, up to the bytes of its first tensor."""

    tensors: Mapping[str, TensorPlace]  # the tensors, in the order of their bytes
    metadata: Mapping[str, str]  # texts of the writer
    data: bytes  # the bytes themselves


def read_start(path: Path, remedy: str) -> FileStart:
    """Return the header of a safetensors file; no more of the file is read, whatever the header says.

    Raises FileFormatError for a file that is missing, empty, truncated, a pickle, or anything else, and for one whose
    header would take more memory than `budget.allowed_memory` says; ending in `remedy`.
    """
    if path.suffix.lower() in DATA_SUFFIXES and os.path.isfile(path):
        meant = (
            "describe a model with it: `consilience.describe(model, data)`, or compare models on it: "
            "`consilience.evaluate(fused, own, data)`"
        )
        raise FileFormatError(path, "is a table of data by its name, expected the file of a model", meant, "E-DATA")
    try:
        with open_file(path) as stream:
            start = stream.read(8)
            size = stream.seek(0, 2)
            length = int.from_bytes(start, "little")
            is_whole = len(start) == 8 and length <= min(MAX_HEADER_BYTES, size - 8)
            stream.seek(8)
            text = stream.read(length) if is_whole else b""
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(path, error)) from error
    if not start:
        raise FileFormatError(path, "is empty", remedy)
    if is_whole:
        check_header(path, text, size, remedy)
    try:
        if not is_whole or len(text) != length:
            raise ValueError(f"its header has {length} bytes by its first eight, and the file {size}")
        tensors, metadata = _parsed(text, size - 8 - length)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(_damage(path, error, remedy)) from error
    return FileStart(tensors, metadata, start + text)


def _damage(path: Path, error: Exception, remedy: str) -> Problem:
    """Return what is wrong with a file: what it is instead, or the library's reason, or else our own."""
    reason, text = error, "is truncated or not a safetensors file"
    try:
        with open_file(path) as stream:
            foreign = foreign_problem(path, stream.read(START_BYTES))
        with safe_open(path, framework="numpy"):
            text = "has a header that is not read here, though the safetensors library does"
    except SafetensorError as refusal:
        reason = refusal
    except OSError as gone:
        return unreadable(path, gone)
    return foreign or Problem(path, f"{text} ({reason})", remedy)


def _parsed(text: bytes, n_bytes: int) -> tuple[dict[str, TensorPlace], dict[str, str]]:
    """Return the tensors and texts of a header, whose tensors have so many bytes.

    Raises ValueError or RecursionError for a header that is not plainly valid.
    """
    if not text.startswith(b"{"):
        raise ValueError("its header is no JSON object")
    document = json.loads(
        text.decode(), object_pairs_hook=dict_of_unique_keys, parse_constant=_refuse_number, parse_float=_refuse_number
    )
    metadata = document.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are no texts")
    for said in (*document, *metadata, *metadata.values()):
        said.encode()  # halves of a character cannot be encoded, and raise
    places = {name: _place(entry) for name, entry in document.items()}
    ordered = dict(sorted(places.items(), key=lambda item: (item[1].start, item[1].end, item[0])))
    start = 0
    for name, place in ordered.items():
        bits = _product((*place.shape, ITEM_BITS[place.dtype]))
        if place.start != start or bits % 8 or place.end - start != bits // 8:
            raise ValueError(f"the bytes of tensor {name!r} are not those of its shape and type")
        start = place.end
    if start != n_bytes:
        raise ValueError(f"its tensors have {start} bytes, and the file has {n_bytes} for them")
    return ordered, metadata


def _product(lengths: Iterable[int]) -> int:
    """Return the product of lengths; ValueError where 64 bits do not hold it, or what it is on the way."""
    product = 1
    for length in lengths:
        product *= length
        if product >= _MAX_LENGTH:
            raise ValueError("its header has a tensor of more entries than any file")
    return product


def _place(entry: Any) -> TensorPlace:
    """Return what a header says of a tensor; raises ValueError for anything else."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("an entry of its header is no tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise ValueError(f"its header has a tensor of type {dtype!r:.40}")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError("an entry of its header has no shape or no offsets")
    if not all(type(number) is int and 0 <= number < _MAX_LENGTH for number in (*shape, *offsets)):
        raise ValueError("an entry of its header has lengths that are none")
    return TensorPlace(dtype, tuple(shape), *offsets)


def _refuse_number(text: str) -> Any:
    raise ValueError(f"its header has the number {text}")
