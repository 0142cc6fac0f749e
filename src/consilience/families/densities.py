"""Densities of data under components: Gaussians at point estimates, and Student t's with parameters integrated out.

For points x (N, D) and components with centre m, scale matrix S and nu degrees of freedom, with q = (x - m)^T S^-1
(x - m),

    log N(x | m, S)    = -(D log 2 pi + log|S| + q) / 2
    log t_nu(x | m, S) = log c - (D log(nu pi) + log|S|) / 2 - (nu + D) / 2 log(1 + q / nu)
    c                  = Gamma((nu + D) / 2) / Gamma(nu / 2)

Diagonal scales stand for R blocks of D / R dimensions, each with one scale. Gaussians do not see blocks; the Student t
of a component is the product of R independent ones of D / R dimensions, since each block's precision has its own law.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln, gammaln

from consilience.checks import Array
from consilience.families.chunks import map_rows
from consilience.families.linalg import cholesky, log_determinant


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
