"""Average: the statistics of all sites together, whose sums are those of the sites.

Classes are matched by their labels: a site that lacks a class contributes the record of no rows. ``fuse`` sums
sites in the order of their digests, so that the order in which they came, and their names, change no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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


def average(sites: Sequence[Statistics], first: Statistics | None = None) -> Statistics:
    """Return the statistics of the rows of all sites, which were found to agree.

    Parameters
    ----------
    sites : sequence of Statistics
        In the order in which they are summed.
    first : Statistics, optional
        The one whose hyper-parameters are those of all. Default: the first in that order.
    """
    first = sites[0] if first is None else first
    sites = [site.without_fourth_moments() for site in sites]  # which are of each alone, in its own frame
    if any(WITHOUT_UNWEIGHTED in site.approximations for site in sites):  # then they are not known of all rows
        sites = [site.without_unweighted() for site in sites]
    maxima = {name: np.max([site.maxima[name] for site in sites], axis=0) for name in first.maxima}
    sites = [in_categories(site, maxima.get(CATEGORIES)) for site in sites]
    classes = None if first.classes is None else union([site.classes for site in sites if site.classes is not None])
    positions = [_positions(site, classes) for site in sites]
    names = sorted({name for site in sites for name in site.moments})
    moments = {
        name: merge_moments(
            _placed(_record(site, name), None if name in OF_ALL else places, classes)
            for site, places in zip(sites, positions, strict=True)
        )
        for name in names
    }
    counts = {
        name: sum_in_order(
            [
                site.counts[name]
                if places is None or classes is None or name in OF_ALL
                else placed_counts(name, site.counts[name], places, len(classes))
                for site, places in zip(sites, positions, strict=True)
                if name in site.counts
            ]
        )
        for name in sorted({name for site in sites for name in site.counts})
    }
    approximations = tuple(dict.fromkeys(text for site in sites for text in site.approximations))
    return replace(
        first,
        parameters={name: _of_all(name, value, sites, classes) for name, value in first.parameters.items()},
        moments=moments,
        counts=counts,
        maxima=maxima,
        classes=classes,
        features=next((site.features for site in sites if site.features.names is not None), first.features),
        design=merged_designs([first.design, *(site.design for site in sites)]),
        approximations=approximations,
        min_count=min(site.min_count for site in sites),
        n_withheld=sum(site.n_withheld for site in sites),
    )


def _positions(site: Statistics, classes: ClassLabels | None) -> Labels | None:
    """Return where the classes of a site are among all; None where there are none, or all in the same order."""
    if classes is None or site.classes is None or site.classes.values == classes.values:
        return None
    return site.classes.positions_in(classes)


def _record(site: Statistics, name: str) -> CentredMoments:
    """Return moments of a site by name; of one without weights, rows without their weights are the rows."""
    return site.moments[ROWS] if name == UNWEIGHTED and UNWEIGHTED not in site.moments else site.moments[name]


def _placed(record: CentredMoments, positions: Labels | None, classes: ClassLabels | None) -> CentredMoments:
    return record if positions is None or classes is None else record.placed(positions, len(classes))


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


def in_categories(site: Statistics, categories: Array | None) -> Statistics:
    """Return statistics whose counts by category are among as many categories of each column, or more.

    Parameters
    ----------
    site : Statistics
        Its counts are (C, sum K_j), column after column.
    categories : ndarray of shape (d,) or None
        Numbers of categories of the columns; None where there are none.
    """
    if categories is None or np.array_equal(site.maxima[CATEGORIES], categories):
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
