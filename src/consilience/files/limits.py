"""Limits on files from strangers, checked from the header before anything else is read.

The readers themselves bound what they hold by the size of the file (``document.open_safetensors``), since a person's
own checkpoint may be as large as it likes. A server that takes files from others must also bound that size, and what
comes after reading: the matching of 10**6 components, or 10**6 empty tensors. ``Limits`` states the limits,
``exceeded_limits`` returns those that a file exceeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from consilience.checks import is_count
from consilience.errors import FileFormatError, OptionError
from consilience.files.document import open_safetensors

_NATURAL_TENSOR = "natural"
"""The tensor of a posterior's file whose rows are its components."""


@dataclass(frozen=True)
class Limits:
    """The largest file that is accepted; a server may accept less. The defaults were chosen by hand.

    Parameters
    ----------
    file_bytes : int
        Length of the file.
    header_bytes : int
        Length of its header: names, shapes, and the JSON document.
    tensors : int
        Number of tensors.
    components : int
        Components of a posterior (rows of its natural parameters).
    parameters : int
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
    """Return the limits that a file exceeds, a line each naming the file; empty when it keeps to all of them.

    Only its first eight bytes are read before its size and its header's length are found small enough, and only its
    header after that. A file that cannot be read as safetensors gives the line that says why.

    Parameters
    ----------
    path : Path
        A posterior, network, Fisher or Bayesian file, or a plain checkpoint.
    limits : Limits
        The limits.

    Returns
    -------
    list of str
        One line for each limit.
    """
    try:
        if problems := list(_exceeded_sizes(path, limits)):
            return problems
        return list(_exceeded_counts(path, limits))
    except FileFormatError as error:
        return list(error.problems)


def _exceeded_sizes(path: Path, limits: Limits) -> Iterator[str]:
    """Yield the limits of size that a file exceeds, from its first eight bytes and its length."""
    try:
        with path.open("rb") as stream:
            header_length = int.from_bytes(stream.read(8), "little")
        size = path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        raise FileFormatError(f"{path}: cannot be read: {error}") from error
    if size > limits.file_bytes:
        yield _exceeded(path, "bytes", size, limits.file_bytes)
    if limits.header_bytes < header_length <= size:  # `open_safetensors` refuses a header longer than its file
        yield _exceeded(path, "bytes of header", header_length, limits.header_bytes)


def _exceeded_counts(path: Path, limits: Limits) -> Iterator[str]:
    """Yield the limits of tensors, components and parameters that a file exceeds, from its header."""
    with open_safetensors(path) as file:
        names = file.keys()
        if len(names) > limits.tensors:
            yield _exceeded(path, "tensors", len(names), limits.tensors)
            return
        n_parameters = 0
        for name in names:
            shape = file.get_slice(name).get_shape()
            n_parameters += math.prod(shape)
            if name == _NATURAL_TENSOR and shape and shape[0] > limits.components:
                yield _exceeded(path, "components", shape[0], limits.components)
        if n_parameters > limits.parameters:
            yield _exceeded(path, "parameters", n_parameters, limits.parameters)


def _exceeded(path: Path, what: str, count: int, limit: int) -> str:
    """Return the line about one limit."""
    return f"{path}: has {count} {what}, which is more than the {limit} that are taken here"
