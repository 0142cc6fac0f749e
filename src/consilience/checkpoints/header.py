"""Headers of safetensors files: names, types, shapes and byte ranges of the tensors.

A file is eight bytes with the length of the header, the header (JSON), and the bytes of the tensors, one after another
without gaps. Where each tensor starts is kept, so that pieces of tensors can be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from consilience.checkpoints.numbers import COMPLEX_TYPES
from consilience.checks import Json
from consilience.files.safetensors_header import read_start

REMEDY = "write it with safetensors.torch.save_file, or save_pretrained"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its type, its shape and where its bytes are."""

    dtype: str  # type in the words of safetensors, such as "BF16"
    shape: tuple[int, ...]  # lengths of the axes
    start: int  # position of its first byte in the file
    nbytes: int  # number of its bytes

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
    """Contents of a safetensors file, as its header states them."""

    tensors: Mapping[str, StoredTensor]  # the tensors, in the order of their bytes
    metadata: Mapping[str, str] = field(default_factory=dict)  # texts of the writer
    digest: str = ""  # SHA-256 of the header


def read_header(path: Path, remedy: str = REMEDY) -> SafetensorsHeader:
    """Return the header of a safetensors file; no more of the file is read, whatever the header says.

    `remedy` is what messages advise. Raises FileFormatError for a file that is missing, empty, truncated, a pickle, or
    anything but a valid safetensors file.
    """
    start = read_start(path, remedy)
    tensors = {
        name: StoredTensor(place.dtype, place.shape, len(start.data) + place.start, place.end - place.start)
        for name, place in start.tensors.items()
    }
    return SafetensorsHeader(tensors, start.metadata, hashlib.sha256(start.data[8:]).hexdigest())


def header_bytes(tensors: Sequence[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """Return the start of a safetensors file, up to the bytes of its first tensor.

    Each tensor is (name, type, shape, number of bytes), in the order of their bytes.

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
