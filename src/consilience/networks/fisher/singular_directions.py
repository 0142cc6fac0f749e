"""The leading singular directions of very many rows that never are in memory together.

Rows R (m, P) come in pieces; kept are Sigma V^T of their singular value decomposition, cut to a rank, which have
(nearly) the same products R^T R; what was cut off is remembered on the diagonal. The rows themselves are gone: any
rotation of them gives the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 100.0
"""Sums of squares that differ by less than this many times the rounding of one number are the same."""

_ROOM = 64
"""Directions that are kept on the way beyond the rank, at least."""


class Directions:
    """A sketch of rows of length P.

    Parameters
    ----------
    size
        P.
    rank
        Directions that are kept at most; None keeps all that there are.
    """

    def __init__(self, size: int, rank: int | None) -> None:
        """Start without rows."""
        self._rank = size if rank is None else min(rank, size)
        self._kept = self._rank + max(_ROOM, self._rank // 4)  # more than is wanted, so that little is lost on the way
        self._rows: Tensor | None = None
        self._count = 0
        self._squares = torch.zeros(size, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows (m, P)."""
        if self._rows is None:
            self._rows = rows.new_empty(2 * self._kept, rows.shape[1])
        self._squares += rows.square().sum(dim=0, dtype=torch.float64).cpu()
        for part in torch.split(rows, len(self._rows) - self._kept):
            if self._count + len(part) > len(self._rows):
                self._compress(self._kept)
            self._rows[self._count : self._count + len(part)] = part
            self._count += len(part)

    def finished(self, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the directions (r, P), at most so many, and what they lack of the sums of squares (P,)."""
        kept = self._compress(self._rank if most is None else min(self._rank, most))
        left = self._squares - kept.square().sum(dim=0, dtype=torch.float64).cpu()
        rounding = _ROUNDING * torch.finfo(kept.dtype).eps * self._squares
        return kept, torch.where(left > rounding, left, torch.zeros_like(left))

    def _compress(self, rank: int) -> Tensor:
        """Replace rows R by U^T R, U the leading eigenvectors of R R^T; more rows than columns by a triangle first."""
        assert self._rows is not None  # noqa: S101  (narrows the type; there is a row before anything is compressed)
        rows = self._rows[: self._count]
        if len(rows) > rows.shape[1]:
            rows = torch.linalg.qr(rows, mode="r").R
        vectors = torch.linalg.eigh((rows @ rows.T).double()).eigenvectors
        kept = vectors[:, -rank:].flip(1).T.to(rows.dtype) @ rows
        self._count = len(kept)
        self._rows[: self._count] = kept
        return kept
