"""Plans between units against linear programming, all permutations, and plain Sinkhorn iterations."""

import itertools

import numpy as np
import pytest

from consilience.matching.assignment import assign_nested
from consilience.matching.transport import entropic_plan, exact_plan
from tests.networks.references import linear_programme, sinkhorn
from tests.tolerances import CONVEX_SOLVER, ROUNDING

pytestmark = pytest.mark.covering(2)

SIZES = [(1, 1), (4, 4), (7, 7), (5, 3), (3, 5), (6, 9), (1, 4), (4, 1)]


def costs_of(n, m, seed=0):
    return np.random.default_rng(seed).gamma(2.0, size=(n, m))


def relative(costs):
    """Return costs in the unit that `epsilon` is said to be relative to: their largest."""
    return costs / costs.max()


def marginals(n, m, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_exact_plans_cost_what_linear_programming_finds(n, m):
    for seed in range(5):
        costs = costs_of(n, m, seed)
        best = linear_programme(costs, np.full(n, 1 / n), np.full(m, 1 / m))
        found = exact_plan(costs)
        assert (found * costs).sum() == pytest.approx((best * costs).sum(), rel=CONVEX_SOLVER)
        np.testing.assert_allclose(found, best, rtol=0, atol=CONVEX_SOLVER)
        np.testing.assert_allclose(found.sum(1), 1 / n, rtol=0, atol=ROUNDING)
        np.testing.assert_allclose(found.sum(0), 1 / m, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_exact_plans_of_given_marginals_are_those_of_linear_programming(n, m):
    for seed in range(5):
        costs, (rows, columns) = costs_of(n, m, seed), marginals(n, m, seed)
        best = linear_programme(costs, rows, columns)
        np.testing.assert_allclose(exact_plan(costs, rows, columns), best, rtol=0, atol=CONVEX_SOLVER)


def test_exact_plans_of_equal_sizes_are_the_best_of_all_permutations():
    for seed in range(10):
        costs = costs_of(5, 5, seed)
        best = min(costs[np.arange(5), list(order)].sum() for order in itertools.permutations(range(5)))
        found = exact_plan(costs)
        assert (found * costs).sum() * 5 == pytest.approx(best, rel=ROUNDING)
        assert sorted(set(found.ravel().tolist())) == [0.0, 0.2]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("offset", [-3.0, 0.0, 1e6])
def test_exact_plans_do_not_change_with_what_is_added_to_all_costs(offset, given):
    costs = costs_of(5, 4)
    told = marginals(5, 4) if given else (None, None)
    np.testing.assert_allclose(exact_plan(costs + offset, *told), exact_plan(costs, *told), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e9])
def test_plans_do_not_change_with_the_unit_of_cost(scale):
    costs = costs_of(5, 4)
    np.testing.assert_allclose(exact_plan(costs * scale), exact_plan(costs), rtol=0, atol=1e-9)
    np.testing.assert_allclose(entropic_plan(costs * scale, 0.05), entropic_plan(costs, 0.05), rtol=0, atol=1e-7)


def test_plans_of_equal_costs_have_their_marginals():
    for value in (0.0, 1.0):
        rows, columns = marginals(3, 4)
        costs = np.full((3, 4), value)
        found = exact_plan(costs, rows, columns)
        np.testing.assert_allclose(found.sum(1), rows, atol=ROUNDING)
        np.testing.assert_allclose(found.sum(0), columns, atol=ROUNDING)
        np.testing.assert_allclose(entropic_plan(costs, 0.01, rows, columns), np.outer(rows, columns), atol=1e-9)


def test_marginals_need_not_sum_to_one():
    costs, (rows, columns) = costs_of(4, 3), marginals(4, 3)
    np.testing.assert_allclose(exact_plan(costs, 5 * rows, columns), exact_plan(costs, rows, columns), atol=ROUNDING)


@pytest.mark.parametrize("epsilon", [1.0, 0.2, 0.05])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_entropic_plans_are_those_of_plain_iterations(n, m, epsilon):
    for told in (False, True):
        rows, columns = marginals(n, m) if told else (np.full(n, 1 / n), np.full(m, 1 / m))
        costs = costs_of(n, m, 3)
        expected = sinkhorn(relative(costs), epsilon, rows, columns)
        found = entropic_plan(costs, epsilon, rows if told else None, columns if told else None)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("epsilon", [0.2, 0.02])
def test_entropic_plans_minimise_cost_plus_entropy(epsilon):
    costs = costs_of(4, 5)

    def value(plan):
        return (plan * relative(costs)).sum() + epsilon * (plan * np.log(plan)).sum()

    plan = entropic_plan(costs, epsilon)
    rng = np.random.default_rng(0)
    for _ in range(50):
        move = rng.normal(size=plan.shape)
        move -= move.mean(0, keepdims=True)
        move -= move.mean(1, keepdims=True)
        move *= 0.1 * plan.min() / np.abs(move).max()
        assert value(plan + move) >= value(plan) - 1e-9


@pytest.mark.parametrize(("n", "m"), [(6, 6), (5, 8)])
def test_the_cost_of_entropic_plans_falls_to_that_of_the_exact_one(n, m):
    for seed in range(3):
        costs = costs_of(n, m, seed)
        exact = (exact_plan(costs) * costs).sum()
        gaps = [(entropic_plan(costs, epsilon) * costs).sum() - exact for epsilon in (0.5, 0.1, 0.02, 0.004, 5e-4)]
        assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(gaps))
        assert -1e-5 < gaps[-1] < 1e-3 * exact
        assert gaps[0] > gaps[-1]


@pytest.mark.parametrize("epsilon", [0.5, 0.05, 0.01, 0.005, 0.001, 0.0005])
def test_entropic_plans_keep_their_marginals_at_every_epsilon_of_the_paper(epsilon):
    for n, m in ((8, 8), (6, 9)):
        for seed in range(3):
            plan = entropic_plan(costs_of(n, m, seed), epsilon)
            assert np.isfinite(plan).all()
            assert plan.min() >= 0
            np.testing.assert_allclose(plan.sum(1), 1 / n, rtol=0, atol=1e-6)
            np.testing.assert_allclose(plan.sum(0), 1 / m, rtol=0, atol=1e-6)


def test_entropic_plans_follow_the_numbering():
    costs, rng = costs_of(5, 6), np.random.default_rng(1)
    rows, columns = rng.permutation(5), rng.permutation(6)
    found = entropic_plan(costs[rows][:, columns], 0.05)
    np.testing.assert_allclose(found, entropic_plan(costs, 0.05)[rows][:, columns], rtol=0, atol=1e-7)


# -- Units that hold units.


def inner_permutations(size):
    return [list(order) for order in itertools.permutations(range(size))]


@pytest.mark.parametrize("seed", range(5))
def test_nested_assignments_are_the_best_of_all(seed):
    """Three heads of two units: 6 orders of heads, and 2 inside each."""
    rng = np.random.default_rng(seed)
    outer, inner = rng.normal(size=(3, 3)), {"a": rng.normal(size=(6, 6)), "b": rng.normal(size=(9, 9))}

    def inside(costs, row, column):
        size = len(costs) // 3
        block = costs[row * size : (row + 1) * size, column * size : (column + 1) * size]
        return min(block[np.arange(size), order].sum() for order in inner_permutations(size))

    best = min(
        sum(outer[i, order[i]] + sum(inside(one, i, order[i]) for one in inner.values()) for i in range(3))
        for order in inner_permutations(3)
    )
    found = assign_nested(outer, inner)
    value = outer[np.arange(3), found.outer].sum()
    for name, costs in inner.items():
        labels = found.inner[name]
        assert sorted(labels) == list(range(len(costs)))
        size = len(costs) // 3
        assert (labels.reshape(3, size) // size == found.outer[:, None]).all()
        value += costs[np.arange(len(costs)), labels].sum()
    assert value == pytest.approx(best, rel=ROUNDING)


def test_assignments_without_anything_inside_may_leave_columns_free():
    costs = costs_of(3, 5)
    best = min(sum(costs[i, j] for i, j in enumerate(columns)) for columns in itertools.permutations(range(5), 3))
    found = assign_nested(costs, {})
    assert costs[np.arange(3), found.outer].sum() == pytest.approx(best, rel=ROUNDING)
