"""The quadratic that merges one layer by the sites' Kronecker-factored information, and its minimisers.

With W_j (o, d) the layer of site j, A_j (d, d) and B_j (o, o) the factors of its information and p_j its weight,

    Q(W) = 1/2 sum_j p_j tr[ (W - W_j)^T B_j (W - W_j) A_j ],

the expected increase of the sites' losses to second order. With damping m >= 0 the minimiser of
Q(W) + mu / 2 |W - W_0|^2 solves

    sum_j p_j B_j W A_j + mu W = sum_j p_j B_j W_j A_j + mu W_0,    mu = m sum_j p_j tr A_j tr B_j / (o d),

so that m is free of scale: 1 holds W at W_0 as firmly as the mean eigenvalue of the information holds it elsewhere. It
is found by conjugate gradients, two products for each site and step, in the eigenvectors of the mean factors: there the
diagonal is a preconditioner that solves the system in one step where all sites have the same factors.

Parameters without Kronecker factors are layers of P groups with factors of one entry: A their diagonal, B = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from consilience.checks import Array
from consilience.networks.methods.fisher.precision import LinearSolution, conjugate_gradients

MIN_RIDGE = 1e-9
"""Ridge of the regression mean, relative to the mean square of inputs, for those that are constantly zero: as small as
that of ``repair.regression``."""


@dataclass(frozen=True, eq=False)
class LayerQuadratic:
    """The quadratic Q of one layer, by groups of its channels (1 but for grouped convolutions)."""

    weights: Array  # (J,): weights p_j of the sites, which sum to one
    means: Array  # (J, groups, o, d): W_j, weights and biases of the sites
    inputs: Array  # (J, groups, d, d): A_j
    outputs: Array  # (J, groups, o, o): B_j

    @classmethod
    def of(
        cls, weights: Array, means: Sequence[Array], inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> LayerQuadratic:
        """Return the quadratic of the sites' layers, rounding that made a factor indefinite taken out."""
        factors = (np.stack([_semidefinite(of_site) for of_site in of_sites]) for of_sites in (inputs, outputs))
        return cls(weights, np.stack(means), *factors)

    @property
    def average(self) -> Array:
        """sum_j p_j W_j (groups, o, d): of equal layers this layer, to the last bit."""
        first = self.means[0]
        return first + np.einsum("j,jgod->god", self.weights, self.means - first)

    @property
    def scale(self) -> float:
        """sum_j p_j tr A_j tr B_j / (o d), over groups: the mean eigenvalue of the information."""
        traces = np.trace(self.inputs, axis1=2, axis2=3) * np.trace(self.outputs, axis1=2, axis2=3)  # (J, groups)
        return float(self.weights @ traces.sum(axis=1)) / self.means[0].size

    def times(self, step: Array) -> Array:
        """Return sum_j p_j B_j X A_j for X (groups, o, d)."""
        total = np.zeros_like(step)
        for weight, inputs, outputs in zip(self.weights, self.inputs, self.outputs, strict=True):
            total += weight * (outputs @ step @ inputs)
        return total

    def value_and_gradient(self, matrix: Array) -> tuple[float, Array]:
        """Return Q at W (groups, o, d), and its gradient sum_j p_j B_j (W - W_j) A_j."""
        value, gradient = 0.0, np.zeros_like(matrix)
        for weight, mean, inputs, outputs in zip(self.weights, self.means, self.inputs, self.outputs, strict=True):
            step = matrix - mean
            product = weight * (outputs @ step @ inputs)
            value += 0.5 * float(np.sum(step * product))
            gradient += product
        return value, gradient

    def value(self, matrix: Array) -> float:
        """Return Q(W)."""
        return self.value_and_gradient(matrix)[0]

    def minimise(
        self, start: Array, damping: float, tolerance: float, max_steps: int, progress: Callable[[int, int], None]
    ) -> LinearSolution:
        """Return the minimiser of Q(W) + mu / 2 |W - W_0|^2 with W_0 the start (groups, o, d), m the damping.

        Its history is the objective after each step, less that at W_0.
        """
        mu = damping * self.scale
        if not self.scale > 0:  # nobody informs the layer
            return LinearSolution(start, np.zeros(0), 0.0, True)
        basis_in, basis_out, rotated = self._rotated
        # Unknown: the step from W_0, so that what all sites agree on stays to the last bit.
        b = -(basis_out.transpose(0, 2, 1) @ self.value_and_gradient(start)[1] @ basis_in)
        diagonal = mu + np.einsum(
            "j,jgo,jgd->god",
            rotated.weights,
            np.diagonal(rotated.outputs, axis1=2, axis2=3),
            np.diagonal(rotated.inputs, axis1=2, axis2=3),
        )
        # Without damping a direction that no site informs stays as it is.
        floor = np.finfo(np.float64).eps * diagonal.max()

        def product(vector: Array) -> Array:
            step = vector.reshape(b.shape)
            return (rotated.times(step) + mu * step).ravel()

        solution = conjugate_gradients(
            product, b.ravel(), np.maximum(diagonal, floor).ravel(), tolerance, max_steps, progress
        )
        step = basis_out @ np.asarray(solution.x).reshape(b.shape) @ basis_in.transpose(0, 2, 1)
        return replace(solution, x=start + step)

    def with_ridge(self, ridge: float) -> LayerQuadratic:
        """Return the quadratic of A_j + ridge I and B_j + ridge I."""
        inputs = self.inputs + ridge * np.eye(self.inputs.shape[-1])
        return LayerQuadratic(self.weights, self.means, inputs, self.outputs + ridge * np.eye(self.outputs.shape[-1]))

    @cached_property
    def _rotated(self) -> tuple[Array, Array, LayerQuadratic]:
        """Eigenvectors of the mean factors (groups, d, d) and (groups, o, o), and the sites' factors in them."""
        # Each scaled by its trace, so that a site of large gradients does not decide alone.
        basis_in, basis_out = (_eigenvectors(self.weights, of_sites) for of_sites in (self.inputs, self.outputs))
        inputs = basis_in.transpose(0, 2, 1) @ self.inputs @ basis_in
        outputs = basis_out.transpose(0, 2, 1) @ self.outputs @ basis_out
        return basis_in, basis_out, LayerQuadratic(self.weights, self.means, inputs, outputs)


def _eigenvectors(weights: Array, matrices: Array) -> Array:
    """Return eigenvectors (groups, k, k), in columns, of the weighted mean of matrices (J, groups, k, k)."""
    if matrices.shape[-1] == 1:
        return np.ones(matrices.shape[1:])
    traces = np.trace(matrices, axis1=2, axis2=3)  # (J, groups)
    scaled = weights[:, None] / np.where(traces > 0, traces, 1.0)
    return np.linalg.eigh(np.einsum("jg,jgkl->gkl", scaled, matrices)).eigenvectors


def _semidefinite(matrices: Array) -> Array:
    """Return symmetric matrices (groups, k, k) whose eigenvalues, negative by rounding, are 0."""
    if matrices.shape[-1] == 1:
        return np.maximum(matrices, 0.0)
    try:
        np.linalg.cholesky(matrices)  # exists for positive definite matrices only
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrices)
        return (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return matrices


def adam_descent(
    layers: Sequence[LayerQuadratic],
    starts: Sequence[Array],
    n_steps: int,
    learning_rate: float,
    progress: Callable[[int, int], None],
) -> tuple[list[Array], Array]:
    """Return the iterate of least sum of Q over layers in steps of Adam (Kingma, Ba 2015), the start among them.

    Beside it stands the least objective so far (n_steps + 1,): Adam's own may rise.
    """
    current = [np.array(start) for start in starts]
    first, second = ([np.zeros_like(start) for start in starts] for _ in range(2))
    best = list(current)
    history: list[float] = []
    for step in range(n_steps + 1):
        values, gradients = zip(
            *(layer.value_and_gradient(matrix) for layer, matrix in zip(layers, current, strict=True)), strict=True
        )
        if not history or sum(values) < history[-1]:
            best = list(current)
        history.append(min(sum(values), history[-1] if history else np.inf))
        progress(step, n_steps)
        for number, gradient in enumerate(gradients):
            first[number] = ADAM_BETAS[0] * first[number] + (1 - ADAM_BETAS[0]) * gradient
            second[number] = ADAM_BETAS[1] * second[number] + (1 - ADAM_BETAS[1]) * gradient**2
            mean = first[number] / (1 - ADAM_BETAS[0] ** (step + 1))
            square = second[number] / (1 - ADAM_BETAS[1] ** (step + 1))
            current[number] = current[number] - learning_rate * mean / (np.sqrt(square) + ADAM_EPSILON)
    return best, np.array(history)


ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8
"""Adam's own constants (Kingma, Ba 2015, algorithm 1)."""
