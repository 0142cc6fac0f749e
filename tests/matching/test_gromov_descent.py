"""Mirror descent of fused Gromov-Wasserstein problems where F is linear, so that every step is known in advance."""

import numpy as np
import pytest

from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import mirror_descent
from tests.tolerances import CONVEX_SOLVER, ROUNDING


def centred(matrix):
    """Return a matrix without what scales of rows and columns add to it."""
    return matrix - matrix.mean(axis=0) - matrix.mean(axis=1, keepdims=True) + matrix.mean()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_under_linear_costs_step_sizes_double_from_one_over_the_spread_of_the_costs(steps):
    """P_t ~ P_0 exp(-(2^t - 1) C / spread), up to scales of rows and columns."""
    rows, columns = 4, 5
    costs = np.random.default_rng(0).uniform(size=(rows, columns))
    nothing = np.zeros((1, rows, rows)), np.zeros((1, columns, columns))
    problem = FusedGromov(costs, *nothing, alpha=1.0)
    solution = mirror_descent(problem, TransportPlan(np.full((rows, columns), 1 / (rows * columns))), steps)
    expected = -(2**steps - 1) / np.ptp(costs) * centred(costs)
    np.testing.assert_allclose(centred(np.log(solution.plan.mass)), expected, atol=CONVEX_SOLVER)
    np.testing.assert_allclose(solution.plan.mass.sum(axis=1), 1 / rows, rtol=CONVEX_SOLVER)
    np.testing.assert_allclose(solution.plan.mass.sum(axis=0), 1 / columns, rtol=CONVEX_SOLVER)
    assert len(solution.history) == steps + 1
    assert np.all(np.diff(solution.history) < 0)
    assert solution.objective == pytest.approx((costs * solution.plan.mass).sum(), rel=ROUNDING)
