"""CSV and TSV files of numbers, with or without a header of column names."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from consilience.catalogue import unreadable
from consilience.checks import Array
from consilience.errors import FileFormatError, InputError

TAB_SEPARATED = (".tsv", ".tab")
"""Ends of the names of files whose cells are separated by tabs."""


@dataclass(frozen=True, eq=False)
class CsvTable:
    """The cells of a CSV file, all of them text."""

    path: Path  # the file, for messages
    header: tuple[str, ...] | None  # names of the columns, where the file has them
    rows: list[list[str]]  # cells of every row of data, all rows of the same length
    lines: list[int]  # line of the file that every row ends on, counted from 1

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
        cells = [[row[number] for number in columns] for row in self.rows]
        try:
            values = np.array(cells, dtype=np.float64)
            if np.isfinite(values).all():
                return values
        except ValueError:
            pass
        bad = [
            (line, number, cell)
            for line, row in zip(self.lines, cells, strict=True)
            for number, cell in zip(columns, row, strict=True)
            if not _is_finite(cell)
        ]
        line, number, cell = bad[0]
        column = f"column {number + 1}" + ("" if self.header is None else f" ({self.header[number]})")
        content = f"{cell!r:.60}" if cell.strip() else "an empty cell"
        more = f"; {len(bad) - 1} more cells like it" if len(bad) > 1 else ""
        text = f"line {line}, {column}: expected a finite number, found {content}{more}"
        raise InputError(self.path, text, code="E-NUMBER")


def _read_rows(path: Path) -> tuple[list[list[str]], list[int]]:
    """Return the cells of a file by row, and the line in which each ends; empty lines do not count."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter="\t" if path.suffix.lower() in TAB_SEPARATED else ",")
            numbered = [(row, reader.line_num) for row in reader if row]
    except UnicodeDecodeError as error:
        raise FileFormatError(path, "is not text in UTF-8", "save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise FileFormatError(path, f"is not a CSV file ({error})") from error
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(path, error)) from error
    return [row for row, _ in numbered], [line for _, line in numbered]


def read_csv(path: Path, names: Sequence[str] | None = None) -> CsvTable:
    """Return the cells of a CSV file.

    The first row is a header when it has one of `names`, or when none of its cells is a number. Empty lines do not
    count. Raises FileFormatError when it cannot be read, is not UTF-8 text separated by commas, or has no rows of data,
    and InputError for rows of different lengths and for a first row that is neither names nor numbers.
    """
    rows, lines = _read_rows(path)
    if not rows:
        raise FileFormatError(path, "is empty")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            reason = f"line {line}: has {len(row)} cells, expected {len(rows[0])} as in the first row"
            # Spreadsheets write so where the comma is the decimal mark.
            remedy = "write it with commas between cells, and points in numbers" if ";" in "".join(rows[0]) else ""
            raise InputError(path, reason, remedy, "E-SHAPE")
    first_row = [cell.strip() for cell in rows[0]]
    is_numeric = [_is_number(cell) for cell in first_row]
    if set(first_row) & set(names or ()) or not any(is_numeric):
        header, rows, lines = tuple(first_row), rows[1:], lines[1:]
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
