"""Streaming low-rank sketch of gradients: leading singular directions, and the diagonal that they leave.

Rows R (m, P), one for each gradient, arrive in pieces and are never in memory together. The sketch is Sigma V^T of the
singular value decomposition R = U Sigma V^T, cut to a rank, which has (nearly) the same product R^T R; the difference
of the diagonals, which is known exactly, is returned beside it. When the buffer is full it is compressed to its leading
directions; `rank` plus some more are kept on the way, since directions that are cut off early may have grown later.

The rows themselves are gone: U R has the same product R^T R for every rotation U.
"""

from __future__ import annotations

import torch
from torch import Tensor

_RESIDUAL_ROUNDING_UNITS = 100.0
"""Residuals below this many rounding units (eps) of the whole diagonal entry count as zero. Chosen by hand: what the
sum of some hundred squares rounds to; nobody has measured other values."""

_MIN_OVERSAMPLING = 64
"""Directions kept beyond the rank while rows arrive, at least; a quarter of the rank where that is more. Chosen by
hand; nobody has measured other values."""


class GradientSketch:
    """A low-rank sketch of rows of length P.

    Parameters
    ----------
    n_parameters : int
        P.
    rank : int or None
        Largest number of directions to return; None for all that there are.
    """

    def __init__(self, n_parameters: int, rank: int | None) -> None:
        """Start without rows."""
        self._rank = n_parameters if rank is None else min(rank, n_parameters)
        self._capacity = self._rank + max(_MIN_OVERSAMPLING, self._rank // 4)
        self._rows: Tensor | None = None  # buffer (2 * capacity, P), of which the first n_rows are filled
        self._n_rows = 0
        self._squares = torch.zeros(n_parameters, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Add rows (m, P)."""
        if self._rows is None:
            self._rows = rows.new_empty(2 * self._capacity, rows.shape[1])
        self._squares += rows.square().sum(dim=0, dtype=torch.float64).cpu()
        for part in torch.split(rows, len(self._rows) - self._capacity):
            if self._n_rows + len(part) > len(self._rows):
                self._compress(self._capacity)
            self._rows[self._n_rows : self._n_rows + len(part)] = part
            self._n_rows += len(part)

    def result(self, max_rank: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the directions (r, P), at most `max_rank`, and what they lack of the sums of squares (P,)."""
        directions = self._compress(self._rank if max_rank is None else min(self._rank, max_rank))
        residual = self._squares - directions.square().sum(dim=0, dtype=torch.float64).cpu()
        # A difference of nearly equal sums: what is left of it below the rounding may be negative.
        rounding = _RESIDUAL_ROUNDING_UNITS * torch.finfo(directions.dtype).eps * self._squares
        return directions, torch.where(residual > rounding, residual, torch.zeros_like(residual))

    def _compress(self, rank: int) -> Tensor:
        """Replace rows R by U^T R, U the leading eigenvectors of R R^T; more rows than columns by a triangle first."""
        assert self._rows is not None  # noqa: S101  (narrows the type; there is a row before anything is compressed)
        rows = self._rows[: self._n_rows]
        if len(rows) > rows.shape[1]:
            rows = torch.linalg.qr(rows, mode="r").R  # R^T R is unchanged, and R R^T is (P, P) then
        eigenvectors = torch.linalg.eigh((rows @ rows.T).double()).eigenvectors  # ascending eigenvalues
        directions = eigenvectors[:, -rank:].flip(1).T.to(rows.dtype) @ rows  # (rank, P), the longest first
        self._n_rows = len(directions)
        self._rows[: self._n_rows] = directions
        return directions
