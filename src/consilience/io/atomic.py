"""Files appear whole or not at all."""

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
        Saying why: no such folder, a folder in its place, no permission.
    """
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: cannot be written: the folder {folder} does not exist")
    if path.is_dir():
        raise InputError(f"{path}: cannot be written: it is a folder")
    try:
        handle, probe = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=folder)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(handle)
    os.unlink(probe)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it takes its place, on any failure it is removed.

    Raises
    ------
    InputError
        When the system refuses: full disk, no permission, no such folder.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)
