"""NumPy's and SciPy's array files: ``.npy``, ``.npz`` with one array, ``.npz`` of ``scipy.sparse.save_npz``.

Pickles are never loaded.
"""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from scipy import sparse

from consilience.catalogue import unreadable
from consilience.errors import FileFormatError, Problem
from consilience.files.budget import check_size
from consilience.files.opening import open_file


def read_array(path: Path) -> Any:
    """Return the array in a file: a NumPy array, or a SciPy sparse matrix whose indices are all in range.

    Raises FileFormatError when it cannot be read, is not of that format, holds objects, or holds several arrays.
    """
    with open_arrays(path, "an array of numbers") as arrays:
        if path.suffix.lower() != ".npz":
            return arrays[""]
        if not {"format", "shape", "data"} <= set(arrays):
            if len(arrays) != 1:
                text = f"holds {len(arrays)} arrays, expected one: {', '.join(list(arrays)[:5])}"
                raise FileFormatError(path, text)
            return next(iter(arrays.values()))
        return _sparse_matrix(path, int(arrays["shape"][0]))


@contextmanager
def open_arrays(path: Path, what: str) -> Iterator[Mapping[str, Any]]:
    """Yield the arrays in a .npz file by name, each read when it is asked for; that of a .npy file is named "".

    How much memory all of them take is found in their headers, before any is read. Raises FileFormatError for a file
    that cannot be read, is of another format, holds objects, or holds more than `budget.allowed_memory` of its size.
    `what` names the expected content.
    """
    try:
        stream = open_file(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(path, error)) from error
    with stream:
        start, size = stream.read(6), stream.seek(0, os.SEEK_END)
        stream.seek(0)
        if not start:
            raise FileFormatError(path, "is empty")
        is_archive = path.suffix.lower() == ".npz"
        if not start.startswith(b"PK" if is_archive else b"\x93NUMPY"):
            how = f"write it with numpy.save{'z' * is_archive}"
            raise FileFormatError(path, f"is not a {path.suffix.lower()} file", how)
        with translate_read_errors(path, what), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what NumPy remarks about old files changes nothing
            if not is_archive:
                _check_array(path, stream, size, size)
                stream.seek(0)
                yield {"": np.load(stream, allow_pickle=False)}
                return
            _check_archive(path, stream, size)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                yield archive


def _check_archive(path: Path, stream: BinaryIO, size: int) -> None:
    """Raise for an archive whose arrays together are larger than its size allows, or that names one twice."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len({member.filename for member in members}) < len(members):
            raise ValueError("it names an array twice")
        check_size(path, sum(member.file_size for member in members), size, _UNCOMPRESSED)
        for member in members:
            with archive.open(member) as part:
                _check_array(path, part, member.file_size, size)


def _check_array(path: Path, stream: IO[bytes], n_bytes: int, size: int) -> None:
    """Raise for an array whose header says more than the `n_bytes` that are stored of it; a file has `size` bytes."""
    start = BytesIO(stream.read(_MAX_HEADER_BYTES))  # else as much memory is taken as a header says that it is long
    major, _ = np.lib.format.read_magic(start)
    read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(start)
    if dtype.hasobject:
        raise ValueError("pickles are never loaded")
    needed = math.prod(shape) * dtype.itemsize
    if needed + start.tell() != n_bytes:
        raise ValueError(f"its header says {needed:,} bytes of numbers, and {n_bytes - start.tell():,} are there")
    check_size(path, needed, size, _UNCOMPRESSED)


_MAX_HEADER_BYTES = 2**14
"""Bytes of the start of an array file: NumPy refuses headers of more than 10,000 characters."""
_UNCOMPRESSED = "write it without compression (numpy.savez; scipy.sparse.save_npz(..., compressed=False))"


def not_data(path: Path, suffixes: str) -> Problem:
    """Return that a file is named like none of data; that it is a model's, where its name says so."""
    if path.suffix.lower() in (".safetensors", ".pt", ".pth", ".pkl", ".joblib"):
        text = "is the file of a model by its name, expected the rows of a site"
        return Problem(path, text, f"give them as {suffixes}")
    return Problem(path, f"expected a file named {suffixes}")


@contextmanager
def translate_read_errors(path: Path, what: str) -> Iterator[None]:
    """Turn whatever NumPy raises on a file into FileFormatError; `what` names its expected content."""
    try:
        yield
    except FileFormatError:
        raise
    except MemoryError as error:
        raise FileFormatError(path, "says it holds more than fits in memory") from error
    except Exception as error:  # zip, zlib and NumPy's headers each raise errors of their own for a damaged file
        reason = " ".join(str(error).split())
        if "pickle" in reason:
            reason = f"it holds Python objects, which are never loaded; save {what}"
        raise FileFormatError(path, f"is damaged or not {what}: {reason:.200}") from error


def _sparse_matrix(path: Path, n_rows: int) -> Any:
    """Return the sparse matrix that ``scipy.sparse.save_npz`` wrote, in rows."""
    with open_file(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        check_size(path, ROW_BYTES * n_rows, size, "write rows that are not all empty")
        stream.seek(0)
        matrix = sparse.load_npz(stream)
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)  # indices beyond the shape would be read from memory that is not theirs
    return matrix.tocsr()


ROW_BYTES = 8
"""Bytes that a matrix in rows has for each of them, also for an empty one: where its entries start."""
