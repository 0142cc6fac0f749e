"""Robust averages of aligned networks: trimmed mean of models and geometric median of rows.

Networks have no domain to leave, so the coordinate-wise median m of all aligned models is a safe centre.

``"trim"`` leaves out whole models: the fraction `trim` whose worst array is farthest from m, in units of the median
distance of that array. The others are averaged as without robustness. Trimming row by row is no alternative: the
remaining rows of a network rely on the rows that were trimmed (docs/adr/0017).

``"median"`` replaces every row (the weights by which one unit receives one array) by the geometric median of the rows
of all models that own the unit,

    argmin_c sum_j w_j |c - row_j|,

found from m on (`core.robust`). While fewer than half of the models are hostile, both averages are bounded by the
honest models.

The alignment needs protection of its own: its objective sums products over pairs of models, in which weights ten times
as large count a hundred times as much. So models are aligned with arrays clipped to a credible size, and averaged as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array
from consilience.core.robust import geometric_median, standardized_squares
from consilience.core.robust_estimator import RobustEstimator
from consilience.networks.network import convert_like, square_sum, to_numpy
from consilience.networks.symmetry.axes import Layout

if TYPE_CHECKING:
    from consilience.networks.method import NetworkEnsemble

BLOCK_BYTES = 2**26
"""Memory of one block of rows of all models, 64 MiB. Chosen by hand; nobody has measured other values."""

MAX_SCALE = 2.0
"""Root mean square of an array, in the largest credible, beyond which units are not matched by it as it is."""

MAX_DIFFERENCE = 1e100
"""Differences of weights are cut to this, so that their squares do not overflow."""


def clip_array_scales(ensemble: NetworkEnsemble, robust: RobustEstimator) -> NetworkEnsemble:
    """Return the networks with every array scaled down to twice the largest root mean square that is credible."""
    clipped: list[dict[str, AnyArray]] = [{} for _ in ensemble.networks]
    for key in ensemble.networks[0].working:
        arrays = [network.working[key] for network in ensemble.networks]
        sizes = np.array([(square_sum(values) / max(1, prod(values.shape))) ** 0.5 for values in arrays])  # (J,)
        factors = np.minimum(1.0, MAX_SCALE * robust.cap_factors(sizes))
        for model_arrays, values, factor in zip(clipped, arrays, factors.tolist(), strict=True):
            model_arrays[key] = values * factor if factor < 1.0 else values
    networks = (
        network.with_arrays(arrays, network.name) for network, arrays in zip(ensemble.networks, clipped, strict=True)
    )
    return replace(ensemble, networks=tuple(networks))


def inlier_mask(distances: Array, robust: RobustEstimator) -> Array:
    """Return the mask (n_models,) of models that are kept by trimming: 1, or 0 for the others.

    A model is judged by its worst array: the largest distance from the median model (``distances_to_median``; n_arrays,
    n_models), relative to the median distance of that array over models.

    Examples
    --------
    >>> inlier_mask(np.array([[1.0, 1.1, 9.0, 0.9], [1.0, 0.2, 1.0, 1.1]]), RobustEstimator("trim", 0.25))
    array([1., 1., 0., 1.])
    """
    typical = np.median(distances, axis=1, keepdims=True)  # (A, 1)
    # Where most models agree exactly (a frozen array) the median is 0: any other distance is then infinitely far.
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(distances > 0, distances / typical, 0.0)  # (A, J)
    worst = np.max(relative, axis=0, initial=0.0)
    return robust.nearest(worst, np.ones(len(worst))).astype(np.float64)


def distances_to_median(
    arrays: Sequence[AnyArray], ownership: Sequence[Any], weights: Sequence[float], layout: Layout
) -> Array:
    """Return the root mean square distance (J,) of one array of every model from the coordinate-wise median.

    Only rows that a model owns count. Models of weight zero have no vote in the median, and distance zero.
    Parameters are those of ``array_median``.
    """
    square_totals, n_entries = np.zeros(len(arrays)), np.zeros(len(arrays))
    for rows, votes in _row_blocks(arrays, ownership, weights, layout):
        owns = votes > 0
        with np.errstate(over="ignore"):  # rows of absurd size are infinitely far, and trimmed
            squares = ((rows - _coordinate_median(rows, owns)) ** 2).sum(axis=2)  # (J, R)
        square_totals += np.where(owns, squares, 0.0).sum(axis=1)
        n_entries += owns.sum(axis=1) * rows.shape[2]
    distances: Array = np.sqrt(square_totals / np.maximum(n_entries, 1.0))
    return distances


def squared_distances(arrays: Sequence[AnyArray]) -> Array:
    """Return the squared distances (J, J) of arrays of one shape of all models, as whole; no difference overflows."""
    step = max(1, BLOCK_BYTES // (8 * len(arrays) ** 2))
    return _sum_over_blocks(arrays, step, lambda block: (_bounded(block[:, None] - block) ** 2).sum(axis=2))


def standardized_squared_distances(arrays: Sequence[AnyArray]) -> Array:
    """Return the squared distances (J, J) of arrays in standardized coordinates (`core.robust`)."""
    step = max(1, BLOCK_BYTES // (8 * 8 * len(arrays)))  # of a block some eight arrays are there at once
    return _sum_over_blocks(arrays, step, lambda block: standardized_squares(_bounded(block)))


def _sum_over_blocks(arrays: Sequence[AnyArray], step: int, measure: Callable[[Array], Array]) -> Array:
    """Return the sum of what is measured (J, J) of blocks (J, step) of the entries of all models."""
    total, rows = np.zeros((len(arrays), len(arrays))), [to_numpy(values).reshape(-1) for values in arrays]
    for start in range(0, len(rows[0]), step):
        total += measure(np.stack([row[start : start + step] for row in rows]))
    return total


def _bounded(differences: Array) -> Array:
    """Return differences whose squares do not overflow."""
    return np.clip(differences, -MAX_DIFFERENCE, MAX_DIFFERENCE)


def array_median(
    arrays: Sequence[AnyArray], ownership: Sequence[Any], weights: Sequence[float], layout: Layout
) -> AnyArray:
    """Return the geometric median of one array of aligned networks, row by row, like the first model's array.

    It takes the array of every model after transport into the fused network, and where each owns the units that its
    entries belong to (1, else 0; broadcasts). Rows lie along the first axis whose units move on the output side; if
    there is none, along the first axis.
    """
    like = arrays[0]
    shape, axis = tuple(like.shape), _row_axis(layout)
    medians = [geometric_medians(rows, votes) for rows, votes in _row_blocks(arrays, ownership, weights, layout)]
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
) -> Iterator[tuple[Array, Array]]:
    """Yield rows (J, R, C), and the weights (J, R) of the models that own them, in blocks of bounded memory."""
    shape, axis = tuple(arrays[0].shape), _row_axis(layout)
    n_rows = shape[axis] if shape else 1
    n_columns = prod(shape) // max(1, n_rows)

    def as_rows(values: Any) -> Array:
        full = np.broadcast_to(to_numpy(values), shape)
        return np.moveaxis(full, axis, 0).reshape(n_rows, n_columns) if shape else full.reshape(1, 1)

    matrices = [as_rows(values) for values in arrays]
    owns = np.stack([as_rows(mask).max(axis=1, initial=0.0) for mask in ownership]) > 0  # (J, rows)
    votes = np.where(owns, np.asarray(weights)[:, None], 0.0)  # (J, rows)
    step = max(1, BLOCK_BYTES // (8 * len(arrays) * max(1, n_columns)))
    for start in range(0, n_rows, step):
        block = slice(start, start + step)
        yield np.stack([matrix[block] for matrix in matrices]), votes[:, block]


def geometric_medians(rows: Array, votes: Array) -> Array:
    """Return geometric medians (R, C) of rows (J, R, C) with votes (J, R), from the coordinate-wise medians on."""
    centre = _coordinate_median(rows, votes > 0)
    offsets = _bounded(np.where((votes > 0)[:, :, None], rows - centre, 0.0))

    def mean(weights: Array) -> Array:
        return np.einsum("jr,jrc->rc", weights, offsets)

    def squares(weights: Array) -> Array:
        return ((offsets - mean(weights)) ** 2).sum(axis=2)

    medians: Array = centre + mean(geometric_median(squares, votes, (offsets**2).sum(axis=2))[0])
    return medians


def _coordinate_median(rows: Array, owns: NDArray[np.bool_]) -> Array:
    """Return the coordinate-wise medians (R, C) over the models that own a row; zero where none does."""
    n_owners = owns.sum(axis=0)  # (R,)
    ordered = np.sort(np.where(owns[:, :, None], rows, np.inf), axis=0)  # rows that are not owned sort last
    row_numbers = np.arange(rows.shape[1])
    low = ordered[np.maximum(n_owners - 1, 0) // 2, row_numbers]  # (R, C)
    high = ordered[np.minimum(n_owners // 2, len(rows) - 1), row_numbers]
    with np.errstate(invalid="ignore"):
        return np.where((n_owners > 0)[:, None], low + 0.5 * (high - low), 0.0)
