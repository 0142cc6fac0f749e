"""Solvers of Fisher merging by themselves: conjugate gradients against dense algebra, descent against its loop."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from consilience.networks.methods.fisher.precision import conjugate_gradients
from tests.tolerances import ROOT_FINDING, ROUNDING


def silent(_done, _most):
    """Report to nobody."""


def equations(seed, size=12):
    """A definite matrix, a right-hand side of another size, and a preconditioner."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    return root @ root.T + np.eye(size), 40.0 * rng.normal(size=size), rng.uniform(0.5, 20.0, size)


def in_norm(residual, diagonal):
    return np.sqrt(residual @ (residual / diagonal))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_steps", [1, 3, 7, 100])
def test_conjugate_gradients_say_how_far_they_have_come(seed, max_steps):
    """The residual is that of the solution, in the preconditioner's norm, relative to that of zero."""
    matrix, b, diagonal = equations(seed)
    found = conjugate_gradients(matrix.__matmul__, b, diagonal, 1e-9, max_steps, silent)
    relative = in_norm(b - matrix @ found.x, diagonal) / in_norm(b, diagonal)
    assert_allclose(found.residual, relative, rtol=1e-4, atol=ROOT_FINDING)
    assert found.converged == (found.residual <= 1e-9) == (max_steps == 100)
    assert found.definite
    assert_allclose(found.history[-1], 0.5 * found.x @ matrix @ found.x - b @ found.x, rtol=ROOT_FINDING)
    assert np.all(np.diff(found.history) <= ROUNDING * abs(found.history[-1]))
    if max_steps == 100:
        assert_allclose(found.x, np.linalg.solve(matrix, b), rtol=1e-6, atol=1e-6)


def test_conjugate_gradients_stop_at_a_direction_without_curvature():
    matrix, b, diagonal = equations(9)
    indefinite = matrix - 20.0 * np.eye(len(b))
    found = conjugate_gradients(indefinite.__matmul__, b, diagonal, 1e-9, 100, silent)
    assert not found.definite
    assert not found.converged
    relative = in_norm(b - indefinite @ found.x, diagonal) / in_norm(b, diagonal)
    assert_allclose(found.residual, relative, rtol=ROOT_FINDING)
