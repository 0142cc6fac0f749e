"""Batched linear algebra of symmetric positive definite matrices: Cholesky factors, inverses, log determinants.

Matrices are stacked (n, D, D); inside natural parameters they are stored row by row (n, D^2), so that the dot product
of two rows is the trace of the matrices' product.

**Loss of width**: means so far from zero that second moments about zero do not keep the width.

Natural parameters of Gaussians with unknown widths hold S + kappa m m^T, S the scatter about the mean m. Rounding moves
an entry by eps kappa m^2, so that the width in column d keeps a relative error of about

    eps q_d,    q_d = kappa m_d^2 [S^-1]_dd,

the squared distance of m_d from zero in units of what is left of column d when all others are known.

**Densities of data under components**: Gaussians at point estimates, and Student t's with parameters integrated out.

For points x (N, D) and components with centre m, scale matrix S and nu degrees of freedom, with q = (x - m)^T S^-1
(x - m),

    log N(x | m, S)    = -(D log 2 pi + log|S| + q) / 2
    log t_nu(x | m, S) = log c - (D log(nu pi) + log|S|) / 2 - (nu + D) / 2 log(1 + q / nu)
    c                  = Gamma((nu + D) / 2) / Gamma(nu / 2)

Diagonal scales stand for R blocks of D / R dimensions, each with one scale. Gaussians do not see blocks; the Student
t of a component is the product of R independent ones of D / R dimensions, since each block's precision has its own
distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaln

from consilience.checks import Array, Labels, symmetric_part
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.families.chunks import map_rows
from consilience.families.special import u_minus_log1p

_EIGENVALUE_NEAR = 0.5
"""Largest eigenvalue of A^-1 (B - A), by size, up to which ``log_det_divergence`` sums over eigenvalues. Beyond, trace
and log determinants differ by enough to be subtracted. Chosen by hand."""


def flatten(matrices: Array) -> Array:
    """Return (n, D, D) as rows (n, D^2)."""
    return matrices.reshape(matrices.shape[0], matrices.shape[1] * matrices.shape[2])


def unflatten(rows: Array, dim: int) -> Array:
    """Return rows (n, D^2) as symmetric matrices (n, D, D)."""
    return symmetric_part(rows.reshape(rows.shape[0], dim, dim))


def cholesky(matrices: Array, what: str) -> Array:
    """Return lower Cholesky factors (n, D, D), or raise naming `what` and the component at fault."""
    try:
        factors = np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        # A matrix may fail by rounding although its smallest eigenvalue comes out positive: then the first is named.
        faults = not_positive_definite(matrices, what) or [(0, f"has a {what} that is not positive definite")]
        raise InputError(f"component {faults[0][0]} {faults[0][1]}") from None
    return factors


def inverse(matrices: Array, what: str) -> Array:
    """Return inverses (n, D, D) of symmetric positive definite matrices, L^-T L^-1 of their Cholesky factors L."""
    inverse_factor = np.linalg.inv(cholesky(symmetric_part(matrices), what))
    result: Array = np.swapaxes(inverse_factor, 1, 2) @ inverse_factor  # symmetric to the last bit
    return result


def log_determinant(factors: Array) -> Array:
    """Return log|L L^T| (n,) from Cholesky factors."""
    return np.asarray(2.0 * np.add.reduce(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=1))


def log_determinants_of_many(entries: Array) -> Array:
    """Return log|A| (n,) of very many small matrices, laid out as entries (D, D, n), of which the lower half is used.

    A = L D L^T without pivoting, all matrices at once; LAPACK is called for one after another, which takes longer from
    some hundreds of matrices on. Pivots that rounding makes zero or negative count as the smallest positive number.
    `entries` is overwritten.
    """
    dim, n = entries.shape[1:]
    pivots = np.empty((dim, n))
    for k in range(dim):
        np.maximum(entries[k, k], np.finfo(np.float64).tiny, out=pivots[k])
        ratios = entries[k + 1 :, k] / pivots[k]  # (D - k - 1, n)
        for j in range(k + 1, dim):
            entries[j:, j] -= entries[j:, k] * ratios[j - k - 1]
    return np.asarray(np.log(pivots, out=pivots).sum(axis=0))


def _solve(matrices: Array, right_sides: Array) -> Array:
    return np.asarray(np.linalg.solve(matrices, right_sides), dtype=np.float64)


def half_solve(factors: Array, vectors: Array) -> Array:
    """Return L^-1 x (n, D) for each factor and vector; its squared length is x^T (L L^T)^-1 x."""
    return _solve(factors, vectors[:, :, None])[:, :, 0]


def log_det_divergence(factor_a: Array, factor_b: Array, change: Array) -> Array:
    """Return the log-determinant (Burg, Stein) divergence tr(A^-1 B) - D - log|A^-1 B| (n,), given Cholesky factors.

    With u the eigenvalues of A^-1 (B - A) it is sum h(u), h(u) = u - log(1 + u), which keeps its digits for B near A.
    Where some u is not small, the trace and the difference of log determinants keep theirs. The caller may know
    `change`, B - A (n, D, D), to more digits than A and B have.
    """
    # L_A^-1 (B - A) L_A^-T has the eigenvalues of A^-1 (B - A), and is symmetric.
    half = _solve(factor_a, change)
    whitened_change = symmetric_part(_solve(factor_a, np.swapaxes(half, 1, 2)))  # (n, D, D)
    eigenvalues = np.linalg.eigvalsh(whitened_change)  # (n, D)
    is_far = np.abs(eigenvalues).max(axis=1) > _EIGENVALUE_NEAR
    divergence = u_minus_log1p(np.where(is_far[:, None], 0.0, eigenvalues)).sum(axis=1)
    if not np.any(is_far):
        return divergence
    relative = _solve(factor_a[is_far], factor_b[is_far])  # L_A^-1 L_B, whose squared entries sum to tr(A^-1 B)
    trace = np.sum(relative**2, axis=(1, 2)) - factor_a.shape[1]
    divergence[is_far] = trace - log_determinant(factor_b[is_far]) + log_determinant(factor_a[is_far])
    return divergence


def not_positive(name: str, values: Array) -> list[tuple[int, str]]:
    """Return (index, what is wrong) for every value (n,) that is not positive."""
    bad = np.flatnonzero(values <= 0)
    return [(int(i), f"has {name} {values[i]:.6g}, which must be positive") for i in bad]


def not_positive_definite(matrices: Array, what: str) -> list[tuple[int, str]]:
    """Return (index, what is wrong) for every matrix that is not positive definite."""
    if matrices.shape[0] == 0:
        return []
    # The eigenvalue routine refuses NaN and infinities: zeros in their place are not positive definite either.
    finite = np.isfinite(matrices.sum(axis=(1, 2), keepdims=True))
    smallest = np.linalg.eigvalsh(np.where(finite, matrices, 0.0))[:, 0]
    bad = np.flatnonzero(~(smallest > 0))
    return [(int(i), f"has a {what} that is not positive definite") for i in bad]


ISOTROPY_ROUNDING = 1e-9
"""Relative error of A A^T up to which A is a multiple of an orthogonal matrix. Chosen by hand, far above rounding."""


def scaled_columns(matrix: Array) -> tuple[Labels, Array]:
    """Return of each row of a matrix (D, D) the one column that it takes, and the factor (D,).

    Raises
    ------
    UnsupportedError
        For a matrix that mixes columns, which maps diagonal covariances to others.

    Examples
    --------
    >>> scaled_columns(np.array([[0.0, 3.0], [2.0, 0.0]]))
    (array([1, 0]), array([3., 2.]))
    """
    order = np.argmax(matrix != 0.0, axis=1)
    factors: Array = matrix[np.arange(len(matrix)), order]
    if np.count_nonzero(matrix) != len(matrix) or len(set(order.tolist())) < len(order):
        text = "mixes columns, which diagonal covariances cannot follow"
        raise UnsupportedError("", text, "fit with `covariance_type='full'`")
    return order, factors


def isotropic_square(matrix: Array) -> Array:
    """Return c^2 of a matrix that is c times an orthogonal one, as an array ().

    Raises
    ------
    UnsupportedError
        For another matrix, which maps multiples of the identity to other covariances.

    Examples
    --------
    >>> isotropic_square(np.array([[0.0, 2.0], [-2.0, 0.0]]))
    array(4.)
    """
    gram = matrix @ matrix.T
    square = np.asarray(np.trace(gram) / len(gram))
    if not np.allclose(gram, square * np.eye(len(gram)), rtol=0.0, atol=ISOTROPY_ROUNDING * float(square)):
        text = "scales columns by different numbers, which spherical covariances cannot follow"
        raise UnsupportedError("", text, "fit with `covariance_type='diag'`, or scale all columns alike")
    return square


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


def variances_of(covariances: Array) -> Array:
    """Return the variances (n, D) of covariances (n, D, D), of variances (n, D), or of one for all columns (n,)."""
    if covariances.ndim == 3:
        return np.diagonal(covariances, axis1=1, axis2=2)
    return covariances.reshape(len(covariances), -1)


def is_cancelled(before: Array, left: Array) -> NDArray[np.bool_]:
    """Return where what is left of second moments without squared means is rounding, or hardly more; of any sign."""
    return _CANCELLING * np.abs(left) < before


def far_components(means: Array, offsets: Array, columns: Sequence[str] | None) -> tuple[set[int], list[Problem]]:
    """Return the components (n,) whose widths are lost, and a line that says so with a constant to subtract.

    They have means and q (n, D), the offsets. Columns are called by their names (D,), or by their places.
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
    text = f"{subject} so far from zero in {places} that float64 loses the width next to the squared mean"
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


def log_gaussians(points: Array, means: Array, covariances: Array) -> Array:
    """Return the log density (N, n) of every point under every Gaussian.

    Parameters
    ----------
    points : ndarray of shape (N, D)
        Where the densities are asked.
    means : ndarray of shape (n, D)
        Means m.
    covariances : ndarray of shape (n, D, D) or (n, D)
        Covariances S, or variances of independent dimensions.
    """
    squares, log_det = _squared_distances(points, means, covariances, is_sum=True)  # (1, n, N), (R, n)
    result: Array = -0.5 * (points.shape[1] * np.log(2.0 * np.pi) + log_det.sum(axis=0)[:, None] + squares.sum(axis=0))
    return result.T


def log_student_ts(points: Array, locations: Array, scales: Array, dof: Array) -> Array:
    """Return the log density (N, n) of every point under every Student t.

    Parameters
    ----------
    points : ndarray of shape (N, D)
        Where the densities are asked.
    locations : ndarray of shape (n, D)
        Locations m.
    scales : ndarray of shape (n, D, D) or (n, R)
        Scale matrices S, or the scale of each of R blocks of D / R dimensions, which are independent of each other.
    dof : ndarray of shape (n,)
        Degrees of freedom nu.
    """
    squares, log_det = _squared_distances(points, locations, scales)  # (R, n, N), (R, n)
    block_dim, nu = points.shape[1] // len(squares), dof[:, None]
    # log Gamma(a + b) - log Gamma(a) = log Gamma(b) - log B(a, b), which keeps its digits for large a.
    log_scale = gammaln(0.5 * block_dim) - betaln(0.5 * dof, 0.5 * block_dim) - 0.5 * block_dim * np.log(np.pi * dof)
    tails = 0.5 * (nu + block_dim) * np.log1p(squares / nu)  # (R, n, N)
    result: Array = ((log_scale - 0.5 * log_det)[:, :, None] - tails).sum(axis=0)
    return result.T


def _squared_distances(points: Array, centres: Array, scales: Array, *, is_sum: bool = False) -> tuple[Array, Array]:
    """Return (x - m)^T S^-1 (x - m) by block (R, n, N), or summed (1, n, N), and log|S| by block (R, n).

    Matrices have one block.
    """
    if scales.ndim == 3:
        factors = cholesky(scales, "scale matrix")
        roots, origin = np.linalg.inv(factors), centres.mean(axis=0)

        def whitened_squares(rows: slice) -> Array:
            # Points and centres are whitened apart, in half the time; about their common origin, so that few digits
            # cancel.
            whitened = roots[rows] @ (points - origin).T  # (k, D, N)
            whitened -= roots[rows] @ (centres[rows] - origin)[:, :, None]
            return np.einsum("ndN,ndN->nN", whitened, whitened)

        return map_rows(len(centres), points.size, whitened_squares)[None], log_determinant(factors)[None]
    n_blocks = scales.shape[1]
    block_dim = points.shape[1] // n_blocks

    def block_squares(rows: slice) -> Array:
        offsets = points.T - centres[rows, :, None]  # (k, D, N)
        np.square(offsets, out=offsets)
        by_block = offsets.reshape(len(offsets), n_blocks, block_dim, -1).sum(axis=2)  # (k, R, N)
        by_block /= scales[rows, :, None]
        return by_block.sum(axis=1, keepdims=True) if is_sum else by_block

    squares = map_rows(len(centres), points.size, block_squares)  # (n, R or 1, N)
    return np.moveaxis(squares, 1, 0), block_dim * np.log(scales).T
