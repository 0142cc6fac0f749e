"""The units that a layer's barycenter starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from consilience.checks import Array
from consilience.methods.layerwise import Rows

Start = Literal["reference", "units", "random"]


def first_support(
    start: Start, bundle: Mapping[str, Rows], reference: int, rng: np.random.Generator
) -> tuple[dict[str, Array], bool]:
    """Return rows (K, F) to start from for every group, and whether they are those of the reference model.

    Parameters
    ----------
    start
        The reference model's units; these and further ones of all models, drawn far from what is there, where more are
        wanted ("units", and what "reference" becomes where the numbers differ); or random ones.
    bundle
        Rows of a group and of the groups inside it.
    reference
        The reference model.
    rng
        Draws.
    """
    if start == "random":
        return {name: _random(rows, rng) for name, rows in bundle.items()}, False
    if all(len(rows.points[reference]) == rows.width for rows in bundle.values()):
        return {name: rows.points[reference] for name, rows in bundle.items()}, True
    return {name: _drawn(rows, reference, rng) for name, rows in bundle.items()}, False


def _random(rows: Rows, rng: np.random.Generator) -> Array:
    """Return Gaussian rows whose entries vary as those of the models do."""
    deviation = np.concatenate(rows.points).std(axis=0)
    return rng.normal(size=(rows.width, len(deviation))) * deviation


def _drawn(rows: Rows, reference: int, rng: np.random.Generator) -> Array:
    """Return rows of the models themselves: the reference's first, then each drawn by its distance from all before."""
    pool = np.concatenate([rows.points[reference], *rows.points])
    own = len(rows.points[reference])
    if rows.width >= own:
        chosen: list[int] = list(range(own))
        nearest = _distances(pool, pool[:own]).min(axis=1)
    else:
        chosen = [int(rng.integers(own))]
        pool = pool[:own]
        nearest = _distances(pool, pool[chosen]).min(axis=1)
    while len(chosen) < rows.width:
        mass = nearest.sum()
        draw = int(rng.choice(len(pool), p=nearest / mass)) if mass > 0 else int(rng.integers(len(pool)))
        chosen.append(draw)
        nearest = np.minimum(nearest, _distances(pool, pool[draw : draw + 1])[:, 0])
    return pool[np.array(chosen)]


def _distances(points: Array, others: Array) -> Array:
    """Return squared distances (n, m)."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * points @ others.T
    return np.maximum(squares, 0.0)
