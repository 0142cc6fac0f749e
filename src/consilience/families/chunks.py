"""Rows in chunks: functions of very many rows without arrays that hold all of them once more.

Rows are taken in order and sums go on where the chunk before left off, so that a chunked sum of rows of more than one
column has the bytes of the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from consilience.checks import Array, Labels

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


class LazyRows:
    """Rows (n, P) that are gathered or computed when they are asked for, in place of an array that fills the memory.

    It is read as an array is, by slices or numbers of rows, which the function is given; ``np.asarray`` makes all of
    them. What works row by row in chunks takes it for an array (n, P).
    """

    def __init__(self, shape: tuple[int, int], function: Callable[[slice | Labels], Array]) -> None:
        self.shape, self._function = shape, function
        self._block, self._place = np.zeros((0, shape[1])), np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of all rows at once."""
        return 8 * self.shape[0] * self.shape[1]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        del copy  # they are always made anew
        return np.asarray(map_rows(*self.shape, self._function), dtype=dtype)

    def __getitem__(self, rows: slice | Labels) -> Array:
        if not isinstance(rows, slice) and len(self._block):
            places = self._place[rows]
            if places.min(initial=0) >= 0:
                return self._block[places]
        return self._function(rows)

    def hold(self, rows: Labels) -> None:
        """Make some rows (k,) at once, and keep them until others are held."""
        if not len(self._place):
            self._place = np.full(self.shape[0], -1, dtype=np.int32)  # of each row among those held
        self._place[:] = -1
        self._place[rows] = np.arange(len(rows))
        self._block = self._function(rows)


def as_lazy_array(rows: LazyRows) -> Array:
    """Return lazy rows as what they are read as."""
    return cast(Array, rows)
