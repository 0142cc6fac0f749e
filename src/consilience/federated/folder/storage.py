"""Where a folder's round takes place: a folder that all reach, or a bucket, by a few operations that trust no name.

Names that come out of a listing are never used as paths; the server asks for names that it made itself. What a file is
called, how long it says it is, and whether it is a link, a pipe or a device, is for the reader to find out.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from consilience.files.atomic import write_bytes
from consilience.files.remote import open_filesystem

BLOCK = 2**20


_TRIES = 6
MOST_REPORT = 2**24
"""Bytes of a plan or report that are read at most."""

Answer = TypeVar("Answer")


class RefusedError(Exception):
    """A file is there, and is not to be taken: too long, no ordinary file, or another than its name says."""


class Storage(Protocol):
    """A place for files by name, such as ``sites/a/1-1-...``. Names use ``/``.

    Failures that may pass (a network, a full disk) are `OSError`; a missing file is `FileNotFoundError`.
    """

    where: str
    """The place as people know it."""

    def names(self, folder: str, most: int) -> list[str]:
        """Return names of files and folders in a folder, at most so many; none where there is no such folder."""

    def fetch(self, name: str, digest: str, target: Path, most: int, until: float = math.inf) -> None:
        """Copy a file of at most `most` bytes and of this SHA-256 to `target`, whole or not at all.

        It stops with an OSError when ``time.monotonic()`` is past `until`.
        """

    def read(self, name: str, most: int) -> bytes:
        """Return the bytes of a small file."""

    def put(self, name: str, data: Path | bytes) -> None:
        """Write a file, whole or not at all, in the place of any other."""

    def prepare(self, folder: str) -> None:
        """Make a folder, where the place has folders."""

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""


class LocalStorage:
    """A folder that all reach: of one machine, or a network file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def names(self, folder: str, most: int) -> list[str]:
        """See `Storage`."""
        try:
            with os.scandir(self.root / folder) as entries:
                return [entry.name for entry in islice(entries, most)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def fetch(self, name: str, digest: str, target: Path, most: int, until: float = math.inf) -> None:
        """See `Storage`."""
        with os.fdopen(self._open(name), "rb") as stream:
            if os.fstat(stream.fileno()).st_size > most:
                raise RefusedError(_too_long(os.fstat(stream.fileno()).st_size, most))
            _copy(stream, digest, target, most, until)

    def read(self, name: str, most: int) -> bytes:
        """See `Storage`."""
        with os.fdopen(self._open(name), "rb") as stream:
            return stream.read(most)

    def _open(self, name: str) -> int:
        """Open an ordinary file, not what a link leads to, and never wait for a pipe."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        place = self.root / name
        if place.is_symlink():
            raise RefusedError("is a link, which is not followed")
        handle = os.open(place, flags)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise RefusedError("is not an ordinary file")
        return handle

    def put(self, name: str, data: Path | bytes) -> None:
        """See `Storage`."""
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, bytes):
            write_bytes(place, data)
            return
        handle, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=place.parent)
        try:
            with os.fdopen(handle, "wb") as stream, data.open("rb") as source:
                shutil.copyfileobj(source, stream, BLOCK)
                stream.flush()
                os.fsync(stream.fileno())
            Path(partial).chmod(0o666 & ~_umask())
            Path(partial).replace(place)
        finally:
            Path(partial).unlink(missing_ok=True)

    def prepare(self, folder: str) -> None:
        """See `Storage`."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)

    def remove(self, name: str) -> None:
        """See `Storage`."""
        (self.root / name).unlink(missing_ok=True)


class RemoteStorage:
    """A bucket, through fsspec: s3://, gs://, abfs://, and whatever else it knows.

    A bucket shows a file when it is whole, so nothing is renamed.
    """

    def __init__(self, url: str) -> None:
        self.files, self.root = open_filesystem(url)
        self.where = url

    def _place(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def names(self, folder: str, most: int) -> list[str]:
        """See `Storage`. The listing itself is as long as the service makes it: bound it there."""
        try:
            with _passing():
                self.files.invalidate_cache()
                found = self.files.ls(self._place(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [str(one).rstrip("/").rsplit("/", 1)[-1] for one in found[:most]]

    def fetch(self, name: str, digest: str, target: Path, most: int, until: float = math.inf) -> None:
        """See `Storage`."""
        with _passing():
            size = int(self.files.info(self._place(name)).get("size") or 0)
            if size > most:
                raise RefusedError(_too_long(size, most))
            with self.files.open(self._place(name), "rb", block_size=4 * BLOCK) as stream:
                _copy(stream, digest, target, most, until)

    def read(self, name: str, most: int) -> bytes:
        """See `Storage`."""
        with _passing():
            return bytes(self.files.cat_file(self._place(name), start=0, end=most))

    def put(self, name: str, data: Path | bytes) -> None:
        """See `Storage`."""
        with _passing():
            if isinstance(data, bytes):
                self.files.pipe_file(self._place(name), data)
            else:
                self.files.put_file(str(data), self._place(name))

    def prepare(self, folder: str) -> None:
        """See `Storage`."""

    def remove(self, name: str) -> None:
        """See `Storage`."""
        with suppress(FileNotFoundError), _passing():
            self.files.rm_file(self._place(name))


def storage_of(place: str | Path) -> Storage:
    """Return the folder or bucket that a path or URL names.

    Raises
    ------
    InputError, OptionError
        For a URL that fsspec does not know, or without fsspec.
    """
    text = str(place)
    if "://" not in text:
        return LocalStorage(Path(text))
    if text.startswith("file://"):
        return LocalStorage(Path(text.removeprefix("file://")))
    return RemoteStorage(text)


@contextmanager
def _passing() -> Iterator[None]:
    """Turn what services raise into OSError, which is tried again; what is said on purpose stays."""
    try:
        yield
    except (OSError, RefusedError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _copy(stream: Any, digest: str, target: Path, most: int, until: float) -> None:
    """Copy a stream beside `target` and put it there if it has this digest and is not too long."""
    handle, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=target.parent)
    try:
        found, length = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as copy:
            for block in _blocks(stream):
                length += len(block)
                if length > most:
                    raise RefusedError(_too_long(length, most))
                if time.monotonic() > until:
                    raise OSError(f"only {length} bytes came in the time there was")
                found.update(block)
                copy.write(block)
            copy.flush()
            os.fsync(copy.fileno())
        if found.hexdigest() != digest:
            raise RefusedError("its content is not what was announced; send it again")
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)


def _blocks(stream: Any) -> Iterator[bytes]:
    while block := stream.read(BLOCK):
        yield block


def _too_long(size: int, most: int) -> str:
    return f"is {size} bytes long, which is more than the {most} that are taken here"


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def patiently(act: Callable[[], Answer]) -> Answer:
    """Return what `act` gives, tried again with growing pauses when what fails may pass."""
    for trial in range(_TRIES):
        try:
            return act()
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            raise
        except OSError:
            time.sleep(0.1 * 2.0**trial)
    return act()
