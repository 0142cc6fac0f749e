"""Collapsed variational bound of sparse Gaussian process regression: value, exact derivatives and optimal posterior.

Titsias 2009, equation (9). With K = k(Z, Z) + jitter v I = L L^T, Q = k(X, Z) K^-1 k(Z, X) and noise variance s^2,

    F = log N(y | c, Q + s^2 I) - tr(k(X, X) - Q) / (2 s^2).

With A = L^-1 k(Z, X) / s and B = I + A A^T nothing larger than (M, N) is formed, and the optimal q is, whitened,
N(B^-1 A (y - c) / s, B^-1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky

from consilience.checks import Array
from consilience.posteriors.sparse_gp.kernels import Kernel
from consilience.posteriors.sparse_gp.model import lower_solve


@dataclass(frozen=True, eq=False)
class BoundGradient:
    """The bound and its derivatives."""

    bound: float  # F, in nats
    log_variance: float  # derivative by log v
    log_lengthscales: Array  # derivatives by the logarithms of the length-scales (d,)
    log_noise: float  # derivative by log s^2
    constant: float  # derivative by c
    inputs: Array  # derivatives by Z (M, d)


@dataclass(frozen=True, eq=False)
class CollapsedPosterior:
    """The optimal q of the inducing values in the whitened basis."""

    mean: Array  # B^-1 A (y - c) / s (M,)
    covariance: Array  # B^-1 (M, M)
    bound: float  # that it reaches, in nats


@dataclass(frozen=True, eq=False)
class _Terms:
    """Terms that value and derivatives of the bound share."""

    scaled_cross: Array  # A = L^-1 k(Z, X) / s (M, N)
    factor: Array  # lower Cholesky factor of K (M, M)
    root: Array  # that of B = I + A A^T (M, M)
    residual: Array  # y - c (N,)
    projected: Array  # A (y - c) (M,)
    bound: float  # F, in nats


def _terms(prior: Array, cross: Array, variance: float, noise: float, residual: Array) -> _Terms:
    """Return the terms of K (M, M) and k(Z, X) (M, N)."""
    count = len(residual)  # N
    factor = cholesky(prior, lower=True, check_finite=False)
    scaled_cross = lower_solve(factor, cross) / np.sqrt(noise)
    root = cholesky(np.eye(len(prior)) + scaled_cross @ scaled_cross.T, lower=True, check_finite=False)
    projected = scaled_cross @ residual
    explained = lower_solve(root, projected)
    # By the determinant lemma log |Q + s^2 I| = log |B| + N log s^2, and by Woodbury the quadratic form.
    bound = (
        -0.5 * count * np.log(2.0 * np.pi * noise)
        - np.log(np.diag(root)).sum()
        - 0.5 * (residual @ residual - explained @ explained) / noise
        - 0.5 * (count * variance / noise - np.vdot(scaled_cross, scaled_cross))
    )
    return _Terms(scaled_cross, factor, root, residual, projected, float(bound))


def _add_jitter(prior: Array, jitter: float, variance: float) -> Array:
    """Return K = k(Z, Z) + jitter v I (M, M)."""
    return np.asarray(prior + jitter * variance * np.eye(len(prior)))


def bound_gradient(
    kernel: Kernel, inputs: Array, noise: float, constant: float, X: Array, y: Array, jitter: float
) -> BoundGradient:
    """Return the bound and its derivatives; O(N M^2).

    Z are the inducing inputs (M, d), s^2 the noise, c the constant, X (N, d) and y (N,) the data; the jitter is
    relative to the kernel's variance. With alpha = (Q + s^2 I)^-1 (y - c), the derivative by Q is (alpha alpha^T - (Q +
    s^2 I)^-1 + I / s^2) / 2, from which those by k(Z, X) and by K follow through Q.
    """
    size = len(inputs)
    prior, from_prior = kernel.with_pullback(inputs, inputs)
    cross, from_cross = kernel.with_pullback(inputs, X)
    terms = _terms(_add_jitter(prior, jitter, kernel.variance), cross, kernel.variance, noise, y - constant)
    b_inverse = cho_solve((terms.root, True), np.eye(size))
    alpha = (terms.residual - terms.scaled_cross.T @ (b_inverse @ terms.projected)) / noise
    # K^-1 k(Z, X) alpha (M,)
    cross_alpha = np.sqrt(noise) * lower_solve(terms.factor, terms.scaled_cross @ alpha, transposed=True)
    information = np.eye(size) - b_inverse  # I - B^-1 (M, M)
    # Derivative by k(Z, X) (M, N)
    by_cross = np.outer(cross_alpha, alpha)
    by_cross += lower_solve(terms.factor, information @ terms.scaled_cross, transposed=True) / np.sqrt(noise)
    curvature = information @ terms.root @ terms.root.T @ information  # B - 2 I + B^-1
    half_solved = lower_solve(terms.factor, curvature, transposed=True)
    # Derivative by K (M, M)
    by_prior = -0.5 * (np.outer(cross_alpha, cross_alpha) + lower_solve(terms.factor, half_solved.T, transposed=True))
    variance_of_prior, lengthscales_of_prior, inputs_of_prior = from_prior(by_prior)
    variance_of_cross, lengthscales_of_cross, inputs_of_cross = from_cross(by_cross)
    count = len(y)
    diagonal = 0.5 * count * kernel.variance / noise
    trace = (count - size + np.trace(b_inverse)) / noise  # of (Q + s^2 I)^-1
    return BoundGradient(
        terms.bound,
        variance_of_prior + variance_of_cross + jitter * kernel.variance * float(np.trace(by_prior)) - diagonal,
        lengthscales_of_prior + lengthscales_of_cross,
        0.5 * noise * float(alpha @ alpha - trace)
        + diagonal
        - 0.5 * float(np.vdot(terms.scaled_cross, terms.scaled_cross)),
        float(alpha.sum()),
        # Z stands in k(Z, Z) twice
        2.0 * inputs_of_prior + inputs_of_cross,
    )


def collapsed_posterior(
    kernel: Kernel, inputs: Array, noise: float, constant: float, X: Array, y: Array, jitter: float
) -> CollapsedPosterior:
    """Return the optimal q of the values at `inputs`; parameters as in ``bound_gradient``."""
    prior = _add_jitter(kernel.matrix(inputs), jitter, kernel.variance)
    terms = _terms(prior, kernel.matrix(inputs, X), kernel.variance, noise, y - constant)
    inverse = lower_solve(terms.root, np.eye(len(inputs)))
    mean = cho_solve((terms.root, True), terms.projected) / np.sqrt(noise)
    return CollapsedPosterior(mean, inverse.T @ inverse, terms.bound)
