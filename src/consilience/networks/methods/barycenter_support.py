"""Initial support of a layer's barycenter: the unit rows from which the iteration starts.

Where widths agree it is the reference model's units. Where they differ, units of all models are sampled as in k-means++
(Arthur and Vassilvitskii 2007): each with a probability proportional to its squared distance from the nearest unit that
was chosen before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, Labels
from consilience.networks.methods.layerwise import UnitRows
from consilience.networks.network import to_numpy

Start = Literal["reference", "units", "random"]

DUPLICATE_ROUNDING = 1e-10
"""Squared distances below this fraction of the longest row's square are rounding: such units are duplicates. Chosen by
hand; nobody has measured other values."""


def initial_support(
    start: Start, bundle: Mapping[str, UnitRows], reference: int, rng: np.random.Generator, has_signs: bool = False
) -> tuple[dict[str, AnyArray], bool]:
    """Return rows (K, F) to start from for every group, and whether they are the reference model's in their order.

    They are the reference model's units; these and further units of all models, sampled far from those before, where
    more are needed ("units", which "reference" becomes where widths differ); or random rows. Where units may change
    sign, a unit and its mirror image are duplicates.
    """
    if start == "random":
        return {name: _as_array_of(rows, _random_rows(rows, rng)) for name, rows in bundle.items()}, False
    if all(len(rows.points[reference]) == rows.width for rows in bundle.values()):
        return {name: rows.points[reference] for name, rows in bundle.items()}, True
    return {
        name: _as_array_of(rows, _sample_units(rows, reference, rng, has_signs)) for name, rows in bundle.items()
    }, False


def _as_array_of(rows: UnitRows, values: Array) -> AnyArray:
    """Return values as an array of the library, precision and device of the unit rows."""
    like = rows.points[0]
    return array_namespace(like).asarray(values, dtype=like.dtype, device=like.device)


def _random_rows(rows: UnitRows, rng: np.random.Generator) -> Array:
    """Return Gaussian rows (K, F) of mean 0, every entry with its standard deviation over all models' units."""
    deviation = np.concatenate([to_numpy(points) for points in rows.points]).std(axis=0)  # (F,)
    return rng.normal(size=(rows.width, len(deviation))) * deviation


def _sample_units(rows: UnitRows, reference: int, rng: np.random.Generator, has_signs: bool) -> Array:
    """Return rows (K, F) of the models' units: the reference's first, then sampled far from those before."""
    points = [to_numpy(model_points) for model_points in rows.points]
    odd = np.flatnonzero(rows.odd) if has_signs else None
    pool = np.concatenate([points[reference], *points])  # the reference's units come first, at numbers 0 to k - 1
    n_reference = len(points[reference])
    if rows.width >= n_reference:
        chosen: list[int] = list(range(n_reference))
        nearest = _squared_distances(pool, pool[:n_reference], odd).min(axis=1)  # (pool,)
    else:  # fewer units than the reference has: all of them are drawn from it
        chosen = [int(rng.integers(n_reference))]
        pool = pool[:n_reference]
        nearest = _squared_distances(pool, pool[chosen], odd).min(axis=1)
    duplicate_distance = DUPLICATE_ROUNDING * float((pool**2).sum(axis=1).max(initial=0.0))
    while len(chosen) < rows.width:
        if nearest.max(initial=0.0) > duplicate_distance:
            draw = int(rng.choice(len(pool), p=nearest / nearest.sum()))
        else:  # every distinct unit is there: repeat the reference's in turn, so that all are split alike
            draw = len(chosen) % min(n_reference, len(pool))
        chosen.append(draw)
        nearest = np.minimum(nearest, _squared_distances(pool, pool[draw : draw + 1], odd)[:, 0])
    return pool[np.array(chosen)]


def _squared_distances(points: Array, others: Array, odd: Labels | None) -> Array:
    """Return squared distances (n, m); with `odd` entries that may change sign together, of the nearer sign."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * points @ others.T
    if odd is not None:
        products = points[:, odd] @ others[:, odd].T
        squares += 2.0 * (products - np.abs(products))  # <x, y> becomes |<x, y>| over the odd entries
    return np.maximum(squares, 0.0)
