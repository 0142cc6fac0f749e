"""Statistics of sites over the same columns in one order: by name, and with zeros for levels that a site has not.

The sums of a column that is zero in every row are zero. The dummy of a level that no row of a site has is such a
column, so a site without it adds to the others exactly, as soon as its columns have names. Of a formula the levels
say which columns these are; of a table that `get_dummies` made nothing does, and the caller says it
(``absent_columns="zeros"``), since a column may be lacking for another reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.drawing.words import first_names
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.average import in_categories
from consilience.estimators.design import Design
from consilience.estimators.statistics import (
    CATEGORIES,
    FEATURE_COUNTS,
    INFORMATION,
    PRIOR,
    SHIFT,
    SUMS,
    Statistics,
)
from consilience.families.centred_moments import CentredMoments

ZEROS = "zeros"
"""The value of ``absent_columns`` that takes columns which a site lacks for zero in all of its rows."""

MAX_NAMED = 5
"""Columns that a note names at most. Chosen by hand."""

_ABSENT = -1

_EQUATIONS = "categories"
"""The hyper-parameter of MNLogit: the names of its categories, the reference first."""


def align_columns(
    sites: Sequence[tuple[str, Statistics]], absent_columns: str | None
) -> tuple[list[Statistics], list[str]]:
    """Return the statistics of sites, by what messages call them, over one set of columns, and what was done.

    The order is that of the first site with most columns. Sites whose columns have no names, whose names are no others'
    in another order, or that lack columns for no known reason, stay as they are.
    """
    statistics = [site for _, site in sites]
    named = [site for site in statistics if site.features.names is not None and _can_be_arranged(site)]
    if len(named) < 2:
        return statistics, []
    widest = max(named, key=lambda site: len(site.features.names or ()))  # the first of as many
    equations = max((site.parameters.get(_EQUATIONS) or [] for site in named), key=len)
    aligned, notes = [], []
    for label, site in sites:
        if site.kind == widest.kind and site in named:
            site, of_equations = _with_equations(site, equations)
            site, of_columns = _arranged(site, widest, absent_columns)
            notes += [f"{label} {note}" for note in (*of_equations, *of_columns)]
        aligned.append(site)
    return aligned, notes


def _can_be_arranged(site: Statistics) -> bool:
    """Return whether every array of a site follows a new order of its columns: those of heads' features do not."""
    names = site.features.names or ()
    return len(set(names)) == len(names) == site.n_columns and adapter_of_kind(site.kind).sent_as is None


def _arranged(site: Statistics, widest: Statistics, absent_columns: str | None) -> tuple[Statistics, list[str]]:
    """Return a site's statistics over the columns of the widest, where those that it lacks are known to be zero."""
    own, columns = site.features.names or (), widest.features.names or ()
    if own == columns or not set(own) <= set(columns):
        return site, []
    absent = [name for name in columns if name not in own]
    is_known = absent_columns == ZEROS or _are_absent_levels(absent, site.design, widest.design)
    if absent and not is_known:
        return site, []
    place = {name: number for number, name in enumerate(own)}
    index = np.array([place.get(name, _ABSENT) for name in columns], dtype=np.int64)
    units = None if absent or site.features.units is None else tuple(site.features.units[i] for i in index)
    features = replace(site.features, names=columns, units=units)
    design = replace(site.design, factors={**site.design.factors, **_wider(site.design, widest.design)})
    note = "has its columns in another order: aligned by name"
    if absent:
        note = f"has no {first_names(absent, MAX_NAMED)}: zero in all its rows"
    return replace(with_columns(site, index), features=features, design=design), [note]


def _wider(own: Design, widest: Design) -> Mapping[str, Any]:
    """Return the factors of which a site has some of the levels, as the widest has them."""
    return {
        name: factor
        for name, factor in widest.factors.items()
        if name in own.factors and set(own.factors[name].levels) < set(factor.levels)
    }


def _are_absent_levels(absent: Sequence[str], own: Design, widest: Design) -> bool:
    """Return whether columns are all dummies of levels that a site has not, and its reference levels are the others'.

    A site that lacks the reference itself has another level in its place, whose column it then lacks.
    """
    levels = {
        f"{name}[{mark}{level}]"
        for name, factor in _wider(own, widest).items()
        for level in set(factor.levels) - set(own.factors[name].levels)
        for mark in ("T.", "")
    }
    return bool(levels) and all(any(part in levels for part in name.split(":")) for name in absent)


def with_columns(site: Statistics, index: Labels) -> Statistics:
    """Return statistics over other columns: for each the number of the own one, -1 of one that is zero in all rows."""
    d, adapter = site.n_columns, adapter_of_kind(site.kind)
    if CATEGORIES in site.maxima:
        return _with_columns_of_categories(site, index)
    is_by_column = adapter.by_column and site.last_step is None
    moments = {name: _moments_over(record, index, d, is_by_column) for name, record in site.moments.items()}
    tail = int(adapter.follows_units is False and bool(site.parameters.get("fit_intercept", False)))
    counts = {
        name: _over(values, index, d, tail)
        if name in (SHIFT, PRIOR, SUMS, FEATURE_COUNTS)
        else _information_over(values, index, d, tail)
        if name == INFORMATION
        else values
        for name, values in site.counts.items()
    }
    maxima = {name: _taken(values, index, -1) for name, values in site.maxima.items()}
    return replace(site, n_columns=len(index), moments=moments, counts=counts, maxima=maxima)


def _moments_over(record: CentredMoments, index: Labels, d: int, is_by_column: bool) -> CentredMoments:
    """Return moments over other columns, those of targets after them."""
    if is_by_column:
        rows = record.n.max(initial=0.0), record.weight.max(initial=0.0)
        taken = record.at(np.maximum(index, 0))
        is_absent = index == _ABSENT
        return replace(
            taken,
            n=np.where(is_absent, rows[0], taken.n),
            weight=np.where(is_absent, rows[1], taken.weight),
            mean=np.where(is_absent[:, None], 0.0, taken.mean),
            scatter=np.where(is_absent.reshape(-1, *[1] * (taken.scatter.ndim - 1)), 0.0, taken.scatter),
        )
    whole = np.concatenate([index, np.arange(d, record.n_columns)])
    scatter = _taken(record.scatter, whole, -1)
    return replace(
        record,
        mean=_taken(record.mean, whole, -1),
        scatter=scatter if record.is_diagonal else _taken(scatter, whole, -2),
    )


def _taken(values: Array, index: Labels, axis: int) -> Array:
    """Return entries along an axis, zero where there is none."""
    taken = np.moveaxis(np.take(values, np.maximum(index, 0), axis=axis), axis, 0).copy()
    taken[index == _ABSENT] = 0.0
    return np.ascontiguousarray(np.moveaxis(taken, 0, axis))


def _over(values: Array, index: Labels, d: int, tail: int, axis: int = -1) -> Array:
    """Return an array over other columns along an axis: of each equation, its columns and a `tail` of others."""
    p, size = d + tail, values.shape[axis]
    blocks = [np.concatenate([np.where(index < 0, -1, start + index), start + np.arange(d, p)])
              for start in range(0, size - size % p, p)]  # fmt: skip
    return _taken(values, np.concatenate([*blocks, np.arange(size - size % p, size)]), axis)


def _information_over(values: Array, index: Labels, d: int, tail: int) -> Array:
    """Return information (q, q), or (C, p, C, p) by class, over other columns."""
    first, second = (-1, -3) if values.ndim == 4 else (-1, -2)
    return _over(_over(values, index, d, tail, first), index, d, tail, second)


def _with_columns_of_categories(site: Statistics, index: Labels) -> Statistics:
    """Return counts by category, flat over columns, over other columns; one that is absent has its category 0 only."""
    sizes = site.maxima[CATEGORIES].astype(np.int64)
    starts, values = np.cumsum(sizes) - sizes, site.counts[FEATURE_COUNTS]
    rows = values[:, : int(sizes[0])].sum(axis=1, keepdims=True)  # each row is of one category of each column
    parts = [rows if place < 0 else values[:, starts[place] : starts[place] + sizes[place]] for place in index]
    maxima = {**site.maxima, CATEGORIES: np.where(index < 0, 1.0, site.maxima[CATEGORIES][np.maximum(index, 0)])}
    counts = {**site.counts, FEATURE_COUNTS: np.concatenate(parts, axis=1)}
    return in_categories(replace(site, n_columns=len(index), counts=counts, maxima=maxima), maxima[CATEGORIES])


def _with_equations(site: Statistics, categories: Sequence[str]) -> tuple[Statistics, list[str]]:
    """Return a multinomial regression over more categories, whose equations the rows of a site say nothing of.

    One whose reference is another, or that has a category more, stays as it is.
    """
    own, d = list(site.parameters.get(_EQUATIONS) or ()), site.n_columns
    if not own or own[:1] != list(categories)[:1] or not set(own) < set(categories):
        return site, []
    place = {name: number for number, name in enumerate(own[1:])}
    index = np.concatenate(
        [place[name] * d + np.arange(d) if name in place else np.full(d, _ABSENT) for name in categories[1:]]
    )
    counts = {
        name: _taken(values, index, -1)
        if name in (SHIFT, PRIOR)
        else _taken(_taken(values, index, -1), index, -2)
        if name == INFORMATION
        else values
        for name, values in site.counts.items()
    }
    lacking = [name for name in categories if name not in own]
    parameters = {**site.parameters, _EQUATIONS: list(categories)}
    return replace(site, parameters=parameters, counts=counts), [
        f"has no rows of category {first_names(lacking, MAX_NAMED)}, and says nothing of its coefficients"
    ]
