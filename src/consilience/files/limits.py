"""Limits on files from strangers, checked from the header before anything else is read.

The readers themselves bound what they hold by the size of the file (``safetensors_header.read_start``), as a person's
own checkpoint may be as large as it likes. A server that takes files from others must also bound that size, and what
comes after reading: the matching of 10**6 components, or 10**6 empty tensors. ``Limits`` states the limits,
``exceeded_limits`` returns those that a file exceeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from consilience.catalogue import unreadable
from consilience.checks import is_count
from consilience.errors import FileFormatError, OptionError, Problem
from consilience.files.opening import open_file
from consilience.files.safetensors_file import SafetensorsFile, as_file

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


def exceeded_limits(where: Path | SafetensorsFile, limits: Limits) -> list[Problem]:
    """Return what a file has more of than it may, a line each naming the file; empty when it keeps to all limits.

    Only its first eight bytes are read before its size and its header's length are found small enough, and only its
    header after that. A file that cannot be read as safetensors gives the line that says why.

    Parameters
    ----------
    where
        A posterior, network, Fisher or Bayesian file, or a plain checkpoint.
    limits : Limits
        The limits.

    Returns
    -------
    list of Problem
        One for each limit.
    """
    try:
        file = as_file(where)
        return list(_too_long(file, limits)) or list(_too_many(file, limits))
    except FileFormatError as error:
        return list(error.problems)


def _too_long(file: SafetensorsFile, limits: Limits) -> Iterator[Problem]:
    try:
        with open_file(file.path) as stream:
            header = int.from_bytes(stream.read(8), "little")
        size = file.path.stat().st_size
    except (OSError, ValueError) as error:
        raise FileFormatError(unreadable(file, error)) from error
    if size > limits.file_bytes:
        yield _over(file, "bytes", size, limits.file_bytes)
    if limits.header_bytes < header <= size:  # a header longer than its file is for `read_start` to say
        yield _over(file, "bytes of header", header, limits.header_bytes)


def _too_many(file: SafetensorsFile, limits: Limits) -> Iterator[Problem]:
    shapes = file.header().shapes
    if len(shapes) > limits.tensors:
        yield _over(file, "tensors", len(shapes), limits.tensors)
        return
    natural = shapes.get(_NATURAL_TENSOR, ())
    if natural and natural[0] > limits.components:
        yield _over(file, "components", natural[0], limits.components)
    numbers = sum(map(math.prod, shapes.values()))
    if numbers > limits.parameters:
        yield _over(file, "parameters", numbers, limits.parameters)


def _over(path: SafetensorsFile, what: str, found: int, limit: int) -> Problem:
    return Problem(path, f"has {found} {what}, which is more than the {limit} that are taken here")
