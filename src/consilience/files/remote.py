"""Paths that may be addresses: s3://, gs://, and whatever else fsspec opens.

What is read from afar comes as a whole file into a temporary one; what is written goes there when it is whole.
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

from consilience.errors import InputError, OptionError


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

    Raises
    ------
    OptionError
        Where fsspec, or what it needs for such addresses, is not installed.
    InputError
        For an address that nothing here opens.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise OptionError(f"{url}: fsspec is not installed; pip install 'consilience[scale]'") from error
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise OptionError(f"{url}: {error}") from error
    except ValueError as error:
        raise InputError(f"{url}: {error}") from error
    return system, str(path)


def list_files(where: str | Path | Sequence[str | Path], suffixes: tuple[str, ...]) -> list[ListedFile]:
    """Return files: of a folder those with one of some `suffixes`, of a pattern those that fit, in order of names.

    Parameters
    ----------
    where
        A file, a folder, a pattern with ``*``, or several of these; local or addresses.
    suffixes
        What the names of files in folders end with. Hidden files are left out.

    Raises
    ------
    InputError
        For what does not exist, and folders and patterns in which nothing is.
    """
    if not isinstance(where, str | Path):
        return [file for one in where for file in list_files(one, suffixes)]
    text = str(where)
    found = _remote(text, suffixes) if is_remote(text) else _local(text, suffixes)
    if not found:
        raise InputError(f"{text}: no file named {' or '.join(f'*{suffix}' for suffix in suffixes)} is here")
    return sorted(found, key=lambda file: file.path)


def _local(text: str, suffixes: tuple[str, ...]) -> list[ListedFile]:
    try:
        if os.path.isdir(text):
            names = [os.path.join(text, name) for name in os.listdir(text) if _named(name, suffixes)]
        elif glob.has_magic(text) and not os.path.exists(text):
            names = [name for name in glob.glob(text, recursive=True) if os.path.isfile(name)]
        else:
            names = [text]
        return [ListedFile(name, os.stat(name).st_size) for name in names]
    except OSError as error:
        raise InputError(f"{text}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        raise InputError(f"{text}: cannot be read: {error}") from error


def _remote(text: str, suffixes: tuple[str, ...]) -> list[ListedFile]:
    system, path = open_filesystem(text)
    try:
        if glob.has_magic(path):
            infos = list(system.glob(path, detail=True).values())
        elif system.isdir(path):
            infos = [one for one in system.ls(path, detail=True) if _named(os.path.basename(one["name"]), suffixes)]
        else:
            infos = [system.info(path)]
    except OSError as error:
        raise InputError(f"{text}: cannot be read: {error.strerror or error}") from error
    return [
        ListedFile(system.unstrip_protocol(one["name"]), int(one["size"])) for one in infos if one["type"] == "file"
    ]


def _named(name: str, suffixes: tuple[str, ...]) -> bool:
    return not name.startswith(".") and name.endswith(suffixes)


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Yield a local file with the content of `path`: itself, or a copy that is removed at the end.

    Raises
    ------
    InputError
        When it cannot be read.
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
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        yield copy
