"""Constraints of parameters, and their unconstrained coordinates u = g(theta) with the Jacobian |d theta / d u|.

    lower, upper   u = log(theta - a), log(b - theta)
    interval       u = logit((theta - a) / (b - a))
    simplex        u_k = log(theta_k / theta_K), the additive log-ratio to the last entry
    ordered        u_1 = theta_1, u_k = log(theta_k - theta_{k-1})
    sum to zero    u = all entries but the last one

A law p(theta) has the density p(theta(u)) |d theta / d u| in u. All are functions of whole batches; vectors lie along
the last axis, matrices (``matrix_constraints``) along the last two, and what comes before them is a batch.
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

from consilience.checks import Array

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

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return gradient (d,) and Hessian (d, d) of the log Jacobian at one point (d,)."""
        d = len(coordinates)
        return np.broadcast_to(self.slopes(shape), d).astype(np.float64), np.zeros((d, d))

    def slopes(self, shape: tuple[int, ...]) -> Any:
        """Return the gradient (d,) of a log Jacobian that is linear in u, or what all of its entries are; 0 here."""
        return 0.0

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return names of the coordinates, given those of the entries in row order."""
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


@dataclass(frozen=True)
class Bound(Elementwise):
    """Values on one side of a bound: theta = bound + sign e^u."""

    bound: float = 0.0  # the end that is not reached
    sign: int = 1  # 1 for values above it, -1 for values below
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
        return coordinates.sum(axis=1)

    def slopes(self, shape: tuple[int, ...]) -> Any:
        """Return 1: log |h'| = u."""
        return 1.0


@dataclass(frozen=True)
class IntervalConstraint(Elementwise):
    """Values between two bounds: theta = low + (high - low) s(u), s the logistic function."""

    low: float = 0.0
    high: float = 1.0
    name: ClassVar[str] = "interval"

    def to_json(self) -> str | list[Any]:
        """Return "unit_interval", or the name with both bounds."""
        return "unit_interval" if self == IntervalConstraint() else [self.name, self.low, self.high]

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
        return coordinates @ self.slopes(shape)

    def slopes(self, shape: tuple[int, ...]) -> Any:
        """Return ones at gaps, and zeros."""
        return np.tile((np.arange(shape[-1]) > 0).astype(np.float64), prod(shape[:-1]))


@dataclass(frozen=True)
class SumToZero(Constraint):
    """Entries that add up to zero along the last axis."""

    name: ClassVar[str] = "sum_to_zero"
    event_dims: ClassVar[int] = 1

    def n_coordinates(self, shape: tuple[int, ...]) -> int:
        """Return one less than the entries, for each vector."""
        return prod(shape[:-1]) * (shape[-1] - 1)

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which rows add up to zero, to the digits of a text file."""
        inside: NDArray[np.bool_] = np.abs(values.sum(axis=-1)) <= SIMPLEX_ROUNDING * np.abs(values).sum(axis=-1)
        return inside

    def unconstrain(self, values: Array) -> Array:
        """Return all entries but the last ones."""
        return values[..., :-1].reshape(len(values), -1)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the entries, the last one less the sum of the others."""
        rows = coordinates.reshape(len(coordinates), *shape[:-1], shape[-1] - 1)
        return np.concatenate([rows, -rows.sum(axis=-1, keepdims=True)], axis=-1)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return zeros: the map is linear."""
        return np.zeros(len(coordinates))

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return the names of all but the last entry of every vector."""
        return list(np.reshape(np.array(names, dtype=object), (-1, shape[-1]))[:, :-1].ravel())
