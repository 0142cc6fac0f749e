"""Memory budget of reading a file: ten times its size and a mebibyte, estimated from its text before it is parsed.

A few bytes of JSON become many of memory: ``[]`` is 2 bytes in a file and 64 in Python, ``"a":1`` is 5 and up to 240.
So brackets, commas and colons are counted first, wherever they stand (what stands inside of strings counts too, which
errs on the safe side), each with the most that it was measured to cost, and a text that may cost more than its file is
worth is refused. Headers of honest files cost a third of that, and the arrays beside them count for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from consilience.errors import FileFormatError, InputError

ALLOWANCE_BYTES = 2**20
MEMORY_PER_FILE_BYTE = 10
"""Reading a file never allocates more than ``MEMORY_PER_FILE_BYTE`` times its size and ``ALLOWANCE_BYTES``: a promise
of docs/sites/threat_model.md, on which 100,000 mutated files are judged (benchmarks/fuzzing.py). Both were chosen by
hand."""

_MAX_COST = 2**26
"""Estimated memory of a document at most, whatever the file's size: by then, parsing and checking take seconds. Some
25,000 inputs, layouts or tensors."""

# Bytes of memory for each of these characters, at most, as measured: in headers, by Python or by the safetensors
# library, which keeps every value in a tagged union; in documents, by Python, where lists of pairs become dicts.
_HEADER_COSTS = {b":": 260, b",": 80, b"[": 100, b"{": 200}
_DOCUMENT_COSTS = {":": 260, ",": 52, "[": 100, "{": 200}

_HEADER_COPIES = 4
"""Copies of a header's text that are taken to be in memory while it is parsed."""


def allowed_memory(size: int) -> int:
    """Return how many bytes reading a file of this size may allocate.

    Examples
    --------
    >>> allowed_memory(1000)
    1058576
    """
    return MEMORY_PER_FILE_BYTE * size + ALLOWANCE_BYTES


def check_header(path: Path, text: bytes, size: int, remedy: str) -> None:
    """Raise FileFormatError for a header that would cost more to parse than its file is worth.

    `text` is the header of a safetensors file of `size` bytes.
    """
    cost = _HEADER_COPIES * len(text)
    cost += sum(character_cost * text.count(character) for character, character_cost in _HEADER_COSTS.items())
    if cost > allowed_memory(size):
        raise FileFormatError(path, "its header has far more parts than its arrays account for", remedy)


def check_text(path: Path, text: str | bytes, what: str, remedy: str) -> None:
    """Raise FileFormatError for a JSON text that would cost more to parse than its file, or it itself, is worth."""
    try:
        size = max(len(text), path.stat().st_size)
    except (OSError, ValueError):  # a text that did not come out of a file of this name
        size = len(text)
    cost = _document_cost(text)
    if cost > _MAX_COST:
        raise FileFormatError(path, f"its {what} has more parts than any that this library writes", remedy)
    if cost > allowed_memory(size):
        raise FileFormatError(path, f"its {what} has far more parts than its size accounts for", remedy)


_CELL_COST = 59
"""Bytes of memory for a cell of a table at most beside its characters: a short text of Python, and its place in a row.
Rows are parsed one by one, so this bounds the columns of a file: cells of two characters, 35,000 where it has one row.
"""


def check_cells(path: Path, line: bytes, size: int, delimiter: str = ",") -> None:
    """Raise FileFormatError for a line of a table whose cells cost more than their file of `size` bytes is worth."""
    if _CELL_COST * (line.count(delimiter.encode()) + 1) + 4 * len(line) > allowed_memory(size):
        text = "has a line of far more cells than the size of the file accounts for"
        raise FileFormatError(path, text, "write it as .npy, or in longer cells")


def check_size(path: Path, n_bytes: int, size: int, remedy: str) -> None:
    """Raise FileFormatError for arrays of `n_bytes` that come out of a file of `size` bytes, and are too large for it.

    Both are known before anything is read.
    """
    if n_bytes > allowed_memory(size):
        text = f"says it holds {n_bytes:,} bytes of numbers, over {MEMORY_PER_FILE_BYTE} times its size"
        raise FileFormatError(path, text, remedy)


def pad_text(text: str, other_bytes: int) -> str:
    """Return a JSON text, followed by blanks where its file would otherwise be too small for its estimated memory.

    For documents that list thousands of short things, in files that must be read again. `other_bytes` is the size of
    everything else in the file. Raises InputError for a text that no reader would take.
    """
    if _document_cost(text) > _MAX_COST:
        raise InputError("its header would list more than is ever read again; fuse shards instead (`consilience pack`)")
    size = other_bytes + len(text)
    excess = max(_document_cost(text), _header_cost(text)) - allowed_memory(size)
    # A blank allows MEMORY_PER_FILE_BYTE more and costs _HEADER_COPIES.
    return text if excess <= 0 else text + " " * (excess // (MEMORY_PER_FILE_BYTE - _HEADER_COPIES) + 1)


def _document_cost(text: str | bytes) -> int:
    """Return the estimated memory of parsing a JSON text in Python, in bytes."""
    # In Python one character beyond Latin makes all of them wide, up to four bytes each.
    cost = sys.getsizeof(text) if isinstance(text, str) else 4 * len(text)
    for character, character_cost in _DOCUMENT_COSTS.items():
        cost += character_cost * (text.count(character) if isinstance(text, str) else text.count(character.encode()))
    return cost


def _header_cost(text: str) -> int:
    """Return the estimated memory of parsing a header that holds a JSON text as a string, in bytes."""
    cost = sum(character_cost * text.count(character.decode()) for character, character_cost in _HEADER_COSTS.items())
    return cost + 2 * _HEADER_COPIES * len(text)  # twice, since quotes are written with a backslash
