"""Atomic writes: files appear whole or not at all."""

from __future__ import annotations

import os
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
        umask = os.umask(0)  # there is no way to read it but to set it
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(path)
    except OSError as error:
        raise InputError(path, f"cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` whole or not at all."""
    with write_atomically(path) as partial:
        partial.write_bytes(data)
