"""Atomic writes: files and folders appear whole or not at all.

What is written stands beside its target as ``.NAME.HOST-PROCESS.RANDOM.partial`` until it is whole. A process that is
killed leaves that behind; `remove_stale` removes it, which folders and rounds do before they write.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience.errors import InputError
from consilience.files.opening import open_file, read_file

PARTIAL = ".partial"
"""Suffix of what is not whole yet."""


def _host() -> str:
    """Return a name of this machine that is part of a file's name: process numbers of others mean nothing here."""
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def partial_prefix(name: str) -> str:
    """Return how the names of what this process writes of a file or folder begin until it is whole."""
    return f".{name}.{_host()}-{os.getpid()}."


def remove_stale(path: Path) -> None:
    """Remove what processes of this machine that are no more have left of writing `path`, a file or a folder."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_host()}-([0-9]+)\.[^.]+{re.escape(PARTIAL)}")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    for name in names:
        match = pattern.fullmatch(name)
        if match is None or _is_running(int(match[1])):
            continue
        stale = path.parent / name
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Return whether a process of this number runs, as far as can be known."""
    if process == os.getpid() or os.name != "posix":  # elsewhere signal 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def refuse_unwritable(path: Path, *read: Path, overwrite: bool = False, anywhere: bool = True) -> None:
    """Raise when `path` cannot be written, or is `read` itself, before hours of work are spent on what should go there.

    The InputError says why: no such folder, a folder or device in its place, no permission, or a file that is not
    replaced (`refuse_to_replace`). What is read is never replaced.
    """
    handle, probe = _create_beside(path)
    os.close(handle)
    os.unlink(probe)
    if any(is_same_file(path, other) for other in read):
        raise InputError(path, "is read here", "give another output", "E-OUTPUT")
    refuse_to_replace(path, overwrite, anywhere)


def is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths name one file, through links too."""
    try:
        return path.resolve() == other.resolve() or path.samefile(other)
    except (OSError, ValueError):  # one of the two does not exist, or its name cannot exist
        return False


def refuse_to_replace(path: str | Path, overwrite: bool = False, anywhere: bool = True) -> None:
    """Raise for a file that exists and may not be replaced, which `overwrite` allows.

    Replaced without a word are files of this library and empty ones; where not `anywhere`, as of the command, whose
    outputs a stranger's recipe may name, only those in the working folder and below.
    """
    path = Path(path)
    try:
        is_there = not overwrite and path.is_file()
    except (OSError, ValueError):  # a name that cannot be, of which whoever writes says so
        return
    if not is_there:
        return
    remedy = "give another output, or allow it to be overwritten (`overwrite=True`)"
    if not _is_ours(path):
        raise InputError(path, "is there already, and consilience did not write it", remedy, "E-OUTPUT")
    if not anywhere and not path.parent.resolve().is_relative_to(Path.cwd()):
        raise InputError(path, "is there already, outside of the working folder", remedy, "E-OUTPUT")


PAGE_MARK = '<meta name="generator" content="consilience">'
"""What every page of this library has in its head (`drawing.html`)."""

_MARKS = (b'{"__metadata__":{"consilience":', b'"format": "consilience-', b'"format":"consilience-', PAGE_MARK.encode())
"""What the files of this library begin with, or nearly so: safetensors with a document, JSON documents, pages."""

_START_BYTES = 4096
"""Bytes of a file in which one of the marks is looked for: longer than the head of a page before it."""


def _is_ours(path: Path) -> bool:
    """Return whether this library wrote a file, or nothing is in it."""
    try:
        start = read_file(path, _START_BYTES)
    except OSError:
        return False
    return not start or any(mark in start for mark in _MARKS)


def _create_beside(path: Path) -> tuple[int, str]:
    """Return an open, empty file in the folder of `path` and its name, or raise when `path` cannot be written."""
    if not os.path.isdir(path.parent):
        raise InputError(path, f"cannot be written: there is no folder {path.parent}", code="E-OUTPUT")
    if os.path.isdir(path):
        raise InputError(path, "cannot be written: it is a folder", code="E-OUTPUT")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(path, "cannot be written: it is not an ordinary file", code="E-OUTPUT")
    try:
        return tempfile.mkstemp(prefix=partial_prefix(path.name), suffix=PARTIAL, dir=path.parent)
    except OSError as error:
        raise InputError(path, f"cannot be written: {error.strerror}", "", "E-SYSTEM") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        raise InputError(path, f"cannot be written: {error}", code="E-OUTPUT") from error


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a path next to `path` to write to; on success it takes its place, on any failure it is removed.

    Raises InputError when the system refuses: full disk, no permission, no such folder.
    """
    handle, name = _create_beside(path)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with open_file(partial) as stream:
            os.fsync(stream.fileno())  # on the disk before the name changes, or a crash could leave an empty file
        partial.chmod(0o666 & ~_umask())
        partial.replace(path)
    except OSError as error:
        raise InputError(path, f"cannot be written: {error.strerror or error}", "", "E-SYSTEM") from error
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` whole or not at all."""
    with write_atomically(path) as partial:
        partial.write_bytes(data)


@contextmanager
def write_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a new folder next to `folder` to write into; on success it takes its place, on any failure it is removed.

    Raises InputError for a folder that is there already and not empty, a file or a link in its place, and when the
    system refuses.
    """
    is_taken = folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir())))
    if is_taken or folder.resolve() == Path.cwd():
        raise InputError(folder, "cannot be written: it is there already", "give a new folder", "E-OUTPUT")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(folder)
        partial = Path(tempfile.mkdtemp(prefix=partial_prefix(folder.name), suffix=PARTIAL, dir=folder.parent))
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror or error}", "", "E-SYSTEM") from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror or error}", "", "E-SYSTEM") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    """Return the permissions that new files are made without."""
    umask = os.umask(0)  # there is no way to read it but to set it
    os.umask(umask)
    return umask


@contextmanager
def sole_use(lock: Path, refusal: InputError) -> Iterator[None]:
    """Hold a lock file, or raise where another process does; the system drops it with the process."""
    with lock.open("wb") as stream:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise refusal from error
        yield
