"""Batched linear algebra of symmetric positive definite matrices: Cholesky factors, inverses, log determinants.

Matrices are stacked (n, D, D); inside natural parameters they are stored row by row (n, D^2), so that the dot product
of two rows is the trace of the matrices' product.
"""

from __future__ import annotations

import numpy as np

from consilience.checks import Array, symmetric_part
from consilience.errors import InputError, UnsupportedError
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
    result: Array = 2.0 * np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return result


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
    log_det: Array = np.log(pivots, out=pivots).sum(axis=0)
    return log_det


def _solve(matrices: Array, right_sides: Array) -> Array:
    return np.asarray(np.linalg.solve(matrices, right_sides), dtype=np.float64)


def half_solve(factors: Array, vectors: Array) -> Array:
    """Return L^-1 x (n, D) for each factor and vector; its squared length is x^T (L L^T)^-1 x."""
    return _solve(factors, vectors[:, :, None])[:, :, 0]


def log_det_divergence(factor_a: Array, factor_b: Array, change: Array) -> Array:
    """Return the log-determinant (Burg, Stein) divergence tr(A^-1 B) - D - log|A^-1 B| (n,).

    With u the eigenvalues of A^-1 (B - A) it is sum h(u), h(u) = u - log(1 + u), which keeps its digits for B near A.
    Where some u is not small, the trace and the difference of log determinants keep theirs.

    Parameters
    ----------
    factor_a, factor_b : ndarray of shape (n, D, D)
        Cholesky factors of A and B.
    change : ndarray of shape (n, D, D)
        B - A, which the caller may know to more digits than A and B have.
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


def diagonal_of(matrix: Array) -> Array:
    """Return the diagonal (D,) of a diagonal matrix.

    Raises
    ------
    UnsupportedError
        For another matrix, which maps diagonal covariances to others.

    Examples
    --------
    >>> diagonal_of(np.array([[2.0, 0.0], [0.0, 3.0]]))
    array([2., 3.])
    """
    diagonal: Array = np.diagonal(matrix)
    if not np.array_equal(matrix, np.diag(diagonal)):
        raise UnsupportedError(
            "", "mixes columns, which diagonal covariances cannot follow", "fit with covariance_type='full'"
        )
    return diagonal


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
        raise UnsupportedError(
            "",
            "scales columns by different numbers, which spherical covariances cannot follow",
            "fit with covariance_type='diag', or scale all columns alike",
        )
    return square
