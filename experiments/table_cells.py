"""Numbers of generated tables and results by address, for the text of pages and tables of such cells."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEPARATOR = " :: "
"""Between the parts of an address. Names of rows and columns have commas, colons, slashes and semicolons."""
LEADING = " + "
"""Between the leading cells that name a row together."""
MINUS = " MINUS "
"""Between two names of which the numbers' difference is meant, cell by cell."""
_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_MARK = re.compile(rf"(?P<shown>(?<![\w.]){_NUMBER.pattern})?<!-- n: (?P<address>.*?) -->")
_OF_SEVERAL: dict[str, Callable[[list[Decimal]], Any]] = {
    "min": min,
    "max": max,
    "sum": sum,
    "mean": mean,
    "median": median,
}
_SPECIFICATION = re.compile(r"\+?,?(\.\d+)?[def]?")

Tables = Mapping[str, Callable[[], str]]


@dataclass(frozen=True)
class Cell:
    """A cell of a table by the names of its row and column.

    A row is named by its first cell, or by as many leading cells as make it the only one, joined by " + ". In front of
    them may be the first cell of the header, which distinguishes several tables of one name. An empty first cell is
    that above it. The second column of one name is "name (2)". A star in a name stands for anything.
    """

    table: str
    row: str
    column: str


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, name.split("*"))))


def _cells_of_line(line: str) -> list[str]:
    cells = line.replace("\\|", "").strip().strip("|").split("|")
    return [cell.strip().replace("**", "").strip("*") for cell in cells]


def _parts(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the header and rows of each table in a text, columns distinguished, empty first cells filled from above."""
    for part in re.findall(r"(?m)(?:^\|.*(?:\n|$))+", text):
        header, _, *rows = map(_cells_of_line, part.splitlines())
        counts = [header[:n].count(name) for n, name in enumerate(header)]
        header = [f"{name} ({before + 1})" if before else name for name, before in zip(header, counts, strict=True)]
        for above, row in pairwise(rows):
            row[0] = row[0] or above[0]
        yield header, rows


def cells(cell: Cell, tables: Tables) -> list[str]:
    """Return the texts of all cells of an address; a LookupError says which part of it is unknown."""
    if cell.table not in tables:
        raise LookupError(f"there is no table {cell.table!r}")
    parts = list(_parts(tables[cell.table]()))
    column, leading = _pattern(cell.column), list(map(_pattern, cell.row.split(LEADING)))
    columns = [[n for n, name in enumerate(header) if column.fullmatch(name)] for header, _ in parts]
    if not any(columns):
        names = ", ".join(dict.fromkeys(name for header, _ in parts for name in header if name))
        raise LookupError(f"table {cell.table!r} has no column {cell.column!r}, but: {names}")
    found = [
        row[n]
        for (header, rows), numbers in zip(parts, columns, strict=True)
        for row in rows
        for n in numbers
        if any(
            len(named) >= len(leading) and all(one.fullmatch(name) for one, name in zip(leading, named, strict=False))
            for named in (row, [header[0], *row])
        )
    ]
    if not found:
        names = "; ".join(dict.fromkeys(row[0] for _, rows in parts for row in rows))
        raise LookupError(f"table {cell.table!r} has no row {cell.row!r}, but: {names}")
    return found


def text_of(cell: Cell, tables: Tables) -> str:
    """Return the text of the one cell of an address."""
    found = cells(cell, tables)
    if len(found) > 1:
        raise LookupError(f"{len(found)} cells of table {cell.table!r} are in row {cell.row!r}, column {cell.column!r}")
    return found[0]


def _results(file: str, keys: list[str]) -> list[str]:
    """Return the numbers below keys in a file of results, of lists all."""
    values: list[Any] = [json.loads((ROOT / file).read_text(), parse_float=Decimal)]
    for key in keys:
        below = []
        for value in values:
            items = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
            below += [item for name, item in items if _pattern(key).fullmatch(str(name))]
        if not below:
            raise LookupError(f"{file} has no {key!r}")
        values = below
    values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [str(value) for value in values]


def number(address: str, tables: Tables) -> str:
    """Return what the number at an address is in the text of a page.

    Parameters
    ----------
    address : str
        ``table :: row :: column``, or ``file.json :: key :: ... :: key``; a name may be ``one MINUS another``, for a
        difference. A last part may follow that is made of ``#2``, the second number of the cell (else the first), or
        ``#*``, all; ``abs``; ``min``, ``max``, ``sum``, ``mean`` or ``median`` of several; ``/1000``, a divisor
        (``/0.01`` of shares in percent); and a format such as ``.0f``. Without a format the number is as in the cell,
        without a plus.
    tables : mapping of str to functions
        The tables by name.
    """
    table, *names = address.split(SEPARATOR)
    fewest = 1 if table.endswith(".json") else 2
    how = names.pop().split() if len(names) > fewest and _is_how(names[-1]) else []
    if fewest == 2 != len(names):
        raise LookupError(f"an address is {SEPARATOR.join(('table', 'row', 'column'))}, not {len(names) + 1} parts")
    which, several, divisor, specification, is_absolute = 1, None, Decimal(1), "", False
    for word in how:
        if word.startswith("#"):
            which = 0 if word == "#*" else int(word[1:])
        elif word.startswith("/"):
            divisor = Decimal(word[1:])
        elif word == "abs":
            is_absolute = True
        elif word in _OF_SEVERAL:
            several = _OF_SEVERAL[word]
        else:
            specification = word
    left, right = ([name.split(MINUS)[n] if MINUS in name else name for name in names] for n in (0, -1))
    found = _numbers(table, left, tables, which)
    values = [Decimal(one.replace(",", "")) for one in found]
    if left != right:
        subtracted = [Decimal(one.replace(",", "")) for one in _numbers(table, right, tables, which)]
        if len(subtracted) != len(values):
            raise LookupError(f"{len(values)} numbers, {len(subtracted)} to subtract")
        values = [one - other for one, other in zip(values, subtracted, strict=True)]
    if len(values) > 1 and several is None:
        raise LookupError(f"{len(values)} numbers are there, and one is needed: {', '.join(found)[:200]}")
    values = [(abs(value) if is_absolute else value) / divisor for value in values]
    value = values[0] if several is None else several(values)
    if specification:
        return format(value, specification)
    as_found = dict(zip(values, found, strict=True)).get(value) if left == right and divisor == 1 else None
    return str(value) if as_found is None else as_found.lstrip("+-" if is_absolute else "+")


def _numbers(table: str, names: list[str], tables: Tables, which: int) -> list[str]:
    """Return the number of a place in each cell or value of an address that has one there; of place 0 all numbers."""
    texts = _results(table, names) if table.endswith(".json") else cells(Cell(table, *names), tables)
    in_texts = map(_NUMBER.findall, texts)
    found = [one for numbers in in_texts for one in (numbers[which - 1 : which] if which else numbers)]
    if not found:
        raise LookupError(f"no such number is there: {', '.join(texts)[:200]}")
    return found


def _is_how(part: str) -> bool:
    words = (r"#(\d+|\*)", r"/\d*\.?\d+", "abs", *_OF_SEVERAL, _SPECIFICATION.pattern)
    return all(any(re.fullmatch(one, word) for one in words) for word in part.split())


def with_numbers(text: str, page: str, tables: Tables) -> str:
    """Return a page with the number in front of every ``<!-- n: address -->`` as it is at the address."""

    def written(mark: re.Match[str]) -> str:
        try:
            if mark["shown"] is None:
                raise LookupError("no number is in front of this comment")
            if "--" in mark["address"]:
                raise LookupError("some readers of Markdown end a comment at two hyphens: write a star for them")
            return f"{number(mark['address'], tables)}<!-- n: {mark['address']} -->"
        except (LookupError, OSError) as error:
            line = text.count("\n", 0, mark.start()) + 1
            raise LookupError(f"{page}:{line}: {mark['address']}: {error}") from error

    return _MARK.sub(written, text)
