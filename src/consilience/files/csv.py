"""CSV and TSV files of numbers, with or without a header of column names.

A cell of two characters is 59 bytes as a text of Python. So a table keeps the bytes of its file and where its rows end,
and rows are parsed when they are asked for: in all, reading takes no more than `budget.allowed_memory` says.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from consilience.catalogue import unreadable
from consilience.checks import Array
from consilience.errors import FileFormatError, InputError
from consilience.files.budget import check_cells
from consilience.files.opening import read_file

TAB_SEPARATED = (".tsv", ".tab")
"""Ends of the names of files whose cells are separated by tabs."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


_LINE = re.compile(rb"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


class CsvRows(Sequence[list[str]]):
    """Rows of cells, parsed from the bytes of a file each time that they are asked for.

    `ends` (n,) has the place in `data` behind each row; the `first` ones are left out.
    """

    def __init__(self, data: bytes, ends: Sequence[int], delimiter: str, first: int = 0) -> None:
        self._data, self._ends, self._delimiter, self._first = data, ends, delimiter, first

    def without_first(self) -> CsvRows:
        """Return all rows but the first."""
        return CsvRows(self._data, self._ends, self._delimiter, self._first + 1)

    def __len__(self) -> int:
        return len(self._ends) - self._first

    def __getitem__(self, place: int) -> list[str]:  # type: ignore[override]
        return next(self._from(range(self._first, len(self._ends))[place]))

    def __iter__(self) -> Iterator[list[str]]:
        return self._from(self._first)

    def _from(self, row: int) -> Iterator[list[str]]:
        """Yield the rows from this one on, empty lines left out."""
        lines = _lines(self._data, self._ends[row - 1] if row else 0)
        texts = (line.decode() for line, _ in lines)
        return (cells for cells in csv.reader(texts, delimiter=self._delimiter) if cells)


def _lines(data: bytes, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file with their ends, and the place behind each; a return alone ends a line, too."""
    return ((match.group(), match.end()) for match in _LINE.finditer(data, start))


@dataclass(frozen=True, eq=False)
class CsvTable:
    """The cells of a CSV file, all of them text."""

    path: Path  # the file, for messages
    header: tuple[str, ...] | None  # names of the columns, where the file has them
    rows: CsvRows  # cells of every row of data, all rows of the same length
    lines: Sequence[int]  # line of the file that every row ends on, counted from 1

    def column(self, name: str) -> list[str] | None:
        """Return the cells of the column of this name, None when there is none."""
        if self.header is None or name not in self.header:
            return None
        number = self.header.index(name)
        return [row[number].strip() for row in self.rows]

    def numbers(self, columns: Sequence[int]) -> Array:
        """Return the cells of some columns as numbers.

        Raises InputError for a cell that is not a finite number, naming its line and column and how many there are.
        """
        values = np.empty((len(self.rows), len(columns)))
        bad: tuple[int, int, str] | None = None
        n_bad = 0
        for place, row in enumerate(self.rows):
            try:
                values[place] = [float(row[number]) for number in columns]
                if np.isfinite(values[place]).all():
                    continue
            except ValueError:
                pass
            wrong = [number for number in columns if not _is_finite(row[number])]
            bad = bad or (self.lines[place], wrong[0], row[wrong[0]])
            n_bad += len(wrong)
        if bad is None:
            return values
        line, number, cell = bad
        column = f"column {number + 1}" + ("" if self.header is None else f" ({self.header[number]})")
        content = f"{cell!r:.60}" if cell.strip() else "an empty cell"
        more = f"; {n_bad - 1} more cells like it" if n_bad > 1 else ""
        text = f"line {line}, {column}: expected a finite number, found {content}{more}"
        raise InputError(self.path, text, code="E-NUMBER")


def _read_rows(path: Path) -> tuple[CsvRows, Sequence[int]]:
    """Return the rows of a file, and the line in which each ends; empty lines do not count."""
    try:
        data = read_file(path).removeprefix(_BYTE_ORDER_MARK)
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(path, error)) from error
    delimiter = "\t" if path.suffix.lower() in TAB_SEPARATED else ","
    code = "I" if len(data) < 2**32 else "Q"  # of most files places have four bytes
    ends, numbers, place = array(code), array(code), 0

    def texts() -> Iterator[str]:
        nonlocal place
        for line, end in _lines(data):
            check_cells(path, line, len(data), delimiter)
            place = end
            yield line.decode()

    try:
        reader = csv.reader(texts(), delimiter=delimiter)
        for row in reader:
            if row:
                ends.append(place)
                numbers.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise FileFormatError(path, "is not text in UTF-8", "save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise FileFormatError(path, f"is not a CSV file ({error})") from error
    return CsvRows(data, ends, delimiter), numbers


def read_csv(path: Path, names: Sequence[str] | None = None) -> CsvTable:
    """Return the cells of a CSV file.

    The first row is a header when it has one of `names`, or when none of its cells is a number. Empty lines do not
    count. Raises FileFormatError when it cannot be read, is not UTF-8 text separated by commas, or has no rows of data,
    and InputError for rows of different lengths and for a first row that is neither names nor numbers.
    """
    rows, lines = _read_rows(path)
    if not rows:
        raise FileFormatError(path, "is empty")
    first = rows[0]
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(first):
            reason = f"line {line}: has {len(row)} cells, expected {len(first)} as in the first row"
            # Spreadsheets write so where the comma is the decimal mark.
            remedy = "write it with commas between cells, and points in numbers" if ";" in "".join(first) else ""
            raise InputError(path, reason, remedy, "E-SHAPE")
    first_row = [cell.strip() for cell in first]
    is_numeric = [_is_number(cell) for cell in first_row]
    if set(first_row) & set(names or ()) or not any(is_numeric):
        header, rows, lines = tuple(first_row), rows.without_first(), lines[1:]
    elif all(is_numeric):
        header = None
    else:
        column_of_text, column_of_number = is_numeric.index(False), is_numeric.index(True)
        text = (
            f"line {lines[0]}, column {column_of_text + 1}: expected a number, as in column"
            f" {column_of_number + 1}, found {first_row[column_of_text]!r:.60}; a header has no numbers"
        )
        raise InputError(path, text, code="E-NUMBER")
    if not rows:
        raise FileFormatError(path, "has a header and no rows of data")
    return CsvTable(path, header, rows, lines)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_finite(cell: str) -> bool:
    return _is_number(cell) and bool(np.isfinite(float(cell)))
