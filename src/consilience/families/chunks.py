"""Rows in chunks: functions of very many rows without arrays that hold all of them once more.

Rows are taken in order and sums go on where the chunk before left off, so that a chunked sum of rows of more than one
column has the bytes of the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array

CHUNK_BYTES = 2**22
"""Memory of the rows that are held at once: 4 MiB, which most caches hold. Chosen by hand; it changes no result."""


def row_chunks(n_rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows of `width` numbers, in order, that take ``CHUNK_BYTES`` each; at least one row."""
    step = max(1, CHUNK_BYTES // (8 * max(1, width)))
    for start in range(0, n_rows, step):
        yield slice(start, min(n_rows, start + step))


def sum_of_rows(n_rows: int, width: int, terms: Callable[[slice], Array]) -> Array:
    """Return the sum (K,) of `terms` (n, K) over all rows, computed for one chunk of rows of `width` after another."""
    total: Array | None = None
    for rows in row_chunks(n_rows, width):
        part = terms(rows)
        total = part.sum(axis=0) if total is None else np.concatenate([total[None], part]).sum(axis=0)
    assert total is not None  # noqa: S101  (there are rows)
    return total


def map_rows(n_rows: int, width: int, function: Callable[[slice], NDArray[Any]]) -> NDArray[Any]:
    """Return what a function of rows gives for all of them (n_rows, ...), computed for one chunk after another."""
    result: NDArray[Any] | None = None
    for rows in row_chunks(n_rows, width):
        part = function(rows)
        if len(part) == n_rows:
            return part
        if result is None:
            result = np.empty((n_rows, *part.shape[1:]), dtype=part.dtype)
        result[rows] = part
    assert result is not None  # noqa: S101  (there are rows)
    return result
