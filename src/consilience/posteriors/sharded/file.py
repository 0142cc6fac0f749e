"""Shards: many posteriors in one file, as columns, in one of two forms that hold the same."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from safetensors import SafetensorError

from consilience.errors import FileFormatError, OptionError
from consilience.files.document import METADATA_KEY, open_safetensors, parse_document
from consilience.posteriors.sharded.header import REMEDY
from consilience.posteriors.sharded.packed_sites import Packed, ShardSummary, misfits
from consilience.posteriors.sharded.parquet import read_parquet, read_parquet_summary, write_parquet
from consilience.posteriors.sharded.safetensors_columns import (
    read_safetensors,
    read_safetensors_summary,
    write_safetensors,
)

Form = Literal["safetensors", "parquet"]
SUFFIXES: dict[Form, str] = {"safetensors": ".safetensors", "parquet": ".parquet"}


def write_shard(path: Path, packed: Packed, form: Form) -> None:
    """Write a shard, whole or not at all.

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


def is_shard(path: Path) -> bool:
    """Return whether a file is a shard, from its name and its header alone."""
    if path.suffix == SUFFIXES["parquet"]:
        return True
    try:
        with open_safetensors(path) as file:
            text = (file.metadata() or {}).get(METADATA_KEY, "{}")
        document = parse_document(path, text)
    except FileFormatError:
        return False
    return isinstance(document, dict) and document.get("format") == "consilience-shard"


def read_shard_summary(path: Path, called: str) -> ShardSummary:
    """Return what the header of a shard says; `called` is its name in messages.

    Raises
    ------
    FileFormatError
        For a file that is no shard, or whose header does not fit its arrays.
    """
    if _is_parquet(path, called):
        return read_parquet_summary(path, called)
    return read_safetensors_summary(path, called)


def read_shard(path: Path, called: str, first: int = 0, end: int | None = None) -> Packed:
    """Return sites `first` to `end` of a shard (of Parquet: row groups), everything checked but the values' domain.

    Raises
    ------
    FileFormatError
        For a file that is no shard, and arrays that do not fit one another.
    """
    try:
        read = read_parquet if _is_parquet(path, called) else read_safetensors
        packed = read(path, called, first, end)
    except _BROKEN as error:
        if isinstance(error, FileFormatError | OptionError):
            raise
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"{called}: cannot be read as a shard ({reason}); {REMEDY}") from error
    if problems := list(misfits(packed)):
        raise FileFormatError([f"{called}: {problem}; {REMEDY}" for problem in problems])
    return packed


_BROKEN = (
    SafetensorError, OSError, MemoryError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""What reading raises for files that are not what they say, or that shrink meanwhile."""


def _is_parquet(path: Path, called: str) -> bool:
    return path.suffix == SUFFIXES["parquet"] or called.endswith(SUFFIXES["parquet"])


def refuse_form(form: str) -> None:
    """Raise for a form that does not exist.

    Raises
    ------
    OptionError
        Saying which do.
    """
    if form not in SUFFIXES:
        raise OptionError(f"form: expected one of {', '.join(map(repr, SUFFIXES))}, found {form!r}")
