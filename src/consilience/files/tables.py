"""Tables with named columns: pandas, polars, Arrow, whatever speaks the Arrow interface, and Parquet files.

None of these libraries is imported unless a table of it, or a Parquet file, is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import FileFormatError, UnsupportedError
from consilience.files.budget import check_size
from consilience.files.csv import TAB_SEPARATED, read_csv
from consilience.files.parquet import PLAIN_REMEDY, open_parquet


@dataclass(frozen=True, eq=False)
class NamedTable:
    """A table whose columns have names."""

    header: tuple[str, ...]  # names of the columns, in order; they need not be distinct
    take: Callable[[int], Any]  # returns the column of a number as an array (n,)
    # The categories of the columns that are categorical, in their order
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Sequence[int] | None = None  # the line of its file that each row ends on; None where it has no lines

    def called_row(self, row: int) -> str:
        """Return what messages call a row."""
        return f"row {row}, counted from 0" if self.lines is None else f"line {self.lines[row]}"

    def columns(self, numbers: Sequence[int]) -> Any:
        """Return the columns of these numbers as an array (n, len(numbers)), of objects where types differ.

        What a model of numbers was fitted to of a categorical column are codes, so that is what comes of it.
        """
        taken = [self._numbers(number) for number in numbers]
        return np.stack(taken, axis=1) if taken else np.zeros((0, 0))

    def _numbers(self, number: int) -> Any:
        """Return a column; one whose categories are texts as their codes 0, 1, ..., NaN where there is none."""
        values, categories = np.asarray(self.take(number)), self.categories.get(self.header[number])
        if categories is None or values.dtype.kind in "biuf":
            return values
        codes = {category: float(code) for code, category in enumerate(categories)}
        return np.array([codes.get(str(value), np.nan) for value in values.tolist()])

    def without(self, number: int) -> NamedTable:
        """Return the table without the column of this number."""
        places = [place for place in range(len(self.header)) if place != number]
        header = tuple(self.header[place] for place in places)
        categories = {name: values for name, values in self.categories.items() if name in header}
        return NamedTable(header, lambda place: self.take(places[place]), categories)


def is_frame(data: object) -> bool:
    """Return whether an object is a table in memory with named columns."""
    return data is not None and not isinstance(data, str | Path) and as_named_table(data) is not None


def as_named_table(data: Any) -> NamedTable | None:
    """Return a table as one with named columns; None for what is no table.

    Tables are a `NamedTable`, a pandas or polars DataFrame, a polars LazyFrame, an Arrow table or record batch, and
    objects with the Arrow interface (``__arrow_c_stream__``), as those of DuckDB.
    """
    if isinstance(data, NamedTable):
        return data
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):  # a polars LazyFrame
        data = data.collect()
    if hasattr(data, "columns") and any(hasattr(data, name) for name in ("iloc", "to_series", "to_numpy")):
        return _frame(data)
    if hasattr(data, "schema") and hasattr(data.schema, "names") and hasattr(data, "column"):  # Arrow
        names = tuple(map(str, data.schema.names))
        return NamedTable(names, lambda number: _arrow_values(data.column(number)))
    is_column = hasattr(data, "to_frame") and not hasattr(data, "columns")  # a Series, which is no table
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, np.ndarray) and not is_column:
        return as_named_table(_arrow().table(data))
    return None


def _frame(data: Any) -> NamedTable:
    """Return a data frame as a table."""
    names = tuple(data.columns)
    if hasattr(data, "iloc"):  # pandas, whose names may repeat
        categories = _categories(data, lambda kind: hasattr(kind, "categories"))
        return NamedTable(tuple(map(str, names)), lambda number: data.iloc[:, number].to_numpy(), categories)
    if hasattr(data, "to_series"):  # polars, where those of an Enum have an order, and a Categorical's are as they came
        categories = _categories(data, lambda kind: type(kind).__name__ == "Enum")
        return NamedTable(tuple(map(str, names)), lambda number: data.to_series(number).to_numpy(), categories)
    # any other that selects columns by a list of names
    return NamedTable(tuple(map(str, names)), lambda number: data[[names[number]]].to_numpy()[:, 0])


def _categories(data: Any, has_some: Callable[[Any], bool]) -> dict[str, tuple[str, ...]]:
    """Return the categories of the columns of a frame whose types have some, as texts."""
    kinds = zip(map(str, data.columns), data.dtypes, strict=True)
    return {name: tuple(map(str, kind.categories)) for name, kind in kinds if has_some(kind)}


def read_named_table(path: Path) -> NamedTable | None:
    """Return the table in a .csv, .tsv or .parquet file; None for a .csv without a header, and for other files.

    Cells of a CSV file are numbers where all of their column are, and else texts.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return read_parquet(path)
    if suffix not in (".csv", *TAB_SEPARATED):
        return None
    cells = read_csv(path)
    if cells.header is None:
        return None

    def take(number: int) -> Any:
        try:
            return np.fromiter((float(row[number]) for row in cells.rows), np.float64, len(cells.rows))
        except ValueError:
            texts, longest = len(cells.rows), max(len(row[number]) for row in cells.rows)
            # An array of texts gives each the room of the longest, at four bytes a character.
            check_size(path, 4 * longest * texts, path.stat().st_size, "write it in shorter cells")
            return np.fromiter((row[number].strip() for row in cells.rows), f"U{max(longest, 1)}", texts)

    return NamedTable(cells.header, take, lines=cells.lines)


def read_parquet(path: Path) -> NamedTable:
    """Return the table in a Parquet file.

    Raises FileFormatError for a file that cannot be read, and UnsupportedError without pyarrow.
    """
    _arrow()
    file = open_parquet(path, str(path), PLAIN_REMEDY, is_plain=False)
    try:
        data = file.read()
        data.validate(full=True)  # places in dictionaries of texts may lead out of them
        table = as_named_table(data)
    except Exception as error:  # Arrow raises errors of many types for damaged pages
        text = f"is no Parquet file that can be read ({str(error).partition(chr(10))[0]:.120})"
        raise FileFormatError(path, text) from error
    if table is None:
        raise FileFormatError(path, "has no table")
    return table


def _arrow_values(column: Any) -> Any:
    """Return a column of Arrow as an array, missing numbers as nan; arrays of chunks take no option."""
    return column.to_numpy() if hasattr(column, "num_chunks") else column.to_numpy(zero_copy_only=False)


def _arrow() -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        text = "Parquet files and tables of this kind need pyarrow, which is not installed"
        remedy = "pip install 'consilience[scale]', or give an array or a CSV file"
        raise UnsupportedError("", text, remedy, "E-EXTRA") from error
    return pyarrow
