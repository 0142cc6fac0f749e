"""Labels in a file of their own, one for every row of data that lie elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.errors import InputError
from consilience.files.csv import read_csv
from consilience.files.npy import read_array


def read_class_labels(path: Path, data: str, n_rows: int, what: str) -> Any:
    """Return the labels in a file, one a line or .npy.

    A file is .npy, .npz, or .csv of one column; a first line of words that looks like a header is a label where
    `n_rows` needs it. `data` names the data, since what was given may have been meant as one of their columns. Raises
    InputError for what is neither a file nor a column, and for a file of several columns.
    """
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if not exists:
        raise InputError(what, f"{str(path)!r} is neither a column of {data} nor a file")
    if path.suffix.lower() in (".npy", ".npz"):
        return read_array(path)
    table = read_csv(path)
    if len(table.rows[0]) != 1:
        raise InputError(
            path, f"has {len(table.rows[0])} columns, expected one: the class of every row", code="E-SHAPE"
        )
    classes = [cell.strip() for (cell,) in table.rows]
    if table.header is not None and len(classes) == n_rows - 1:
        return [*table.header, *classes]
    return classes
