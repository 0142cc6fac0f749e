"""Robust averages of aligned networks: trimmed mean of models and geometric median of rows.

Networks have no domain to leave, so the coordinate-wise median m of all aligned models is a safe centre.

``"trim"`` leaves out whole models: the fraction `trim` whose worst array is farthest from m, in units of the median
distance of that array. The others are averaged as without robustness. Trimming row by row is no alternative: the
remaining rows of a network rely on the rows that were trimmed (docs/adr/0017).

``"median"`` replaces every row (the weights by which one unit receives one array) by the geometric median of the rows
of all models that own the unit,

    argmin_c sum_j w_j |c - row_j|,

found by Weiszfeld's iteration from m. While fewer than half of the models are hostile, both averages are bounded by the
honest models.

The alignment needs protection of its own: its objective sums products over pairs of models, in which weights ten times
as large count a hundred times as much. So models are aligned with arrays clipped to a credible size, and averaged as
they are.
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
from consilience.core.robust_estimator import MIN_VOTES, RobustEstimator
from consilience.core.robust_judgement import standardized_squares
from consilience.errors import Problem
from consilience.networks.network import convert_like, square_sum, to_numpy
from consilience.networks.symmetry.axes import Layout

if TYPE_CHECKING:
    from consilience.networks.method import NetworkEnsemble

BLOCK_BYTES = 2**26
"""Memory of one block of rows of all models, 64 MiB. Chosen by hand; nobody has measured other values."""

MAX_DIFFERENCE = 1e100
"""Differences of weights are cut to this, so that their squares do not overflow."""

MAX_WEISZFELD_STEPS = 50
"""Steps of one geometric median at most. Chosen by hand; nobody has measured other values."""

WEISZFELD_TOLERANCE = 1e-9
"""A step shorter than this fraction of the largest coordinate ends the iteration. Chosen by hand."""

WEISZFELD_SMOOTHING = 1e-12
"""Fraction of the median squared distance that is added to every squared distance, so that a row at the very centre
has a finite weight. Chosen by hand; nobody has measured other values. Of the median, not of the mean as for posteriors,
which leave out outliers before: one row of 1e6 among five would smooth all differences of the others away."""


def clip_array_scales(ensemble: NetworkEnsemble, robust: RobustEstimator) -> NetworkEnsemble:
    """Return the networks with every array scaled down to the largest root mean square that is credible.

    Parameters
    ----------
    ensemble : NetworkEnsemble
        The networks.
    robust : RobustEstimator
        How many models may be hostile.
    """
    clipped: list[dict[str, AnyArray]] = [{} for _ in ensemble.networks]
    for key in ensemble.networks[0].working:
        arrays = [network.working[key] for network in ensemble.networks]
        sizes = np.array([(square_sum(values) / max(1, prod(values.shape))) ** 0.5 for values in arrays])  # (J,)
        for model_arrays, values, factor in zip(clipped, arrays, robust.cap_factors(sizes).tolist(), strict=True):
            model_arrays[key] = values * factor if factor < 1.0 else values
    networks = (
        network.with_arrays(arrays, network.name) for network, arrays in zip(ensemble.networks, clipped, strict=True)
    )
    return replace(ensemble, networks=tuple(networks))


def inlier_mask(distances: Array, robust: RobustEstimator) -> Array:
    """Return the mask of models that are kept by trimming.

    A model is judged by its worst array: the largest distance from the median model, relative to the median distance
    of that array over models.

    Parameters
    ----------
    distances : ndarray of shape (n_arrays, n_models)
        Distance of every array of every model from the coordinate-wise median; see ``distances_to_median``.
    robust : RobustEstimator
        How many models may be hostile.

    Returns
    -------
    ndarray of shape (n_models,)
        1 for models that are kept, 0 for the others.

    Examples
    --------
    >>> inlier_mask(np.array([[1.0, 1.1, 9.0, 0.9], [1.0, 0.2, 1.0, 1.1]]), RobustEstimator("trim", 0.25))
    array([1., 1., 0., 1.])
    """
    n_models = distances.shape[1]
    typical = np.median(distances, axis=1, keepdims=True)  # (A, 1)
    # Where most models agree exactly (a frozen array) the median is 0: any other distance is then infinitely far.
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(distances > 0, distances / typical, 0.0)  # (A, J)
    order = np.argsort(np.max(relative, axis=0, initial=0.0), kind="stable")  # nearest models first
    mask = np.zeros(n_models)
    mask[order[: n_models - robust.tolerated(n_models)]] = 1.0
    return mask


def distances_to_median(
    arrays: Sequence[AnyArray], ownership: Sequence[Any], weights: Sequence[float], layout: Layout
) -> Array:
    """Return the root mean square distance (J,) of one array of every model from the coordinate-wise median.

    Only rows that a model owns count. Models of weight zero have no vote in the median, and distance zero.
    Parameters are those of ``geometric_median``.
    """
    square_totals, n_entries = np.zeros(len(arrays)), np.zeros(len(arrays))
    for rows, owns, _ in _row_blocks(arrays, ownership, weights, layout):
        with np.errstate(over="ignore"):  # rows of absurd size are infinitely far, and trimmed
            squares = ((rows - _coordinate_median(rows, owns)) ** 2).sum(axis=2)  # (J, R)
        square_totals += np.where(owns, squares, 0.0).sum(axis=1)
        n_entries += owns.sum(axis=1) * rows.shape[2]
    distances: Array = np.sqrt(square_totals / np.maximum(n_entries, 1.0))
    return distances


def squared_distances(arrays: Sequence[AnyArray]) -> Array:
    """Return the squared distances (J, J) of arrays of all models, as whole; no difference overflows.

    Parameters
    ----------
    arrays : sequence of arrays of one shape, of length n_models
        The array of every model after transport into the fused network.
    """
    n_models, total = len(arrays), np.zeros((len(arrays), len(arrays)))
    matrices = [to_numpy(values).reshape(-1) for values in arrays]
    step = max(1, BLOCK_BYTES // (8 * n_models * n_models))
    for start in range(0, len(matrices[0]), step):
        block = np.stack([matrix[start : start + step] for matrix in matrices])  # (J, C)
        differences = np.clip(block[:, None] - block, -MAX_DIFFERENCE, MAX_DIFFERENCE)
        total += (differences**2).sum(axis=2)
    return total


def standardized_squared_distances(arrays: Sequence[AnyArray]) -> Array:
    """Return the squared distances (J, J) of arrays in standardized coordinates (`posteriors.robust.judgement`).

    Parameters
    ----------
    arrays
        As for ``squared_distances``.
    """
    n_models, total = len(arrays), np.zeros((len(arrays), len(arrays)))
    matrices = [to_numpy(values).reshape(-1) for values in arrays]
    step = max(1, BLOCK_BYTES // (8 * 8 * n_models))  # of a block some eight arrays are there at once
    for start in range(0, len(matrices[0]), step):
        block = np.stack([matrix[start : start + step] for matrix in matrices])  # (J, C)
        total += standardized_squares(np.clip(block, -MAX_DIFFERENCE, MAX_DIFFERENCE))
    return total


def geometric_median(
    arrays: Sequence[AnyArray], ownership: Sequence[Any], weights: Sequence[float], layout: Layout
) -> AnyArray:
    """Return the geometric median of one array of aligned networks, row by row.

    Parameters
    ----------
    arrays : sequence of arrays of one shape, of length n_models
        The array of every model after transport into the fused network.
    ownership : sequence of arrays or numbers, of length n_models
        For every model 1 where it owns the unit that an entry belongs to, else 0; broadcasts to the array.
    weights : sequence of float, of length n_models
        Weight of each model.
    layout : Layout
        Axes of the array. Rows lie along the first axis whose units move on the output side; if there is none, along
        the first axis.

    Returns
    -------
    array
        In the array library, precision and shape of the first model's array.
    """
    like = arrays[0]
    shape, axis = tuple(like.shape), _row_axis(layout)
    medians = [
        _weiszfeld(rows, row_weights * owns)
        for rows, owns, row_weights in _row_blocks(arrays, ownership, weights, layout)
    ]
    result = np.concatenate(medians) if medians else np.zeros(shape)  # (rows, entries of a row)
    if shape:
        result = np.moveaxis(result.reshape(shape[axis], *(n for i, n in enumerate(shape) if i != axis)), 0, axis)
    xp = array_namespace(like)
    fused: AnyArray = xp.astype(convert_like(np.ascontiguousarray(result.reshape(shape)), like), like.dtype)
    return fused


def _row_axis(layout: Layout) -> int:
    """Return the axis along which rows of units lie: the first that moves on the output side, else the first."""
    return next((n for n, axis in enumerate(layout.axes) if axis.moves and axis.side != "input"), 0)


def _row_blocks(
    arrays: Sequence[AnyArray], ownership: Sequence[Any], weights: Sequence[float], layout: Layout
) -> Iterator[tuple[Array, NDArray[np.bool_], Array]]:
    """Yield rows (J, R, C), which models own them (J, R) and their weights (J, R), in blocks of bounded memory."""
    shape, axis = tuple(arrays[0].shape), _row_axis(layout)
    n_rows = shape[axis] if shape else 1
    n_columns = prod(shape) // max(1, n_rows)

    def as_rows(values: Any) -> Array:
        full = np.broadcast_to(to_numpy(values), shape)
        return np.moveaxis(full, axis, 0).reshape(n_rows, n_columns) if shape else full.reshape(1, 1)

    matrices = [as_rows(values) for values in arrays]
    owns = np.stack([as_rows(mask).max(axis=1, initial=0.0) for mask in ownership]) > 0  # (J, rows)
    owns &= np.asarray(weights)[:, None] > 0
    row_weights = np.where(owns, np.asarray(weights)[:, None], 0.0)  # (J, rows)
    step = max(1, BLOCK_BYTES // (8 * len(arrays) * max(1, n_columns)))
    for start in range(0, n_rows, step):
        block = slice(start, start + step)
        yield np.stack([matrix[block] for matrix in matrices]), owns[:, block], row_weights[:, block]


def _weiszfeld(rows: Array, weights: Array) -> Array:
    """Return geometric medians (R, C) of rows (J, R, C) with weights (J, R); the weighted mean of one or two."""
    owns = weights > 0
    # Every point between two rows is a geometric median of them; the mean is taken there, by constant weights.
    is_mean = owns.sum(axis=0) < MIN_VOTES  # (R,)
    centre = _coordinate_median(rows, owns)  # (R, C)
    for _ in range(MAX_WEISZFELD_STEPS):
        with np.errstate(over="ignore"):
            squares = np.where(owns, ((rows - centre) ** 2).sum(axis=2), np.inf)  # (J, R)
        typical = np.median(np.where(np.isfinite(squares), squares, 0.0), axis=0)  # (R,)
        # 1e-300 is there for rows that agree exactly, whose typical distance is zero.
        step_weights = np.where(
            is_mean, weights, weights / np.sqrt(squares + (WEISZFELD_SMOOTHING * typical + 1e-300))
        )  # (J, R)
        update = _weighted_mean(rows, centre, step_weights)
        converged = np.abs(update - centre).max(initial=0.0) <= WEISZFELD_TOLERANCE * np.abs(centre).max(initial=0.0)
        centre = update
        if converged:
            break
    return centre


def _coordinate_median(rows: Array, owns: NDArray[np.bool_]) -> Array:
    """Return the coordinate-wise medians (R, C) over the models that own a row; zero where none does."""
    n_owners = owns.sum(axis=0)  # (R,)
    ordered = np.sort(np.where(owns[:, :, None], rows, np.inf), axis=0)  # rows that are not owned sort last
    row_numbers = np.arange(rows.shape[1])
    low = ordered[np.maximum(n_owners - 1, 0) // 2, row_numbers]  # (R, C)
    high = ordered[np.minimum(n_owners // 2, len(rows) - 1), row_numbers]
    with np.errstate(invalid="ignore"):
        return np.where((n_owners > 0)[:, None], low + 0.5 * (high - low), 0.0)


def _weighted_mean(rows: Array, centre: Array, weights: Array) -> Array:
    """Return weighted means (R, C) of rows (J, R, C), as differences from a centre: exact for equal rows."""
    total = weights.sum(axis=0)
    offsets = np.where((weights > 0)[:, :, None], rows - centre, 0.0)
    return centre + np.einsum("jr,jrc->rc", weights / np.where(total > 0, total, 1.0), offsets)


def refuse_robust(name: str, robust: object, count: int) -> list[Problem]:
    """Return the problems of robust fusion by a method of this name for this number of networks that have a vote."""
    if count >= MIN_VOTES:
        return []
    text = f"`robust={robust!r}` needs at least {MIN_VOTES} networks: of two, none tells which is right"
    return [Problem(name, text, code="E-FEW")]
