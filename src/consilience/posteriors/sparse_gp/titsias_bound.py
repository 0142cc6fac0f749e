"""The collapsed lower bound of sparse Gaussian process regression, its exact derivatives, and its posterior.

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
    """The bound in nats, and its derivatives by the logarithms of kernel parameters and noise, by c and by Z (M, d)."""

    bound: float
    log_variance: float
    log_lengthscales: Array
    log_noise: float
    constant: float
    inputs: Array


@dataclass(frozen=True, eq=False)
class CollapsedPosterior:
    """The optimal q of the inducing values in the whitened basis, and the bound that it reaches, in nats."""

    mean: Array
    covariance: Array
    bound: float


@dataclass(frozen=True, eq=False)
class _Terms:
    """What value and derivatives share: A (M, N), the factors of K and B, y - c, A (y - c), and the bound."""

    half: Array
    factor: Array
    root: Array
    residual: Array
    projected: Array
    bound: float


def _terms(prior: Array, cross: Array, variance: float, noise: float, residual: Array) -> _Terms:
    count = len(residual)
    factor = cholesky(prior, lower=True, check_finite=False)
    half = lower_solve(factor, cross) / np.sqrt(noise)
    root = cholesky(np.eye(len(prior)) + half @ half.T, lower=True, check_finite=False)
    projected = half @ residual
    explained = lower_solve(root, projected)
    bound = (
        -0.5 * count * np.log(2.0 * np.pi * noise)
        - np.log(np.diag(root)).sum()
        - 0.5 * (residual @ residual - explained @ explained) / noise
        - 0.5 * (count * variance / noise - np.vdot(half, half))
    )
    return _Terms(half, factor, root, residual, projected, float(bound))


def _with_jitter(prior: Array, jitter: float, variance: float) -> Array:
    return np.asarray(prior + jitter * variance * np.eye(len(prior)))


def bound_gradient(
    kernel: Kernel, inputs: Array, noise: float, constant: float, X: Array, y: Array, jitter: float
) -> BoundGradient:
    """Return the bound and its derivatives; O(N M^2).

    With alpha = (Q + s^2 I)^-1 (y - c), the derivative by Q is (alpha alpha^T - (Q + s^2 I)^-1 + I / s^2) / 2, from
    which those by k(Z, X) and by K follow through Q.

    Parameters
    ----------
    kernel
        The covariance function.
    inputs
        Inducing inputs Z (M, d).
    noise
        s^2.
    constant
        c.
    X, y
        Data (N, d) and (N,).
    jitter
        Relative to the kernel's variance.
    """
    size = len(inputs)
    prior, from_prior = kernel.with_pullback(inputs, inputs)
    cross, from_cross = kernel.with_pullback(inputs, X)
    terms = _terms(_with_jitter(prior, jitter, kernel.variance), cross, kernel.variance, noise, y - constant)
    unit = cho_solve((terms.root, True), np.eye(size))
    alpha = (terms.residual - terms.half.T @ (unit @ terms.projected)) / noise
    weighed = np.sqrt(noise) * lower_solve(terms.factor, terms.half @ alpha, transposed=True)  # K^-1 k(Z, X) alpha
    informed = np.eye(size) - unit
    by_cross = np.outer(weighed, alpha)
    by_cross += lower_solve(terms.factor, informed @ terms.half, transposed=True) / np.sqrt(noise)
    curved = informed @ terms.root @ terms.root.T @ informed  # B - 2 I + B^-1
    inside = lower_solve(terms.factor, curved, transposed=True)
    by_prior = -0.5 * (np.outer(weighed, weighed) + lower_solve(terms.factor, inside.T, transposed=True))
    variance_a, lengthscales_a, inputs_a = from_prior(by_prior)
    variance_b, lengthscales_b, inputs_b = from_cross(by_cross)
    count = len(y)
    diagonal = 0.5 * count * kernel.variance / noise
    trace = (count - size + np.trace(unit)) / noise  # of (Q + s^2 I)^-1
    return BoundGradient(
        terms.bound,
        variance_a + variance_b + jitter * kernel.variance * float(np.trace(by_prior)) - diagonal,
        lengthscales_a + lengthscales_b,
        0.5 * noise * float(alpha @ alpha - trace) + diagonal - 0.5 * float(np.vdot(terms.half, terms.half)),
        float(alpha.sum()),
        2.0 * inputs_a + inputs_b,
    )


def collapsed_posterior(
    kernel: Kernel, inputs: Array, noise: float, constant: float, X: Array, y: Array, jitter: float
) -> CollapsedPosterior:
    """Return the optimal q of the values at `inputs`; parameters as in ``bound_gradient``."""
    prior = _with_jitter(kernel.matrix(inputs), jitter, kernel.variance)
    terms = _terms(prior, kernel.matrix(inputs, X), kernel.variance, noise, y - constant)
    inverse = lower_solve(terms.root, np.eye(len(inputs)))
    mean = cho_solve((terms.root, True), terms.projected) / np.sqrt(noise)
    return CollapsedPosterior(mean, inverse.T @ inverse, terms.bound)
