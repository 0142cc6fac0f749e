"""Input of a meta-analysis: estimates with covariances by site, from values, fitted results or a CSV table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, Problem
from consilience.estimators.laplace_product import site_estimate
from consilience.estimators.meta_analysis.between_sites import SiteEstimates
from consilience.estimators.meta_analysis.counts import Measure, effects_of_counts
from consilience.estimators.statistics import Statistics
from consilience.files.tables import NamedTable, as_named_table, read_named_table

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

_ASYMMETRY = 1e-8
"""Asymmetry of a covariance, as a part of its largest entry, that rounding of a printed table may leave."""


def read_estimates(
    estimates: Any, names: Sequence[str] | None, measure: Measure = "log_odds_ratio"
) -> tuple[tuple[str, ...], tuple[str, ...], SiteEstimates]:
    """Return the names of sites, those of coefficients, and the estimates with their covariances."""
    by_site: dict[str, Site] = {}
    problems: list[Problem] = []
    if isinstance(estimates, str | Path):
        table = read_named_table(Path(estimates))
        if table is None:
            raise InputError(estimates, "is no table with named columns", "give .csv, .tsv or .parquet", "E-FILE")
        by_site = _read_table(table, estimates, measure)
    elif (frame := as_named_table(estimates)) is not None:
        by_site = _read_table(frame, "estimates", measure)
    elif isinstance(estimates, Mapping):
        for site, value in estimates.items():
            try:
                by_site[str(site)] = _site(_counted(value, measure), names)
            except InputError as error:
                problems += [problem.about(site) for problem in error.problems]
    else:
        text = (
            f"expected a mapping from sites to (estimate, covariance), or a table or its path, found"
            f" {type(estimates).__name__}"
        )
        raise InputError("estimates", text, code="E-TYPE")
    if not problems and len(by_site) < 2:
        problems = [Problem("estimates", f"of {len(by_site)} sites, expected two or more", code="E-FEW")]
    if not problems:
        first, (of_first, _, _) = next(iter(by_site.items()))
        problems = [
            Problem(
                site,
                f"names its coefficients otherwise than {first}: {_said(known)}, {_said(of_first)}",
                code="E-MISMATCH",
            )
            for site, (known, _, _) in by_site.items()
            if (known[0] is None) != (of_first[0] is None) or (known[0] is None and len(known) != len(of_first))
        ]
    if problems:
        raise InputError(problems)
    return _joined(by_site)


Site = tuple[list[Any], Array, Array]
"""Names of coefficients (None each, where there are none), estimates (p,), covariance (p, p)."""


def _said(names: Sequence[Any]) -> str:
    return f"{len(names)} without names" if names[0] is None else ", ".join(map(str, names[:4]))


def _joined(by_site: Mapping[str, Site]) -> tuple[tuple[str, ...], tuple[str, ...], SiteEstimates]:
    """Return estimates over the union of all coefficients, in the order in which they are met."""
    union = list(dict.fromkeys(name for known, _, _ in by_site.values() for name in known if name is not None))
    unnamed = not union
    p = len(next(iter(by_site.values()))[0]) if unnamed else len(union)
    labels = tuple(f"coefficient {number}" if p > 1 else "effect" for number in range(p)) if unnamed else tuple(union)
    y, v = np.zeros((len(by_site), p)), np.zeros((len(by_site), p, p))
    known = np.zeros((len(by_site), p), dtype=bool)
    for k, (site_names, mean, covariance) in enumerate(by_site.values()):
        places = np.arange(p) if unnamed else np.array([union.index(name) for name in site_names])
        y[k, places], known[k, places] = mean, True
        v[k][np.ix_(places, places)] = covariance
    return tuple(by_site), labels, SiteEstimates(y, v, known)


def _site(value: Any, names: Sequence[str] | None) -> Site:
    """Return the estimates of one site: of a pair, or of a fitted result with ``params`` and ``cov_params()``."""
    estimate, covariance = _pair(value)
    labels: list[Any] | None = None if names is None else list(names)
    if isinstance(estimate, Mapping):
        labels, estimate = [str(name) for name in estimate], list(estimate.values())
    elif hasattr(estimate, "index") and hasattr(estimate, "to_numpy"):  # a pandas Series
        labels = list(map(str, estimate.index))
        if hasattr(covariance, "index"):
            told = list(map(str, covariance.index))
            if told != labels or list(map(str, covariance.columns)) != labels:
                text = f"is of {_said(told)}, and the estimates are of {_said(labels)}"
                raise InputError("covariance", text, code="E-MISMATCH")
    try:
        mean = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
        matrix = np.asarray(covariance, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("", "expected numbers as estimate and covariance", code="E-TYPE") from None
    return _checked(labels, mean, matrix)


def _pair(value: Any) -> Any:
    """Return the estimate and the covariance of one site, as they were given."""
    if isinstance(value, Statistics):
        return site_estimate(value)
    if callable(getattr(value, "cov_params", None)) and hasattr(value, "params"):
        if np.ndim(value.params) != 1:
            text = f"have shape {np.shape(value.params)}; give (estimate, covariance) of one vector"
            raise InputError("params", text, code="E-SHAPE")
        return value.params, value.cov_params()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise InputError("", f"expected (estimate, covariance), found {type(value).__name__}", code="E-TYPE")
    return value


def _checked(labels: list[Any] | None, mean: Array, matrix: Array) -> Site:
    """Return an estimate (p,) with its covariance (p, p) under names, where these go together."""
    p = len(mean)
    if matrix.ndim < 2 and p == 1 == matrix.size:
        matrix = matrix.reshape(1, 1)
    if mean.ndim != 1 or p == 0 or matrix.shape != (p, p):
        text = f"has shape {matrix.shape}, expected {(p, p)}"
        raise InputError("covariance", text, "of standard errors se: `np.diag(se ** 2)`", "E-SHAPE")
    if labels is not None and (len(labels) != p or len(set(labels)) != p):
        raise InputError("names", f"expected {p} different ones, found {', '.join(labels[:8])}", code="E-SHAPE")
    if not np.isfinite(np.append(mean, matrix)).all():
        text = "has values that are not finite"
        raise InputError("", text, "leave out what could not be estimated, by name", "E-NUMBER")
    if np.abs(matrix - matrix.T).max() > _ASYMMETRY * np.abs(matrix).max():
        raise InputError("covariance", "is not symmetric", code="E-NUMBER")
    matrix = (matrix + matrix.T) / 2.0
    if not np.all(np.diag(matrix) > 0.0):
        place = int(np.flatnonzero(~(np.diag(matrix) > 0.0))[0])
        which = "variance" if p == 1 else f"variance of {place if labels is None else labels[place]}"
        text = f"the {which} is {matrix[place, place]:g}, expected above 0"
        raise InputError("", text, "leave it out, or give what it is known to", "E-NUMBER")
    deviations = np.sqrt(np.diag(matrix))  # in units of which one rounding holds for all
    correlation = matrix / np.outer(deviations, deviations)
    if np.linalg.eigvalsh(correlation)[0] < p * np.finfo(np.float64).eps:
        text = "is not positive definite"
        raise InputError("covariance", text, "leave out coefficients that others determine", "E-NUMBER")
    return [None] * p if labels is None else labels, mean, matrix


def _counted(value: Any, measure: Measure) -> Any:
    """Return the effect and variance of two by two counts, [[events, others], [events, others]]; else what is given."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) and np.shape(value) == (2, 2):
        effect, variance = effects_of_counts(np.asarray(value, dtype=np.float64)[None], measure)
        return float(effect[0]), float(variance[0])
    return value


def _of_counts(table: NamedTable, header: Sequence[str], called: object, measure: Measure) -> dict[str, Site] | None:
    """Return the effects of a table of two by two counts, a row a site; None of a table without such columns."""
    names = next((names for names in COUNTS if set(names) <= set(header)), None)
    if names is None:
        return None
    events_t, second_t, events_c, second_c = (_numbers(table, header.index(name), called) for name in names)
    others = (second_t - events_t, second_c - events_c) if COUNTS[names] else (second_t, second_c)
    counts = np.array([[events_t, others[0]], [events_c, others[1]]]).transpose(2, 0, 1)  # (J, 2, 2)
    place = next((header.index(name) for name in COLUMNS["site"] if name in header), None)
    sites = _texts(table, place) or [f"row {row}" for row in range(len(counts))]
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


def _read_table(table: NamedTable, called: object, measure: Measure) -> dict[str, Site]:
    """Return the estimates of a table: a row for each coefficient of a site, or for each site.

    Columns are known by the names of `COLUMNS`, in any case; without one of sites, rows are "row 0", "row 1", ...
    """
    header = [name.strip().lower() for name in table.header]
    if (counted := _of_counts(table, header, called, measure)) is not None:
        return counted
    place = {
        what: next((header.index(name) for name in names if name in header), None) for what, names in COLUMNS.items()
    }
    spreads = [what for what in ("standard error", "variance") if place[what] is not None]
    if place["estimate"] is None or not spreads:
        known = "; ".join(f"{what} ({', '.join(names)})" for what, names in COLUMNS.items())
        text = f"has columns {', '.join(table.header[:8]) or 'without names'}, expected some of: {known}"
        raise InputError(called, text, code="E-SHAPE")
    n = len(np.asarray(table.take(place["estimate"])))
    sites = _texts(table, place["site"]) or [f"row {row}" for row in range(n)]
    coefficients = _texts(table, place["coefficient"]) or ["effect"] * n
    means = _numbers(table, place["estimate"], called)
    spread = _numbers(table, place[spreads[0]], called)
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for row, (site, name) in enumerate(zip(sites, coefficients, strict=True)):
        if name in rows.setdefault(site, {}):
            raise InputError(called, f"{table.called_row(row)}: has {name} of {site} a second time", code="E-TWICE")
        if not spread[row] > 0:
            text = f"{table.called_row(row)}: the {spreads[0]} of {site} is {spread[row]:g}, expected above 0"
            raise InputError(called, text, "leave the site out, or give what it is known to", "E-NUMBER")
        rows[site][name] = (float(means[row]), float(spread[row] if spreads[0] == "variance" else spread[row] ** 2))
    columns = {site: np.array(list(of_site.values())).T for site, of_site in rows.items()}  # (2, p)
    return {site: (list(rows[site]), mean, np.diag(variance)) for site, (mean, variance) in columns.items()}


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
