"""Batched linear algebra of symmetric positive definite matrices stored row by row."""

from __future__ import annotations

import numpy as np

from consilience.checks import Array, symmetric_part
from consilience.errors import InputError
from consilience.families.special import u_minus_log1p


def flatten(matrices: Array) -> Array:
    """Return (n, D, D) as rows (n, D^2)."""
    return matrices.reshape(matrices.shape[0], -1)


def unflatten(rows: Array, dim: int) -> Array:
    """Return rows (n, D^2) as symmetric matrices (n, D, D)."""
    return symmetric_part(rows.reshape(rows.shape[0], dim, dim))


def cholesky(matrices: Array, what: str) -> Array:
    """Return lower Cholesky factors (n, D, D), or raise naming `what` and the component at fault."""
    try:
        factors = np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        faults = not_positive_definite(matrices, what) or [(0, f"has a {what} that is not positive definite")]
        raise InputError(f"component {faults[0][0]} {faults[0][1]}") from None
    return factors


def inverse(matrices: Array, what: str) -> Array:
    """Return inverses (n, D, D) of symmetric positive definite matrices through their Cholesky factors."""
    inverse_factor = np.linalg.inv(cholesky(symmetric_part(matrices), what))
    result: Array = np.swapaxes(inverse_factor, 1, 2) @ inverse_factor
    return result


def log_determinant(factors: Array) -> Array:
    """Return log|L L^T| (n,) from Cholesky factors."""
    result: Array = 2.0 * np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return result


def _solve(matrices: Array, right: Array) -> Array:
    return np.asarray(np.linalg.solve(matrices, right), dtype=np.float64)


def half_solve(factors: Array, vectors: Array) -> Array:
    """Return L^-1 x (n, D) for each factor and vector."""
    return _solve(factors, vectors[:, :, None])[:, :, 0]


def log_det_divergence(factor_a: Array, factor_b: Array, change: Array) -> Array:
    """Return tr(A^-1 B) - D - log|A^-1 B| (n,), from Cholesky factors of A and B and ``change = B - A``.

    With u the eigenvalues of A^-1 (B - A) it is sum h(u), h(u) = u - log(1 + u), which keeps its digits for B near A.
    Where some u is not small, the trace and the difference of log determinants keep theirs.
    """
    half = _solve(factor_a, change)
    whole = symmetric_part(_solve(factor_a, np.swapaxes(half, 1, 2)))
    eigenvalues = np.linalg.eigvalsh(whole)
    far = np.abs(eigenvalues).max(axis=1) > 0.5
    near = u_minus_log1p(np.where(far[:, None], 0.0, eigenvalues)).sum(axis=1)
    if not np.any(far):
        return near
    relative = _solve(factor_a[far], factor_b[far])
    trace = np.sum(relative**2, axis=(1, 2)) - factor_a.shape[1]
    near[far] = trace - log_determinant(factor_b[far]) + log_determinant(factor_a[far])
    return near


def not_positive_definite(matrices: Array, what: str) -> list[tuple[int, str]]:
    """Return (index, what is wrong) for every matrix that is not positive definite."""
    if matrices.shape[0] == 0:
        return []
    finite = np.isfinite(matrices.sum(axis=(1, 2), keepdims=True))
    low = np.linalg.eigvalsh(np.where(finite, matrices, 0.0))[:, 0]
    bad = np.flatnonzero(~(low > 0))
    return [(int(i), f"has a {what} that is not positive definite") for i in bad]
