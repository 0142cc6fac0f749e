"""Parquet files, whose memory is known before a column is read.

A footer says how many bytes a column takes without compression, and that bounds nothing: 2,000 rows of 100 kB are
100 kB in a dictionary or as differences, and five million empty values are none. So columns are read in encodings in
which every value takes room in the file or a fixed one in memory, and the sum is held against the size of the file
(`budget`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consilience.catalogue import unreadable
from consilience.errors import FileFormatError
from consilience.files.budget import check_size
from consilience.files.opening import open_file

_MAX_FOOTER_BYTES = 16 * 2**20
"""Longest footer, as the longest header of a file that a server takes (`limits.Limits`)."""

_LONGEST_LOOK = 30.0
"""Seconds after which a footer that is still looked at is given up. Chosen by hand; a large one takes a second."""

_MAGIC = b"PAR1"
_TEXTS = "BYTE_ARRAY"
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value in memory, by its type in the file."""

_LENGTH_BYTES = 4
"""Bytes before each text in a file; as many in memory say where it ends."""

_PLAIN = frozenset(("PLAIN", "RLE", "BIT_PACKED"))
"""Encodings in which every value takes its own room; the last two are of levels, which say what is missing."""
_OF_DICTIONARIES = frozenset(("PLAIN_DICTIONARY", "RLE_DICTIONARY"))

PLAIN_REMEDY = "write it as CSV, or plain: pyarrow's `write_table(..., compression='none', use_dictionary=False)`"


def open_parquet(path: Path, name: str, remedy: str, is_plain: bool) -> Any:
    """Return an opened Parquet file, whose columns take no more memory than its size allows.

    Where it `is_plain`, as shards are, nothing is compressed and no value is missing, and what it holds is no more than
    the file. Else it is a table of data. Messages call it `name` and end in `remedy`. Raises FileFormatError for
    anything else.
    """
    from pyarrow import parquet

    try:
        with open_file(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 8, 0))
            ending = stream.read(8)
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(name, error)) from error
    length = int.from_bytes(ending[:4], "little")
    if ending[4:] != _MAGIC or length > min(_MAX_FOOTER_BYTES, size - 8):
        raise FileFormatError(name, "is no Parquet file, or is truncated", remedy)
    try:
        file = parquet.ParquetFile(path, read_dictionary=[])
        metadata, _ = file.metadata, file.schema_arrow
        if not _can_be_looked_at(metadata, is_plain):
            raise ValueError("its footer contradicts itself")
        needed = sum(_bytes_of_columns(metadata, is_plain))
        texts = [] if is_plain else _texts_in_dictionaries(metadata)
        if texts:  # as numbers of entries: written out they would have the length of the longest, each
            file = parquet.ParquetFile(path, read_dictionary=texts)
    except FileFormatError:
        raise
    except Exception as error:  # Arrow raises errors of many types for a damaged footer
        raise FileFormatError(name, f"cannot be read as Parquet ({_reason(error)})", remedy) from error
    if is_plain and needed > size:
        raise FileFormatError(name, f"says it holds {needed:,} bytes, and has {size:,}", remedy)
    check_size(Path(name), needed, size, remedy)
    return file


def _can_be_looked_at(metadata: Any, is_plain: bool) -> bool:
    """Return whether a footer's columns can be looked at, which a copy of this process tries.

    Arrow ends the process where a footer contradicts itself, such as by histograms of another length, and Python cannot
    catch that.
    """
    if not hasattr(os, "fork"):  # on Windows, where nothing stands between
        return True
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            sum(_bytes_of_columns(metadata, is_plain))
        finally:
            os._exit(0)  # what Python catches, the caller sees itself
    until = time.monotonic() + _LONGEST_LOOK
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return not os.WIFSIGNALED(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.0005)


def _reason(error: Exception) -> str:
    return f"{str(error).partition(chr(10))[0]:.120}"


def _columns(metadata: Any) -> Iterator[tuple[Any, Any, int]]:
    """Yield the columns of all row groups, each with its part of the schema and the rows of its group."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for place in range(row_group.num_columns):
            yield row_group.column(place), metadata.schema.column(place), row_group.num_rows


def _bytes_of_columns(metadata: Any, is_plain: bool) -> Iterator[int]:
    """Yield the bytes that each column takes in memory at most; raise ValueError for one of which nothing says it."""
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if not metadata.num_columns or min([*rows, metadata.num_rows]) < 0 or sum(rows) != metadata.num_rows:
        raise ValueError("it has no columns, or its row groups have other rows than the file")
    for column, schema, n_rows in _columns(metadata):
        called, encodings = f"column {column.path_in_schema:.60}", set(column.encodings)
        if min(column.num_values, column.total_uncompressed_size) < 0:
            raise ValueError(f"{called} has a negative size")
        width = _WIDTHS.get(column.physical_type, max(schema.length, 1))
        if is_plain:
            least = _LENGTH_BYTES if column.physical_type == _TEXTS else width
            is_stored_plain = column.compression == "UNCOMPRESSED" and encodings <= _PLAIN
            if not is_stored_plain or column.has_dictionary_page or schema.max_repetition_level:
                raise ValueError(f"{called} is compressed or nested, expected plain values; pack it again")
            if column.num_values != n_rows or n_rows * least > column.total_uncompressed_size:
                raise ValueError(f"{called} has fewer bytes than its values take")
            yield column.total_uncompressed_size
        elif column.physical_type == _TEXTS:
            if not encodings <= _PLAIN | _OF_DICTIONARIES | {"DELTA_LENGTH_BYTE_ARRAY"}:
                raise ValueError(f"{called} has texts as differences (DELTA_BYTE_ARRAY)")
            yield column.total_uncompressed_size + _LENGTH_BYTES * column.num_values
        else:
            yield max(width * column.num_values, column.total_uncompressed_size)


def _texts_in_dictionaries(metadata: Any) -> list[str]:
    """Return the names of columns of texts that are stored as numbers of entries."""
    return sorted({
        column.path_in_schema
        for column, *_ in _columns(metadata)
        if column.physical_type == _TEXTS and _OF_DICTIONARIES & set(column.encodings)
    })  # fmt: skip
