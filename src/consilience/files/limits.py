"""Quotas: how large a file from a stranger may be, told from its header before anything else is read.

The readers themselves bound what they hold by the size of the file (``safetensors_file.opened``), since a person's own
checkpoint may be as large as it likes. A server that takes files from others must also bound that size, and what comes
after reading: the matching of 10**6 components, or 10**6 empty tensors. ``Limits`` says how much, ``beyond`` what a
file has more of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from consilience.checks import is_count
from consilience.errors import FileFormatError, OptionError
from consilience.files.document import open_safetensors

_NATURAL = "natural"


@dataclass(frozen=True)
class Limits:
    """What one file may have at most; a server may ask for less.

    Parameters
    ----------
    file_bytes
        Length of the file.
    header_bytes
        Length of its header: names, shapes, and the JSON document.
    tensors
        Number of tensors.
    components
        Components of a posterior (rows of its natural parameters).
    parameters
        Numbers in all tensors together.

    Examples
    --------
    >>> Limits(components=200).components
    200
    """

    file_bytes: int = 2 * 2**30
    header_bytes: int = 16 * 2**20
    tensors: int = 100_000
    components: int = 100_000
    parameters: int = 500_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_count(value):
                raise OptionError(f"limit {field.name} must be a positive integer, found {value!r}")


def exceeded_limits(path: Path, limits: Limits) -> list[str]:
    """Return what a file has more of than it may, a line each naming the file; empty when it keeps to all limits.

    Only its first eight bytes are read before its size and its header's length are found small enough, and only its
    header after that. A file that cannot be read as safetensors gives the line that says why.

    Parameters
    ----------
    path
        A posterior, network, Fisher or Bayesian file, or a plain checkpoint.
    limits
        What it may have.
    """
    try:
        if problems := list(_too_long(path, limits)):
            return problems
        return list(_too_many(path, limits))
    except FileFormatError as error:
        return list(error.problems)


def _too_long(path: Path, limits: Limits) -> Iterator[str]:
    try:
        with path.open("rb") as stream:
            header = int.from_bytes(stream.read(8), "little")
        size = path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        raise FileFormatError(f"{path}: cannot be read: {error}") from error
    if size > limits.file_bytes:
        yield _over(path, "bytes", size, limits.file_bytes)
    if limits.header_bytes < header <= size:  # a header longer than its file is for `opened` to say
        yield _over(path, "bytes of header", header, limits.header_bytes)


def _too_many(path: Path, limits: Limits) -> Iterator[str]:
    with open_safetensors(path) as file:
        names = file.keys()
        if len(names) > limits.tensors:
            yield _over(path, "tensors", len(names), limits.tensors)
            return
        numbers = 0
        for name in names:
            shape = file.get_slice(name).get_shape()
            numbers += math.prod(shape)
            if name == _NATURAL and shape and shape[0] > limits.components:
                yield _over(path, "components", shape[0], limits.components)
        if numbers > limits.parameters:
            yield _over(path, "parameters", numbers, limits.parameters)


def _over(path: Path, what: str, found: int, limit: int) -> str:
    return f"{path}: has {found} {what}, which is more than the {limit} that are taken here"
