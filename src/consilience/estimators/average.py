"""Average: the statistics of all sites together, whose sums are those of the sites.

Classes are matched by their labels: a site that lacks a class contributes the record of no rows. ``fuse`` sums
sites in the order of their digests, so that the order in which they came, and their names, change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.estimators.class_labels import ClassLabels, union
from consilience.estimators.design import merged_designs
from consilience.estimators.statistics import (
    CATEGORIES,
    FEATURE_COUNTS,
    INFORMATION,
    OF_ALL,
    ROWS,
    UNWEIGHTED,
    WITHOUT_UNWEIGHTED,
    Statistics,
    is_by_class,
)
from consilience.families.centred_moments import CentredMoments, merge_moments

Summand = TypeVar("Summand", Array, CentredMoments)


def average(sites: Sequence[Statistics], first: Statistics | None = None) -> Statistics:
    """Return the statistics of the rows of all sites, which were found to agree, summed in their order.

    Hyper-parameters are those of `first`, by default the first of them.
    """
    first = sites[0] if first is None else first
    classes = _all_classes(sites)
    sites = _with_same_arrays(sites, classes)
    return replace(
        first,
        parameters={name: _of_all(name, value, sites, classes) for name, value in first.parameters.items()},
        moments=_added([site.moments for site in sites], merge_moments),
        counts=_added([site.counts for site in sites], sum_in_order),
        maxima=_added([site.maxima for site in sites], lambda arrays: np.max(arrays, axis=0)),
        classes=classes,
        features=next((site.features for site in sites if site.features.names is not None), first.features),
        design=merged_designs([first.design, *(site.design for site in sites)]),
        approximations=tuple(dict.fromkeys(text for site in sites for text in site.approximations)),
        min_count=min(site.min_count for site in sites),
        n_withheld=sum(site.n_withheld for site in sites),
    )


def _all_classes(sites: Sequence[Statistics]) -> ClassLabels | None:
    known = [site.classes for site in sites if site.classes is not None]
    return union(known) if known else None


def _added(sites: Sequence[Mapping[str, Summand]], add: Callable[[list[Summand]], Summand]) -> dict[str, Summand]:
    """Return what sites have of each name, added."""
    names = sorted({name for site in sites for name in site})
    return {name: add([site[name] for site in sites if name in site]) for name in names}


def _with_same_arrays(sites: Sequence[Statistics], classes: ClassLabels | None) -> list[Statistics]:
    """Return statistics of sites whose arrays are of the same classes, categories and moments."""
    sites = [site.without_fourth_moments() for site in sites]  # which are of each alone, in its own frame
    if any(WITHOUT_UNWEIGHTED in site.approximations for site in sites):  # then they are not known of all rows
        sites = [site.without_unweighted() for site in sites]
    if any(UNWEIGHTED in site.moments for site in sites):
        sites = [replace(site, moments={**site.moments, UNWEIGHTED: moments_named(site, UNWEIGHTED)}) for site in sites]
    if CATEGORIES in sites[0].maxima:
        categories = np.max([site.maxima[CATEGORIES] for site in sites], axis=0)
        sites = [in_categories(site, categories) for site in sites]
    return [among_classes(site, classes) for site in sites]


def moments_named(site: Statistics, name: str) -> CentredMoments:
    """Return moments of a site by name; of one without weights, rows without their weights are the rows."""
    return site.moments[ROWS] if name == UNWEIGHTED and UNWEIGHTED not in site.moments else site.moments[name]


def among_classes(site: Statistics, classes: ClassLabels | None) -> Statistics:
    """Return statistics whose arrays have an entry for each of `classes`, empty where the site lacks the class."""
    if classes is None or site.classes is None or site.classes.values == classes.values:
        return site
    positions, n = site.classes.positions_in(classes), len(classes)
    moments = {name: one if name in OF_ALL else one.placed(positions, n) for name, one in site.moments.items()}
    counts = {
        name: values if name in OF_ALL else placed_counts(name, values, positions, n)
        for name, values in site.counts.items()
    }
    return replace(site, moments=moments, counts=counts)


def placed_counts(name: str, values: Array, positions: Labels, n_classes: int) -> Array:
    """Return counts of some classes among all, with zeros for the others."""
    if name == INFORMATION:  # (C, p, C, p)
        columns = np.arange(values.shape[1])
        wide = np.zeros((n_classes, len(columns), n_classes, len(columns)))
        wide[np.ix_(positions, columns, positions, columns)] = values
        return wide
    wide = np.zeros((n_classes, *values.shape[1:]))
    wide[positions] = values
    return wide


def in_categories(site: Statistics, categories: Array) -> Statistics:
    """Return statistics whose counts by category (C, sum K_j) are among as many categories K_j (d,), or more."""
    if np.array_equal(site.maxima[CATEGORIES], categories):
        return site
    own, wider = site.maxima[CATEGORIES].astype(np.int64), categories.astype(np.int64)
    shifts = (np.cumsum(wider) - wider) - (np.cumsum(own) - own)  # (d,), of the first category of each column
    values = site.counts[FEATURE_COUNTS]
    wide = np.zeros((len(values), int(wider.sum())))
    wide[:, np.arange(values.shape[1]) + np.repeat(shifts, own)] = values
    counts = {**site.counts, FEATURE_COUNTS: wide}
    return replace(site, counts=counts, maxima={**site.maxima, CATEGORIES: categories})


def sum_in_order(arrays: Sequence[Array]) -> Array:
    """Return the sum of arrays of one shape, in their order."""
    total = np.zeros(arrays[0].shape)
    for values in arrays:
        total += values
    return total


def _of_all(name: str, value: Any, sites: Sequence[Statistics], classes: ClassLabels | None) -> Any:
    """Return a hyper-parameter of the fused estimator: the first site's, or by class over all classes."""
    if classes is None or not is_by_class(name, value):
        return value
    by_label = {
        label: number
        for site in sites
        if site.classes is not None and isinstance(site.parameters[name], list)
        for label, number in zip(site.classes.values, site.parameters[name], strict=True)
    }
    is_complete = all(label in by_label for label in classes.values)
    return [by_label[label] for label in classes.values] if is_complete else None  # the caller names others
