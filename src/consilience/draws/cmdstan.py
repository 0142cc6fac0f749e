"""CmdStan CSV files of draws: what they hold, and which of them are the chains of one site.

Lines that start with ``#`` are comments: the configuration before the table, the adaptation amid it, times after it.
The first other line names the columns: ``lp__``, ``accept_stat__``, ``stepsize__``, ``treedepth__``, ``n_leapfrog__``,
``divergent__``, ``energy__``, then parameters, transformed parameters and generated quantities, ``b.1``, ``M.1.2``, the
first index fastest. The file does not say which columns are parameters. Warm-up rows of ``save_warmup = 1`` come first.

Files among the models whose names differ only in a number at their end are the chains of one site.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from consilience.checks import Array
from consilience.draws.containers import MAPPING, Contents, arrays_of_columns
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.budget import check_cells
from consilience.files.opening import open_file

MAX_BYTES = 2**31
"""Largest file that is read: text of a million draws of a hundred parameters. Chosen by hand."""

_SETTING = re.compile(r"#\s*(\w+)\s*=\s*([^\s(]+)")
_COUNT = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, eq=False)
class Chain:
    """One file: columns by name, without warm-up."""

    columns: tuple[str, ...]
    rows: Array  # (T, n_columns)


def read_cmdstan(paths: Sequence[Path]) -> Contents:
    """Return the draws of the chains of one site, which have the same columns and lengths."""
    chains = [_read_chain(path) for path in paths]
    first = chains[0]
    problems = []
    for path, chain in zip(paths[1:], chains[1:], strict=True):
        if chain.columns != first.columns:
            odd = sorted(set(chain.columns) ^ set(first.columns))[:5]
            problems.append(Problem(path, f"has other columns than {paths[0]}: {', '.join(odd)}", "give one model"))
        elif len(chain.rows) != len(first.rows):
            text = f"has {len(chain.rows)} draws, expected {len(first.rows)} as {paths[0]}"
            problems.append(Problem(path, text, "run chains of one length"))
    if problems:
        raise InputError(problems)
    table = np.stack([chain.rows for chain in chains])  # (C, T, n_columns)
    diverging = table[:, :, first.columns.index("divergent__")] if "divergent__" in first.columns else None
    return Contents(_variables(paths[0], first.columns, table), MAPPING, {}, {}, diverging)


_REMEDY = "give the output_*.csv that CmdStan's `sample` wrote"


def _read_chain(path: Path) -> Chain:
    """Return the draws of a chain after warm-up."""
    settings: dict[str, str] = {}
    columns: tuple[str, ...] = ()
    values = array("d")  # of all rows: as texts they would take many times the size of the file
    for number, text in _lines(path):
        if text.startswith("#"):
            if not columns and (setting := _SETTING.match(text)):
                settings.setdefault(setting[1], setting[2])
        elif not columns:
            columns = tuple(name.strip() for name in text.split(","))
            _refuse_columns(path, settings, columns)
        else:
            values.extend(_row(path, number, text, len(columns)))
    _refuse_columns(path, settings, columns)
    rows = np.array(values).reshape(-1, len(columns))
    if settings.get("save_warmup") in ("1", "true"):
        rows = rows[_n_warmup(path, settings) :]
    if not len(rows):
        raise FileFormatError(path, "has no draws after warm-up", _REMEDY)
    return Chain(columns, rows)


def _row(path: Path, number: int, text: str, n_columns: int) -> list[float]:
    """Return the numbers in a line."""
    cells = text.split(",")
    if len(cells) != n_columns:
        cut = f"line {number} has {len(cells)} cells, expected {n_columns}: the chain was cut off"
        raise FileFormatError(path, cut, _REMEDY)
    try:
        return [float(cell) for cell in cells]
    except ValueError as error:
        raise FileFormatError(path, f"line {number} has a cell that is no number", _REMEDY) from error


def _n_warmup(path: Path, settings: Mapping[str, str]) -> int:
    """Return how many rows of warm-up come first."""
    stated = settings.get("num_warmup", "1000"), settings.get("thin", "1")
    if not all(_COUNT.fullmatch(text) for text in stated):
        raise FileFormatError(path, f"states num_warmup = {stated[0]:.20}, thin = {stated[1]:.20}: no counts", _REMEDY)
    return -(-int(stated[0]) // max(int(stated[1]), 1))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not empty, with their numbers."""
    try:
        with open_file(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_BYTES:
                raise FileFormatError(path, f"is larger than {MAX_BYTES:,} bytes", "thin the chain")
            for number, line in enumerate(stream, 1):
                if not line.startswith(b"#"):
                    check_cells(path, line, size)
                if text := line.decode().strip():
                    yield number, text
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(path, "is not text in UTF-8") from error


def _refuse_columns(path: Path, settings: Mapping[str, str], columns: tuple[str, ...]) -> None:
    """Raise FileFormatError for columns, or a method of CmdStan, that are not those of draws."""
    if not columns:
        raise FileFormatError(path, "is empty: it names no columns", _REMEDY)
    if "lp__" not in columns:
        text = "is a table of data by its columns, expected a model, or draws of CmdStan, which have the column lp__"
        fitted = (
            "fit a model at the site and save it with its data: `consilience.save(model, path, data=data)`; of CmdStan,"
        )
        raise FileFormatError(path, text, f"{fitted} {_REMEDY}", "E-DATA")
    if len(set(columns)) < len(columns):
        raise FileFormatError(path, "names a column twice in its header", _REMEDY)
    method = settings.get("method", "sample")
    if method != "sample":
        raise FileFormatError(path, f"is of CmdStan's method {method!r}, which gives no posterior draws", _REMEDY)


def _variables(path: Path, columns: Sequence[str], table: Array) -> dict[str, Array]:
    """Return arrays by variable from columns such as ``M.2.1``, whose first index is the fastest."""
    named = {column: table[:, :, place] for place, column in enumerate(columns) if not column.endswith("__")}
    for column in named:
        if not all(part.isdecimal() for part in column.split(".")[1:]):
            raise FileFormatError(path, f"has a column {column!r}, which is no variable of Stan with indices")
    try:
        return arrays_of_columns(named)
    except InputError as error:
        raise FileFormatError(path, error.problems[0].text) from error
