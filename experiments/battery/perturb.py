"""Whether the default's partition stays the same: parameters perturbed by 1e-12, sites and components reordered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from battery.local_fits import Cell

import consilience as cs

SIZE = 1e-12
REPETITIONS = 3


def partition(labels: np.ndarray) -> np.ndarray:
    """Return labels (L,) in the order of first occurrence, -1 staying -1, so that equal partitions are equal arrays."""
    _, first, positions = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=int)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.where(labels < 0, -1, rank[positions] + 1)


def variants(cell: Cell, rng: np.random.Generator) -> Iterator[tuple[str, list[cs.Posterior], np.ndarray]]:
    """Yield a name, posteriors, and for each of their components (L,) the row that it has in the cell."""
    ends = np.cumsum([one.n_components for one in cell.posteriors])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    for number in range(REPETITIONS):
        moved = [
            replace(one, natural=one.natural * (1.0 + SIZE * rng.standard_normal(one.n_components))[:, None])
            for one in cell.posteriors
        ]
        yield f"times 1 + 1e-12 z, {number}", moved, np.concatenate(rows)
    for number in range(REPETITIONS):
        sites = rng.permutation(len(cell.posteriors))
        orders = [rng.permutation(cell.posteriors[site].n_components) for site in sites]
        relabelled = [cell.posteriors[site].take(order) for site, order in zip(sites, orders, strict=True)]
        yield (
            f"relabelled, {number}",
            relabelled,
            np.concatenate([rows[site][order] for site, order in zip(sites, orders, strict=True)]),
        )


def perturbed(cell: Cell) -> dict[str, Any]:
    """Return, for every variant, whether the partition is the same, and its number of components."""
    reference = cs.fuse(cell.posteriors, min_count=0)
    expected = partition(reference.matching.labels)
    result: dict[str, Any] = {"components": reference.n_components, "same": {}, "found": {}}
    for name, posteriors, rows in variants(cell, np.random.default_rng([cell.setting.seed, 2])):
        fusion = cs.fuse(posteriors, min_count=0)
        labels = np.empty_like(expected)
        labels[rows] = fusion.matching.labels
        result["same"][name] = bool(np.array_equal(partition(labels), expected))
        result["found"][name] = fusion.n_components
    return result
