"""Preconditioned conjugate gradients for linear equations whose matrix is known by its products only.

A x = b with A symmetric positive definite minimises q(x) = x^T A x / 2 - b^T x. Every step lowers q, which is recorded.
With a preconditioner M, here a diagonal, the rate depends on the spread of the eigenvalues of M^-1 A (Hestenes, Stiefel
1952). Where A shows a direction without positive curvature the iteration ends and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """Solution of linear equations by conjugate gradients."""

    x: AnyArray  # (P,): the solution, or the last iterate
    history: Array  # (n_steps,): q after each step
    residual: float  # norm of b - A x relative to that of b, in the preconditioner's norm |r|^2 = r^T M^-1 r
    converged: bool  # whether the residual is within the tolerance
    definite: bool = True  # whether A showed no direction of negative or no curvature


def conjugate_gradients(
    times: Callable[[AnyArray], AnyArray],
    b: AnyArray,
    diagonal: AnyArray,
    tolerance: float,
    max_steps: int,
    progress: Callable[[int, int], None],
) -> LinearSolution:
    """Return the solution of A x = b (P,), float64, from x = 0.

    `times` is the product with A, `diagonal` the preconditioner M, positive. The tolerance is relative to the residual
    of x = 0.
    """
    xp = array_namespace(b)
    x, r = xp.zeros_like(b), b  # r = b - A x
    z = r / diagonal  # M^-1 r
    direction, norm = z, float(r @ z)
    initial_norm = norm
    history: list[float] = []
    if not initial_norm:
        return LinearSolution(x, np.zeros(0), 0.0, True)
    for step in range(max_steps):
        product = times(direction)
        curvature = float(direction @ product)
        if not curvature > 0:  # also where it is NaN
            return LinearSolution(x, np.array(history), (norm / initial_norm) ** 0.5, False, definite=False)
        length = norm / curvature
        x = x + length * direction
        r = r - length * product
        history.append(-0.5 * float(x @ (b + r)))  # q(x), since A x = b - r
        z = r / diagonal
        previous_norm, norm = norm, float(r @ z)
        progress(step + 1, max_steps)
        if norm <= tolerance**2 * initial_norm:
            return LinearSolution(x, np.array(history), (norm / initial_norm) ** 0.5, True)
        direction = z + (norm / previous_norm) * direction
    return LinearSolution(x, np.array(history), (norm / initial_norm) ** 0.5, False)
