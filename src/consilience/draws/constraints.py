"""Constraints of parameters, and their unconstrained coordinates u = g(theta) with the Jacobian |d theta / d u|.

    lower, upper   u = log(theta - a), log(b - theta)
    interval       u = logit((theta - a) / (b - a))
    simplex        u_k = log(theta_k / theta_K), the additive log-ratio to the last entry
    ordered        u_1 = theta_1, u_k = log(theta_k - theta_{k-1})
    covariance     u = the lower Cholesky factor, row by row, with logarithms on its diagonal

A law p(theta) has the density p(theta(u)) |d theta / d u| in u. All are functions of whole batches; simplexes and
ordered vectors lie along the last axis, covariances along the last two, and what comes before them is a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from consilience.catalogue import suggestion
from consilience.checks import Array
from consilience.errors import OptionError

SIMPLEX_ROUNDING = 1e-5
"""Difference from 1 of the sum of a simplex that is rounding: CmdStan writes six digits. Chosen by hand."""


@dataclass(frozen=True)
class Constraint(ABC):
    """The set in which a parameter lies, and the coordinates in which it is combined."""

    name: ClassVar[str]
    event_dims: ClassVar[int] = 0
    """Last axes that are constrained together."""

    def arguments(self) -> tuple[float, ...]:
        """Return the numbers that say which set of its class it is."""
        return ()

    def to_json(self) -> str | list[Any]:
        """Return it as ``as_constraint`` takes it."""
        return [self.name, *self.arguments()] if self.arguments() else self.name

    def n_coordinates(self, shape: tuple[int, ...]) -> int:
        """Return the number of unconstrained coordinates of a variable of this shape."""
        return prod(shape)

    @abstractmethod
    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which entries, or events, of values (n, ...) lie strictly inside."""

    @abstractmethod
    def unconstrain(self, values: Array) -> Array:
        """Return coordinates (n, d) of values (n, ...)."""

    @abstractmethod
    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return values (n, ...), each of a shape, of coordinates (n, d)."""

    @abstractmethod
    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return log |d theta / d u| (n,) up to a constant."""

    @abstractmethod
    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return gradient (d,) and Hessian (d, d) of the log Jacobian at one point (d,)."""

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return names of the coordinates, given those of the entries in row order."""
        del shape
        return list(names)


@dataclass(frozen=True)
class Elementwise(Constraint):
    """A constraint of every entry alone: theta = h(u), with first and second derivatives h' > 0 and h''."""

    @abstractmethod
    def derivatives(self, coordinates: Array) -> tuple[Array, Array, Array]:
        """Return h(u), |h'(u)|, and h''(u) / h'(u)."""

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return h(u)."""
        return self.derivatives(coordinates)[0].reshape(-1, *shape)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of log |h'|."""
        del shape
        with np.errstate(divide="ignore"):
            return np.log(self.derivatives(coordinates)[1]).sum(axis=1)


@dataclass(frozen=True)
class Real(Elementwise):
    """No constraint."""

    name: ClassVar[str] = "real"

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return True everywhere."""
        return np.ones(values.shape, dtype=bool)

    def unconstrain(self, values: Array) -> Array:
        """Return the values themselves, flat."""
        return values.reshape(len(values), -1)

    def derivatives(self, coordinates: Array) -> tuple[Array, Array, Array]:
        """Return u, 1, 0."""
        return coordinates, np.ones_like(coordinates), np.zeros_like(coordinates)

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return zeros."""
        return np.zeros(len(coordinates)), np.zeros((len(coordinates), len(coordinates)))


@dataclass(frozen=True)
class Bound(Elementwise):
    """Values on one side of a bound: theta = bound + sign e^u.

    Parameters
    ----------
    bound : float
        The end that is not reached.
    sign : int
        1 for values above it, -1 for values below.
    """

    bound: float = 0.0
    sign: int = 1
    name: ClassVar[str] = "lower"

    def to_json(self) -> str | list[Any]:
        """Return "positive", or the name with the bound."""
        if self == Bound():
            return "positive"
        return ["lower" if self.sign > 0 else "upper", self.bound]

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which values lie on their side of the bound."""
        return self.sign * (values - self.bound) > 0

    def unconstrain(self, values: Array) -> Array:
        """Return the logarithm of the distance to the bound."""
        return np.log(self.sign * (values.reshape(len(values), -1) - self.bound))

    def derivatives(self, coordinates: Array) -> tuple[Array, Array, Array]:
        """Return bound + sign e^u, e^u, 1."""
        size = np.exp(coordinates)
        return self.bound + self.sign * size, size, np.ones_like(size)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of u."""
        del shape
        return coordinates.sum(axis=1)

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return ones and zeros: log |h'| = u."""
        return np.ones(len(coordinates)), np.zeros((len(coordinates), len(coordinates)))


@dataclass(frozen=True)
class Interval(Elementwise):
    """Values between two bounds: theta = low + (high - low) s(u), s the logistic function."""

    low: float = 0.0
    high: float = 1.0
    name: ClassVar[str] = "interval"

    def to_json(self) -> str | list[Any]:
        """Return "unit_interval", or the name with both bounds."""
        return "unit_interval" if self == Interval() else [self.name, self.low, self.high]

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which values lie between the bounds."""
        return (values > self.low) & (values < self.high)

    def unconstrain(self, values: Array) -> Array:
        """Return the logit of the rescaled values."""
        flat = values.reshape(len(values), -1)
        return np.log(flat - self.low) - np.log(self.high - flat)

    def derivatives(self, coordinates: Array) -> tuple[Array, Array, Array]:
        """Return low + w s, w s (1 - s), 1 - 2 s, for the width w."""
        share, width = expit(coordinates), self.high - self.low
        return self.low + width * share, width * share * expit(-coordinates), 1.0 - 2.0 * share

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of log s (1 - s)."""
        del shape
        return -(np.logaddexp(0.0, coordinates) + np.logaddexp(0.0, -coordinates)).sum(axis=1)

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return 1 - 2 s and -2 s (1 - s)."""
        share = expit(coordinates)
        return 1.0 - 2.0 * share, np.diag(-2.0 * share * (1.0 - share))


@dataclass(frozen=True)
class Simplex(Constraint):
    """Positive entries that add up to 1 along the last axis."""

    name: ClassVar[str] = "simplex"
    event_dims: ClassVar[int] = 1

    def n_coordinates(self, shape: tuple[int, ...]) -> int:
        """Return one less than the entries, for each simplex."""
        return prod(shape[:-1]) * (shape[-1] - 1)

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which rows are positive and add up to 1."""
        return np.all(values > 0, axis=-1) & (np.abs(values.sum(axis=-1) - 1.0) <= SIMPLEX_ROUNDING)

    def unconstrain(self, values: Array) -> Array:
        """Return log-ratios to the last entry."""
        logs = np.log(values)
        return (logs[..., :-1] - logs[..., -1:]).reshape(len(values), -1)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the softmax with 0 for the last entry."""
        return np.exp(self._log_values(coordinates, shape)).reshape(-1, *shape)

    def _log_values(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        ratios = coordinates.reshape(len(coordinates), -1, shape[-1] - 1)
        padded = np.concatenate([ratios, np.zeros((*ratios.shape[:-1], 1))], axis=-1)  # (n, batch, K)
        return padded - np.logaddexp.reduce(padded, axis=-1, keepdims=True)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of the logarithms of all K entries."""
        return self._log_values(coordinates, shape).sum(axis=(1, 2))

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return 1 - K theta and -K (diag(theta) - theta theta^T), simplex by simplex."""
        return self.dirichlet_derivatives(coordinates, shape, np.ones(shape[-1]))

    def dirichlet_derivatives(
        self, coordinates: Array, shape: tuple[int, ...], concentration: Array
    ) -> tuple[Array, Array]:
        """Return derivatives of sum_k alpha_k log theta_k(u): a - (sum a) theta and its Hessian."""
        k = shape[-1] - 1
        values = np.exp(self._log_values(coordinates[None], shape))[0, :, :k]  # (batch, K - 1)
        total = concentration.sum()
        gradient = concentration[:k] - total * values
        hessian = np.zeros((values.size, values.size))
        for number, row in enumerate(values):
            part = slice(number * k, (number + 1) * k)
            hessian[part, part] = -total * (np.diag(row) - np.outer(row, row))
        return gradient.ravel(), hessian

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return the names of all but the last entry of every simplex."""
        rows = np.reshape(np.array(names, dtype=object), (-1, shape[-1]))
        return [f"{name} : {row[-1]}" for row in rows for name in row[:-1]]


@dataclass(frozen=True)
class Ordered(Constraint):
    """Entries that rise along the last axis."""

    name: ClassVar[str] = "ordered"
    event_dims: ClassVar[int] = 1

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which rows rise strictly."""
        return np.all(np.diff(values, axis=-1) > 0, axis=-1)

    def unconstrain(self, values: Array) -> Array:
        """Return first entries and logarithms of gaps."""
        return np.concatenate([values[..., :1], np.log(np.diff(values, axis=-1))], axis=-1).reshape(len(values), -1)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return cumulative sums of the first entry and the gaps."""
        rows = coordinates.reshape(-1, *shape)
        return np.cumsum(np.concatenate([rows[..., :1], np.exp(rows[..., 1:])], axis=-1), axis=-1)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the sum of all log gaps."""
        return coordinates @ self._is_gap(shape)

    def _is_gap(self, shape: tuple[int, ...]) -> Array:
        return np.tile((np.arange(shape[-1]) > 0).astype(np.float64), prod(shape[:-1]))

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return ones at gaps, and zeros."""
        return self._is_gap(shape), np.zeros((len(coordinates), len(coordinates)))


@dataclass(frozen=True)
class Covariance(Constraint):
    """Symmetric positive definite matrices in the last two axes."""

    name: ClassVar[str] = "covariance"
    event_dims: ClassVar[int] = 2

    def n_coordinates(self, shape: tuple[int, ...]) -> int:
        """Return the entries of a triangle, for each matrix."""
        return prod(shape[:-2]) * shape[-1] * (shape[-1] + 1) // 2

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which matrices are symmetric, to the digits of a text file, and positive definite."""
        transposed = np.swapaxes(values, -1, -2)
        scale = np.abs(values).max(axis=(-1, -2))
        is_symmetric = np.abs(values - transposed).max(axis=(-1, -2)) <= SIMPLEX_ROUNDING * scale
        return is_symmetric & (np.linalg.eigvalsh(0.5 * (values + transposed))[..., 0] > 0)

    def unconstrain(self, values: Array) -> Array:
        """Return the Cholesky factor row by row, its diagonal as logarithms."""
        factor: Array = np.linalg.cholesky(0.5 * (values + np.swapaxes(values, -1, -2))).astype(np.float64)
        rows, columns = np.tril_indices(values.shape[-1])
        entries = factor[..., rows, columns]
        entries[..., rows == columns] = np.log(entries[..., rows == columns])
        return entries.reshape(len(values), -1)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return L L^T."""
        size = shape[-1]
        rows, columns = np.tril_indices(size)
        entries = coordinates.reshape(*(len(coordinates), prod(shape[:-2])), len(rows)).copy()
        entries[..., rows == columns] = np.exp(entries[..., rows == columns])
        factor = np.zeros((*entries.shape[:-1], size, size))
        factor[..., rows, columns] = entries
        return (factor @ np.swapaxes(factor, -1, -2)).reshape(-1, *shape)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return sum_i (D - i + 2) u_ii: of S = L L^T it is L_ii^(D - i + 1) 2^D, and of L_ii = exp u_ii it is L_ii."""
        return coordinates @ self._powers(shape)

    def _powers(self, shape: tuple[int, ...]) -> Array:
        rows, columns = np.tril_indices(shape[-1])
        powers = np.where(rows == columns, shape[-1] + 1.0 - rows, 0.0)  # rows count from 0
        return np.tile(powers, prod(shape[:-2]))

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the powers of the diagonal, and zeros."""
        return self._powers(shape), np.zeros((len(coordinates), len(coordinates)))

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return the names of the entries of the lower triangles."""
        rows, columns = np.tril_indices(shape[-1])
        matrices = np.reshape(np.array(names, dtype=object), (-1, *shape[-2:]))
        return [f"chol {name}" for matrix in matrices for name in matrix[rows, columns]]


NAMES = "real, positive, unit_interval, (lower, a), (upper, b), (interval, a, b), simplex, ordered, covariance"
"""What there is, for messages."""

_PLAIN: dict[str, Constraint] = {
    "real": Real(),
    "positive": Bound(),
    "unit_interval": Interval(),
    "simplex": Simplex(),
    "ordered": Ordered(),
    "covariance": Covariance(),
}


def as_constraint(stated: Any, variable: str) -> Constraint:
    """Return a constraint of its name, or of its name with bounds.

    Raises
    ------
    OptionError
        For one that there is not.

    Examples
    --------
    >>> as_constraint(["interval", 0, 2], "p")
    Interval(low=0.0, high=2.0)
    """
    if isinstance(stated, Constraint):
        return stated
    if isinstance(stated, str) and stated in _PLAIN:
        return _PLAIN[stated]
    try:
        name, *bounds = stated
        numbers = [float(bound) for bound in bounds]
        is_valid = not isinstance(stated, str) and all(np.isfinite(numbers))
        if is_valid and name in ("lower", "upper") and len(numbers) == 1:
            return Bound(numbers[0], 1 if name == "lower" else -1)
        if is_valid and name == "interval" and len(numbers) == 2 and numbers[0] < numbers[1]:
            return Interval(*numbers)
    except (TypeError, ValueError):
        pass
    raise OptionError(
        "constraints",
        f"of {variable}: found {stated!r:.80}{suggestion(stated, NAMES.split(', '))}, expected one of {NAMES}",
    )


def is_shaped(constraint: Constraint, shape: tuple[int, ...]) -> bool:
    """Return whether a variable of this shape can have the constraint."""
    if constraint.event_dims > len(shape):
        return False
    if isinstance(constraint, Covariance):
        return shape[-1] == shape[-2]
    return not isinstance(constraint, Simplex) or shape[-1] > 1
