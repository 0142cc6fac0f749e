"""Sparse Gaussian process regression at a site: inducing inputs, kernel and noise by the bound of Titsias 2009.

    maximise over Z, kernel parameters, noise and constant   F = log N(y | c, Q + s^2 I) - tr(k(X, X) - Q) / (2 s^2)

(``titsias_bound``) by L-BFGS with exact derivatives; q of the inducing values is the exact optimum given the rest.
Iterations end at the first relative gain below the tolerance, or at their limit; the point with the highest bound is
taken as it is.
"""

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

LOG_RANGE = np.log(1e6)
"""Range of the logs of variance and noise about their start. A bound that no fit should reach; chosen by hand."""

OFFSET_RATIO = 0.05
"""Random offset of a starting inducing input, in standard deviations of the rows behind it. Chosen by hand."""

MIN_OFFSET_RATIO = 1e-3
"""Least offset, in standard deviations of all rows, where the rows behind an input are equal. Chosen by hand."""

NOISE_RATIO = 0.1
"""First noise variance, as a share of the variance of the targets. Chosen by hand; the fit moves it."""

MIN_TARGET_VARIANCE = 1e-12
"""Least variance of the targets that sets first parameters: constant targets have none. A bound, chosen by hand."""

EVALUATIONS_PER_ITERATION = 10
"""Evaluations of the bound at most, for each of the iterations at most. A bound that is not reached; chosen by hand."""


@dataclass(frozen=True, eq=False)
class _Parameters:
    """Parameters of the bound, and the same as one vector (log v, log l (d,), log s^2, c, Z (M d,))."""

    kernel: Kernel  # with v and l
    noise: float  # s^2
    constant: float  # c
    inputs: Array  # inducing inputs Z (M, d)

    @property
    def vector(self) -> Array:
        """The parameters as one vector (d + 3 + M d,)."""
        logs = np.log([self.kernel.variance, *self.kernel.lengthscales, self.noise])
        return np.concatenate([logs, [self.constant], self.inputs.ravel()])

    def with_vector(self, vector: Array) -> _Parameters:
        """Return the parameters of another vector, of the same shapes."""
        dim = self.kernel.dim
        kernel = make_kernel(self.kernel.name, float(np.exp(vector[0])), np.exp(vector[1 : dim + 1]))
        inputs = vector[dim + 3 :].reshape(self.inputs.shape)
        return _Parameters(kernel, float(np.exp(vector[dim + 1])), float(vector[dim + 2]), inputs)


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
    n_inducing : int, optional
        Number M of inducing inputs at most; fewer where rows are too few for `min_count`. Default: 50, as in the
        temperature experiment of Yurochkin et al. 2019.
    kernel : str or Kernel, optional
        ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``, or a kernel of
        ``consilience.posteriors.sparse_gp.kernels`` that gives the first parameters too, in standardised units.
        Default: ``"rbf"``.
    noise, constant : float, optional
        First noise variance and mean function, in standardised units. Default: both, as the kernel's variance, follow
        from the targets.
    shift, scale : array_like of shape (d + 1,), optional
        Public constants of the d inputs, then of the target, or one number for all: column c is fitted as
        ``(value - shift[c]) / scale[c]``. They must be the same at every site, and not be computed from a site's rows.
        Files carry them, and ``consilience check`` compares them. Default: 0 and 1.
    learn_parameters : bool, optional
        Whether kernel, noise and constant are fitted, or stay as given. Default: True.
    learn_inducing : bool, optional
        Whether the inducing inputs are fitted, or stay where they start. Default: True.
    inducing_inputs : array_like of shape (M, d), optional
        First inducing inputs in units of the data, such as fused ones. Default: they start among the rows.
    min_count : int, optional
        Rows behind each starting inducing input at least. Default: 5, as components with fewer observations are
        withheld elsewhere.
    lengthscale_bounds : (float, float), optional
        Smallest and largest length-scale, in standardised units. A site cannot tell the length-scale of a column that
        is the same in all its rows, and keeps its first one. Default: 0.01 and 100, chosen by hand.
    n_init : int, optional
        Starts from other inducing inputs; the highest bound wins. Default: 1.
    max_iterations : int, optional
        Iterations of L-BFGS at most. Default: 200.
    tolerance : float, optional
        Relative gain of the bound at which the fit ends. Default: 1e-6.
    seed : int, optional
        Seed of the starting inducing inputs. Default: 0.

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
                raise OptionError(option, f"expected a positive integer, found {getattr(self, option)!r}")
        if not isinstance(self.kernel, Kernel) and self.kernel not in KERNELS:
            raise OptionError("kernel", f"expected {', '.join(KERNELS)} or a Kernel, found {self.kernel!r}")
        is_complete = isinstance(self.kernel, Kernel) and self.noise is not None and self.constant is not None
        if not (self.learn_parameters or is_complete):
            raise OptionError("`learn_parameters=False` needs a kernel with parameters, a noise and a constant")
        if self.noise is not None and not 0 < self.noise < np.inf:
            raise OptionError("noise", f"expected a positive variance, found {self.noise!r}")
        low, high = self.lengthscale_bounds
        if not 0 < low <= high < np.inf:
            raise OptionError("lengthscale_bounds", f"expected 0 < low <= high, found {self.lengthscale_bounds!r}")

    def fit(self, X: ArrayLike, y: ArrayLike) -> SparseGP:
        """Return the sparse Gaussian process of highest bound.

        Parameters
        ----------
        X : array_like of shape (N, d)
            Inputs, in units of the data.
        y : array_like of shape (N,)
            Targets.

        Returns
        -------
        SparseGP
            The fitted process, with the bound after every iteration.

        Raises
        ------
        InputError
            For data that are not finite rows and one target for each, or constants or inducing inputs of another width.
        """
        rows, targets, shift, scale = self._standardised(X, y)
        generators = np.random.default_rng(self.seed).spawn(self.n_init)
        starts = [self._starting_parameters(rows, targets, shift, scale, rng) for rng in generators]
        fits = [self._maximise_bound(start, rows, targets) for start in starts]
        parameters, bounds = max(fits, key=lambda fit: fit[1][-1])
        q = collapsed_posterior(
            parameters.kernel, parameters.inputs, parameters.noise, parameters.constant, rows, targets, JITTER
        )
        return SparseGP.whitened(
            parameters.inputs,
            q.mean,
            q.covariance,
            parameters.kernel,
            noise=parameters.noise,
            constant=parameters.constant,
            shift=shift,
            scale=scale,
            n_observations=float(len(targets)),
            bound=np.array(bounds),
        )

    def _standardised(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array, Array, Array]:
        """Return checked inputs (N, d) and targets (N,) in standardised units, and shift and scale (d + 1,)."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or 0 in rows.shape:
            raise InputError("X", f"expected rows (N, d), found shape {rows.shape}", code="E-SHAPE")
        targets = as_vector("y", y, len(rows))
        for name, values in (("X", rows), ("y", targets)):
            if not np.all(np.isfinite(values)):
                row = int(np.argwhere(~np.isfinite(values))[0, 0])
                text = f"row {row}, counted from 0, is not finite"
                raise InputError(name, text, "leave it out or fill it in", "E-NUMBER")
        shift, scale = (as_vector(name, getattr(self, name), rows.shape[1] + 1) for name in ("shift", "scale"))
        if not (np.all(np.isfinite(shift)) and np.all(np.isfinite(scale) & (scale > 0))):
            raise InputError("shift and scale", "expected finite numbers, those of scale positive", code="E-NUMBER")
        return (rows - shift[:-1]) / scale[:-1], (targets - shift[-1]) / scale[-1], shift, scale

    def _starting_parameters(
        self, rows: Array, targets: Array, shift: Array, scale: Array, rng: np.random.Generator
    ) -> _Parameters:
        """Return first parameters: those that the options give, others of the size of the targets."""
        dim, spread = rows.shape[1], max(float(targets.var()), MIN_TARGET_VARIANCE)
        kernel = self.kernel
        if not isinstance(kernel, Kernel):  # length-scales grow as distances between standardised rows do, as sqrt(d)
            kernel = make_kernel(kernel, spread, np.clip(np.full(dim, np.sqrt(dim)), *self.lengthscale_bounds))
        if kernel.dim != dim:
            raise InputError("X", f"has {dim} columns, but the kernel has {kernel.dim} length-scales", code="E-SHAPE")
        if self.inducing_inputs is None:
            scaled = starting_inputs(rows / kernel.lengthscales, self.n_inducing, self.min_count, rng)
            inputs = scaled * kernel.lengthscales
        else:
            inputs = (as_rows("inducing_inputs", self.inducing_inputs, dim) - shift[:-1]) / scale[:-1]
        noise = NOISE_RATIO * spread if self.noise is None else float(self.noise)
        constant = float(targets.mean()) if self.constant is None else float(self.constant)
        return _Parameters(kernel, noise, constant, inputs)

    def _maximise_bound(self, start: _Parameters, rows: Array, targets: Array) -> tuple[_Parameters, list[float]]:
        """Return the parameters of highest bound from `start`, and the bound after every iteration."""
        first, dim = start.vector, start.kernel.dim  # first: (d + 3 + M d,)
        is_learned = np.repeat([self.learn_parameters, self.learn_inducing], [dim + 3, start.inputs.size])
        evaluate = _negative_bound(start, is_learned, rows, targets)
        bounds = [-evaluate(first[is_learned])[0]]
        if not is_learned.any():
            return start, bounds
        low, high = np.full(len(first), -np.inf), np.full(len(first), np.inf)
        for index in (0, dim + 1):  # log v and log s^2
            low[index], high[index] = first[index] - LOG_RANGE, first[index] + LOG_RANGE
        # First length-scales may lie outside the bounds, which then reach to them.
        log_lengthscales = first[1 : dim + 1]
        low[1 : dim + 1] = np.minimum(np.log(self.lengthscale_bounds[0]), log_lengthscales)
        high[1 : dim + 1] = np.maximum(np.log(self.lengthscale_bounds[1]), log_lengthscales)
        optimum = minimize(
            evaluate,
            first[is_learned],
            jac=True,
            method="L-BFGS-B",
            bounds=np.column_stack([low, high])[is_learned],
            callback=lambda intermediate_result: bounds.append(-float(intermediate_result.fun)),
            options={
                "maxiter": self.max_iterations,
                "maxfun": EVALUATIONS_PER_ITERATION * self.max_iterations,
                "ftol": self.tolerance,
            },
        )
        vector = first.copy()
        vector[is_learned] = optimum.x
        parameters = start.with_vector(vector)
        if not self.learn_parameters:  # to the last bit, so that sites with the same kernel have the same one
            parameters = replace(start, inputs=parameters.inputs)
        return parameters, bounds


def _negative_bound(
    start: _Parameters, is_learned: Array, rows: Array, targets: Array
) -> Callable[[Array], tuple[float, Array]]:
    """Return a function that gives minus the bound and its derivatives at the learned part of the vector."""

    def evaluate(free_values: Array) -> tuple[float, Array]:
        vector = start.vector
        vector[is_learned] = free_values
        parameters = start.with_vector(vector)
        gradient = bound_gradient(
            parameters.kernel, parameters.inputs, parameters.noise, parameters.constant, rows, targets, JITTER
        )
        by_parameter = [gradient.log_variance, *gradient.log_lengthscales, gradient.log_noise, gradient.constant]
        return -gradient.bound, -np.concatenate([by_parameter, gradient.inputs.ravel()])[is_learned]

    return evaluate


def starting_inputs(rows: Array, count: int, min_count: int, rng: np.random.Generator) -> Array:
    """Return at most `count` inputs, each the mean of at least `min_count` rows and a little off it.

    The largest group of rows (N, d), in units of the length-scales, is halved along a random direction until there are
    enough groups or none can be halved; fewer rows than `min_count` in all are one group.

    Examples
    --------
    >>> starting_inputs(np.arange(20.0)[:, None], 8, 5, np.random.default_rng(0)).shape
    (4, 1)
    """
    groups = [np.arange(len(rows))]
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda number: len(groups[number]))
        group = groups[largest]
        if len(group) < 2 * min_count:
            break
        direction = rng.normal(size=rows.shape[1])
        order = group[np.argsort(rows[group] @ direction, kind="stable")]
        groups[largest : largest + 1] = [order[: len(order) // 2], order[len(order) // 2 :]]
    means = np.stack([rows[group].mean(axis=0) for group in groups])
    spreads = np.stack([rows[group].std(axis=0) for group in groups])
    overall = rows.std(axis=0)
    # Means of few rows tell of them, and a single row would be an input itself: inputs are moved at random.
    offsets = np.maximum(OFFSET_RATIO * spreads, MIN_OFFSET_RATIO * np.where(overall > 0, overall, 1.0))
    return np.asarray(means + offsets * rng.normal(size=means.shape))
