"""Shard files: the posteriors of many sites in one file, as safetensors or as Parquet, with the same columns in both.

This module tells the two forms apart, and turns whatever a reader raises for a damaged file into a FileFormatError that
names the file and says what to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from safetensors import SafetensorError

from consilience.errors import FileFormatError, OptionError, Problem
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.posteriors.sharded.header import REMEDY
from consilience.posteriors.sharded.kind import PARQUET
from consilience.posteriors.sharded.packed_sites import PackedSites, ShardSummary, column_problems
from consilience.posteriors.sharded.parquet import read_parquet, read_parquet_summary, write_parquet
from consilience.posteriors.sharded.safetensors_columns import (
    read_safetensors,
    read_safetensors_summary,
    write_safetensors,
)

Form = Literal["safetensors", "parquet"]
SUFFIXES: dict[Form, str] = {"safetensors": ".safetensors", "parquet": PARQUET}
"""Suffix of the files of each form."""


def write_shard(path: Path, packed: PackedSites, form: Form) -> None:
    """Write a shard, whole or not at all.

    Parameters
    ----------
    path : Path
        The file.
    packed : PackedSites
        The sites.
    form : {"safetensors", "parquet"}
        The form of the file.

    Raises
    ------
    InputError
        When the path cannot be written.
    OptionError
        For Parquet where pyarrow is not installed.
    """
    if form == "parquet":
        write_parquet(path, packed)
    else:
        write_safetensors(path, packed)


def is_shard(where: Path | SafetensorsFile) -> bool:
    """Return whether a file is a shard, by its suffix and its header alone."""
    file = as_file(where)
    if _is_parquet(file.path, file.label):
        return True
    try:
        return file.format == "consilience-shard"
    except FileFormatError:
        return False


def read_shard_summary(file: SafetensorsFile) -> ShardSummary:
    """Return the header of a shard and the numbers of its sites and components.

    Parameters
    ----------
    file : SafetensorsFile
        The file, also where it is Parquet, under its name in messages: its path may be a temporary copy of an address.

    Raises
    ------
    FileFormatError
        For a file that is no shard, or whose header does not fit its arrays.
    """
    if _is_parquet(file.path, file.label):
        return read_parquet_summary(file.path, file.label)
    return read_safetensors_summary(file)


def read_shard(
    path: Path, display_name: str, first: int = 0, end: int | None = None, summary: ShardSummary | None = None
) -> PackedSites:
    """Return some sites of a shard, everything checked but that values are in the domain of their family.

    Parameters
    ----------
    path : Path
        The file.
    display_name : str
        Its name in messages.
    first, end : int, optional
        Sites to read, `end` not included; of Parquet: row groups. Default: all.
    summary : ShardSummary, optional
        What was read of its header before. Default: it is read again.

    Raises
    ------
    FileFormatError
        For a file that is no shard, and arrays that do not fit one another.
    """
    try:
        if _is_parquet(path, display_name):
            packed = read_parquet(path, display_name, first, end)
        else:
            packed = read_safetensors(path, display_name, first, end, summary)
    except READ_ERRORS as error:
        if isinstance(error, FileFormatError | OptionError):
            raise
        reason = str(error).partition("\n")[0]
        raise FileFormatError(display_name, f"cannot be read as a shard ({reason})", REMEDY) from error
    if problems := list(column_problems(packed)):
        raise FileFormatError([Problem(display_name, f"{problem}", REMEDY) for problem in problems])
    return packed


READ_ERRORS = (
    SafetensorError, OSError, MemoryError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""Exceptions of readers for files that are damaged, contradict their header, or shrink while they are read."""


def _is_parquet(path: Path, display_name: str) -> bool:
    """Return whether a file is Parquet, by the suffix of its path or of its name."""
    return path.suffix == SUFFIXES["parquet"] or display_name.endswith(SUFFIXES["parquet"])


def refuse_form(form: str) -> None:
    """Raise for a form that does not exist.

    Raises
    ------
    OptionError
        With the forms that exist.
    """
    if form not in SUFFIXES:
        raise OptionError("form", f"expected one of {', '.join(map(repr, SUFFIXES))}, found {form!r}")
