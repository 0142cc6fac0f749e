"""Stationary covariance functions of Gaussian processes, as frozen values with exact derivatives.

With r^2 = sum_d (x_d - z_d)^2 / l_d^2 and output variance v (Rasmussen and Williams 2006, section 4.2.1):

    RBF          v exp(-r^2 / 2)
    Matern 1/2   v exp(-r)
    Matern 3/2   v (1 + sqrt(3) r) exp(-sqrt(3) r)
    Matern 5/2   v (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

from consilience.catalogue import suggestion
from consilience.checks import Array, Json, as_vector
from consilience.errors import InputError

Pullback = Callable[[Array], tuple[float, Array, Array]]
"""Maps derivatives by the entries of k(A, B) (n, m) to those by log v, by log l (d,) and by A (n, d)."""


@dataclass(frozen=True, eq=False)
class Kernel(ABC):
    """A covariance function with one length-scale for every input dimension.

    Parameters
    ----------
    variance
        Output variance v, in squared units of the function.
    lengthscales
        Length-scales (d,), in units of the inputs.

    Raises
    ------
    InputError
        For parameters that are not positive and finite.

    Examples
    --------
    >>> RBF(2.0, [1.0, 4.0]).matrix([[0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]).round(4)
    array([[2.    , 1.2131]])
    """

    variance: float
    lengthscales: Array

    def __post_init__(self) -> None:
        lengthscales = as_vector("lengthscales", self.lengthscales).copy()
        lengthscales.setflags(write=False)
        object.__setattr__(self, "variance", float(self.variance))
        object.__setattr__(self, "lengthscales", lengthscales)
        for name, values in (("variance", np.array(self.variance)), ("length-scales", lengthscales)):
            if not np.all(np.isfinite(values) & (values > 0)):
                text = f"{name} of a kernel must be positive and finite, found {values.tolist()}"
                raise InputError("", text, code="E-NUMBER")

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the kernel in files: ``rbf``, ``matern12``, ``matern32`` or ``matern52``."""

    @abstractmethod
    def _shape(self, squared: Array) -> tuple[Array, Array]:
        """Return k / v and its derivative by r^2 at squared distances (n, m)."""

    @property
    @final
    def dim(self) -> int:
        """Number d of input dimensions."""
        return len(self.lengthscales)

    @final
    def scaled(self, X: ArrayLike) -> Array:
        """Return inputs (n, d) in units of the length-scales."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            text = f"expected an array of shape (n, {self.dim}), found {rows.shape}"
            raise InputError("inputs", text, code="E-SHAPE")
        return rows / self.lengthscales

    @final
    def matrix(self, X: ArrayLike, Z: ArrayLike | None = None) -> Array:
        """Return k(X, Z) (n, m); `Z` is `X` when not given."""
        a = self.scaled(X)
        b = a if Z is None else self.scaled(Z)
        return self.variance * self._shape(cdist(a, b, "sqeuclidean"))[0]

    @final
    def diagonal(self, X: ArrayLike) -> Array:
        """Return k(x, x) for every row (n,)."""
        return np.full(len(self.scaled(X)), self.variance)

    @final
    def with_pullback(self, A: Array, B: Array) -> tuple[Array, Pullback]:
        """Return k(A, B) (n, m) of inputs (n, d) and (m, d), and the pullback of its derivatives."""
        a, b = self.scaled(A), self.scaled(B)
        shape, slope = self._shape(cdist(a, b, "sqeuclidean"))
        values = self.variance * shape

        def pullback(by_entry: Array) -> tuple[float, Array, Array]:
            by_square = self.variance * by_entry * slope  # derivatives by r^2 (n, m)
            row_sums, weighted_b = by_square.sum(axis=1), by_square @ b  # (n,) and (n, d)
            # sum_ij by_square_ij (a_id - b_jd)^2 for every d, expanded so that no array is (n, m, d)
            spread = row_sums @ a**2 + by_square.sum(axis=0) @ b**2 - 2.0 * np.einsum("nd,nd->d", a, weighted_b)
            by_input: Array = 2.0 * (row_sums[:, None] * a - weighted_b) / self.lengthscales
            return float(np.vdot(by_entry, values)), -2.0 * spread, by_input

        return values, pullback

    @final
    def same_as(self, other: Kernel) -> bool:
        """Return whether `other` is the same function, to the last bit."""
        return (
            self.name == other.name
            and self.variance == other.variance
            and np.array_equal(self.lengthscales, other.lengthscales)
        )

    @final
    def to_json(self) -> dict[str, Json]:
        """Return name and parameters as JSON values."""
        return {"name": self.name, "variance": self.variance, "lengthscales": self.lengthscales.tolist()}


@dataclass(frozen=True, eq=False)
class RBF(Kernel):
    """The squared-exponential kernel v exp(-r^2 / 2); parameters as in Kernel."""

    @property
    def name(self) -> str:
        """``rbf``."""
        return "rbf"

    def _shape(self, squared: Array) -> tuple[Array, Array]:
        shape = np.exp(-0.5 * squared)
        return shape, -0.5 * shape


@dataclass(frozen=True, eq=False)
class Matern(Kernel):
    """The Matern kernels of smoothness nu: 1/2, 3/2 or 5/2; parameters as in Kernel."""

    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (0.5, 1.5, 2.5):
            raise InputError("nu", f"expected 0.5, 1.5 or 2.5, found {self.nu!r}")

    @property
    def name(self) -> str:
        """``matern12``, ``matern32`` or ``matern52``."""
        return f"matern{round(2 * self.nu)}2"

    def _shape(self, squared: Array) -> tuple[Array, Array]:
        r = np.sqrt(2.0 * self.nu * squared)
        decay = np.exp(-r)
        # Derivatives by r^2 are those by r over 2 r; only the kernel of smoothness 1/2 has none at r = 0.
        if self.nu == 0.5:
            return decay, np.divide(-0.5 * decay, r, out=np.zeros_like(r), where=r > 0)
        if self.nu == 1.5:
            return (1.0 + r) * decay, -1.5 * decay
        return (1.0 + r + r**2 / 3.0) * decay, -5.0 / 6.0 * (1.0 + r) * decay


KERNELS = ("rbf", "matern12", "matern32", "matern52")
"""Names of the kernels in files and options."""


def make_kernel(name: str, variance: float, lengthscales: ArrayLike) -> Kernel:
    """Return the kernel of a name of ``KERNELS``, with output variance v and length-scales (d,), or raise for another.

    Examples
    --------
    >>> make_kernel("matern32", 1.0, [1.0]).nu
    1.5
    """
    if name not in KERNELS:
        raise InputError(f"kernel {name!r} does not exist{suggestion(name, KERNELS)}; there are {', '.join(KERNELS)}")
    scales = as_vector("lengthscales", lengthscales)
    return RBF(variance, scales) if name == "rbf" else Matern(variance, scales, nu=int(name[-2]) / 2.0)
