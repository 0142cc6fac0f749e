"""Files opened for reading: ordinary ones alone, of pipes, sockets and devices none.

Opening a named pipe waits until somebody writes to it, and a device such as ``/dev/zero`` has no end. Readers take
names from strangers (folders of models, recipes, folders of rounds), so what is no ordinary file is refused at once, as
an OSError like any other file that cannot be read.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path


def open_file(path: str | Path) -> BufferedReader:
    """Return an ordinary file, opened for reading bytes; raise OSError for anything else, without waiting.

    Examples
    --------
    >>> open_file(os.devnull)
    Traceback (most recent call last):
        ...
    OSError: [Errno 22] it is a device, expected an ordinary file: '/dev/null'
    """
    return BufferedReader(open_unbuffered(path))


def open_unbuffered(path: str | Path) -> FileIO:
    """Return an ordinary file as `open_file`, of which exactly the bytes that are asked for are read."""
    # A pipe that is opened without O_NONBLOCK waits for a writer; on ordinary files the flag does nothing.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return FileIO(handle)
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    called = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise OSError(errno.EINVAL, f"it is {called}, expected an ordinary file", str(path))


def read_file(path: str | Path, max_bytes: int = -1) -> bytes:
    """Return the bytes of an ordinary file, at most so many; OSError as `open_file`."""
    with open_file(path) as stream:
        return stream.read(max_bytes)


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Return the text of an ordinary file in UTF-8; OSError as `open_file`, UnicodeDecodeError for other bytes."""
    return read_file(path).decode(errors=errors)
