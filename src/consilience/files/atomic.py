"""Atomic writes: files and folders appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience.errors import InputError


def refuse_unwritable(path: Path) -> None:
    """Raise when `path` cannot be written, before hours of work are spent on what should go there.

    Raises
    ------
    InputError
        Saying why: no such folder, a folder or device in its place, no permission.
    """
    handle, probe = _create_beside(path)
    os.close(handle)
    os.unlink(probe)


def _create_beside(path: Path) -> tuple[int, str]:
    """Return an open, empty file in the folder of `path` and its name, or raise when `path` cannot be written."""
    if not os.path.isdir(path.parent):
        raise InputError(path, f"cannot be written: there is no folder {path.parent}")
    if os.path.isdir(path):
        raise InputError(path, "cannot be written: it is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(path, "cannot be written: it is not an ordinary file")
    try:
        return tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise InputError(path, f"cannot be written: {error.strerror}") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        raise InputError(path, f"cannot be written: {error}") from error


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it takes its place, on any failure it is removed.

    Raises
    ------
    InputError
        When the system refuses: full disk, no permission, no such folder.
    """
    handle, name = _create_beside(path)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())  # on the disk before the name changes, or a crash could leave an empty file
        partial.chmod(0o666 & ~_umask())
        partial.replace(path)
    except OSError as error:
        raise InputError(path, f"cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` whole or not at all."""
    with write_atomically(path) as partial:
        partial.write_bytes(data)


@contextmanager
def write_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder` to write into; on success it takes its place, on any failure it is removed.

    Raises
    ------
    InputError
        For a folder that is there already and not empty, a file or a link in its place, and when the system refuses.
    """
    is_taken = folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir())))
    if is_taken or folder.resolve() == Path.cwd():
        raise InputError(folder, "cannot be written: it is there already", "give a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror or error}") from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    """Return the permissions that new files are made without."""
    umask = os.umask(0)  # there is no way to read it but to set it
    os.umask(umask)
    return umask
