"""A site's own data, from an array or a file: columns in the order of the model, every value checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from consilience.checks import Labels
from consilience.errors import FileFormatError, InputError
from consilience.files.csv import read_csv
from consilience.files.npy import read_array
from consilience.posteriors.topics.document_completion import as_counts


@dataclass(frozen=True)
class ExpectedColumns:
    """What the models expect: how many columns, their names where known, and whether they are counts of words."""

    n_columns: int
    names: tuple[str, ...] | None
    are_counts: bool


@dataclass(frozen=True, eq=False)
class Observations:
    """Rows (n, D) in float64, or counts (n, V) as a CSR array.

    Where classes were given, `labels` (n,) has a number from 0 for every row, the place of its class in `classes`.
    """

    values: Any
    labels: Labels | None
    classes: tuple[str, ...] = ()


def read_observations(
    data: Any, labels: Any, columns: ExpectedColumns, name: str = "data", what: str = "labels"
) -> Observations:
    """Return `data` and `labels` as the models need them.

    Parameters
    ----------
    data
        An array, a SciPy sparse matrix, a table with named ``columns`` (pandas), or the path of a .csv, .npy or .npz.
    labels
        The class of every row, the name of a column of `data`, the path of a file with one class a line, or None.
    columns
        What the models expect.
    name, what
        What messages call the data, unless they are a file, and the labels.

    Raises
    ------
    InputError
        For data that do not fit, naming file, row and column, what was expected and what was found.
    """
    is_path = isinstance(data, str | Path)
    name = str(data) if is_path else name
    values, classes = _read(data, labels, columns) if is_path else _take(name, data, labels, columns)
    checked = _checked(name, values, columns)
    if labels is None:
        return Observations(checked, None)
    if classes is None:
        classes = _labels_elsewhere(name, labels, checked.shape[0], what)
    names, numbers = _as_classes(classes, checked.shape[0], what)
    return Observations(checked, numbers, names)


def _read(path: str | Path, labels: Any, columns: ExpectedColumns) -> tuple[Any, Sequence[Any] | None]:
    """Return the values in a file, and the column of labels when it has one of that name."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind in (".npy", ".npz"):
        return read_array(path), None
    if kind != ".csv":
        raise FileFormatError(f"{path}: expected a file named .csv, .npy or .npz")
    table = read_csv(path, columns.names)
    label = str(labels) if isinstance(labels, str | Path) else None
    classes = None if label is None else table.column(label)
    if table.header is None:
        places = list(range(len(table.rows[0])))
        _right_width(str(path), len(places), columns)
    else:
        places = _places(str(path), table.header, columns, label)
    return table.numbers(places), classes


def _take(name: str, data: Any, labels: Any, columns: ExpectedColumns) -> tuple[Any, Sequence[Any] | None]:
    """Return the values of an array or of a table with named columns, and of its column of labels."""
    if not (hasattr(data, "columns") and hasattr(data, "to_numpy")):
        return data, None
    header = tuple(str(column) for column in data.columns)
    label = labels if isinstance(labels, str) and labels in header else None
    taken = [data.columns[place] for place in _places(name, header, columns, label)]
    return data[taken].to_numpy(), None if label is None else data[label].to_numpy()


def _places(name: str, header: Sequence[str], columns: ExpectedColumns, label: str | None) -> list[int]:
    """Return where in `header` the models' columns are; without names, all but the labels in their order."""
    if columns.names is None:
        places = [place for place, column in enumerate(header) if column != label]
        lacking = "" if label is None or label in header else f", none of them called {label!r}"
        _right_width(name, len(places), columns, lacking)
        return places
    if missing := [column for column in columns.names if column not in header]:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{name}: lacks the column {missing[0]!r}{others}, found {', '.join(header)[:200]}")
    if double := [column for column in columns.names if header.count(column) > 1]:
        raise InputError(f"{name}: has the column {double[0]!r} {header.count(double[0])} times, expected once")
    where = {column: place for place, column in enumerate(header)}
    return [where[column] for column in columns.names]


def _right_width(name: str, found: int, columns: ExpectedColumns, lacking: str = "") -> None:
    if found != columns.n_columns:
        expected = "" if columns.names is None else f": {', '.join(columns.names)[:200]}"
        raise InputError(f"{name}: has {found} columns{lacking}, expected {columns.n_columns}{expected}")


def _checked(name: str, values: Any, columns: ExpectedColumns) -> Any:
    """Return finite rows in float64, or counts as a CSR array."""
    if not sparse.issparse(values):
        try:
            values = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            raise InputError(
                f"{name}: expected an array of numbers (rows, columns), found lists that differ"
            ) from error
        if values.dtype.kind == "O":
            values = _numbers_of_objects(name, values)
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected numbers, found an array of type {values.dtype}")
    if values.ndim != 2:
        raise InputError(f"{name}: expected an array (rows, columns), found shape {values.shape}")
    _right_width(name, values.shape[1], columns)
    if values.shape[0] == 0:
        raise InputError(f"{name}: has no rows")
    if columns.are_counts:
        return as_counts(name, values)
    rows = np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=np.float64)
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, column = bad[0]
        called = "" if columns.names is None else f" ({columns.names[column]})"
        more = f"; {len(bad) - 1} more like it" if len(bad) > 1 else ""
        raise InputError(
            f"{name}: row {row}, column {column}{called}, counted from 0: expected a finite number,"
            f" found {rows[row, column]}{more}"
        )
    return rows


def _numbers_of_objects(name: str, values: Any) -> Any:
    """Return an array of Python objects as numbers."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers, found {type(values.flat[0]).__name__} and others") from error


def _labels_elsewhere(name: str, labels: Any, count: int, what: str) -> Any:
    """Return labels that are not a column of the data: given as they are, or in a file."""
    if not isinstance(labels, str | Path):
        return labels
    path = Path(labels)
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise InputError(f"{what}: {str(labels)!r} is neither a column of {name} nor a file")
    if path.suffix.lower() in (".npy", ".npz"):
        return read_array(path)
    table = read_csv(path)
    if len(table.rows[0]) != 1:
        raise InputError(f"{path}: has {len(table.rows[0])} columns, expected one: the class of every row")
    classes = [cell.strip() for (cell,) in table.rows]
    if table.header is not None and len(classes) == count - 1:  # the first of classes that are words, not a header
        return [*table.header, *classes]
    return classes


def _as_classes(labels: Any, count: int, what: str) -> tuple[tuple[str, ...], Labels]:
    """Return the distinct labels, and the number of each row's (n,)."""
    if sparse.issparse(labels):
        raise InputError(f"{what}: expected one class for every row, found a sparse matrix")
    found = np.asarray(labels)
    if found.shape != (count,):
        raise InputError(f"{what}: expected one class for each of the {count} rows, found shape {found.shape}")
    texts = [str(value) for value in found.tolist()]
    missing = [row for row, text in enumerate(texts) if text.strip().lower() in ("", "nan", "none", "nat", "<na>")]
    if missing:
        raise InputError(f"{what}: row {missing[0]}, counted from 0: expected a class, found none")
    names, numbers = np.unique(texts, return_inverse=True)
    return tuple(names.tolist()), numbers.astype(np.int64)
