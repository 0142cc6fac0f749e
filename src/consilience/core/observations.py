"""Observations and labels of a site, read from an array, a table or a file, in the column order of the models.

Every value is checked: rows must be finite numbers, or whole word counts where the models take counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from consilience.catalogue import did_you_mean
from consilience.checks import Labels, as_rows
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_class_labels
from consilience.files.npy import not_data, read_array
from consilience.files.tables import NamedTable, as_named_table, read_parquet


@dataclass(frozen=True)
class ExpectedColumns:
    """The columns of data that models expect."""

    n_columns: int
    names: tuple[str, ...] | None  # their names in order, where known
    are_counts: bool  # whether they are counts of words


@dataclass(frozen=True, eq=False)
class Observations:
    """Checked data and classes of a site."""

    values: Any  # (n, D), rows in float64, or counts
    labels: Labels | None  # (n,), the number of every row's class in `classes`, where there are any
    classes: tuple[str, ...] = ()  # names of the classes


def read_observations(
    data: Any, labels: Any, columns: ExpectedColumns, name: str = "data", what: str = "labels"
) -> Observations:
    """Return `data` and `labels` as the models need them.

    Data are an array, a SciPy sparse matrix, a table with named columns (pandas, polars, Arrow), or the path of a .csv,
    .parquet, .npy or .npz; labels the class of every row, the name of a column, the path of a file with one class a
    line, or None. Raises InputError for data that do not fit, naming file, row and column, what was expected and what
    was found.
    """
    is_path = isinstance(data, str | Path)
    name = str(data) if is_path else name
    values, row_classes = _read_file(data, labels, columns) if is_path else _read_table(name, data, labels, columns)
    rows = _checked_rows(name, values, columns)
    if labels is None:
        return Observations(rows, None)
    if row_classes is None:
        are_in_file = isinstance(labels, str | Path)
        row_classes = read_class_labels(Path(labels), name, rows.shape[0], what) if are_in_file else labels
    classes, numbers = _number_classes(row_classes, rows.shape[0], what)
    return Observations(rows, numbers, classes)


def _read_file(path: str | Path, labels: Any, columns: ExpectedColumns) -> tuple[Any, Sequence[Any] | None]:
    """Return the values in a file, and the column of labels when it has one of that name."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return read_array(path), None
    if suffix == ".parquet":
        return _of_table(str(path), read_parquet(path), labels, columns)
    if suffix != ".csv":
        raise FileFormatError(not_data(path, ".csv, .parquet, .npy or .npz"))
    table = read_csv(path, columns.names)
    label_column = str(labels) if isinstance(labels, str | Path) else None
    row_classes = None if label_column is None else table.column(label_column)
    if table.header is None:
        numbers = list(range(len(table.rows[0])))
        _check_width(str(path), len(numbers), columns)
    else:
        numbers = _column_numbers(str(path), table.header, columns, label_column)
    return table.numbers(numbers), row_classes


def _read_table(name: str, data: Any, labels: Any, columns: ExpectedColumns) -> tuple[Any, Sequence[Any] | None]:
    """Return the values of an array or of a table with named columns, and of its column of labels."""
    table = as_named_table(data)
    return (data, None) if table is None else _of_table(name, table, labels, columns)


def _of_table(name: str, table: NamedTable, labels: Any, columns: ExpectedColumns) -> tuple[Any, Sequence[Any] | None]:
    """Return the columns of a table that the models expect, and its column of labels when it has one of that name."""
    label_column = labels if isinstance(labels, str) and labels in table.header else None
    values = table.columns(_column_numbers(name, table.header, columns, label_column))
    return values, None if label_column is None else table.take(table.header.index(label_column))


def _column_numbers(name: str, header: Sequence[str], columns: ExpectedColumns, label: str | None) -> list[int]:
    """Return the numbers of the models' columns in `header`; without names, all but the labels in their order."""
    if columns.names is None:
        numbers = [number for number, column in enumerate(header) if column != label]
        lacking = "" if label is None or label in header else f", none of them called {label!r}"
        _check_width(name, len(numbers), columns, lacking, _WITH_COMMAS if _has_semicolons(header) else "")
        return numbers
    if missing := [column for column in columns.names if column not in header]:
        raise InputError(_missing_columns(name, header, missing, columns.names))
    if repeated := [column for column in columns.names if header.count(column) > 1]:
        text = f"has the column {repeated[0]!r} {header.count(repeated[0])} times, expected once"
        raise InputError(name, text, code="E-TWICE")
    number_of = {column: number for number, column in enumerate(header)}
    return [number_of[column] for column in columns.names]


def _missing_columns(name: str, header: Sequence[str], missing: Sequence[str], names: Sequence[str]) -> Problem:
    """Return that data lack columns of the models, and which of theirs may be meant."""
    others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    meant = did_you_mean(missing[0], [column for column in header if column not in names])
    remedy = f"rename {meant}, if that is it, to {missing[0]}" if meant else "give the columns of the models"
    if _has_semicolons(header):
        remedy = _WITH_COMMAS
    text = f"lacks the column {missing[0]!r}{others}, found {', '.join(header)[:200]}"
    return Problem(name, text, remedy, "E-COLUMN")


_WITH_COMMAS = "write it with commas between cells"


def _has_semicolons(header: Sequence[str]) -> bool:
    """Return whether a header is one cell with semicolons, as some spreadsheets write tables."""
    return len(header) == 1 and ";" in header[0]


def _check_width(name: str, n_columns: int, columns: ExpectedColumns, lacking: str = "", remedy: str = "") -> None:
    """Raise InputError unless the data have the number of columns that the models expect."""
    if n_columns != columns.n_columns:
        expected = "" if columns.names is None else f": {', '.join(columns.names)[:200]}"
        text = f"has {n_columns} columns{lacking}, expected {columns.n_columns}{expected}"
        raise InputError(name, text, remedy, "E-SHAPE")


def _checked_rows(name: str, values: Any, columns: ExpectedColumns) -> Any:
    """Return finite rows in float64, or counts as a CSR array."""
    if not sparse.issparse(values):
        try:
            values = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            text = "expected an array of numbers (rows, columns), found lists that differ"
            raise InputError(name, text, code="E-SHAPE") from error
        if values.dtype.kind == "O":
            values = _numbers_of_objects(name, values)
    if values.dtype.kind not in "biuf":
        raise InputError(name, f"expected numbers, found an array of type {values.dtype}", code="E-TYPE")
    if values.ndim != 2:
        raise InputError(name, f"expected an array (rows, columns), found shape {values.shape}", code="E-SHAPE")
    _check_width(name, values.shape[1], columns)
    if values.shape[0] == 0:
        raise InputError(name, "has no rows", code="E-SHAPE")
    if columns.are_counts:
        return as_counts(name, values)
    rows = np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=np.float64)
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, column = bad[0]
        column_name = "" if columns.names is None else f" ({columns.names[column]})"
        more = f"; {len(bad) - 1} more like it" if len(bad) > 1 else ""
        place = f"row {row}, column {column}{column_name}, counted from 0"
        text = f"{place}: expected a finite number, found {rows[row, column]}{more}"
        raise InputError(name, text, code="E-NUMBER")
    return rows


def _numbers_of_objects(name: str, values: Any) -> Any:
    """Return an array of Python objects as numbers."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        text = f"expected numbers, found {type(values.flat[0]).__name__} and others"
        raise InputError(name, text, code="E-TYPE") from error


def _number_classes(labels: Any, n_rows: int, what: str) -> tuple[tuple[str, ...], Labels]:
    """Return the distinct labels, sorted, and the number of every row's label among them (n,)."""
    if sparse.issparse(labels):
        raise InputError(what, "expected one class for every row, found a sparse matrix", code="E-SHAPE")
    array = np.asarray(labels)
    if array.shape != (n_rows,):
        reason = f"expected one class for each of the {n_rows} rows, found shape {array.shape}"
        raise InputError(what, reason, code="E-SHAPE")
    texts = [str(value) for value in array.tolist()]
    missing = [row for row, text in enumerate(texts) if text.strip().lower() in ("", "nan", "none", "nat", "<na>")]
    if missing:
        raise InputError(what, f"row {missing[0]}, counted from 0: expected a class, found none", code="E-NEEDED")
    names, numbers = np.unique(texts, return_inverse=True)
    return tuple(names.tolist()), numbers.astype(np.int64)


def as_counts(name: str, documents: Any, columns: int | None = None) -> sparse.csr_array:
    """Return word counts (n, V) as a float64 CSR array without stored zeros or duplicates.

    Raises InputError when they are not whole numbers of tokens, naming the first that is not; or of another width.

    Examples
    --------
    >>> as_counts("documents", [[0, 2], [1, 0]]).nnz
    2
    """
    rows = documents if sparse.issparse(documents) else as_rows(name, documents)
    counts = sparse.csr_array(rows, dtype=np.float64, copy=True)  # a copy, since the next line works in place
    counts.sum_duplicates()
    if columns is not None and counts.shape[1] != columns:
        raise InputError(name, f"has {counts.shape[1]} columns, expected {columns}", code="E-SHAPE")
    is_whole = (
        np.isfinite(counts.data) & (counts.data >= 0) & (counts.data == np.floor(counts.data)) & (counts.data < 2**31)
    )
    if not is_whole.all():
        entry = int(np.argmin(is_whole))
        row = int(np.searchsorted(counts.indptr, entry, side="right")) - 1
        place = f"row {row}, column {counts.indices[entry]} (counted from 0)"
        text = f"{place}: expected a number of tokens (0, 1, 2, ...), found {counts.data[entry]:g}"
        raise InputError(name, text, code="E-NUMBER")
    counts.eliminate_zeros()
    return counts
