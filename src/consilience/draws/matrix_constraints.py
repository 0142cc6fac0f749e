"""Constraints of square matrices: covariances, correlations, and their lower Cholesky factors L.

    covariance            S = L L^T, u = L row by row, with logarithms on its diagonal
    cholesky_covariance   L itself, in the same coordinates
    correlation           R = L L^T, u_ij = atanh z_ij, i > j, of the canonical partial correlations z
    cholesky_correlation  L itself, with rows of length 1, in the same coordinates

with L_ij = z_ij prod_{k<j} (1 - z_ik^2)^1/2 and L_ii = prod_{k<i} (1 - z_ik^2)^1/2 (Lewandowski, Kurowicka and Joe
2009), so that what is combined, and mapped back, is such a matrix again. Jacobians are products of powers of L_ii, and
of 1 - z_ij^2 = cosh^-2 u_ij.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, symmetric_part
from consilience.draws.constraints import SIMPLEX_ROUNDING, Constraint


@dataclass(frozen=True)
class MatrixConstraint(Constraint):
    """Square matrices in the last two axes, of which a lower triangular factor is combined."""

    event_dims: ClassVar[int] = 2
    diagonal: ClassVar[int] = 0
    """Highest diagonal of the factor that has coordinates: 0, or -1 where the main one follows."""

    def _triangle(self, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return rows and columns of the entries that have coordinates."""
        return np.tril_indices(size, self.diagonal)

    def n_coordinates(self, shape: tuple[int, ...]) -> int:
        """Return the entries of a triangle, for each matrix."""
        return prod(shape[:-2]) * shape[-1] * (shape[-1] + 1 + 2 * self.diagonal) // 2

    def _as_triangle(self, entries: Array, size: int) -> Array:
        """Return matrices (..., D, D) of entries (..., d), zero elsewhere."""
        matrices = np.zeros((*entries.shape[:-1], size, size))
        matrices[(..., *self._triangle(size))] = entries
        return matrices

    def _by_matrix(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return coordinates (n, batch, d) by matrix."""
        return coordinates.reshape(len(coordinates), prod(shape[:-2]), len(self._triangle(shape[-1])[0]))

    def _factor(self, values: Array) -> Array:
        """Return L (n, ..., D, D) of matrices; the matrices themselves here."""
        return values

    def _matrix(self, factor: Array) -> Array:
        """Return matrices (n, ..., D, D) of L; L itself here."""
        return factor

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return the names of the entries of the triangles."""
        rows, columns = self._triangle(shape[-1])
        matrices = np.reshape(np.array(names, dtype=object), (-1, *shape[-2:]))
        called = "partial" if self.diagonal else "chol"
        return [f"{called} {name}" for matrix in matrices for name in matrix[rows, columns]]


def _is_symmetric(values: Array) -> NDArray[np.bool_]:
    """Return which matrices are symmetric, to the digits of a text file."""
    transposed = np.swapaxes(values, -1, -2)
    scale = np.abs(values).max(axis=(-1, -2))
    symmetric: NDArray[np.bool_] = np.abs(values - transposed).max(axis=(-1, -2)) <= SIMPLEX_ROUNDING * scale
    return symmetric


def _is_positive_definite(values: Array) -> NDArray[np.bool_]:
    """Return which symmetric matrices are positive definite."""
    inside: NDArray[np.bool_] = np.linalg.eigvalsh(0.5 * (values + np.swapaxes(values, -1, -2)))[..., 0] > 0
    return inside


def _is_factor(values: Array) -> NDArray[np.bool_]:
    """Return which matrices are zero above a positive diagonal."""
    above = values[(..., *np.triu_indices(values.shape[-1], 1))]
    inside: NDArray[np.bool_] = np.all(above == 0, axis=-1)
    return inside & np.all(np.diagonal(values, axis1=-2, axis2=-1) > 0, axis=-1)


def _cholesky(values: Array) -> Array:
    factor: Array = np.linalg.cholesky(0.5 * (values + np.swapaxes(values, -1, -2))).astype(np.float64)
    return factor


def _square(factor: Array) -> Array:
    """Return L L^T, symmetric to the last bit."""
    return symmetric_part(factor @ np.swapaxes(factor, -1, -2))


class _LogDiagonal(MatrixConstraint):
    """Coordinates L, with logarithms on the diagonal; the Jacobian is a product of powers of L_ii."""

    @abstractmethod
    def _diagonal_powers(self, size: int) -> Array:
        """Return the power (D,) of every L_ii in the Jacobian for u."""

    def unconstrain(self, values: Array) -> Array:
        """Return the Cholesky factor row by row, its diagonal as logarithms."""
        rows, columns = self._triangle(values.shape[-1])
        entries = self._factor(values)[..., rows, columns]
        entries[..., rows == columns] = np.log(entries[..., rows == columns])
        return entries.reshape(len(values), -1)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrices of the factors."""
        rows, columns = self._triangle(shape[-1])
        entries = self._by_matrix(coordinates, shape).copy()
        entries[..., rows == columns] = np.exp(entries[..., rows == columns])
        return self._matrix(self._as_triangle(entries, shape[-1])).reshape(-1, *shape)

    def slopes(self, shape: tuple[int, ...]) -> Any:
        """Return the powers of the diagonal, and zeros."""
        rows, columns = self._triangle(shape[-1])
        powers = np.where(rows == columns, self._diagonal_powers(shape[-1])[rows], 0.0)
        return np.tile(powers, prod(shape[:-2]))

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of powers times u_ii."""
        return coordinates @ self.slopes(shape)


@dataclass(frozen=True)
class Covariance(_LogDiagonal):
    """Symmetric positive definite matrices in the last two axes."""

    name: ClassVar[str] = "covariance"

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which matrices are symmetric, to the digits of a text file, and positive definite."""
        return _is_symmetric(values) & _is_positive_definite(values)

    def _factor(self, values: Array) -> Array:
        return _cholesky(values)

    def _matrix(self, factor: Array) -> Array:
        return _square(factor)

    def _diagonal_powers(self, size: int) -> Array:
        # Of S = L L^T the Jacobian is 2^D prod_i L_ii^(D - i + 1), i from 1, and of L_ii = exp u_ii it is L_ii.
        return size + 1.0 - np.arange(size, dtype=np.float64)


@dataclass(frozen=True)
class CholeskyCovariance(_LogDiagonal):
    """Lower triangular matrices with a positive diagonal."""

    name: ClassVar[str] = "cholesky_covariance"

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which matrices are zero above a positive diagonal."""
        return _is_factor(values)

    def _diagonal_powers(self, size: int) -> Array:
        return np.ones(size)


class _PartialCorrelations(MatrixConstraint):
    """Coordinates u_ij = atanh z_ij below the diagonal; the Jacobian is a product of powers of 1 - z_ij^2."""

    diagonal: ClassVar[int] = -1

    @abstractmethod
    def _powers_of_rest(self, rows: Array, columns: Array, size: int) -> Array:
        """Return the power (d,) of every 1 - z_ij^2 in the Jacobian for u."""

    def unconstrain(self, values: Array) -> Array:
        """Return atanh z_ij = asinh(L_ij / (sum_{k>j} L_ik^2)^1/2), row by row."""
        factor = self._factor(values)
        squares = factor**2
        rest = np.cumsum(squares[..., ::-1], axis=-1)[..., ::-1] - squares  # of the columns beyond
        rows, columns = self._triangle(values.shape[-1])
        ratios = factor[..., rows, columns] / np.sqrt(rest[..., rows, columns])
        return np.arcsinh(ratios).reshape(len(values), -1)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrices of L_ij = z_ij prod_{k<j} cosh^-1 u_ik."""
        size, u = shape[-1], self._by_matrix(coordinates, shape)
        decay = np.exp(-np.abs(u))
        rest = np.ones((*u.shape[:-1], size, size))  # (1 - z^2)^1/2 below the diagonal
        rest[(..., *self._triangle(size))] = 2.0 * decay / (1.0 + decay**2)
        before = np.cumprod(np.concatenate([np.ones_like(rest[..., :1]), rest[..., :-1]], axis=-1), axis=-1)
        factor = (self._as_triangle(np.tanh(u), size) + np.eye(size)) * before
        return self._matrix(factor).reshape(-1, *shape)

    def _powers(self, shape: tuple[int, ...]) -> Array:
        rows, columns = (places.astype(np.float64) for places in self._triangle(shape[-1]))
        return np.tile(self._powers_of_rest(rows, columns, shape[-1]), prod(shape[:-2]))

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of powers times log(1 - z_ij^2) = -2 log cosh u_ij."""
        log_cosh = np.logaddexp(coordinates, -coordinates) - np.log(2.0)
        result: Array = -2.0 * log_cosh @ self._powers(shape)
        return result

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return -2 z and -2 (1 - z^2), times the powers."""
        z, powers = np.tanh(coordinates), self._powers(shape)
        return -2.0 * powers * z, np.diag(-2.0 * powers * (1.0 - z**2))


@dataclass(frozen=True)
class Correlation(_PartialCorrelations):
    """Symmetric positive definite matrices with ones on the diagonal."""

    name: ClassVar[str] = "correlation"

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which matrices are symmetric with a diagonal of ones, to the digits of a text file, and definite."""
        ones = np.abs(np.diagonal(values, axis1=-2, axis2=-1) - 1.0).max(axis=-1) <= SIMPLEX_ROUNDING
        inside: NDArray[np.bool_] = ones & _is_symmetric(values) & _is_positive_definite(values)
        return inside

    def _factor(self, values: Array) -> Array:
        return _cholesky(values)

    def _matrix(self, factor: Array) -> Array:
        matrices = _square(factor)
        places = np.arange(factor.shape[-1])
        matrices[..., places, places] = 1.0
        return matrices

    def _powers_of_rest(self, rows: Array, columns: Array, size: int) -> Array:
        # Those of L, and dR_ij / dL_ij = L_jj for each of the size - 1 - i rows below row i.
        return 0.5 * (size - columns)


@dataclass(frozen=True)
class CholeskyCorrelation(_PartialCorrelations):
    """Lower triangular matrices with a positive diagonal and rows of length 1."""

    name: ClassVar[str] = "cholesky_correlation"

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which matrices are zero above a positive diagonal, with rows of length 1 to the digits of a text."""
        lengths = np.abs(np.sum(values**2, axis=-1) - 1.0).max(axis=-1)
        inside: NDArray[np.bool_] = _is_factor(values) & (lengths <= SIMPLEX_ROUNDING)
        return inside

    def _powers_of_rest(self, rows: Array, columns: Array, size: int) -> Array:
        # dz / du is 1 - z_ij^2, and each L_ik with j < k < i has the factor (1 - z_ij^2)^1/2.
        return 1.0 + 0.5 * (rows - 1.0 - columns)
