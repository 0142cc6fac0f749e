"""Fourth moments of rows: what Ledoit's and Wolf's shrinkage needs beside second moments, a number for each class.

They are mean squared squared norms of rows in a frame: z = (x - m) / s with m and s the mean and the scales of all
sites' rows, which are known once first messages have been added. So they are told in a second message. Classes have a
frame each, and all rows together one more; `LedoitWolf` has the one of all rows, without scales.

At the end of a Pipeline x is what its steps make of a row. They are fitted from first messages too, and affine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.estimators.adapters.base import EstimatorAdapter
from consilience.estimators.adapters.covariance_of_moments import column_scales
from consilience.estimators.rebuild import apply_steps
from consilience.estimators.site_rows import SiteRows
from consilience.estimators.statistics import FOURTH, FOURTH_TOTAL, Statistics


def frames_of(statistics: Statistics) -> tuple[Array, Array]:
    """Return centres and scales (K, m): of each class and, last, of all rows; K = 1 without classes.

    They are of what leaves the steps of a Pipeline.
    """
    record = apply_steps(statistics)[1].rows
    if statistics.classes is None:
        is_about_zero = bool(statistics.parameters.get("assume_centered"))
        centres = np.zeros(record.n_columns) if is_about_zero else record.mean
        return centres[None], np.ones((1, record.n_columns))
    records = [*(record.at(c) for c in range(len(record.n))), record.total()]
    return np.stack([one.mean for one in records]), np.stack([column_scales(one) for one in records])


def fourth_powers(X: Array, numbers: Any, centres: Array, scales: Array) -> Array:
    """Return sums of |z|^4 of rows (n, d) in each frame (K,): those of the rows of each class, and of all.

    `numbers` (n,) are the classes of the rows, None without classes; `centres` and `scales` (K, d) are the frames.
    """
    parts = [X] if numbers is None else [*(X[numbers == c] for c in range(len(centres) - 1)), X]
    return np.array(
        [
            np.sum(np.sum(((rows - centre) / scale) ** 2, axis=1) ** 2)
            for rows, centre, scale in zip(parts, centres, scales, strict=True)
        ]
    )


def with_fourth_moments(statistics: Statistics, means: Array) -> Statistics:
    """Return statistics with the mean fourth powers in each frame (K,), 0 where they are not known."""
    if statistics.classes is None:
        fourth_moments = {FOURTH: means.reshape(())}
    else:
        fourth_moments = {FOURTH: means[:-1], FOURTH_TOTAL: means[-1:].reshape(())}
    return replace(statistics, counts={**statistics.counts, **fourth_moments})


def with_own_fourth_moments(adapter: EstimatorAdapter, statistics: Statistics, rows: SiteRows) -> Statistics:
    """Return the statistics of rows with their own fourth moments, where their estimator needs them."""
    if not adapter.needs_fourth_moments(statistics.parameters):
        return statistics
    X = rows.dense
    if statistics.steps:
        matrix, shift = apply_steps(statistics)[2]
        X = X @ matrix.T + shift
    counts = np.atleast_1d(statistics.rows.n)
    counts = counts if statistics.classes is None else np.append(counts, counts.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        means = fourth_powers(X, rows.numbers, *frames_of(statistics)) / np.maximum(counts, 1.0)
    return with_fourth_moments(statistics, means)
