"""A safetensors file whose header is parsed once, and whose tensors and digest come from one pass over it.

A file is eight bytes with the length of its header, the header (JSON), and the bytes of the tensors, in the order of
their offsets and without gaps: that order with their shapes and types is where each of them starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError

from consilience.catalogue import unreadable
from consilience.checks import AnyArray
from consilience.errors import FileFormatError
from consilience.files.arrays import DTYPES, NUMPY_TYPES
from consilience.files.document import METADATA_KEY, REMEDY, parse_document
from consilience.files.opening import open_file
from consilience.files.safetensors_header import read_start

_BLOCK = 2**16
"""Bytes read at a time for a digest: far below what reading the smallest file may allocate (`budget.ALLOWANCE`)."""

_UNREADABLE = (SafetensorError, ArithmeticError, TypeError, ValueError, RuntimeError, MemoryError)
"""What NumPy and torch raise for shapes that they cannot have, such as (2**70, 0)."""


class RowReader(Protocol):
    """What reads rows `first` to `end` of a tensor, `end` not included; all without them."""

    def __call__(self, name: str, first: int = 0, end: int | None = None) -> AnyArray:
        """Return the rows."""
        ...


@dataclass(frozen=True)
class TensorHeader:
    """What the header of a safetensors file says of its tensors, and the text of our own document."""

    # shapes, dtypes: by name of the tensor, in the order of names; types by NumPy's or torch's name
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    by_offset: tuple[str, ...]  # names in the order of their bytes
    n_bytes: int  # length of the header with the eight bytes before it
    text: str | None  # the JSON document under our key of the metadata; None where there is none
    # Digest of the header's bytes, with which a reader that comes later finds whether the file is still the same
    sha256: bytes

    @classmethod
    def of(cls, arrays: Mapping[str, AnyArray]) -> TensorHeader:
        """Return what the header of a file will say of arrays that are to be written."""
        shapes = {name: tuple(values.shape) for name, values in arrays.items()}
        dtypes = {name: str(values.dtype).rpartition(".")[2] for name, values in arrays.items()}
        return cls(shapes, dtypes, tuple(arrays), 0, None, b"")


class SafetensorsFile:
    """A safetensors file under the name that messages call it by.

    Its header and its document are parsed when they are first asked for, and kept; its tensors are not.

    Parameters
    ----------
    path
        The file.
    label
        What messages call it; None for its path.
    header
        What another reader of the same file found in its header, which is then not parsed again.

    Attributes
    ----------
    stated_format
        The format that its document states, known once `open_files` has read it; None for a plain checkpoint.
    is_plain_checkpoint
        Whether `open_files` has found that it has no document of ours.
    sha256
        `digest`, where it or all arrays were read before; None else.
    """

    def __init__(self, path: str | Path, label: str | None = None, header: TensorHeader | None = None) -> None:
        self.path = Path(path)
        self.label = str(path) if label is None else label
        self._header = header
        self._document: Any = _UNREAD
        self.sha256: str | None = None
        self.stated_format: str | None = None
        self.is_plain_checkpoint = False

    def __str__(self) -> str:
        return self.label

    def called(self, label: str) -> SafetensorsFile:
        """Return the same file under another label; what was parsed and hashed is not parsed and hashed again."""
        if label == self.label:
            return self
        renamed = SafetensorsFile(self.path, label)
        for name, value in vars(self).items():
            if name not in ("path", "label"):
                setattr(renamed, name, value)
        return renamed

    def header(self, remedy: str = REMEDY) -> TensorHeader:
        """Return what the header says.

        Raises FileFormatError for a file that is missing, empty, truncated, a pickle, or anything but a valid
        safetensors file, ending in `remedy`.
        """
        if self._header is None:
            with self._labelled():
                start = read_start(self.path, remedy)
            places = dict(sorted(start.tensors.items()))
            self._header = TensorHeader(
                shapes={name: place.shape for name, place in places.items()},
                dtypes={name: DTYPES.get(place.dtype, place.dtype) for name, place in places.items()},
                by_offset=tuple(start.tensors),
                n_bytes=len(start.data),
                text=start.metadata.get(METADATA_KEY),
                sha256=hashlib.sha256(start.data).digest(),
            )
        return self._header

    @property
    def document(self) -> Any:
        """The JSON document under our key of the metadata; None for a plain checkpoint.

        FileFormatError as `header`, and for a text that is not JSON.
        """
        return self.parsed_document()

    def parsed_document(self, remedy: str = REMEDY) -> Any:
        """Return `document`, with errors that end in `remedy`."""
        if self._document is _UNREAD:
            text = self.header(remedy).text
            with self._labelled():
                self._document = None if text is None else parse_document(self.path, text, remedy=remedy)
        return self._document

    @property
    def format(self) -> str | None:
        """What kind of file its document says it is, such as "consilience-posterior"; None for a plain checkpoint."""
        document = self.document
        return document.get("format") if isinstance(document, dict) else None

    @property
    def digest(self) -> str:
        """SHA-256 of the file in hexadecimal; raises FileFormatError when it cannot be read."""
        if self.sha256 is None:
            digest = hashlib.sha256()
            with self._readable(), open_file(self.path) as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
            self.sha256 = digest.hexdigest()
        return self.sha256

    def arrays(self, names: Sequence[str] | None = None, remedy: str = REMEDY) -> dict[str, AnyArray]:
        """Return all tensors, in the order of `names` (which has them all), and take the digest on the way.

        NumPy arrays, or torch tensors on the CPU where any has a type that NumPy lacks (bfloat16, float8).
        FileFormatError as `header`, for a type that nothing here reads, and naming a tensor that cannot be read.
        """
        header = self.header(remedy)
        with_torch = _need_torch(self.label, header.dtypes)
        tensors: dict[str, AnyArray] = {}
        buffers: dict[str, memoryview] = {}
        for name in header.shapes if names is None else names:
            try:
                tensors[name], buffers[name] = _empty(header.shapes[name], header.dtypes[name], with_torch)
            except _UNREADABLE as error:
                raise self._unreadable(name, str(error).partition("\n")[0], remedy) from error
        digest = hashlib.sha256()
        with self._readable(), open_file(self.path) as stream:
            digest.update(stream.read(header.n_bytes))
            for name in header.by_offset:
                if stream.readinto(buffers[name]) < len(buffers[name]):
                    raise self._unreadable(name, "the file ends before it", remedy)
                digest.update(buffers[name])
            while block := stream.read(_BLOCK):
                digest.update(block)
        self.sha256 = digest.hexdigest()
        return tensors

    def mapped_arrays(self, names: Sequence[str] | None = None, remedy: str = REMEDY) -> dict[str, AnyArray]:
        """Return all tensors as `arrays` does, but mapped: of their values nothing is read before it is looked at.

        FileFormatError as `arrays`.
        """
        header = self.header(remedy)
        with_torch = _need_torch(self.label, header.dtypes)
        tensors: dict[str, AnyArray] = {}
        start = header.n_bytes
        with self._readable():
            # Copy on write: torch takes no read-only memory without a warning, and nothing here writes.
            bytes_of_file = np.memmap(self.path, np.uint8, "c")
            for name in header.by_offset:
                try:
                    n_bytes = prod(header.shapes[name]) * _item_size(header.dtypes[name], with_torch)
                    part = bytes_of_file[start : start + n_bytes]
                    tensors[name] = _view(part, header.shapes[name], header.dtypes[name], with_torch)
                except _UNREADABLE as error:
                    raise self._unreadable(name, str(error).partition("\n")[0], remedy) from error
                start += n_bytes
        return tensors if names is None else {name: tensors[name] for name in names}

    @contextmanager
    def rows(self, remedy: str = REMEDY) -> Iterator[RowReader]:
        """Yield a function that returns rows of a tensor, of a type that NumPy has; only their bytes are read.

        FileFormatError as `arrays`, and for a file that is another than when its header was read.
        """
        header = self.header(remedy)
        starts, start = {}, header.n_bytes
        for name in header.by_offset:
            starts[name] = start
            start += prod(header.shapes[name]) * _item_size(header.dtypes[name], with_torch=False)

        def read(name: str, first: int = 0, end: int | None = None) -> AnyArray:
            shape = header.shapes[name]
            first, end, _ = slice(first, end).indices(shape[0]) if shape else (0, 1, 1)
            row_bytes = prod(shape[1:]) * _item_size(header.dtypes[name], with_torch=False)
            try:
                values, buffer = _empty((max(end - first, 0), *shape[1:]), header.dtypes[name], with_torch=False)
            except _UNREADABLE as error:
                raise self._unreadable(name, str(error).partition("\n")[0], remedy) from error
            stream.seek(starts[name] + first * row_bytes)
            if stream.readinto(buffer) < len(buffer):
                raise self._unreadable(name, "the file ends before it", remedy)
            return values

        with self._readable(), open_file(self.path) as stream:
            if hashlib.sha256(stream.read(header.n_bytes)).digest() != header.sha256:
                raise FileFormatError(self.label, "was replaced after it was opened", "open it again")
            yield read

    def _unreadable(self, name: str, reason: str, remedy: str) -> FileFormatError:
        return FileFormatError(self.label, f"tensor {name!r} cannot be read ({reason})", remedy)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileFormatError(unreadable(self.label, error)) from error

    @contextmanager
    def _labelled(self) -> Iterator[None]:
        """Call the file by its label in errors that call it by its path."""
        try:
            yield
        except FileFormatError as error:
            if self.label == str(self.path):
                raise
            problems = [problem.renamed(self.path, self.label) for problem in error.problems]
            raise FileFormatError(problems) from error


_UNREAD = object()
"""In place of a document that nobody asked for yet; None is that of a plain checkpoint."""


def as_file(where: str | Path | SafetensorsFile) -> SafetensorsFile:
    """Return a file, given it or its path."""
    return where if isinstance(where, SafetensorsFile) else SafetensorsFile(where)


def open_files(paths: Sequence[str | Path | SafetensorsFile], labels: Sequence[str]) -> list[SafetensorsFile]:
    """Return files under their labels, with their headers and documents read where they can be.

    What is wrong with a broken one is said to whoever asks it again. Files that are open already stay so.
    """
    files = [as_file(path).called(label) for path, label in zip(paths, labels, strict=True)]
    for file in files:
        try:
            file.stated_format = file.format
            file.is_plain_checkpoint = file.header().text is None
        except FileFormatError:
            continue
    return files


def _empty(shape: tuple[int, ...], dtype: str, with_torch: bool) -> tuple[AnyArray, memoryview]:
    """Return an array to be filled, and its bytes."""
    if not with_torch:
        array = np.empty(shape, np.dtype(dtype).newbyteorder("<"))
        return array, array.reshape(-1).view(np.uint8).data
    import torch

    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    return tensor, tensor.reshape(-1).view(torch.uint8).numpy().data


def _view(part: Any, shape: tuple[int, ...], dtype: str, with_torch: bool) -> AnyArray:
    """Return bytes of a file as an array."""
    if not with_torch:
        return np.frombuffer(part, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    import torch

    if not len(part):
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(part, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def _item_size(dtype: str, with_torch: bool) -> int:
    if not with_torch:
        return np.dtype(dtype).itemsize
    import torch

    size: int = getattr(torch, dtype).itemsize
    return size


def _need_torch(label: str, dtypes: Mapping[str, str]) -> bool:
    """Return whether a file of these types has one that only torch reads.

    Raises FileFormatError naming an array of a type that nothing reads, or that needs a torch which is not installed.
    """
    for name, dtype in dtypes.items():
        if dtype not in DTYPES.values():
            raise FileFormatError(label, f"tensor {name!r} has type {dtype}, expected one of {', '.join(DTYPES)}")
    of_torch = next((name for name, dtype in dtypes.items() if dtype not in NUMPY_TYPES.values()), None)
    if of_torch is None:
        return False
    try:
        import torch  # noqa: F401
    except ImportError as error:
        text = f"tensor {of_torch!r} has type {dtypes[of_torch]}, which only torch reads"
        raise FileFormatError(label, text, "install torch") from error
    return True
