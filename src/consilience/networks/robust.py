"""Robust averages of networks whose units are aligned.

Weights may be anything, so the coordinate-wise median m of all models is a safe centre. ``"trim"`` leaves out the given
part of the models, whole: those whose worst array is farthest from m, in units of the usual distance of that array. The
others are averaged as ever. A half-trimmed network would be none: what its remaining units expect of the others is
gone. ``"median"`` takes every row (what one unit receives from one array) by itself, and of the rows of all models that
own the unit the geometric median, argmin_c sum_j w_j |c - row_j|, by Weiszfeld's iteration from m. As long as fewer
than half of the models are hostile both are bounded by the honest ones.

Alignment is protected too: it sums over pairs of models, where weights ten times as large count a hundred times as
much. So models are aligned as if no array of theirs were larger than is credible, and averaged as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array
from consilience.networks.network import convert_like, square_sum, to_numpy
from consilience.networks.symmetry.axes import Layout
from consilience.posteriors.robust.estimators import FEWEST, Robust

if TYPE_CHECKING:
    from consilience.networks.method import NetworkEnsemble

_BLOCK_BYTES = 2**26
_STEPS = 50
_TOLERANCE = 1e-9


def credible(ensemble: NetworkEnsemble, robust: Robust) -> NetworkEnsemble:
    """Return the networks with arrays cut to the largest root mean square that is credible, for aligning them."""
    tolerated = robust.tolerated(len(ensemble.networks))
    scaled: list[dict[str, AnyArray]] = [{} for _ in ensemble.networks]
    for key in ensemble.networks[0].working:
        arrays = [network.working[key] for network in ensemble.networks]
        sizes = np.array([(square_sum(values) / max(1, prod(values.shape))) ** 0.5 for values in arrays])
        limit = np.sort(sizes)[len(sizes) - 1 - tolerated]
        for own, values, size in zip(scaled, arrays, sizes.tolist(), strict=True):
            own[key] = values * (limit / size) if size > limit else values
    networks = (one.with_arrays(own, one.name) for one, own in zip(ensemble.networks, scaled, strict=True))
    return replace(ensemble, networks=tuple(networks))


def trusted(distances: Array, robust: Robust) -> Array:
    """Return which models (J,) are kept, 1 or 0, given how far each array of each (A, J) is from the middle one.

    Examples
    --------
    >>> trusted(np.array([[1.0, 1.1, 9.0, 0.9], [1.0, 0.2, 1.0, 1.1]]), Robust("trim", 0.25))
    array([1., 1., 0., 1.])
    """
    count = distances.shape[1]
    usual = np.median(distances, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(distances > 0, distances / usual, 0.0)
    order = np.argsort(np.max(relative, axis=0, initial=0.0), kind="stable")
    kept = np.zeros(count)
    kept[order[: count - robust.tolerated(count)]] = 1.0
    return kept


def distances(moved: Sequence[AnyArray], owned: Sequence[Any], weights: Sequence[float], layout: Layout) -> Array:
    """Return the root mean square distance (J,) of arrays from their coordinate-wise median, over what models own.

    Models of weight zero have no say in the median, and no distance.
    """
    total, number = np.zeros(len(moved)), np.zeros(len(moved))
    for rows, owns, _ in _blocks(moved, owned, weights, layout):
        with np.errstate(over="ignore"):
            squares = ((rows - _middle(rows, owns)) ** 2).sum(axis=2)
        total += np.where(owns, squares, 0.0).sum(axis=1)
        number += owns.sum(axis=1) * rows.shape[2]
    apart: Array = np.sqrt(total / np.maximum(number, 1.0))
    return apart


def geometric_median(
    moved: Sequence[AnyArray], owned: Sequence[Any], weights: Sequence[float], layout: Layout
) -> AnyArray:
    """Return the geometric median of arrays of aligned networks, row by row.

    Parameters
    ----------
    moved
        The array of every model, its units where the fused network has them.
    owned
        For every model 1 where it owns the unit that an entry belongs to, else 0; broadcasts to the array.
    weights
        What each model counts.
    layout
        Which axes are whose; rows lie along the first whose units move on the output side, else along the first.
    """
    like = moved[0]
    shape, axis = tuple(like.shape), _row_axis(layout)
    found = [_median(rows, shares * owns) for rows, owns, shares in _blocks(moved, owned, weights, layout)]
    result = np.concatenate(found) if found else np.zeros(shape)
    if shape:
        result = np.moveaxis(result.reshape(shape[axis], *(n for i, n in enumerate(shape) if i != axis)), 0, axis)
    xp = array_namespace(like)
    fused: AnyArray = xp.astype(convert_like(np.ascontiguousarray(result.reshape(shape)), like), like.dtype)
    return fused


def _row_axis(layout: Layout) -> int:
    return next((n for n, axis in enumerate(layout.axes) if axis.moves and axis.side != "input"), 0)


def _blocks(
    moved: Sequence[AnyArray], owned: Sequence[Any], weights: Sequence[float], layout: Layout
) -> Iterator[tuple[Array, NDArray[np.bool_], Array]]:
    """Yield rows (J, R, C), which models have them (J, R) and what these count (J, R), in blocks of bounded memory."""
    shape, axis = tuple(moved[0].shape), _row_axis(layout)
    count = shape[axis] if shape else 1
    columns = prod(shape) // max(1, count)

    def in_rows(values: Any) -> Array:
        full = np.broadcast_to(to_numpy(values), shape)
        return np.moveaxis(full, axis, 0).reshape(count, columns) if shape else full.reshape(1, 1)

    stacked = [in_rows(values) for values in moved]
    owns = np.stack([in_rows(held).max(axis=1, initial=0.0) for held in owned]) > 0
    owns &= np.asarray(weights)[:, None] > 0
    shares = np.where(owns, np.asarray(weights)[:, None], 0.0)
    step = max(1, _BLOCK_BYTES // (8 * len(moved) * max(1, columns)))
    for start in range(0, count, step):
        part = slice(start, start + step)
        yield np.stack([values[part] for values in stacked]), owns[:, part], shares[:, part]


def _median(rows: Array, shares: Array) -> Array:
    """Return geometric medians (R, C) of rows (J, R, C) with weights (J, R); the mean of one or two."""
    owns = shares > 0
    few = owns.sum(axis=0) < FEWEST
    centre = _middle(rows, owns)
    for _ in range(_STEPS):
        with np.errstate(over="ignore"):
            far = np.where(owns, ((rows - centre) ** 2).sum(axis=2), np.inf)
        usual = np.median(np.where(np.isfinite(far), far, 0.0), axis=0)
        pull = np.where(few, shares, shares / np.sqrt(far + (1e-12 * usual + 1e-300)))
        moved = _weighted(rows, centre, pull)
        settled = np.abs(moved - centre).max(initial=0.0) <= _TOLERANCE * np.abs(centre).max(initial=0.0)
        centre = moved
        if settled:
            break
    return centre


def _middle(rows: Array, owns: NDArray[np.bool_]) -> Array:
    """Return the coordinate-wise medians (R, C) over the models that have a row; zero where none has."""
    count = owns.sum(axis=0)
    ordered = np.sort(np.where(owns[:, :, None], rows, np.inf), axis=0)
    each = np.arange(rows.shape[1])
    low, high = ordered[np.maximum(count - 1, 0) // 2, each], ordered[np.minimum(count // 2, len(rows) - 1), each]
    with np.errstate(invalid="ignore"):
        return np.where((count > 0)[:, None], low + 0.5 * (high - low), 0.0)


def _weighted(rows: Array, centre: Array, shares: Array) -> Array:
    """Return weighted means (R, C), as differences from a centre: exact for equal rows."""
    total = shares.sum(axis=0)
    offsets = np.where((shares > 0)[:, :, None], rows - centre, 0.0)
    return centre + np.einsum("jr,jrc->rc", shares / np.where(total > 0, total, 1.0), offsets)


def refuse_robust(name: str, robust: str, count: int, *, averages: bool) -> list[str]:
    """Return why robust fusion of so many networks means nothing for a method, a line each."""
    reasons = []
    if not averages:
        reasons.append(
            f"{name}: robust={robust!r} is for methods that average aligned weights, which this one does not with "
            "these options; use 'consensus', 'rebasin', 'ot', 'wb', 'gwb' or 'average'"
        )
    if count < FEWEST:
        reasons.append(f"{name}: robust={robust!r} needs at least {FEWEST} networks: of two, none tells which is right")
    return reasons
