"""Tables of a meta-analysis: estimates with standard errors or variances, or two by two counts, by their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError
from consilience.estimators.meta_analysis.counts import Measure, effects_of_counts
from consilience.files.tables import NamedTable

MAX_ROUNDING = 0.05
"""Relative difference of variances from squared standard errors that a printed table may have. Chosen by hand."""

Site = tuple[list[Any], Array, Array]
"""Names of coefficients (None each, where there are none), estimates (p,), covariance (p, p)."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "site": ("site", "study", "slab", "trial", "centre", "center", "hospital"),
    "coefficient": ("coefficient", "term", "variable", "parameter"),
    "estimate": ("estimate", "yi", "effect", "te", "coef", "beta"),
    "standard error": ("se", "sei", "standard_error", "std_err", "std.error", "sete"),
    "variance": ("variance", "vi", "var"),
}
"""Names of the columns of a table of estimates: ours, those of metafor (yi, vi, sei, slab), meta (TE, seTE), broom."""

COUNTS: Mapping[tuple[str, str, str, str], bool] = {
    ("ai", "bi", "ci", "di"): False,
    ("event.e", "n.e", "event.c", "n.c"): True,
    ("events_treated", "n_treated", "events_control", "n_control"): True,
    ("tpos", "tneg", "cpos", "cneg"): False,
}
"""Names of the columns of two by two counts, those of metafor and meta among them, and whether the second and the
fourth are totals of the groups."""


def _of_counts(table: NamedTable, header: Sequence[str], called: object, measure: Measure) -> dict[str, Site] | None:
    """Return the effects of a table of two by two counts, a row a site; None of a table without such columns."""
    names = next((names for names in COUNTS if set(names) <= set(header)), None)
    if names is None:
        return None
    events_t, second_t, events_c, second_c = (_numbers(table, header.index(name), called) for name in names)
    others = (second_t - events_t, second_c - events_c) if COUNTS[names] else (second_t, second_c)
    counts = np.array([[events_t, others[0]], [events_c, others[1]]]).transpose(2, 0, 1)  # (J, 2, 2)
    sites = _texts(table, _place(header, "site")) or [f"row {row}" for row in range(len(counts))]
    if len(set(sites)) < len(sites):
        raise InputError(called, "has a site a second time", code="E-TWICE")
    found = {}
    for row, (site, own) in enumerate(zip(sites, counts, strict=True)):
        try:
            effect, variance = effects_of_counts(own[None], measure)
        except InputError as error:
            where = f"{called}, {table.called_row(row)}"
            raise InputError(problem.about(where) for problem in error.problems) from None
        found[site] = ([measure.replace("_", " ")], effect, variance[:, None])
    return found


def read_table(table: NamedTable, called: object, measure: Measure) -> dict[str, Site]:
    """Return the estimates of a table: a row for each coefficient of a site, or for each site.

    Columns are known by the names of `COLUMNS` and `COUNTS`, in any case; without one of sites, rows are "row 0",
    "row 1", ... Raises InputError for other columns, cells that are no numbers, and estimates without a variance.
    """
    header = [name.strip().lower() for name in table.header]
    estimate = _place(header, "estimate")
    kind = next((what for what in ("standard error", "variance") if _place(header, what) is not None), None)
    has_effects = estimate is not None and kind is not None  # as escalc adds them to counts, by a measure of its own
    if not has_effects and (counted := _of_counts(table, header, called, measure)) is not None:
        return counted
    if estimate is None or kind is None:
        known = "; ".join(f"{what} ({', '.join(names)})" for what, names in COLUMNS.items())
        text = f"has columns {', '.join(table.header[:8]) or 'without names'}, expected some of: {known}"
        raise InputError(called, text, code="E-SHAPE")
    means, spread = (_numbers(table, place, called) for place in (estimate, _place(header, kind)))
    sites = _texts(table, _place(header, "site")) or [f"row {row}" for row in range(len(means))]
    coefficients = _texts(table, _place(header, "coefficient")) or ["effect"] * len(means)
    _refuse_two_spreads(table, header, called)
    if not np.all(spread > 0):
        row = int(np.flatnonzero(~(spread > 0))[0])
        text = f"{table.called_row(row)}: the {kind} of {sites[row]} is {spread[row]:g}, expected above 0"
        raise InputError(called, text, "leave the site out, or give what it is known to", "E-NUMBER")
    variances = spread if kind == "variance" else spread**2
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for row, (site, name) in enumerate(zip(sites, coefficients, strict=True)):
        if name in rows.setdefault(site, {}):
            raise InputError(called, f"{table.called_row(row)}: has {name} of {site} a second time", code="E-TWICE")
        rows[site][name] = (float(means[row]), float(variances[row]))
    return {site: _independent(of_site) for site, of_site in rows.items()}


def _refuse_two_spreads(table: NamedTable, header: Sequence[str], called: object) -> None:
    """Raise for standard errors that are not the roots of the variances of the same table."""
    errors, variances = _place(header, "standard error"), _place(header, "variance")
    if errors is None or variances is None:
        return
    squares, stated = _numbers(table, errors, called) ** 2, _numbers(table, variances, called)
    if not np.allclose(squares, stated, rtol=MAX_ROUNDING):
        row = int(np.argmax(~np.isclose(squares, stated, rtol=MAX_ROUNDING)))
        text = f"{table.called_row(row)}: {table.header[errors]} is not the root of {table.header[variances]}"
        raise InputError(called, text, "leave one of the columns out", "E-MISMATCH")


def _independent(rows: Mapping[str, tuple[float, float]]) -> Site:
    """Return the estimates of one site, by name, as independent of each other."""
    mean, variance = np.array(list(rows.values())).T
    return list(rows), mean, np.diag(variance)


def _place(header: Sequence[str], what: str) -> int | None:
    """Return the number of the column of a quantity, None where the table has none."""
    return next((header.index(name) for name in COLUMNS[what] if name in header), None)


def _texts(table: NamedTable, place: int | None) -> list[str]:
    """Return the cells of a column as texts; none without such a column."""
    return [] if place is None else [str(cell).strip() for cell in np.asarray(table.take(place)).tolist()]


def _numbers(table: NamedTable, place: int | None, called: object) -> Array:
    """Return a column as numbers (n,), or raise for a cell that is none."""
    assert place is not None  # noqa: S101  (narrows the type; callers have asked)
    cells = np.asarray(table.take(place)).tolist()
    numbers = np.array([_number(cell) for cell in cells])
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        text = f"{table.called_row(row)}, column {table.header[place]}: expected a finite number"
        raise InputError(called, f"{text}, found {cells[row]!r:.60}", code="E-NUMBER")
    return numbers


def _number(cell: object) -> float:
    """Return a cell as a number; NaN for one that is none."""
    try:
        return float(str(cell))
    except ValueError:
        return float("nan")
