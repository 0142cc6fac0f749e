"""Mean and covariance of rows that arrive in blocks, as low rank plus diagonal.

Blocks are merged by the pairwise formula of Chan, Golub and LeVeque (1983): with n rows of mean m so far, and a block B
of k rows of mean b, the scatter matrix (sums of squares and products about the mean) grows by

    (B - b)^T (B - b) + n k / (n + k) (b - m) (b - m)^T,

which is R^T R for the centred rows R and one row more. So a scatter matrix is kept as it is while it is small, and else
as a sketch S of few rows with S^T S close to it: rows are appended, and compressed to their leading singular directions
when the buffer is full, a quarter more of them than asked for since directions that are cut off early may have grown
later. Sums of squares by coordinate are exact either way.

Of a site's inputs there are moments of all, and of every class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.networks.descriptions.description import Description, Moments
from consilience.networks.descriptions.disclosure import MAX_CLASS_RANK, MAX_RANK, Leaving, allowed_rank, named
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Setting, Statistic

MIN_OVERSAMPLING = 32
"""Directions that a sketch keeps beyond its rank, at least; a quarter of the rank where that is more. Chosen by hand:
with it the lengths of 64 directions of 10,000 rows agree with the exact ones to 1e-5 under a spectrum that falls
exponentially."""

ROWS_AT_ONCE = 256
"""Rows that go into a scatter matrix together: few rows at a time only move it through memory. Chosen by hand."""

RESIDUAL_ROUNDING_UNITS = 100.0
"""Residual variances below this many rounding units of the variance count as zero: what some hundred products round
to. Chosen by hand."""


MAX_SCATTER_ENTRIES = 2**24
"""Entries of scatter matrices of all classes together that are kept whole (128 MiB); beyond, they are sketched. Chosen
by hand, for memory."""

MAX_CLASS_ENTRIES = 2**22
"""Numbers of the moments by class that leave at most (16 MiB in float32); beyond, their rank is reduced. Chosen by
hand: 26 classes of 784 numbers take a ninth of it."""

MIN_CLASS_RANK = 5
"""Moments by class whose rank would have to be less than this for their size are left out. Chosen by hand."""


class MomentAccumulator:
    """Moments of rows (n, d) that arrive in blocks, with the whole scatter matrix or a sketch of so many directions."""

    def __init__(self, d: int, sketch_rank: int | None = None) -> None:
        self.n = 0
        self.mean = np.zeros(d)
        self.squares = np.zeros(d)  # about the mean
        self._scatter = np.zeros((d, d)) if sketch_rank is None else None
        rank = 0 if sketch_rank is None else min(sketch_rank, d)
        self._capacity = rank + max(MIN_OVERSAMPLING, rank // 4)
        self._rows = np.zeros((0, d))  # of the sketch
        self._pending: list[Array] = []
        self._n_pending = 0

    def add(self, block: Array) -> None:
        """Add rows (k, d), which are kept until there are enough of them for a product."""
        if len(block):
            self._pending.append(block)
            self._n_pending += len(block)
        # A product with few rows moves a whole scatter matrix through memory for little.
        if self._n_pending >= (self._capacity if self._scatter is None else ROWS_AT_ONCE):
            self._flush()

    def widen(self, rank: int) -> None:
        """Keep more directions from now on, where there is a sketch."""
        self._capacity = max(self._capacity, min(rank, len(self.mean)) + max(MIN_OVERSAMPLING, rank // 4))

    def merge(self, other: MomentAccumulator) -> None:
        """Add the rows that another accumulator has seen."""
        self._flush()
        other._flush()
        if not other.n:
            return
        between = self._shift(other.n, other.mean)
        self.squares += other.squares + between**2
        if self._scatter is not None and other._scatter is not None:
            self._scatter += other._scatter + np.outer(between, between)
        else:
            self._append(np.concatenate([other.rows(), between[None]]))

    def rows(self) -> Array:
        """Return rows R (k, d) with R^T R the scatter matrix, or close to it."""
        self._flush()
        if self._scatter is None:
            return self._rows
        values, vectors = np.linalg.eigh(self._scatter)
        rows: Array = (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return rows

    def moments(self, rank: int) -> Moments:
        """Return mean and covariance, with at most `rank` leading directions; divided by n."""
        self._flush()
        factor = self._factor(min(rank, len(self.mean)))
        variance = self.squares / self.n
        residual = variance - np.square(factor).sum(axis=0)
        # A difference of nearly equal sums: below the rounding it may be negative.
        rounding = RESIDUAL_ROUNDING_UNITS * np.finfo(np.float64).eps * variance
        return Moments(float(self.n), self.mean.copy(), factor, np.where(residual > rounding, residual, 0.0))

    def _factor(self, rank: int) -> Array:
        """Return the leading directions (rank, d) of the covariance, the longest first."""
        if not rank:
            return np.zeros((0, len(self.mean)))
        if self._scatter is None:
            factor = leading_directions(self._rows, rank) / np.sqrt(self.n)
        else:
            values, vectors = _leading_eigenvectors(self._scatter / self.n, rank)
            factor = (vectors * np.sqrt(np.maximum(values, 0.0))).T
        # The sign of a direction is free: its largest entry is made positive, so that the bytes are the same.
        largest = np.take_along_axis(factor, np.abs(factor).argmax(axis=1)[:, None], axis=1)  # (rank, 1)
        signed: Array = np.where(largest < 0, -factor, factor)
        return signed

    def _flush(self) -> None:
        """Take the pending rows into the moments."""
        if not self._pending:
            return
        block = np.concatenate(self._pending)
        self._pending, self._n_pending = [], 0
        mean = block.mean(axis=0)
        centred = block - mean
        between = self._shift(len(block), mean)
        self.squares += np.square(centred).sum(axis=0) + between**2
        if self._scatter is not None:
            self._scatter += centred.T @ centred + np.outer(between, between)
        else:
            self._append(np.concatenate([centred, between[None]]))

    def _shift(self, k: int, mean: Array) -> Array:
        """Count k rows of another mean (d,), and return the row that their mean adds to the scatter matrix."""
        total = self.n + k
        gap = mean - self.mean
        row: Array = np.sqrt(self.n * k / total) * gap
        self.mean = self.mean + (k / total) * gap
        self.n = total
        return row

    def _append(self, rows: Array) -> None:
        """Append rows to the sketch, which is compressed where it has twice its capacity."""
        for start in range(0, len(rows), self._capacity):
            self._rows = np.concatenate([self._rows, rows[start : start + self._capacity]])
            if len(self._rows) > 2 * self._capacity:
                self._rows = leading_directions(self._rows, self._capacity)


class InputMomentStatistic(Statistic):
    """Moments of rows of numbers, by class where they are not too large."""

    def __init__(self, setting: Setting) -> None:
        d, n_classes = setting.size, setting.n_classes
        self._d, self._names = d, setting.classes or ()
        rank = min(MAX_CLASS_RANK, MAX_CLASS_ENTRIES // (n_classes * d) - 2) if n_classes else None
        self.class_rank = None if rank is None or rank < min(MIN_CLASS_RANK, d) else rank
        """Directions of the moments of a class for their size; None where there are no moments by class."""
        n_accumulators = 1 if self.class_rank is None else n_classes
        is_whole = n_accumulators * d**2 <= MAX_SCATTER_ENTRIES
        self._sketch_rank = None if is_whole else MAX_RANK if self.class_rank is None else self.class_rank
        self._without_class = setting.n_groups - 1
        self._by_group: dict[int, MomentAccumulator] = {}

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the observations of a batch."""
        rows = batch.rows
        if self.class_rank is None:
            groups = np.full_like(groups, self._without_class)
        for group in np.unique(groups).tolist():
            if group not in self._by_group:
                self._by_group[group] = MomentAccumulator(self._d, self._sketch_rank)
            self._by_group[group].add(rows[groups == group])

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the moments of all inputs, and of every class that has enough observations."""
        inputs = None
        if leaving.is_described and (leaving.is_all or self.class_rank is not None):
            inputs = self._of_all(leaving)
        if leaving.is_enough and not leaving.is_all and self.class_rank is None:
            leaving.left_out.append(
                "classes are too many and inputs too large to leave some out of the moments of all inputs"
            )
        class_moments, notes = self._of_classes(leaving)
        return replace(described, inputs=inputs, class_moments=class_moments, notes=(*described.notes, *notes))

    def _of_all(self, leaving: Leaving) -> Moments:
        """Return the moments of the inputs of the groups that may leave together."""
        if self.class_rank is None:
            (whole,) = self._by_group.values()
            return whole.moments(allowed_rank(whole.n, MAX_RANK))
        total = MomentAccumulator(self._d, self._sketch_rank)
        total.widen(MAX_RANK)
        for group in sorted(self._by_group):
            if group in leaving.said:
                total.merge(self._by_group[group])
        return total.moments(allowed_rank(leaving.n_said, MAX_RANK))

    def _of_classes(self, leaving: Leaving) -> tuple[dict[int, Moments], list[str]]:
        """Return the moments of every class that has enough observations, and where their rank is reduced."""
        if not leaving.are_labelled:
            return {}, []
        if self.class_rank is None:
            return {}, ["no moments by class, which would be too large"]
        moments = {
            int(number): self._by_group[int(number)].moments(allowed_rank(leaving.by_class[number], self.class_rank))
            for number in leaving.described
        }
        most = min(MAX_CLASS_RANK, self._d)
        reduced = [f"{self._names[n]} ({len(m.factor)})" for n, m in moments.items() if len(m.factor) < most]
        return moments, [f"directions of the moments of classes reduced from {most}: {named(reduced)}"] * bool(reduced)


def leading_directions(rows: Array, rank: int) -> Array:
    """Return the leading right singular vectors of rows (k, d), each times its singular value (rank, d)."""
    # R R^T is (k, k), and small; U^T R with its eigenvectors U are the singular directions times their values.
    eigenvectors = np.linalg.eigh(rows @ rows.T).eigenvectors[:, ::-1]  # the largest first
    directions: Array = eigenvectors[:, :rank].T @ rows
    return directions


def pooled_moments(moments: Sequence[Moments]) -> tuple[float, Array, Array]:
    """Return number, mean (d,) and variance (d,) of the rows of several sites together, from their moments.

    With n_j, m_j and v_j of site j, m = sum_j n_j m_j / N and v = sum_j n_j / N (v_j + (m_j - m)^2).

    Examples
    --------
    >>> sites = [Moments(2, [1.0], np.zeros((0, 1)), [1.0]), Moments(2, [5.0], np.zeros((0, 1)), [1.0])]
    >>> pooled_moments(sites)
    (4.0, array([3.]), array([5.]))
    """
    counts = np.array([site.n_observations for site in moments])
    shares = counts / counts.sum()
    mean: Array = sum(share * site.mean for share, site in zip(shares, moments, strict=True))
    variance: Array = sum(
        share * (site.variance + (site.mean - mean) ** 2) for share, site in zip(shares, moments, strict=True)
    )
    return float(counts.sum()), mean, variance


def _leading_eigenvectors(matrix: Array, rank: int) -> tuple[Array, Array]:
    """Return the largest eigenvalues of a symmetric matrix, descending, and their eigenvectors in columns."""
    from scipy.linalg import eigh

    size = len(matrix)
    values, vectors = eigh(matrix, subset_by_index=[size - rank, size - 1])
    return values[::-1], vectors[:, ::-1]
