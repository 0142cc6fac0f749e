"""NumPy's and SciPy's array files: ``.npy``, ``.npz`` with one array, ``.npz`` of ``scipy.sparse.save_npz``.

Pickles are never loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

from consilience.catalogue import unreadable
from consilience.errors import FileFormatError, Problem


def read_array(path: Path) -> Any:
    """Return the array in a file: a NumPy array, or a SciPy sparse matrix whose indices are all in range.

    Raises FileFormatError when it cannot be read, is not of that format, holds objects, or holds several arrays.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(6)
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(path, error)) from error
    if not start:
        raise FileFormatError(path, "is empty")
    is_archive = path.suffix.lower() == ".npz"
    if not start.startswith(b"PK" if is_archive else b"\x93NUMPY"):
        how = f"write it with numpy.save{'z' * is_archive}"
        raise FileFormatError(path, f"is not a {path.suffix.lower()} file", how)
    with translate_read_errors(path, "an array of numbers"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what NumPy remarks about old files changes nothing
        with path.open("rb") as stream:  # ours to close, also when NumPy stumbles half way
            return _read_archive(path, stream) if is_archive else np.load(stream, allow_pickle=False)


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


def _read_archive(path: Path, stream: BinaryIO) -> Any:
    """Return the one array of an archive, or the sparse matrix that ``scipy.sparse.save_npz`` wrote to it."""
    with np.load(stream, allow_pickle=False) as archive:
        names = archive.files
        if not {"format", "shape", "data"} <= set(names):
            if len(names) != 1:
                raise FileFormatError(path, f"holds {len(names)} arrays, expected one: {', '.join(names[:5])}")
            return archive[names[0]]
    stream.seek(0)
    matrix = sparse.load_npz(stream)
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)  # indices beyond the shape would be read from memory that is not theirs
    return matrix.tocsr()
