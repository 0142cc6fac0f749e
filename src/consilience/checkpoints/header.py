"""Headers of safetensors files: names, types, shapes and byte ranges of the tensors.

A file is eight bytes with the length of the header, the header (JSON), and the bytes of the tensors, one after another
without gaps. The safetensors library decides whether a header is valid, since it reads it without trust; this module
adds where each tensor starts, so that pieces of tensors can be read. A file that is not valid is refused with a remedy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from consilience.catalogue import unreadable
from consilience.checkpoints.numbers import COMPLEX_TYPES
from consilience.checks import Json
from consilience.errors import FileFormatError
from consilience.files.document import MAX_HEADER_BYTES, open_safetensors, parse_document

REMEDY = "write it with safetensors.torch.save_file, or save_pretrained"

ITEM_BITS: Mapping[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64, "BOOL": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8,
}  # fmt: skip
"""Bits of an entry, by the name of its type in safetensors."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its type, its shape and where its bytes are.

    Parameters
    ----------
    dtype : str
        Type in the words of safetensors, such as "BF16".
    shape : tuple of int
        Lengths of the axes.
    start : int
        Position of its first byte in the file.
    nbytes : int
        Number of its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def real_pairs(self) -> StoredTensor:
        """A complex tensor as its real and imaginary parts, (..., 2); any other as it is."""
        if self.dtype not in COMPLEX_TYPES:
            return self
        return replace(self, dtype=COMPLEX_TYPES[self.dtype], shape=(*self.shape, 2))


@dataclass(frozen=True)
class SafetensorsHeader:
    """Contents of a safetensors file, as its header states them.

    Parameters
    ----------
    tensors : mapping of str to StoredTensor
        The tensors, in the order of their bytes.
    metadata : mapping of str to str, optional
        Texts of the writer. Default: empty.
    digest : str, optional
        SHA-256 of the header. Default: empty.
    """

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""


def read_header(path: Path, remedy: str = REMEDY) -> SafetensorsHeader:
    """Return the header of a safetensors file; no more of the file is read, whatever the header says.

    Parameters
    ----------
    path : Path
        The file.
    remedy : str
        What messages advise. Default: to write it with safetensors.

    Raises
    ------
    FileFormatError
        For a file that is missing, empty, truncated, a pickle, or anything but a valid safetensors file.
    """
    # Refuses a header that is not valid, in memory in proportion to its length.
    with open_safetensors(path, remedy):
        pass
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(min(length, MAX_HEADER_BYTES))
    except OSError as error:
        raise FileFormatError(unreadable(path, error)) from error
    document = parse_document(path, text, "header", remedy)
    metadata = document.pop("__metadata__", None) or {}
    tensors = {}
    # data_offsets count from the end of the header; the header begins after the eight bytes of its length.
    for name, entry in sorted(document.items(), key=lambda item: (item[1]["data_offsets"], item[0])):
        start, stop = entry["data_offsets"]
        tensors[name] = StoredTensor(entry["dtype"], tuple(entry["shape"]), 8 + length + start, stop - start)
    return SafetensorsHeader(tensors, metadata, hashlib.sha256(text).hexdigest())


def header_bytes(tensors: Sequence[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """Return the start of a safetensors file, up to the bytes of its first tensor.

    Parameters
    ----------
    tensors : sequence of (name, type, shape, number of bytes)
        The tensors, in the order of their bytes.
    metadata : mapping of str to str
        Texts of the writer.

    Examples
    --------
    >>> header_bytes([("a", "F32", (2,), 8)], {"format": "pt"})[8:60]
    b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","'
    """
    document: dict[str, Json] = {"__metadata__": dict(metadata)}
    start = 0
    for name, dtype, shape, nbytes in tensors:
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + nbytes]}
        start += nbytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors are to start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text
