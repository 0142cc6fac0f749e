"""Conjugate gradients: A x = b for a positive definite A that is only known by its products.

Every step lowers q(x) = x^T A x / 2 - b^T x, the objective that is recorded. With a preconditioner M, here a diagonal,
convergence goes with the spread of M^-1 A's eigenvalues. (Hestenes, Stiefel 1952.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array


@dataclass(frozen=True, eq=False)
class Solution:
    """What was found.

    Parameters
    ----------
    x
        The solution (P,).
    history
        q after each step (steps,).
    residual
        Norm of b - A x as a share of that of b, in the preconditioner's norm.
    converged
        Whether it is as small as was asked.
    definite
        Whether A showed no direction of negative or no curvature; steps end where it does.
    """

    x: AnyArray
    history: Array
    residual: float
    converged: bool
    definite: bool = True


def conjugate_gradients(
    times: Callable[[AnyArray], AnyArray],
    b: AnyArray,
    diagonal: AnyArray,
    tolerance: float,
    max_steps: int,
    progress: Callable[[int, int], None],
) -> Solution:
    """Return the solution of A x = b, from x = 0.

    Parameters
    ----------
    times
        Product of A with a vector (P,).
    b
        Right-hand side (P,), float64.
    diagonal
        The preconditioner (P,), positive.
    tolerance
        Of the residual.
    max_steps
        Steps at most.
    progress
        Told about steps.
    """
    xp = array_namespace(b)
    x, left = xp.zeros_like(b), b
    scaled = left / diagonal
    direction, norm = scaled, float(left @ scaled)
    start = norm
    history: list[float] = []
    if not start:
        return Solution(x, np.zeros(0), 0.0, True)
    for step in range(max_steps):
        product = times(direction)
        curvature = float(direction @ product)
        if not curvature > 0:
            return Solution(x, np.array(history), (norm / start) ** 0.5, False, definite=False)
        length = norm / curvature
        x = x + length * direction
        left = left - length * product
        history.append(-0.5 * float(x @ (b + left)))
        scaled = left / diagonal
        before, norm = norm, float(left @ scaled)
        progress(step + 1, max_steps)
        if norm <= tolerance**2 * start:
            return Solution(x, np.array(history), (norm / start) ** 0.5, True)
        direction = scaled + (norm / before) * direction
    return Solution(x, np.array(history), (norm / start) ** 0.5, False)
