"""Local and remote files: paths, or addresses such as s3:// and gs:// that fsspec opens.

A remote file is read by copying it whole to a temporary one; a file is sent when it is whole.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.catalogue import unreadable
from consilience.errors import InputError, OptionError
from consilience.files.foreign_formats import named_foreign


@dataclass(frozen=True)
class ListedFile:
    """A file and its size in bytes."""

    path: str
    size: int


def is_remote(path: str | Path) -> bool:
    """Return whether a path is an address."""
    return "://" in str(path)


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it.

    Raises OptionError where fsspec, or what it needs for such addresses, is not installed, and InputError for an
    address that nothing here opens.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise OptionError(url, "fsspec is not installed", "pip install 'consilience[scale]'", "E-EXTRA") from error
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise OptionError(url, f"{error}") from error
    except ValueError as error:
        raise InputError(url, f"{error}") from error
    return system, str(path)


def list_files(where: str | Path | Sequence[str | Path], suffixes: tuple[str, ...]) -> list[ListedFile]:
    """Return the files of a folder or pattern with their sizes, in order of names.

    `where` is a file, a folder, a pattern with ``*``, or several of these; local or addresses. Files in folders end in
    one of `suffixes`, and are not hidden. Raises InputError for a path that does not exist, and for folders and
    patterns without such files.
    """
    if not isinstance(where, str | Path):
        return [file for path in where for file in list_files(path, suffixes)]
    text = str(where)
    files = _list_remote(text, suffixes) if is_remote(text) else _list_local(text, suffixes)
    if not files:
        reason, remedy = f"no file named {' or '.join(f'*{suffix}' for suffix in suffixes)} is here", ""
        if os.path.isdir(text):
            others = (named_foreign(Path(text, name)) for name in sorted(os.listdir(text)))
            if (foreign := next((one for one in others if one is not None), None)) is not None:
                reason, remedy = f"{reason}: {Path(foreign.subject).name} {foreign.text}", foreign.remedy
        raise InputError(text, reason, remedy)
    return sorted(files, key=lambda file: file.path)


def _list_local(text: str, suffixes: tuple[str, ...]) -> list[ListedFile]:
    """Return the files of a local folder or pattern."""
    try:
        if os.path.isdir(text):
            names = [os.path.join(text, name) for name in os.listdir(text) if _is_named(name, suffixes)]
        elif glob.has_magic(text) and not os.path.exists(text):
            names = [name for name in glob.glob(text, recursive=True) if os.path.isfile(name)]
        else:
            names = [text]
        return [ListedFile(name, os.stat(name).st_size) for name in names]
    except (OSError, ValueError) as error:
        raise InputError(unreadable(text, error)) from error


def _list_remote(text: str, suffixes: tuple[str, ...]) -> list[ListedFile]:
    """Return the files of a remote folder or pattern."""
    system, path = open_filesystem(text)
    try:
        if glob.has_magic(path):
            infos = list(system.glob(path, detail=True).values())
        elif system.isdir(path):
            entries = system.ls(path, detail=True)
            infos = [info for info in entries if _is_named(os.path.basename(info["name"]), suffixes)]
        else:
            infos = [system.info(path)]
    except OSError as error:
        raise InputError(unreadable(text, error)) from error
    return [
        ListedFile(system.unstrip_protocol(info["name"]), int(info["size"])) for info in infos if info["type"] == "file"
    ]


def _is_named(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file is not hidden and has one of the suffixes."""
    return not name.startswith(".") and name.endswith(suffixes)


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Yield a local file with the content of `path`: itself, or a copy that is removed at the end.

    Raises InputError when it cannot be read.
    """
    if not is_remote(path):
        yield Path(path)
        return
    system, inside = open_filesystem(path)
    with tempfile.TemporaryDirectory(prefix="consilience-") as folder:
        copy = Path(folder) / "file"
        try:
            system.get_file(inside, str(copy))
        except OSError as error:
            raise InputError(unreadable(path, error)) from error
        yield copy
