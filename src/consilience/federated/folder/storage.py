"""Storage of a round: a shared folder or a bucket, by a few operations that trust neither names nor files.

Names from a listing are never used as paths; the server asks for names that it made itself. A file is copied only if it
is an ordinary one (no link, pipe or device), no longer than allowed, and of the announced digest.
"""

from __future__ import annotations

import hashlib
import io
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
from typing import Any, BinaryIO, Protocol, TypeVar

from consilience.files.atomic import PARTIAL, partial_prefix, remove_stale
from consilience.files.opening import open_file
from consilience.files.remote import open_filesystem

CHUNK_BYTES = 2**20
"""Bytes that are copied at once. Chosen by hand."""

MAX_REPORT_BYTES = 2**24
"""Bytes of a plan or report that are read at most. Chosen by hand: a report has some hundred bytes for each site."""

_MAX_RETRIES = 6
"""With pauses that double from 0.1 s on, about six seconds in all. Chosen by hand."""

Result = TypeVar("Result")


class RefusedError(Exception):
    """A file exists and is rejected: too long, no ordinary file, or of another digest than announced."""


class UnlikeError(RefusedError):
    """A file exists, but not with the announced content: it may not be there whole yet."""


class Storage(Protocol):
    """A place for files by name, such as ``sites/a/1-1-...``. Names use ``/``.

    Failures that may pass (a network, a full disk) are `OSError`; a missing file is `FileNotFoundError`.
    """

    where: str
    """Its path or URL, for messages."""

    def names(self, folder: str, max_names: int) -> list[str]:
        """Return names of files and folders in a folder, at most `max_names`; none where there is no such folder."""

    def fetch(self, name: str, digest: str, target: Path, max_bytes: int, deadline: float = math.inf) -> None:
        """Copy a file to `target`, whole or not at all.

        It must have the SHA-256 `digest` and at most `max_bytes`. Copying stops with an OSError after `deadline`
        (``time.monotonic()``).
        """

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the bytes of a small file, the first `max_bytes` of them."""

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

    def names(self, folder: str, max_names: int) -> list[str]:
        """See `Storage`."""
        try:
            with os.scandir(self.root / folder) as entries:
                return [entry.name for entry in islice(entries, max_names)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def fetch(self, name: str, digest: str, target: Path, max_bytes: int, deadline: float = math.inf) -> None:
        """See `Storage`."""
        with os.fdopen(self._open(name), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > max_bytes:
                raise RefusedError(_too_long(size, max_bytes))
            copy_stream(stream, digest, target, max_bytes, deadline)

    def read(self, name: str, max_bytes: int) -> bytes:
        """See `Storage`."""
        with os.fdopen(self._open(name), "rb") as stream:
            return stream.read(max_bytes)

    def _open(self, name: str) -> int:
        """Open an ordinary file, not what a link leads to, and never wait for a pipe."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        path = self.root / name
        if path.is_symlink():  # for the message, and where the system has no O_NOFOLLOW
            raise RefusedError("is a link, which is not followed")
        handle = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise RefusedError("is not an ordinary file")
        return handle

    def put(self, name: str, data: Path | bytes) -> None:
        """See `Storage`."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(path)
        handle, partial = tempfile.mkstemp(prefix=partial_prefix(path.name), suffix=PARTIAL, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream, _opened(data) as source:
                shutil.copyfileobj(source, stream, CHUNK_BYTES)
                stream.flush()
                os.fsync(stream.fileno())
            Path(partial).chmod(0o666 & ~_umask())  # mkstemp gives 0600, which the server could not read
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)

    def prepare(self, folder: str) -> None:
        """See `Storage`."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)

    def remove(self, name: str) -> None:
        """See `Storage`."""
        (self.root / name).unlink(missing_ok=True)


class RemoteStorage:
    """A bucket, through fsspec: s3://, gs://, abfs:// and all others that it knows.

    A bucket shows a file when it is whole, so nothing is renamed.
    """

    def __init__(self, url: str) -> None:
        self.files, self.root = open_filesystem(url)
        self.where = url

    def _url(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def names(self, folder: str, max_names: int) -> list[str]:
        """See `Storage`. The listing itself is as long as the service makes it: bound it there."""
        try:
            with _failures_as_os_errors():
                self.files.invalidate_cache()
                entries = self.files.ls(self._url(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries[:max_names]]

    def fetch(self, name: str, digest: str, target: Path, max_bytes: int, deadline: float = math.inf) -> None:
        """See `Storage`."""
        with _failures_as_os_errors():
            size = int(self.files.info(self._url(name)).get("size") or 0)
            if size > max_bytes:
                raise RefusedError(_too_long(size, max_bytes))
            with self.files.open(self._url(name), "rb", block_size=4 * CHUNK_BYTES) as stream:
                copy_stream(stream, digest, target, max_bytes, deadline)

    def read(self, name: str, max_bytes: int) -> bytes:
        """See `Storage`."""
        with _failures_as_os_errors():
            return bytes(self.files.cat_file(self._url(name), start=0, end=max_bytes))

    def put(self, name: str, data: Path | bytes) -> None:
        """See `Storage`."""
        with _failures_as_os_errors():
            if isinstance(data, bytes):
                self.files.pipe_file(self._url(name), data)
            else:
                self.files.put_file(str(data), self._url(name))

    def prepare(self, folder: str) -> None:
        """See `Storage`."""

    def remove(self, name: str) -> None:
        """See `Storage`."""
        with suppress(FileNotFoundError), _failures_as_os_errors():
            self.files.rm_file(self._url(name))


def _opened(data: Path | bytes) -> BinaryIO:
    """Return a stream of a file, or of bytes."""
    return io.BytesIO(data) if isinstance(data, bytes) else open_file(data)


def storage_of(place: str | Path | Storage) -> Storage:
    """Return the folder or bucket of a path or URL; a storage, such as that of `flower_place`, as it is.

    It is a path, ``file://...``, or a URL that fsspec knows. Raises InputError or OptionError for a URL that fsspec
    does not know, or without fsspec.
    """
    if not isinstance(place, str | Path):
        return place
    text = str(place)
    if "://" not in text:
        return LocalStorage(Path(text))
    if text.startswith("file://"):
        return LocalStorage(Path(text.removeprefix("file://")))
    return RemoteStorage(text)


@contextmanager
def _failures_as_os_errors() -> Iterator[None]:
    """Turn whatever services raise into OSError, which is tried again; refusals stay."""
    try:
        yield
    except (OSError, RefusedError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def copy_stream(stream: Any, digest: str, target: Path, max_bytes: int, deadline: float) -> None:
    """Copy a stream to a file next to `target`, and move it there if it has this digest and is not too long."""
    handle, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=target.parent)
    try:
        hashed, length = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as copy:
            while chunk := stream.read(CHUNK_BYTES):
                length += len(chunk)
                if length > max_bytes:  # again: a file may grow while it is read
                    raise RefusedError(_too_long(length, max_bytes))
                if time.monotonic() > deadline:
                    raise OSError(f"only {length} bytes came in the time there was")
                hashed.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if hashed.hexdigest() != digest:
            raise UnlikeError("its content is not what was announced; send it again")
        Path(partial).chmod(0o666 & ~_umask())  # mkstemp gives 0600, and others may go on with a fused model
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)


def _too_long(size: int, max_bytes: int) -> str:
    return f"is {size} bytes long, which is more than the {max_bytes} that are taken here"


def _umask() -> int:
    """Return the mask of the process, which can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def retry(action: Callable[[], Result]) -> Result:
    """Return what `action` gives, tried again with growing pauses on failures that may pass.

    It raises FileNotFoundError, PermissionError or NotADirectoryError for what is final, other OSErrors for what may
    pass.
    """
    for trial in range(_MAX_RETRIES):
        try:
            return action()
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            raise
        except OSError:
            time.sleep(0.1 * 2.0**trial)
    return action()
