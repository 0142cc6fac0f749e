"""Batched linear algebra of symmetric positive definite matrices stored row by row."""

from __future__ import annotations

import numpy as np

from consilience.checks import Array, symmetric
from consilience.errors import InputError


def flatten(matrices: Array) -> Array:
    """Return (n, D, D) as rows (n, D^2)."""
    return matrices.reshape(matrices.shape[0], -1)


def unflatten(rows: Array, dim: int) -> Array:
    """Return rows (n, D^2) as symmetric matrices (n, D, D)."""
    return symmetric(rows.reshape(rows.shape[0], dim, dim))


def cholesky(matrices: Array, what: str) -> Array:
    """Return lower Cholesky factors (n, D, D), or raise naming `what` and the component at fault."""
    try:
        factors: Array = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        faults = not_positive_definite(matrices, what) or [(0, f"has a {what} that is not positive definite")]
        raise InputError(f"component {faults[0][0]} {faults[0][1]}") from None
    return factors


def inverse(matrices: Array, what: str) -> Array:
    """Return inverses (n, D, D) of symmetric positive definite matrices through their Cholesky factors."""
    inverse_factor = np.linalg.inv(cholesky(symmetric(matrices), what))
    result: Array = np.swapaxes(inverse_factor, 1, 2) @ inverse_factor
    return result


def log_determinant(factors: Array) -> Array:
    """Return log|L L^T| (n,) from Cholesky factors."""
    result: Array = 2.0 * np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return result


def half_solve(factors: Array, vectors: Array) -> Array:
    """Return L^-1 x (n, D) for each factor and vector."""
    result: Array = np.linalg.solve(factors, vectors[:, :, None])[:, :, 0]
    return result


def relative_eigenvalues(factors: Array, matrices: Array) -> Array:
    """Return the eigenvalues (n, D) of L^-1 M L^-T."""
    half = np.linalg.solve(factors, matrices)
    whole = np.linalg.solve(factors, np.swapaxes(half, 1, 2))
    result: Array = np.linalg.eigvalsh(symmetric(whole))
    return result


def not_positive_definite(matrices: Array, what: str) -> list[tuple[int, str]]:
    """Return (index, what is wrong) for every matrix that is not positive definite."""
    if matrices.shape[0] == 0:
        return []
    low = np.linalg.eigvalsh(matrices)[:, 0]
    bad = np.flatnonzero(~(low > 0))
    return [(int(i), f"has a {what} that is not positive definite") for i in bad]
