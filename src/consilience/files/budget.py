"""What reading a file may allocate: ten times its size, and a mebibyte; told from its text before any of it is parsed.

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
"""Reading a file never allocates more than ``TIMES`` its size and ``ALLOWANCE``."""

_BLOCK = 2**20
_MOST = 2**26
"""Whatever the file's size: by then, parsing and checking take seconds. Some 25,000 inputs, layouts or tensors."""

# Bytes of memory for each of these characters, at most, as measured: in the library that parses headers, which keeps
# every value in a tagged union, and in Python, where dicts are built from lists of pairs.
_HEADER_COSTS = {b":": 240, b",": 80, b"[": 80, b"{": 80}
_DOCUMENT_COSTS = {":": 260, ",": 52, "[": 100, "{": 200}
_HEADER_COPIES = 4


def allowed_memory(size: int) -> int:
    """Return how many bytes reading a file of this size may allocate.

    Examples
    --------
    >>> allowed(1000)
    1058576
    """
    return MEMORY_PER_FILE_BYTE * size + ALLOWANCE_BYTES


def check_header(path: Path, length: int, size: int, remedy: str) -> None:
    """Raise for a header that would cost more to parse than its file is worth.

    Parameters
    ----------
    path
        A file that starts with the length of its header.
    length
        That length.
    size
        Of the file.
    remedy
        What to do about it.

    Raises
    ------
    FileFormatError
        Saying so.
    """
    cost, left = _HEADER_COPIES * length, length
    with path.open("rb") as stream:
        stream.seek(8)
        while left > 0 and (block := stream.read(min(left, _BLOCK))):
            cost += sum(each * block.count(sign) for sign, each in _HEADER_COSTS.items())
            left -= len(block)
    if cost > allowed_memory(size):
        raise FileFormatError(f"{path}: its header has far more parts than its arrays account for; {remedy}")


def check_text(path: Path, text: str | bytes, what: str, remedy: str) -> None:
    """Raise for a JSON text that would cost more to parse than its file, or it itself, is worth.

    Raises
    ------
    FileFormatError
        Saying so.
    """
    try:
        size = max(len(text), path.stat().st_size)
    except (OSError, ValueError):  # a text that did not come out of a file of this name
        size = len(text)
    cost = _cost(text)
    if cost > _MOST:
        raise FileFormatError(f"{path}: its {what} has more parts than any that this library writes; {remedy}")
    if cost > allowed_memory(size):
        raise FileFormatError(f"{path}: its {what} has far more parts than its size accounts for; {remedy}")


def pad_text(text: str, others: int) -> str:
    """Return a JSON text, with blanks after it where it needs them to be taken beside so many `other` bytes.

    For documents that list thousands of short things, in files that must be read again.

    Raises
    ------
    InputError
        For a text that no reader would take.
    """
    if _cost(text) > _MOST:
        raise InputError("its header would list more than is ever read again; fuse shards instead (consilience pack)")
    size = others + len(text)
    lacking = max(_cost(text), _header_cost(text)) - allowed_memory(size)
    return text if lacking <= 0 else text + " " * (lacking // (MEMORY_PER_FILE_BYTE - _HEADER_COPIES) + 1)


def _cost(text: str | bytes) -> int:
    cost = sys.getsizeof(text) if isinstance(text, str) else 4 * len(text)  # one odd letter makes all of them wide
    for sign, each in _DOCUMENT_COSTS.items():
        cost += each * (text.count(sign) if isinstance(text, str) else text.count(sign.encode()))
    return cost


def _header_cost(text: str) -> int:
    signs = sum(each * text.count(sign.decode()) for sign, each in _HEADER_COSTS.items())
    return signs + 2 * _HEADER_COPIES * len(text)  # quotes are written with a backslash
