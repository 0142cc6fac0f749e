"""Inputs of networks and their labels in NumPy's files, ``.npz`` with x and y or ``.npy``, and labels in own files."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.errors import FileFormatError, InputError
from consilience.files.csv import read_csv
from consilience.files.npy import not_data, open_arrays, read_array

INPUTS = ("x", "X", "inputs")
"""Names that the array of inputs may have in an archive."""
LABELS = ("y", "labels")
"""Names that the array of labels may have."""


@dataclass(frozen=True, eq=False)
class LabelledArrays:
    """Inputs and, where the file has them, their labels."""

    inputs: Any  # (N, ...), inputs of a network
    labels: Any = None  # (N,), the label of each


def read_labelled_arrays(path: Path) -> LabelledArrays:
    """Return the inputs in a file, and their labels where it has them.

    An archive has inputs under one of `INPUTS` and labels under one of `LABELS`; where it has one array only, this is
    the inputs, whatever its name. Raises FileFormatError for other files, and archives without inputs or with more than
    one array of a kind.
    """
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise FileFormatError(not_data(path, ".npz or .npy"))
    if suffix == ".npz" and os.path.isfile(path) and zipfile.is_zipfile(path):
        arrays = _read_archive(path)
        if arrays is not None:
            return arrays
    return LabelledArrays(read_array(path))


def _read_archive(path: Path) -> LabelledArrays | None:
    """Return what an archive of several arrays holds; None for one that `read_array` reads."""
    with open_arrays(path, "arrays of numbers") as archive:
        names = list(archive)
        if len(names) < 2 or {"format", "shape", "data"} <= set(names):
            return None
        inputs, labels = ([name for name in candidates if name in names] for candidates in (INPUTS, LABELS))
        if len(inputs) != 1 or len(labels) > 1:
            expected = f"inputs under one of the names {', '.join(INPUTS)}, and labels, if any, under"
            text = f"has the arrays {', '.join(names[:8])}; expected {expected} {' or '.join(LABELS)}"
            raise FileFormatError(path, text)
        return LabelledArrays(archive[inputs[0]], archive[labels[0]] if labels else None)


def read_class_labels(path: Path, data: str, n_rows: int, what: str) -> Any:
    """Return the labels in a file, one a line or .npy.

    A file is .npy, .npz, or .csv of one column; a first line of words that looks like a header is a label where
    `n_rows` needs it. `data` names the data, since what was given may have been meant as one of their columns. Raises
    InputError for what is neither a file nor a column, and for a file of several columns.
    """
    try:
        exists = os.path.exists(path)
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if not exists:
        raise InputError(what, f"{str(path)!r} is neither a column of {data} nor a file")
    if path.suffix.lower() in (".npy", ".npz"):
        return read_array(path)
    table = read_csv(path)
    if len(table.rows[0]) != 1:
        text = f"has {len(table.rows[0])} columns, expected one: the class of every row"
        raise InputError(path, text, code="E-SHAPE")
    classes = [cell.strip() for (cell,) in table.rows]
    if table.header is not None and len(classes) == n_rows - 1:
        return [*table.header, *classes]
    return classes
