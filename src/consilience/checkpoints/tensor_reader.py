"""Readers of stored tensors, with SHA-256 digests of their files from the same reads.

A merge reads its inputs once and needs their digests for the provenance. Bytes that are read in the order of the file
go into its digest as they come by; those out of order are skipped, and read again at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.folder import Checkpoint, WeightFile
from consilience.checkpoints.header import StoredTensor
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.opening import open_unbuffered

ByteArray = NDArray[np.uint8]

_MAX_OPEN_FILES = 32
"""Files that are open at once: some systems allow a process 256. Chosen by hand."""

_CHUNK_BYTES = 2**22
"""Bytes that are read at once for a digest alone. Chosen by hand."""


class RunningDigest:
    """The SHA-256 of a file whose bytes come by mostly in order; what does not is read again at the end.

    `hashing` has one thread, so that updates are made in the order in which they are submitted.
    """

    def __init__(self, hashing: Executor) -> None:
        self._digest = hashlib.sha256()
        self._hashing = hashing
        self.position = 0  # bytes of the file that are in the digest

    def feed(self, start: int, data: ByteArray | memoryview | bytes) -> Future[None] | None:
        """Take bytes of the file into the digest, where they continue it.

        `start` is the position of the first byte in the file. The bytes must not change until the future is done; None
        for those that do not continue the digest.
        """
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        stop = start + len(view)
        if not start <= self.position < stop:
            return None
        future = self._hashing.submit(self._digest.update, view[self.position - start :])
        self.position = stop
        return future

    def finish(self, stream: BinaryIO) -> str:
        """Return the digest, after the rest of the file has been read."""
        stream.seek(self.position)
        while chunk := stream.read(_CHUNK_BYTES):
            self._hashing.submit(self._digest.update, chunk).result()
            self.position += len(chunk)
        return self._hashing.submit(self._digest.hexdigest).result()


class InputFiles:
    """All files of weights that a merge reads: read by one thread, a few of them open at a time.

    `hashing` has one thread, for their digests; without `takes_digests` there are none.
    """

    def __init__(self, files: Sequence[WeightFile], hashing: Executor, *, takes_digests: bool = True) -> None:
        self._takes_digests = takes_digests
        self._open: dict[Path, BinaryIO] = {}  # least recently used first
        self._resolved = {file.path: file.path.resolve() for file in files}  # asking the system takes 50 us
        self._digests = {path: RunningDigest(hashing) for path in self._resolved.values()}
        self._files = {self._resolved[file.path]: file for file in files}

    def read(self, file: WeightFile, start: int, into: ByteArray) -> Future[None] | None:
        """Read bytes of a file into an array; the future is done when they have gone into its digest.

        `start` is the position of the first byte in the file, and as many are read as `into` holds. Raises
        FileFormatError when the file is shorter than when its header was read.
        """
        path = self._resolved[file.path]
        stream = self._stream(path)
        stream.seek(start)
        view = into.data
        n_read = 0
        while n_read < len(view):
            count = stream.readinto(view[n_read:])  # type: ignore[attr-defined]
            if not count:
                raise FileFormatError(file.path, "is shorter than it was; it changed while it was read")
            n_read += count
        return self._digests[path].feed(start, into) if self._takes_digests else None

    def _stream(self, path: Path) -> BinaryIO:
        """Return an open file; the least recently used one is closed where there are too many."""
        stream = self._open.pop(path, None)
        if stream is None:
            if len(self._open) >= _MAX_OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            stream = open_unbuffered(path)
            digest = self._digests[path]
            if self._takes_digests and not digest.position:  # the header is no tensor, and goes into the digest too
                length = 8 + int.from_bytes(stream.read(8), "little")
                stream.seek(0)
                future = digest.feed(0, stream.read(length))
                if future is not None:
                    future.result()
        self._open[path] = stream
        return stream

    def refuse_changed(self) -> None:
        """Raise when a file is not the one whose header was read.

        Raises InputError, naming the files.
        """
        problems = []
        for path, file in self._files.items():
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) != (file.nbytes, file.modified):
                remedy = "merge again when it is complete"
                problems.append(Problem(file.path, "changed while it was read", remedy, "E-MISMATCH"))
        if problems:
            raise InputError(problems)

    def digests(self) -> dict[Path, str]:
        """Return the SHA-256 of every file, by its resolved path."""
        return {path: digest.finish(self._stream(path)) for path, digest in self._digests.items()}

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


def read_tensor(input_files: InputFiles, file: WeightFile, stored: StoredTensor) -> ByteArray:
    """Return all bytes of a tensor."""
    data = np.empty(stored.nbytes, dtype=np.uint8)
    if stored.nbytes and (hashing := input_files.read(file, stored.start, data)) is not None:
        hashing.result()
    return data


def whole_tensor(input_files: InputFiles, checkpoint: Checkpoint, name: str) -> Any:
    """Return a tensor in float64."""
    stored = checkpoint.tensors[name][1]
    return tensor_entries(input_files, checkpoint, name, 0, stored.size).reshape(stored.shape)


def tensor_entries(input_files: InputFiles, checkpoint: Checkpoint, name: str, start: int, count: int) -> Any:
    """Return entries of a tensor (count,) in float64."""
    number, stored = checkpoint.tensors[name]
    float_type = FLOAT_TYPES[stored.dtype]
    data = np.empty(count * float_type.itemsize, dtype=np.uint8)
    if hashing := input_files.read(checkpoint.files[number], stored.start + start * float_type.itemsize, data):
        hashing.result()
    values = np.empty(count, dtype=np.float64)
    float_type.decode(data, values)
    return values


class TensorReader(Protocol):
    """Reads the bytes of one tensor of one model."""

    dtype: str  # type of the entries, in the words of safetensors
    name: str  # name of the model in messages

    def fill(self, into: ByteArray, start: int) -> Future[None] | None:
        """Write the tensor's bytes from `start` on into an array, which must not change until the future is done."""


class FileTensorReader:
    """Reads a tensor from a file."""

    def __init__(self, input_files: InputFiles, file: WeightFile, start: int, dtype: str, name: str) -> None:
        self._input_files, self._file, self._start = input_files, file, start
        self.dtype, self.name = dtype, name

    def fill(self, into: ByteArray, start: int) -> Future[None] | None:
        """Read bytes of the tensor."""
        return self._input_files.read(self._file, self._start + start, into)


class ArrayTensorReader:
    """Reads a tensor from memory: one whose units were moved."""

    def __init__(self, data: ByteArray, dtype: str, name: str) -> None:
        self._data = data
        self.dtype, self.name = dtype, name

    def fill(self, into: ByteArray, start: int) -> None:
        """Copy bytes of the tensor."""
        into[:] = self._data[start : start + len(into)]


def float64_reader(values: NDArray[Any], name: str) -> ArrayTensorReader:
    """Return a reader of computed values, which a merge rounds once."""
    return ArrayTensorReader(np.ascontiguousarray(values, dtype=np.float64).reshape(-1).view(np.uint8), "F64", name)
