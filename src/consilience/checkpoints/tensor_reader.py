"""Pieces of tensors from files, and the digests of these files from the same reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.folder import Part
from consilience.errors import FileFormatError, InputError

Bytes = NDArray[np.uint8]

_OPEN = 32
"""Files that are held open."""

_BLOCK = 2**22


class Tail:
    """The digest of a file of which most bytes come by in order: what does not is read again at the end.

    Parameters
    ----------
    hashing
        One thread: updates are made in the order in which they are asked for.
    """

    def __init__(self, hashing: Executor) -> None:
        self._digest = hashlib.sha256()
        self._hashing = hashing
        self.position = 0

    def feed(self, start: int, data: Bytes | memoryview | bytes) -> Future[None] | None:
        """Take note of bytes of the file; until the future is done they must stay as they are."""
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        stop = start + len(view)
        if not start <= self.position < stop:
            return None
        future = self._hashing.submit(self._digest.update, view[self.position - start :])
        self.position = stop
        return future

    def finish(self, path: Path) -> str:
        """Return the digest, after what has not come by has been read."""
        with path.open("rb", buffering=0) as stream:
            stream.seek(self.position)
            while block := stream.read(_BLOCK):
                self._hashing.submit(self._digest.update, block).result()
                self.position += len(block)
        return self._hashing.submit(self._digest.hexdigest).result()


class Library:
    """All files of a merge, read from one thread, no more than some of them open.

    Parameters
    ----------
    parts
        The files.
    hashing
        One thread for their digests.
    """

    def __init__(self, parts: Sequence[Part], hashing: Executor) -> None:
        self._open: dict[Path, BinaryIO] = {}
        self._tails = {part.path.resolve(): Tail(hashing) for part in parts}
        self._parts = {part.path.resolve(): part for part in parts}

    def read(self, part: Part, start: int, into: Bytes) -> Future[None] | None:
        """Read bytes of a file; the future is done when they have gone into its digest.

        Raises
        ------
        FileFormatError
            When the file ends before, which it did not when its header was read.
        """
        path = part.path.resolve()
        stream = self._stream(path)
        stream.seek(start)
        view = into.data
        done = 0
        while done < len(view):
            count = stream.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise FileFormatError(f"{part.path}: is shorter than it was; it changed while it was read")
            done += count
        return self._tails[path].feed(start, into)

    def _stream(self, path: Path) -> BinaryIO:
        found = self._open.pop(path, None)
        if found is None:
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open))).close()
            found = path.open("rb", buffering=0)
            tail = self._tails[path]
            if not tail.position:  # what is before the first tensor goes into the digest too
                length = 8 + int.from_bytes(found.read(8), "little")
                found.seek(0)
                future = tail.feed(0, found.read(length))
                if future is not None:
                    future.result()
        self._open[path] = found
        return found

    def refuse_changed(self) -> None:
        """Raise when a file is not the one whose header was read.

        Raises
        ------
        InputError
            Naming the files.
        """
        changed = []
        for path, part in self._parts.items():
            now = path.stat()
            if (now.st_size, now.st_mtime_ns) != (part.nbytes, part.modified):
                changed.append(f"{part.path}: changed while it was read; merge again when it is complete")
        if changed:
            raise InputError(changed)

    def digests(self) -> dict[Path, str]:
        """Return the SHA-256 of every file, by its resolved path."""
        return {path: tail.finish(path) for path, tail in self._tails.items()}

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class Strip(Protocol):
    """The bytes of one tensor of one model, wherever they are."""

    dtype: str
    name: str

    def fill(self, into: Bytes, start: int) -> Future[None] | None:
        """Write the bytes from `start` on into an array; until the future is done it must stay as it is."""


class FileStrip:
    """A tensor in a file."""

    def __init__(self, library: Library, part: Part, start: int, dtype: str, name: str) -> None:
        self._library, self._part, self._start = library, part, start
        self.dtype, self.name = dtype, name

    def fill(self, into: Bytes, start: int) -> Future[None] | None:
        """Read bytes of the tensor."""
        return self._library.read(self._part, self._start + start, into)


class ArrayStrip:
    """A tensor in memory."""

    def __init__(self, data: Bytes, dtype: str, name: str) -> None:
        self._data = data
        self.dtype, self.name = dtype, name

    def fill(self, into: Bytes, start: int) -> None:
        """Copy bytes of the tensor."""
        into[:] = self._data[start : start + len(into)]
