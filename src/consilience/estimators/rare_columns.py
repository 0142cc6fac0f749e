"""Columns of a site by which sums of products hold the whole row of one person.

Sums of products about zero, S + n m m^T, have in the line of a column the sum of the rows in which it is not zero, each
times its value. So they have of any column that is shifted by a constant, since means and numbers of rows are sent too:
where all rows but k have one value, the line is the sum of those k rows. Of two columns of 0 and 1, one of which is 1
wherever the other is, their difference is such a column; of two that are never 1 together, so is what is in neither.
Whole numbers hold more still: fewer rows than columns span a space in which few rows of whole numbers lie, often only
these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError, Problem
from consilience.estimators.site_rows import SiteRows

MAX_COMPARED = 2000
"""Columns of 0 and 1 up to which pairs are compared: their products are 32 MB then."""
MAX_NAMED = 8
"""Columns that a warning names. Chosen by hand."""


def refuse_whole_numbers(rows: SiteRows) -> None:
    """Raise where fewer rows than columns hold whole numbers alone, which their products give back exactly."""
    n, d = rows.X.shape
    if n >= d:
        return
    values = rows.X.data if hasattr(rows.X, "toarray") else rows.X
    if np.array_equal(values, np.round(values)):
        text = f"has {n:,} rows of {d:,} columns, all whole numbers: products of columns give such rows back exactly"
        remedy = "take fewer columns than rows, or say `min_count=0` if the rows may be known"
        raise InputError("", text, remedy, "E-FEW")


def rare_columns(rows: SiteRows, names: Sequence[str], min_count: float) -> Problem | None:
    """Return which columns set fewer than `min_count` rows apart, with these numbers of rows; None for no column.

    Examples
    --------
    >>> X = np.c_[np.arange(9.0), np.arange(9) == 3, np.zeros(9)]
    >>> print(rare_columns(SiteRows(X), ["age", "gaucher", "zero"], 5.0))
    gaucher (1 row): set fewer than 5 rows apart, and sums of products hold the sum of those rows; join or leave out
        these columns, or say `min_count=0`
    """
    others = _off_their_mode(rows)
    is_rare = (others > 0) & (others < min_count) & (rows.n - others >= min_count)
    found = [(names[column], int(others[column])) for column in np.flatnonzero(is_rare).tolist()]
    found += [(f"{names[a]} and {names[b]}", count) for a, b, count in _between_pairs(rows, min_count)]
    if not found:
        return None
    listed = ", ".join(f"{name} ({count:g} {'row' if count == 1 else 'rows'})" for name, count in found[:MAX_NAMED])
    more = f" and {len(found) - MAX_NAMED:,} more" if len(found) > MAX_NAMED else ""
    text = f"set fewer than {min_count:g} rows apart, and sums of products hold the sum of those rows"
    return Problem(f"{listed}{more}", text, "join or leave out these columns, or say `min_count=0`")


def _off_their_mode(rows: SiteRows) -> Labels:
    """Return of every column (d,) how many rows lack the value that more than half have; n where there is none."""
    if hasattr(rows.X, "toarray"):  # columns that are mostly 0, whose other rows are those that are stored
        return np.asarray(np.bincount(rows.X.indices[rows.X.data != 0.0], minlength=rows.X.shape[1]))
    median = np.partition(rows.X, rows.n // 2, axis=0)[rows.n // 2]  # which is that value, where there is one
    others = np.count_nonzero(median != rows.X, axis=0)
    return np.asarray(np.where(2 * others < rows.n, others, rows.n))


def _between_pairs(rows: SiteRows, min_count: float) -> list[tuple[int, int, int]]:
    """Return pairs of columns of 0 and 1 that set few rows apart: one within the other, or two that share none."""
    X = rows.dense if rows.X.shape[1] <= MAX_COMPARED else np.zeros((0, 0))
    binary = np.flatnonzero(((X == 0.0) | (X == 1.0)).all(axis=0)) if X.size else np.zeros(0, dtype=np.int64)
    if len(binary) < 2:
        return []
    ones: Array = X[:, binary]
    both, count = ones.T @ ones, ones.sum(axis=0)
    is_common = (count >= min_count) & (len(ones) - count >= min_count)  # others are named by themselves
    within = count[None, :] - both  # rows of b without a, where all of a's are b's
    is_within = (both == count[:, None]) & (within > 0) & (within < min_count)
    neither = len(ones) - count[:, None] - count[None, :]
    is_apart = (both == 0) & (neither > 0) & (neither < min_count) & np.triu(np.ones_like(both, dtype=bool), 1)
    allowed = is_common[:, None] & is_common[None, :]
    pairs = [(a, b, within[a, b]) for a, b in np.argwhere(is_within & allowed)]
    pairs += [(a, b, neither[a, b]) for a, b in np.argwhere(is_apart & allowed)]
    return [(int(binary[a]), int(binary[b]), int(number)) for a, b, number in pairs]
