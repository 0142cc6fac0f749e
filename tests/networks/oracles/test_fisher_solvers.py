"""Solvers of Fisher merging by themselves: conjugate gradients against dense algebra, descent against its loop."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.networks.methods.fisher.precision import conjugate_gradients
from consilience.networks.methods.fisher.self_supervised import MIN_RELATIVE_STEP, _has_settled, stochastic_descent
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


# -- Stochastic descent.


def bowl(centre):
    """A quadratic objective about a centre."""
    return lambda: SimpleNamespace(
        value_and_gradient=lambda theta: (0.5 * float(((theta - centre) ** 2).sum()), theta - centre)
    )


@pytest.mark.parametrize("averaged", [0.0, 0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("steps", [8, 20])
def test_the_average_is_that_of_the_last_steps(averaged, steps):
    centre, theta, velocity = np.array([3.0, -2.0]), np.zeros(2), np.zeros(2)
    iterates = []
    for _ in range(steps):
        velocity = 0.5 * velocity + theta - centre
        theta = theta - 0.1 * velocity
        iterates.append(theta)
    found, history, _ = stochastic_descent(bowl(centre), np.zeros(2), 0.1, 0.5, steps, averaged, silent)
    count = round(averaged * steps)
    assert len(history) == steps
    assert_allclose(found, np.mean(iterates[-count:], axis=0) if count else iterates[-1], rtol=ROUNDING)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_a_descent_ends_where_steps_are_short_beside_the_parameters(size):
    """Whatever the unit of the parameters, after the same number of steps."""
    centre = size * np.array([3.0, -2.0])
    _, history, has_settled = stochastic_descent(bowl(centre), np.zeros(2), 0.5, 0.0, 1000, 0.0, silent)
    # A step at rate 1/2 halves the distance, so that step n is |centre| / 2^n long.
    assert len(history) == int(np.ceil(-np.log2(MIN_RELATIVE_STEP)))
    assert has_settled


@pytest.mark.parametrize(
    ("history", "has_settled"),
    [
        ([9.0] * 50 + [1.0] * 50, True),
        ([1.0] * 85 + [0.0] * 15, False),
        (list(np.linspace(10.0, 0.0, 100)), False),
        (list(np.exp(-np.linspace(0.0, 30.0, 100))), True),
        ([0.0] * 50 + [9.0] * 50, True),
        ([5.0], True),
    ],
)
def test_a_descent_has_settled_where_its_last_tenth_is_as_low_as_the_tenth_before(history, has_settled):
    assert _has_settled(history, len(history)) == has_settled


# -- Choices.


@pytest.mark.parametrize("value", [0.0, -0.1, "fast"])
def test_a_learning_rate_is_positive(value):
    with pytest.raises(cs.errors.OptionError, match="learning_rate must be a positive number or None"):
        cs.methods.SelfSupervisedFisher(learning_rate=value)
