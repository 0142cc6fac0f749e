"""Means so far from zero that second moments about zero do not keep the width beside them.

Natural parameters of Gaussians with unknown widths hold S + kappa m m^T, S the scatter about the mean m. Rounding moves
an entry by eps kappa m^2, so that the width in column d keeps a relative error of about

    eps q_d,    q_d = kappa m_d^2 [S^-1]_dd,

the squared distance of m_d from zero in units of what is left of column d when all others are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.errors import Problem

_EPSILON = float(np.finfo(np.float64).eps)

MAX_WIDTH_ERROR = 1e-3
"""Relative error of a width by rounding above which a component is refused: means beyond 2e6 standard deviations from
zero. Chosen by hand, far below the sampling error of any width (3 % of 2,000 rows)."""
_CANCELLING = 1e6
"""Second moment in units of what is left of it without the squared mean from which a scatter that is not positive
definite is so by rounding. Chosen by hand: ten digits are left to a scatter that was none to begin with."""
_LONGEST = 1e17
"""Numbers from which on a constant is written with an exponent: above times in nanoseconds."""
_MAX_NAMED = 3
"""Columns and components that a message names at most. Chosen by hand."""


def squared_offsets(linear: Array, kappa: Array, second: Array, scatter: Array) -> Array:
    """Return q (n, D) of kappa m (n, D), kappa (n,), S + kappa m m^T and S (n, D, D); infinite where S is lost.

    Rows whose means are near zero in all columns are not looked at closer, and have q = 0.
    """
    squares = linear**2 / kappa[:, None]  # kappa m^2, (n, D)
    before, left = (np.diagonal(matrices, axis1=1, axis2=2) for matrices in (second, scatter))
    offsets = np.zeros_like(squares)
    is_lost = is_cancelled(before, left)  # (n, D)
    for row in np.flatnonzero(is_lost.any(axis=1)):
        scale = np.sqrt(np.where(left[row] > 0, left[row], 1.0))
        correlations = scatter[row] / np.outer(scale, scale)
        if np.all(left[row] > 0) and np.linalg.eigvalsh(correlations)[0] > 0:
            offsets[row] = squares[row] * np.diagonal(np.linalg.inv(correlations)) / scale**2
        else:
            offsets[row, is_lost[row]] = np.inf
    return offsets


def is_cancelled(before: Array, left: Array) -> NDArray[np.bool_]:
    """Return where what is left of second moments without squared means is rounding, or hardly more; of any sign."""
    return _CANCELLING * np.abs(left) < before


def far_components(means: Array, offsets: Array, columns: Sequence[str] | None) -> tuple[set[int], list[Problem]]:
    """Return the components (n,) whose widths are lost, and a line that says so with a constant to subtract.

    Parameters
    ----------
    means : ndarray of shape (n, D)
        Means.
    offsets : ndarray of shape (n, D)
        q of every component and column.
    columns : sequence of str of length D, optional
        Names of the columns. Default: they are called by their places.
    """
    is_far = _EPSILON * offsets > MAX_WIDTH_ERROR
    if not np.any(is_far):
        return set(), []
    rows, dims = np.flatnonzero(is_far.any(axis=1)), np.flatnonzero(is_far.any(axis=0)).tolist()
    has_names = columns is not None and len(columns) == means.shape[1]
    names = [f"column {columns[d]!r}" if has_names and columns is not None else f"column {d}" for d in dims]
    constants = [_constant_near(means[is_far[:, d], d]) for d in dims]
    places = _some([f"{name} (about {constant})" for name, constant in zip(names, constants, strict=True)])
    subject = f"component {rows[0]} lies" if len(rows) == 1 else f"components {_some(list(map(str, rows)))} lie"
    text = f"{subject} so far from zero in {places} that float64 does not keep the width beside the squared mean"
    others = " and one from each of the others" if names[1:] else ""
    remedy = f"subtract a constant such as {constants[0]} from {names[0]}{others}, the same at all sites, and fit again"
    return set(rows.tolist()), [Problem("", text, remedy, "E-NUMBER")]


def _constant_near(means: Array) -> str:
    """Return a number with few digits that lies as near to means (n,) as they lie to each other."""
    centre = float(means.mean())
    tolerance = max(float(np.ptp(means)), 1e-9 * abs(centre))
    texts = (f"{centre:.{digits}g}" for digits in range(1, 18))
    nearest = next(float(text) for text in texts if abs(float(text) - centre) <= tolerance)
    return np.format_float_positional(nearest, trim="-") if abs(nearest) < _LONGEST else f"{nearest:g}"


def _some(names: Sequence[str]) -> str:
    """Return the first of some names."""
    return ", ".join(names[:_MAX_NAMED]) + (f", ... ({len(names)})" if len(names) > _MAX_NAMED else "")
