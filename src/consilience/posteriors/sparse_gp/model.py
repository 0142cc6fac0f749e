"""Sparse Gaussian processes: a prior and a Gaussian posterior of the function's values at inducing inputs.

With K = k(Z, Z) + jitter v I = L L^T for inducing inputs Z (M, d), v the kernel's variance, and q(u) = N(m, S) of the
values there (Titsias 2009), predictions are, with c the mean function and k_* = k(Z, x),

    mean      c + k_*^T K^-1 (m - c)
    variance  k(x, x) - k_*^T K^-1 (K - S) K^-1 k_*   (+ noise).

All of it is computed in the whitened basis, where the prior is N(0, I) and q is N(L^-1 (m - c), L^-1 S L^-T): there
data and prior are of one scale, and the inverse of K is never formed. A prior covariance that is not positive definite
is an error.

The jitter, 1e-6 of the kernel's variance, belongs to the model: an inducing value is the function plus a speck of noise
of its own. Two Gaussian processes that have the same inducing input share it, which makes moving q from one set of
inducing inputs to another exact where these coincide; and inducing inputs as close as one likes do no harm, so that
none has to be merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cholesky, solve_triangular
from scipy.spatial import cKDTree

from consilience.checks import Array, Labels, as_rows, as_vector, symmetric_part
from consilience.errors import InputError
from consilience.posteriors.sparse_gp.kernels import Kernel

JITTER = 1e-6
"""Variance of the noise on every inducing value, relative to that of the kernel.

The usual size of such a term in float64; it is part of the model, and files carry it. Chosen by hand.
"""

COINCIDENCE_DISTANCE = 1e-8
"""Distance, in length-scales, up to which two inducing inputs are one: averages of copies differ by rounding only.

Chosen by hand; nobody has measured other values.
"""

EIGENVALUE_ROUNDING = 1e-6
"""Negative eigenvalue of a covariance, relative to the kernel's variance, that counts as rounding: the jitter's size.

Chosen by hand; nobody has measured other values.
"""

BATCH_ROWS = 4096
"""Rows of a prediction at a time. A bound on memory, chosen by hand."""


@dataclass(frozen=True, eq=False)
class SparseGP:
    """A Gaussian process given by its values at M inducing inputs of d dimensions.

    Everything is in standardised units, in which column c of the data is ``(value - shift[c]) / scale[c]``; predictions
    are in the units of the data. The constants must be public ones, the same at every site, never a site's own mean.

    Parameters
    ----------
    inducing_inputs : array_like of shape (M, d)
        Z.
    mean : array_like of shape (M,)
        Mean m of q(u).
    covariance : array_like of shape (M, M)
        Covariance S of q(u).
    kernel : Kernel
        Covariance function of the prior.
    noise : float
        Variance of an observation about the function; 0 where it is not known.
    constant : float, optional
        Mean function c of the prior. Default: 0.
    shift, scale : array_like of shape (d + 1,), optional
        Constants of the d inputs, then of the target, or one number for all. Default: 0 and 1.
    n_observations : float, optional
        Number of observations that it was fitted to. Default: 0, not known.
    jitter : float, optional
        Noise on every inducing value, relative to the kernel's variance. Default: 1e-6.
    bound : array_like of shape (iterations,), optional
        Lower bound of the log evidence, in nats, after every iteration of the fit; stays at the site. Default: empty.

    Raises
    ------
    InputError
        For arrays that do not fit each other, or a covariance that is not positive semi-definite.

    Examples
    --------
    >>> from consilience.posteriors.sparse_gp.kernels import RBF
    >>> gp = SparseGP(np.zeros((1, 1)), np.ones(1), 0.1 * np.ones((1, 1)), RBF(1.0, [1.0]), noise=0.01)
    >>> mean, variance = gp.predict([[0.0], [9.0]])
    >>> mean.round(3), variance.round(3)
    (array([1., 0.]), array([0.1, 1. ]))
    """

    inducing_inputs: Array
    mean: Array
    covariance: Array
    kernel: Kernel
    noise: float = field(kw_only=True)
    constant: float = field(default=0.0, kw_only=True)
    shift: Array = field(default_factory=lambda: np.array(0.0), kw_only=True)
    scale: Array = field(default_factory=lambda: np.array(1.0), kw_only=True)
    n_observations: float = field(default=0.0, kw_only=True)
    jitter: float = field(default=JITTER, kw_only=True)
    bound: Array = field(default_factory=lambda: np.zeros(0), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        inputs = as_rows("inducing_inputs", self.inducing_inputs, self.kernel.dim)
        count, columns = len(inputs), self.kernel.dim + 1
        if np.shape(self.covariance) != (count, count):
            text = f"expected shape ({count}, {count}), found {np.shape(self.covariance)}"
            raise InputError("covariance", text, code="E-SHAPE")
        arrays = {
            "inducing_inputs": inputs,
            "mean": as_vector("mean", self.mean, count),
            "covariance": symmetric_part(np.asarray(self.covariance, dtype=np.float64)),
            "shift": as_vector("shift", self.shift, columns),
            "scale": as_vector("scale", self.scale, columns),
            "bound": as_vector("bound", self.bound),
        }
        for name, values in arrays.items():
            if not np.all(np.isfinite(values)):
                raise InputError("", f"{name} of a sparse Gaussian process has NaN or infinite values", code="E-NUMBER")
            frozen = values.copy()  # so that nobody's array changes under it
            frozen.setflags(write=False)
            object.__setattr__(self, name, frozen)
        for name in ("noise", "constant", "n_observations", "jitter"):
            object.__setattr__(self, name, float(getattr(self, name)))
            lower_limit = -np.inf if name == "constant" else 0.0
            if not lower_limit <= getattr(self, name) < np.inf:
                text = f"expected a finite number that is not negative, found {getattr(self, name)}"
                raise InputError(name, text, code="E-NUMBER")
        if not np.all(arrays["scale"] > 0):
            raise InputError("scale", f"expected positive numbers, found {arrays['scale'].tolist()}", code="E-NUMBER")
        smallest = float(np.linalg.eigvalsh(arrays["covariance"])[0])
        if smallest < -EIGENVALUE_ROUNDING * self.kernel.variance:
            text = f"expected a positive semi-definite matrix, found the eigenvalue {smallest:.3g}"
            raise InputError("covariance", text, code="E-NUMBER")

    @classmethod
    def whitened(cls, inputs: Array, mean: Array, covariance: Array, kernel: Kernel, **options: Any) -> SparseGP:
        """Return the process whose q is N(`mean`, `covariance`) in the whitened basis; `options` as of the class."""
        factor = prior_factor(kernel, inputs, float(options.get("jitter", JITTER)))
        values_mean = float(options.get("constant", 0.0)) + factor @ mean
        return cls(inputs, values_mean, factor @ covariance @ factor.T, kernel, **options)

    @property
    def n_inducing(self) -> int:
        """Number M of inducing inputs."""
        return len(self.mean)

    @property
    def dim(self) -> int:
        """Number d of input dimensions."""
        return self.kernel.dim

    @cached_property
    def factor(self) -> Array:
        """Lower Cholesky factor L of the prior covariance at the inducing inputs (M, M)."""
        return prior_factor(self.kernel, self.inducing_inputs, self.jitter)

    @cached_property
    def whitened_mean(self) -> Array:
        """L^-1 (m - c) (M,)."""
        return lower_solve(self.factor, self.mean - self.constant)

    @cached_property
    def whitened_covariance(self) -> Array:
        """L^-1 S L^-T (M, M)."""
        return symmetric_part(lower_solve(self.factor, lower_solve(self.factor, self.covariance).T))

    def predict(self, X: ArrayLike, *, noise: bool = False) -> tuple[Array, Array]:
        """Return mean and variance of the function at every row of `X`.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Inputs, in units of the data.
        noise : bool, optional
            Whether the variance is that of an observation. Default: that of the function.

        Returns
        -------
        mean, variance : Array of shape (n,)
            In units of the data, and in their squares.
        """
        rows = (self._rows(X) - self.shift[:-1]) / self.scale[:-1]
        mean, variance = np.empty(len(rows)), np.empty(len(rows))
        covariance_excess = self.whitened_covariance - np.eye(self.n_inducing)
        for start in range(0, len(rows), BATCH_ROWS):  # so that memory does not grow with n M
            batch = slice(start, start + BATCH_ROWS)
            # L^-1 k(Z, X) (M, rows); the variance is k(x, x) + whitened^T (S_w - I) whitened
            whitened_cross = lower_solve(self.factor, self.kernel.matrix(self.inducing_inputs, rows[batch]))
            mean[batch] = self.constant + self.whitened_mean @ whitened_cross
            excess = np.einsum("mn,mn->n", whitened_cross, covariance_excess @ whitened_cross)
            variance[batch] = self.kernel.diagonal(rows[batch]) + excess
        # Rounding may take a variance near an inducing input below zero.
        variance = np.maximum(variance, 0.0) + (self.noise if noise else 0.0)
        shift, scale = float(self.shift[-1]), float(self.scale[-1])
        return shift + scale * mean, scale**2 * variance

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Return the log density of every observation given its inputs, noise included (n,), in nats."""
        mean, variance = self.predict(X, noise=True)
        targets = as_vector("y", y, len(mean))
        spread = np.maximum(variance, np.finfo(np.float64).tiny)
        return -0.5 * (np.log(2.0 * np.pi * spread) + (targets - mean) ** 2 / spread)

    def at(self, inputs: ArrayLike) -> SparseGP:
        """Return the same process with its values at other inducing inputs (standardised), without data.

        With A = k(Z', Z) K^-1 the mean is A m and the covariance k(Z', Z') - A (K - S) A^T. Nothing is lost when
        `inputs` contain the inducing inputs.
        """
        rows = as_rows("inputs", inputs, self.dim)
        factor = prior_factor(self.kernel, rows, self.jitter)
        cross, _ = whitened_cross_covariance(self.kernel, rows, factor, self.inducing_inputs, self.factor, self.jitter)
        # V (I - S_w) V^T, whitened: what q knows beyond the prior, as far as the new inputs see it (M', M')
        explained = cross @ (np.eye(self.n_inducing) - self.whitened_covariance) @ cross.T
        mean = self.constant + factor @ (cross @ self.whitened_mean)
        covariance = factor @ (np.eye(len(rows)) - explained) @ factor.T
        return replace(self, inducing_inputs=rows, mean=mean, covariance=covariance)

    def nearest(self, X: ArrayLike) -> Labels:
        """Return the nearest inducing input, in length-scales, of every row of `X` (n,)."""
        tree = cKDTree(self.kernel.scaled(self.inducing_inputs))
        rows = (self._rows(X) - self.shift[:-1]) / self.scale[:-1]
        return np.asarray(tree.query(self.kernel.scaled(rows))[1], dtype=np.int64)

    def _rows(self, X: ArrayLike) -> Array:
        """Return checked inputs (n, d)."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise InputError("X", f"expected an array of shape (n, {self.dim}), found {rows.shape}", code="E-SHAPE")
        return rows


def lower_solve(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """Return L^-1 B, or L^-T B when `transposed`, for a lower triangular L."""
    return np.asarray(solve_triangular(factor, right, lower=True, trans=int(transposed), check_finite=False))


def prior_factor(kernel: Kernel, inputs: Array, jitter: float) -> Array:
    """Return the lower Cholesky factor of k(Z, Z) + jitter v I (M, M), or raise where that is not positive definite."""
    covariance = kernel.matrix(inputs)
    covariance[np.diag_indices_from(covariance)] += jitter * kernel.variance
    try:
        return np.asarray(cholesky(covariance, lower=True, check_finite=False))
    except np.linalg.LinAlgError:
        text = (
            f"the prior covariance at {len(inputs)} inducing inputs is not positive definite with jitter {jitter:g};"
            f" use {JITTER:g}"
        )
        raise InputError("", text, code="E-NUMBER") from None


def whitened_cross_covariance(
    kernel: Kernel, inputs: Array, factor: Array, other_inputs: Array, other_factor: Array, jitter: float
) -> tuple[Array, bool]:
    """Return V = L^-1 k(Z, Z_j) L_j^-T (M, M_j), and whether every row of Z_j is one of Z.

    V is the covariance of the values at Z (M, d) and at the others Z_j (M_j, d), both whitened by their lower Cholesky
    factors, see ``prior_factor``; where Z contains Z_j, its columns are orthonormal. Values at coinciding inputs share
    their jitter.
    """
    if np.array_equal(inputs, other_inputs):
        return np.eye(len(other_inputs)), True
    rows, columns = _same_inputs(kernel, inputs, other_inputs)
    covariance = kernel.matrix(inputs, other_inputs)  # (M, M_j)
    covariance[rows, columns] += jitter * kernel.variance
    return lower_solve(other_factor, lower_solve(factor, covariance).T).T, len(columns) == len(other_inputs)


def _same_inputs(kernel: Kernel, inputs: Array, other_inputs: Array) -> tuple[Labels, Labels]:
    """Return which rows of `inputs` coincide with which of `other_inputs`, each at most once."""
    distance, nearest = cKDTree(kernel.scaled(inputs)).query(kernel.scaled(other_inputs))
    coinciding = np.flatnonzero(distance <= COINCIDENCE_DISTANCE)
    # Two of `other_inputs` may lie at one of `inputs`: only the first of them is taken for it.
    rows, first = np.unique(nearest[coinciding], return_index=True)
    return np.asarray(rows, dtype=np.int64), coinciding[first]
