"""Columns of a site by which sums of products hold the whole row of one person.

Sums of products about zero, S + n m m^T, have in the line of a column the sum of the rows in which it is not zero, each
times its value. So they have of any column that is shifted by a constant, since means and numbers of rows are sent too:
where all rows but k have one value, the line is the sum of those k rows. Of two columns of 0 and 1, one of which is 1
wherever the other is, their difference is such a column; of two that are never 1 together, so is what is in neither.
Sums of a class say so of its rows. Whole numbers hold more still: fewer rows than columns span a space in which few
rows of whole numbers lie, often only these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError, Problem
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.site_rows import SiteRows
from consilience.families.centred_moments import CentredMoments

MAX_COMPARED = 2000
"""Columns of 0 and 1 up to which pairs are compared: their products are 32 MB then."""
MAX_NAMED = 8
"""Columns that a warning names. Chosen by hand."""
_WHOLE = 1e-6
"""Difference of a sum of columns of 0 and 1 from a whole number that is rounding."""


@dataclass(frozen=True)
class RareColumns:
    """A column, or a pair of which one is to be left out, that sets few rows apart."""

    columns: tuple[int, ...]  # one, or two
    count: int  # rows that are set apart
    group: int | None = None  # the class among whose rows it does so

    def named(self, names: Sequence[str], classes: ClassLabels | None) -> str:
        """Return the names of columns and class, with the number of rows."""
        of_class = "" if self.group is None or classes is None else f" in class {classes.names[self.group]}"
        rows = f"{self.count} {'row' if self.count == 1 else 'rows'}"
        return f"{' and '.join(names[column] for column in self.columns)}{of_class} ({rows})"


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


def rare_columns(rows: SiteRows, min_count: float, *, by_class: bool = False) -> list[RareColumns]:
    """Return which columns set fewer than `min_count` rows apart, of all rows or of those of each class.

    Examples
    --------
    >>> X = np.c_[np.arange(9.0), np.arange(9) == 3, np.zeros(9)]
    >>> rare_columns(SiteRows(X), 5.0)
    [RareColumns(columns=(1,), count=1, group=None)]
    """
    found = []
    for group in range(rows.n_classes) if by_class else [None]:
        X = rows.X if group is None else rows.X[rows.numbers == group]
        if X.shape[0]:
            found += [replace(one, group=group) for one in _of_rows(X, min_count)]
    return found


def rare_in_sums(record: CentredMoments, n_columns: int, min_count: float) -> list[RareColumns]:
    """Return the same of columns of 0 and 1 from sums of products alone, as whoever has them can.

    `record` is of plain rows, its first columns are those of the data; of records of classes, each is looked at.
    """
    is_by_class = record.n.ndim > 0
    found = []
    for group in range(len(record.n)) if is_by_class else [None]:
        place = () if group is None else group
        n, mean, scatter = float(record.n[place]), record.mean[place][:n_columns], record.scatter[place]
        if not n or abs(float(record.weight[place]) - n) > _WHOLE:
            continue
        products = scatter[:n_columns, :n_columns] + n * np.outer(mean, mean)
        ones = n * mean
        is_binary = np.abs(np.diagonal(products) - ones) < _WHOLE  # then all are 0 or 1, but for odd coincidences
        binary = np.flatnonzero(is_binary & (np.abs(ones - np.rint(ones)) < _WHOLE))
        count = np.rint(ones[binary])
        others = np.minimum(count, n - count)
        is_rare = (others > 0) & (others < min_count) & (n - others >= min_count)
        found += [RareColumns((int(binary[at]),), int(others[at]), group) for at in np.flatnonzero(is_rare).tolist()]
        both = np.rint(products[np.ix_(binary, binary)])
        pairs = _between_pairs(count, both, n, min_count) if 1 < len(binary) <= MAX_COMPARED else []
        found += [RareColumns((int(binary[a]), int(binary[b])), number, group) for a, b, number in pairs]
    return found


def listed(found: Sequence[RareColumns], names: Sequence[str], classes: ClassLabels | None) -> str:
    """Return columns by name, with their numbers of rows."""
    shown = ", ".join(one.named(names, classes) for one in found[:MAX_NAMED])
    return f"{shown} and {len(found) - MAX_NAMED:,} more" if len(found) > MAX_NAMED else shown


def problem_of(
    found: Sequence[RareColumns], names: Sequence[str], classes: ClassLabels | None, min_count: float
) -> Problem:
    """Return what is wrong with columns that set few rows apart.

    Examples
    --------
    >>> print(problem_of([RareColumns((0,), 1)], ["gaucher"], None, 5.0))
    gaucher (1 row): set fewer than 5 rows apart, and sums of products hold the sum of those rows; join or leave out
        these columns, or say `withhold_columns=True` or `min_count=0`
    """
    text = f"set fewer than {min_count:g} rows apart, and sums of products hold the sum of those rows"
    remedy = "join or leave out these columns, or say `withhold_columns=True` or `min_count=0`"
    return Problem(listed(found, names, classes), text, remedy)


def without_rare_columns(rows: SiteRows, min_count: float, *, by_class: bool) -> tuple[SiteRows, list[int]]:
    """Return rows of which none is set apart any more, and the columns that are constant for it.

    Such a column has in all rows, or in all of a class, its most common value; of a pair, the second one.
    """
    changed: set[int] = set()
    while found := rare_columns(rows, min_count, by_class=by_class):
        X = rows.X.copy()
        for one in found:
            of_group = np.ones(rows.n, dtype=np.bool_) if one.group is None else rows.numbers == one.group
            column = one.columns[-1]
            if hasattr(X, "toarray"):
                X.data[(X.indices == column) & np.repeat(of_group, np.diff(X.indptr))] = 0.0
            else:
                values = X[of_group, column]
                X[of_group, column] = np.partition(values, len(values) // 2)[len(values) // 2]
            changed.add(column)
        rows = replace(rows, X=X)
    return rows, sorted(changed)


def _of_rows(X: Any, min_count: float) -> list[RareColumns]:
    """Return the columns and pairs of columns of some rows that set few of them apart."""
    n = X.shape[0]
    others = _off_their_mode(X)
    is_rare = (others > 0) & (others < min_count) & (n - others >= min_count)
    found = [RareColumns((column,), int(others[column])) for column in np.flatnonzero(is_rare).tolist()]
    if X.shape[1] > MAX_COMPARED:
        return found
    dense = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    binary = np.flatnonzero(((dense == 0.0) | (dense == 1.0)).all(axis=0))
    ones = dense[:, binary].astype(np.float64)
    pairs = _between_pairs(ones.sum(axis=0), ones.T @ ones, n, min_count) if len(binary) > 1 else []
    return [*found, *(RareColumns((int(binary[a]), int(binary[b])), number) for a, b, number in pairs)]


def _off_their_mode(X: Any) -> Labels:
    """Return of every column (d,) how many rows lack the value that more than half have; n where there is none."""
    if hasattr(X, "toarray"):  # columns that are mostly 0, whose other rows are those that are stored
        return np.asarray(np.bincount(X.indices[X.data != 0.0], minlength=X.shape[1]))
    median = np.partition(X, len(X) // 2, axis=0)[len(X) // 2]  # which is that value, where there is one
    others = np.count_nonzero(median != X, axis=0)
    return np.asarray(np.where(2 * others < len(X), others, len(X)))


def _between_pairs(count: Array, both: Array, n: float, min_count: float) -> list[tuple[int, int, int]]:
    """Return pairs of columns of 0 and 1 that set few rows apart: one within the other, or two that share none.

    `count` (d,) says how many rows have a 1, `both` (d, d) how many have two.
    """
    is_common = (count >= min_count) & (n - count >= min_count)  # others are named by themselves
    within = count[None, :] - both  # rows of b without a, where all of a's are b's
    is_within = (both == count[:, None]) & (within > 0) & (within < min_count)
    neither = n - count[:, None] - count[None, :]
    is_apart = (both == 0) & (neither > 0) & (neither < min_count) & np.triu(np.ones_like(both, dtype=bool), 1)
    allowed = is_common[:, None] & is_common[None, :]
    pairs = [(a, b, within[a, b]) for a, b in np.argwhere(is_within & allowed)]
    pairs += [(a, b, neither[a, b]) for a, b in np.argwhere(is_apart & allowed)]
    return [(int(a), int(b), int(number)) for a, b, number in pairs]
