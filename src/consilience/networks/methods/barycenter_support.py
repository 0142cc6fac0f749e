"""The units that a layer's barycenter starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, Labels
from consilience.networks.methods.layerwise import Rows
from consilience.networks.network import to_numpy

Start = Literal["reference", "units", "random"]


def first_support(
    start: Start, bundle: Mapping[str, Rows], reference: int, rng: np.random.Generator, turning: bool = False
) -> tuple[dict[str, AnyArray], bool]:
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
    turning
        Whether units may change sign, so that a unit and its twin of the other sign are the same.
    """
    if start == "random":
        return {name: _like(_random(rows, rng), rows) for name, rows in bundle.items()}, False
    if all(len(rows.points[reference]) == rows.width for rows in bundle.values()):
        return {name: rows.points[reference] for name, rows in bundle.items()}, True
    return {name: _like(_drawn(rows, reference, rng, turning), rows) for name, rows in bundle.items()}, False


def _like(values: Array, rows: Rows) -> AnyArray:
    """Return an array of the library and precision that the rows have."""
    given = rows.points[0]
    return array_namespace(given).asarray(values, dtype=given.dtype, device=given.device)


def _random(rows: Rows, rng: np.random.Generator) -> Array:
    """Return Gaussian rows whose entries vary as those of the models do."""
    deviation = np.concatenate([to_numpy(points) for points in rows.points]).std(axis=0)
    return rng.normal(size=(rows.width, len(deviation))) * deviation


def _drawn(rows: Rows, reference: int, rng: np.random.Generator, turning: bool) -> Array:
    """Return rows of the models themselves: the reference's first, then each drawn by its distance from all before."""
    points = [to_numpy(one) for one in rows.points]
    odd = np.flatnonzero(rows.odd) if turning else None
    pool = np.concatenate([points[reference], *points])
    own = len(points[reference])
    if rows.width >= own:
        chosen: list[int] = list(range(own))
        nearest = _distances(pool, pool[:own], odd).min(axis=1)
    else:
        chosen = [int(rng.integers(own))]
        pool = pool[:own]
        nearest = _distances(pool, pool[chosen], odd).min(axis=1)
    told_apart = _TOLD_APART * float((pool**2).sum(axis=1).max(initial=0.0))
    while len(chosen) < rows.width:
        if nearest.max(initial=0.0) > told_apart:
            draw = int(rng.choice(len(pool), p=nearest / nearest.sum()))
        else:  # all units are there: each is taken again in turn, so that all are split alike
            draw = len(chosen) % min(own, len(pool))
        chosen.append(draw)
        nearest = np.minimum(nearest, _distances(pool, pool[draw : draw + 1], odd)[:, 0])
    return pool[np.array(chosen)]


_TOLD_APART = 1e-10
"""Squared distances below this share of the longest row are rounding: such units are the same."""


def _distances(points: Array, others: Array, odd: Labels | None) -> Array:
    """Return squared distances (n, m), of the nearer twin where entries `odd` may change sign together."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * points @ others.T
    if odd is not None:
        products = points[:, odd] @ others[:, odd].T
        squares += 2.0 * (products - np.abs(products))
    return np.maximum(squares, 0.0)
