"""Sparse Gaussian process regression at a site: inducing inputs, kernel and noise by the bound of Titsias 2009."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from consilience.checks import Array, as_rows, as_vector, is_count
from consilience.errors import InputError, OptionError
from consilience.posteriors.sparse_gp.kernels import KERNELS, Kernel, make_kernel
from consilience.posteriors.sparse_gp.model import JITTER, SparseGP
from consilience.posteriors.sparse_gp.titsias_bound import bound_gradient, collapsed_posterior

_LOG_RANGE = np.log(1e6)  # of variance and noise about where they start
_OFF_THE_ROWS = 0.05  # of the spread of the rows behind a starting inducing input
_AT_LEAST = 1e-3  # of the spread of all rows, where those rows are all the same


@dataclass(frozen=True, eq=False)
class _Point:
    """What the bound is climbed over, as one vector: log v, log l (d,), log s^2, c, and Z (M d,)."""

    kernel: Kernel
    noise: float
    constant: float
    inputs: Array

    @property
    def vector(self) -> Array:
        logs = np.log([self.kernel.variance, *self.kernel.lengthscales, self.noise])
        return np.concatenate([logs, [self.constant], self.inputs.ravel()])

    def moved(self, vector: Array) -> _Point:
        dim = self.kernel.dim
        kernel = make_kernel(self.kernel.name, float(np.exp(vector[0])), np.exp(vector[1 : dim + 1]))
        inputs = vector[dim + 3 :].reshape(self.inputs.shape)
        return _Point(kernel, float(np.exp(vector[dim + 1])), float(vector[dim + 2]), inputs)


@dataclass(frozen=True, eq=False)
class TitsiasGP:
    """Fit a sparse Gaussian process to a site's rows, whose inducing inputs and parameters can then be fused.

    The bound of the log evidence is climbed by L-BFGS with exact derivatives; q is the exact optimum given the rest.
    The cost of an iteration is O(N M^2).

    Inducing inputs start off the data: each at the mean of at least `min_count` rows, moved a little at random, so none
    is a row. Climbing may bring one near a row again, most of all when there are almost as many as rows; what is sent
    beside them, values and covariance, sums up the rows near each. Keep many rows to an inducing input.

    Parameters
    ----------
    n_inducing
        Number M of inducing inputs at most; fewer where rows are too few for `min_count`.
    kernel
        ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``, or a kernel of
        ``consilience.posteriors.sparse_gp.kernels`` that gives the first parameters too, in standardised units.
    noise, constant
        First noise variance and mean function, in standardised units; None takes both, as the kernel's variance, from
        the targets.
    shift, scale
        Public constants of the d inputs, then of the target (d + 1,), or one number for all: column c is fitted as
        ``(value - shift[c]) / scale[c]``. They must be the same at every site, and not be computed from a site's rows.
        Files carry them, and ``consilience check`` compares them.
    learn_parameters
        Whether kernel, noise and constant are fitted, or stay as given.
    learn_inducing
        Whether the inducing inputs are fitted, or stay where they start.
    inducing_inputs
        First inducing inputs (M, d) in units of the data, such as fused ones; None starts among the rows.
    min_count
        Rows behind each starting inducing input at least.
    lengthscale_bounds
        Smallest and largest length-scale, in standardised units. A site cannot tell the length-scale of a column that
        is the same in all its rows, and keeps its first one.
    n_init
        Starts from other inducing inputs; the highest bound wins.
    max_iterations
        Iterations of L-BFGS at most.
    tolerance
        Relative gain of the bound at which climbing stops.
    seed
        Of the starting inducing inputs.

    Raises
    ------
    OptionError
        For options that mean nothing.

    Examples
    --------
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> gp = TitsiasGP(n_inducing=8).fit(X, np.sin(X[:, 0]))
    >>> mean, variance = gp.predict([[1.0], [2.0]])
    >>> np.abs(mean - np.sin([1.0, 2.0])).max() < 0.01
    np.True_
    """

    n_inducing: int = 50
    kernel: str | Kernel = "rbf"
    noise: float | None = None
    constant: float | None = None
    shift: ArrayLike = 0.0
    scale: ArrayLike = 1.0
    learn_parameters: bool = True
    learn_inducing: bool = True
    inducing_inputs: ArrayLike | None = None
    min_count: int = 5
    lengthscale_bounds: tuple[float, float] = (1e-2, 1e2)
    n_init: int = 1
    max_iterations: int = 200
    tolerance: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("n_inducing", "min_count", "n_init", "max_iterations"):
            if not is_count(getattr(self, option)):
                raise OptionError(f"{option}: expected a positive integer, found {getattr(self, option)!r}")
        if not isinstance(self.kernel, Kernel) and self.kernel not in KERNELS:
            raise OptionError(f"kernel: expected {', '.join(KERNELS)} or a Kernel, found {self.kernel!r}")
        told = isinstance(self.kernel, Kernel) and self.noise is not None and self.constant is not None
        if not (self.learn_parameters or told):
            raise OptionError("learn_parameters=False needs a kernel with parameters, a noise and a constant")
        if self.noise is not None and not 0 < self.noise < np.inf:
            raise OptionError(f"noise: expected a positive variance, found {self.noise!r}")
        low, high = self.lengthscale_bounds
        if not 0 < low <= high < np.inf:
            raise OptionError(f"lengthscale_bounds: expected 0 < low <= high, found {self.lengthscale_bounds!r}")

    def fit(self, X: ArrayLike, y: ArrayLike) -> SparseGP:
        """Return the sparse Gaussian process of highest bound.

        Parameters
        ----------
        X
            Inputs (N, d), in units of the data.
        y
            Targets (N,).

        Raises
        ------
        InputError
            For data that are not finite rows and one target for each, or constants or inducing inputs of another width.
        """
        rows, targets, shift, scale = self._standardised(X, y)
        generators = np.random.default_rng(self.seed).spawn(self.n_init)
        starts = [self._start(rows, targets, shift, scale, rng) for rng in generators]
        climbed = [self._climb(start, rows, targets) for start in starts]
        point, bounds = max(climbed, key=lambda one: one[1][-1])
        found = collapsed_posterior(point.kernel, point.inputs, point.noise, point.constant, rows, targets, JITTER)
        return SparseGP.whitened(
            point.inputs,
            found.mean,
            found.covariance,
            point.kernel,
            noise=point.noise,
            constant=point.constant,
            shift=shift,
            scale=scale,
            n_observations=float(len(targets)),
            bound=np.array(bounds),
        )

    def _standardised(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array, Array, Array]:
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or 0 in rows.shape:
            raise InputError(f"X: expected rows (N, d), found shape {rows.shape}")
        targets = as_vector("y", y, len(rows))
        for name, values in (("X", rows), ("y", targets)):
            if not np.all(np.isfinite(values)):
                row = int(np.argwhere(~np.isfinite(values))[0, 0])
                raise InputError(f"{name}: row {row}, counted from 0, is not finite; leave it out or fill it in")
        shift, scale = (as_vector(name, getattr(self, name), rows.shape[1] + 1) for name in ("shift", "scale"))
        if not (np.all(np.isfinite(shift)) and np.all(np.isfinite(scale) & (scale > 0))):
            raise InputError("shift and scale: expected finite numbers, those of scale positive")
        return (rows - shift[:-1]) / scale[:-1], (targets - shift[-1]) / scale[-1], shift, scale

    def _start(self, rows: Array, targets: Array, shift: Array, scale: Array, rng: np.random.Generator) -> _Point:
        """Return where climbing starts: parameters as told or of the size of the targets."""
        dim, spread = rows.shape[1], max(float(targets.var()), 1e-12)
        kernel = self.kernel
        if not isinstance(kernel, Kernel):
            kernel = make_kernel(kernel, spread, np.clip(np.full(dim, np.sqrt(dim)), *self.lengthscale_bounds))
        if kernel.dim != dim:
            raise InputError(f"X: has {dim} columns, but the kernel has {kernel.dim} length-scales")
        if self.inducing_inputs is None:
            scaled = starting_inputs(rows / kernel.lengthscales, self.n_inducing, self.min_count, rng)
            inputs = scaled * kernel.lengthscales
        else:
            inputs = (as_rows("inducing_inputs", self.inducing_inputs, dim) - shift[:-1]) / scale[:-1]
        noise = 0.1 * spread if self.noise is None else float(self.noise)
        constant = float(targets.mean()) if self.constant is None else float(self.constant)
        return _Point(kernel, noise, constant, inputs)

    def _climb(self, start: _Point, rows: Array, targets: Array) -> tuple[_Point, list[float]]:
        """Return the point of highest bound from `start`, and the bound after every iteration."""
        first, dim = start.vector, start.kernel.dim
        learned = np.repeat([self.learn_parameters, self.learn_inducing], [dim + 3, start.inputs.size])
        evaluate = _negative_bound(start, learned, rows, targets)
        bounds = [-evaluate(first[learned])[0]]
        if not learned.any():
            return start, bounds
        low, high = np.full(len(first), -np.inf), np.full(len(first), np.inf)
        for place in (0, dim + 1):
            low[place], high[place] = first[place] - _LOG_RANGE, first[place] + _LOG_RANGE
        own = first[1 : dim + 1]
        low[1 : dim + 1] = np.minimum(np.log(self.lengthscale_bounds[0]), own)
        high[1 : dim + 1] = np.maximum(np.log(self.lengthscale_bounds[1]), own)
        found = minimize(
            evaluate,
            first[learned],
            jac=True,
            method="L-BFGS-B",
            bounds=np.column_stack([low, high])[learned],
            callback=lambda intermediate_result: bounds.append(-float(intermediate_result.fun)),
            options={"maxiter": self.max_iterations, "maxfun": 10 * self.max_iterations, "ftol": self.tolerance},
        )
        vector = first.copy()
        vector[learned] = found.x
        point = start.moved(vector)
        if not self.learn_parameters:  # to the last bit, so that sites with the same kernel have the same one
            point = replace(start, inputs=point.inputs)
        return point, bounds


def _negative_bound(
    start: _Point, learned: Array, rows: Array, targets: Array
) -> Callable[[Array], tuple[float, Array]]:
    """Return what gives minus the bound and its derivatives at the learned part of the vector."""

    def evaluate(part: Array) -> tuple[float, Array]:
        vector = start.vector
        vector[learned] = part
        point = start.moved(vector)
        found = bound_gradient(point.kernel, point.inputs, point.noise, point.constant, rows, targets, JITTER)
        parameters = [found.log_variance, *found.log_lengthscales, found.log_noise, found.constant]
        return -found.bound, -np.concatenate([parameters, found.inputs.ravel()])[learned]

    return evaluate


def starting_inputs(rows: Array, count: int, least: int, rng: np.random.Generator) -> Array:
    """Return at most `count` inputs, each the mean of at least `least` rows and a little off it.

    The largest group of rows is halved along a random direction until there are enough groups or none can be halved;
    fewer rows than `least` in all are one group.

    Examples
    --------
    >>> starting_inputs(np.arange(20.0)[:, None], 8, 5, np.random.default_rng(0)).shape
    (4, 1)
    """
    groups = [np.arange(len(rows))]
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda number: len(groups[number]))
        group = groups[largest]
        if len(group) < 2 * least:
            break
        direction = rng.normal(size=rows.shape[1])
        order = group[np.argsort(rows[group] @ direction, kind="stable")]
        groups[largest : largest + 1] = [order[: len(order) // 2], order[len(order) // 2 :]]
    means = np.stack([rows[group].mean(axis=0) for group in groups])
    spreads = np.stack([rows[group].std(axis=0) for group in groups])
    overall = rows.std(axis=0)
    moves = np.maximum(_OFF_THE_ROWS * spreads, _AT_LEAST * np.where(overall > 0, overall, 1.0))
    return np.asarray(means + moves * rng.normal(size=means.shape))
