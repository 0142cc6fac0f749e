"""Centred moments: counts, means and scatter matrices of rows, which merge exactly and can be taken out again.

A record has the number of rows n, the sum of their weights w, the sum of log weights, the mean m and the scatter
S = sum_i w_i (x_i - m)(x_i - m)^T, or its diagonal. Records of parts of the rows merge to the record of all:

    W = sum_j w_j;   m = sum_j w_j m_j / W;   S = sum_j S_j + sum_j w_j (m_j - m)(m_j - m)^T

For two parts this is S_a + S_b + (w_a w_b / W) D D^T with D = m_b - m_a (Chan, Golub and LeVeque, 1979); the record of
no rows is the identity. Raw second moments are never formed: of columns that lie far from zero they lose twice the
digits (6e-6 of a regression's coefficients at an offset of 1e4, where centred records lose 8e-12).

Arrays may have leading axes: then a record is one of each class, or of each column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels, symmetric_part
from consilience.errors import InputError

BLOCK_BYTES = 2**23
"""Bytes of rows that are centred at a time, 8 MiB: they stay in a processor's cache. Chosen by hand."""

MAX_REMOVAL_ERROR = 1e-8
"""Relative rounding error of the scatter that is left, eps |S_all| / |S_left|, above which a removal is refused. Values
removed that are 1e4 times those that stay leave 1e-7 (measured), half of the digits of a float64."""


_FIELDS = ("n", "weight", "log_weight", "mean", "scatter")


@dataclass(frozen=True, eq=False)
class CentredMoments:
    """Count, mean and scatter of weighted rows, one record for each entry of the leading axes.

    Parameters
    ----------
    n : ndarray of shape (...)
        Number of rows.
    weight : ndarray of shape (...)
        Sum of their weights; n where rows have none.
    log_weight : ndarray of shape (...)
        Sum of the logarithms of their weights: what likelihoods of weighted rows need.
    mean : ndarray of shape (..., p)
        Weighted mean; zero where there are no rows.
    scatter : ndarray of shape (..., p, p) or (..., p)
        Weighted sum of squares and products about the mean, or its diagonal.
    """

    n: Array
    weight: Array
    log_weight: Array
    mean: Array
    scatter: Array

    @classmethod
    def empty(cls, shape: tuple[int, ...], n_columns: int, *, diagonal: bool = False) -> CentredMoments:
        """Return records of no rows, the identity of merging."""
        scatter = (*shape, n_columns) if diagonal else (*shape, n_columns, n_columns)
        none = np.zeros(shape)
        return cls(none, none, none, np.zeros((*shape, n_columns)), np.zeros(scatter))

    @classmethod
    def of_rows(cls, rows: Any, weights: Array | None = None, *, diagonal: bool = False) -> CentredMoments:
        """Return the record of rows (n, p), by the corrected two-pass algorithm; rows of weight zero are left out."""
        rows = np.asarray(rows)
        if weights is not None and not np.all(weights > 0.0):
            rows, weights = rows[weights > 0.0], weights[weights > 0.0]
        n, p = rows.shape
        if n == 0:
            return cls.empty((), p, diagonal=diagonal)
        total = float(n) if weights is None else float(weights.sum())
        mean: Array = (np.full(n, 1.0) if weights is None else weights) @ rows.astype(np.float64, copy=False) / total
        remainder, scatter = np.zeros(p), np.zeros(p if diagonal else (p, p))
        # Of many columns as many rows at least, so that adding up products costs little beside making them.
        step = max(BLOCK_BYTES // (8 * max(p, 1)), 1 if diagonal else p, 1)
        for start in range(0, n, step):
            block = rows[start : start + step] - mean  # (b, p)
            if weights is not None:
                of_block = weights[start : start + step]
                remainder += of_block @ block
                block *= np.sqrt(of_block)[:, None]
            else:
                remainder += block.sum(axis=0)
            scatter += np.einsum("ij,ij->j", block, block) if diagonal else block.T @ block
        remainder /= total  # what rounding left of the mean
        scatter -= total * (remainder**2 if diagonal else np.outer(remainder, remainder))
        log_weight = 0.0 if weights is None else float(np.log(weights).sum())
        return cls(np.array(float(n)), np.array(total), np.array(log_weight), mean + remainder, scatter)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the leading axes."""
        return self.n.shape

    @property
    def n_columns(self) -> int:
        """Number p of columns."""
        return int(self.mean.shape[-1])

    @property
    def is_diagonal(self) -> bool:
        """Whether only the diagonal of the scatter is known."""
        return self.scatter.ndim == self.mean.ndim

    @property
    def variances(self) -> Array:
        """Sums of squares about the mean (..., p), the diagonal of the scatter."""
        return self.scatter if self.is_diagonal else np.diagonal(self.scatter, axis1=-2, axis2=-1).copy()

    def raw_scatter(self) -> Array:
        """Return sum_i w_i x_i x_i^T = S + w m m^T: moments about zero, for models without an intercept."""
        weight = self.weight[..., None]
        if self.is_diagonal:
            return self.scatter + weight * self.mean**2
        return self.scatter + weight[..., None] * self.mean[..., :, None] * self.mean[..., None, :]

    def columns(self, columns: Any) -> CentredMoments:
        """Return the record of some columns, as an index or slice of them."""
        scatter = self.scatter[..., columns]
        scatter = scatter if self.is_diagonal else scatter[..., columns, :]
        return replace(self, mean=self.mean[..., columns], scatter=scatter)

    def by_column(self) -> CentredMoments:
        """Return the record of all columns as one of each column (p,)."""
        n, weight, log_weight = (np.full(self.n_columns, float(x)) for x in (self.n, self.weight, self.log_weight))
        return CentredMoments(n, weight, log_weight, self.mean[:, None], self.variances[:, None])

    def reweighted(self, factors: Array) -> CentredMoments:
        """Return the record of rows whose weights are multiplied by factors (...), one for each record."""
        with np.errstate(divide="ignore", invalid="ignore"):
            log_weight = self.log_weight + np.where(self.n > 0, self.n * np.log(factors), 0.0)
        wide = factors[..., None] if self.is_diagonal else factors[..., None, None]
        return replace(self, weight=self.weight * factors, log_weight=log_weight, scatter=self.scatter * wide)

    def placed(self, positions: Labels, length: int) -> CentredMoments:
        """Return `length` records with those of the first axis at `positions`, and none elsewhere."""
        wide = CentredMoments.empty((length, *self.shape[1:]), self.n_columns, diagonal=self.is_diagonal)
        for name in _FIELDS:
            values = getattr(wide, name).copy()
            values[positions] = getattr(self, name)
            wide = replace(wide, **{name: values})
        return wide

    def at(self, positions: Any) -> CentredMoments:
        """Return some of the records of the first axis."""
        return CentredMoments(*(getattr(self, name)[positions] for name in _FIELDS))

    def total(self) -> CentredMoments:
        """Return the record of the rows of all entries of the first axis."""
        return _merged(self.n, self.weight, self.log_weight, self.mean, self.scatter.sum(axis=0))

    def affine_image(self, matrix: Array, shift: Array) -> CentredMoments:
        """Return the record of A x + b from that of x: means A m + b, scatters A S A^T.

        A is (k, p), diagonal where only the diagonal of the scatter is known, and b (k,).

        Raises
        ------
        InputError
            For a map that mixes columns of which only sums of squares are known.
        """
        has_rows = (self.weight > 0)[..., None]
        mean = np.where(has_rows, self.mean @ matrix.T + shift, 0.0)
        if not self.is_diagonal:
            return replace(self, mean=mean, scatter=symmetric_part(matrix @ self.scatter @ matrix.T))
        if np.any(np.count_nonzero(matrix, axis=1) > 1):
            raise InputError("", "sums of squares of columns alone cannot follow a map that mixes columns")
        return replace(self, mean=mean, scatter=self.scatter @ (matrix**2).T)

    def remove(self, part: CentredMoments) -> CentredMoments:
        """Return the record of the rows that are not among those of `part`, which this record contains.

        w_a = w - w_b;  m_a = (w m - w_b m_b) / w_a;  S_a = S - S_b - (w_a w_b / w)(m_b - m_a)(m_b - m_a)^T

        Raises
        ------
        InputError
            Where `part` has more rows than there are, or rounding leaves fewer than eight digits of the scatter.
        """
        n, weight = self.n - part.n, self.weight - part.weight
        rounding = 8 * np.finfo(np.float64).eps * self.weight
        if np.any(n < -0.5) or np.any(weight < -rounding):
            text = "has more rows than there are to take them from: it is no part of this"
            raise InputError("", text, code="E-MISMATCH")
        is_left = (n > 0.5) & (weight > rounding)
        safe = np.where(is_left, weight, 1.0)
        mean = (self.weight[..., None] * self.mean - part.weight[..., None] * part.mean) / safe[..., None]
        mean = np.where(is_left[..., None], mean, 0.0)
        gap = part.mean - mean  # (..., p)
        between = (weight * part.weight / np.where(self.weight > 0, self.weight, 1.0))[..., None]
        scatter = self.scatter - part.scatter
        wide = is_left[..., None] if self.is_diagonal else is_left[..., None, None]
        scatter -= between * gap**2 if self.is_diagonal else between[..., None] * gap[..., :, None] * gap[..., None, :]
        scatter = np.where(wide, scatter, 0.0)
        axes = -1 if self.is_diagonal else (-2, -1)
        before, after = (np.sqrt((values**2).sum(axis=axes)) for values in (self.scatter, scatter))
        # Of one row nothing varies, so nothing of its scatter can be lost.
        is_judged = is_left & (n > 1.5) & (before > 0)
        error = np.where(is_judged, np.finfo(np.float64).eps * before / np.where(after > 0, after, np.inf), 0.0)
        error = np.where(is_judged & (after <= 0), np.inf, error)
        if np.any(error > MAX_REMOVAL_ERROR):
            raise InputError(
                "",
                f"is so much larger than what would be left that rounding would leave errors of {error.max():.1g} of it"
                f" (at most {MAX_REMOVAL_ERROR:g})",
                "fuse the statistics of the others again",
            )
        left = replace(self, n=np.where(is_left, n, 0.0), weight=np.where(is_left, weight, 0.0), mean=mean)
        log_weight = np.where(is_left, self.log_weight - part.log_weight, 0.0)
        return replace(left, log_weight=log_weight, scatter=_positive(scatter, self.is_diagonal))


def merge_moments(records: Iterable[CentredMoments]) -> CentredMoments:
    """Return the record of the rows of all records, in their order; their leading axes are alike.

    Scatters are added one after another, so that memory holds one of them whatever their number; what lies between the
    means is one matrix product. The same records in the same order give the same bytes.
    """
    small: list[tuple[Array, Array, Array, Array]] = []
    scatter = np.zeros(())
    for record in records:
        small.append((record.n, record.weight, record.log_weight, record.mean))
        if len(small) == 1:
            scatter = record.scatter.copy()
        else:
            scatter += record.scatter
    n, weights, log_weights, means = (np.stack(parts) for parts in zip(*small, strict=True))
    return _merged(n, weights, log_weights, means, scatter)


def _merged(n: Array, weights: Array, log_weights: Array, means: Array, scatter: Array) -> CentredMoments:
    """Return the record of rows in parts along the first axis (J, ...), of which `scatter` (...) is the sum."""
    weight = weights.sum(axis=0)
    safe = np.where(weight > 0, weight, 1.0)
    # Means are summed as differences from that of the first part with rows, so that far offsets cost no digits.
    first = np.argmax(weights > 0, axis=0)  # (...)
    origin = np.take_along_axis(means, first[None, ..., None], axis=0)[0]  # (..., p)
    mean = origin + ((weights / safe)[..., None] * (means - origin)).sum(axis=0)
    gaps = np.sqrt(weights)[..., None] * (means - mean)  # (J, ..., p)
    if scatter.ndim == mean.ndim:
        between = (gaps**2).sum(axis=0)
    else:
        by_part = np.moveaxis(gaps, 0, -1)  # (..., p, J)
        between = by_part @ np.swapaxes(by_part, -1, -2)
    mean = np.where((weight > 0)[..., None], mean, 0.0)
    return CentredMoments(n.sum(axis=0), weight, log_weights.sum(axis=0), mean, scatter + between)


def _positive(scatter: Array, is_diagonal: bool) -> Array:
    """Return scatters without the negative sums of squares that subtraction may leave by rounding."""
    if is_diagonal:
        return np.maximum(scatter, 0.0)
    values, vectors = np.linalg.eigh(symmetric_part(scatter))
    if np.all(values >= 0.0):
        return symmetric_part(scatter)
    clipped = np.maximum(values, 0.0)
    return symmetric_part((vectors * clipped[..., None, :]) @ np.swapaxes(vectors, -1, -2))
