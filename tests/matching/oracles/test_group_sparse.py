"""The matching step of KL-fusion against a convex solver, against enumeration and against SciPy."""

import functools
import itertools

import cvxpy as cp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment

from consilience.matching.assignment import assign_blocks
from consilience.matching.group_sparse import _improvable, binary_penalty, descend_binary, solve_relaxed
from tests import tolerances

pytestmark = pytest.mark.covering(2)

GAP = 1e-5
ITERATIONS = 20_000


def ragged(seed, max_sites=5, max_rows=4, max_spare=4):
    """Random costs (L, G) in blocks of several sizes, and the blocks' offsets."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, max_rows + 1, size=rng.integers(1, max_sites + 1))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n_columns = sizes.max() + rng.integers(0, max_spare + 1)
    return rng.gamma(1.0, 1.0, size=(offsets[-1], n_columns)), offsets, rng


def planted(seed, n_sites=6, n_columns=5, rows=3, near=0.2, far=8.0):
    """Costs where every row has one near column, different inside a site, as at the end of a fusion."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([rng.permutation(n_columns)[:rows] for _ in range(n_sites)])
    costs = rng.gamma(4.0, far / 4, size=(len(labels), n_columns))
    costs[np.arange(len(labels)), labels] = rng.gamma(4.0, near / 4, size=len(labels))
    return costs, np.arange(0, len(labels) + 1, rows)


def blocks(offsets):
    return list(itertools.pairwise(offsets.tolist()))


def value(costs, strength, plan):
    """Objective (9) of a plan, written out with the norm (8)."""
    return np.sum(costs * plan) + strength * np.sqrt(np.sum(plan**2, axis=0)).sum()


def as_plan(labels, n_columns):
    return np.eye(n_columns)[labels]


def convex_optimum(costs, offsets, strength):
    plan = cp.Variable(costs.shape, nonneg=True)
    limits = [cp.sum(plan, axis=1) == 1] + [cp.sum(plan[a:b], axis=0) <= 1 for a, b in blocks(offsets)]
    objective = cp.sum(cp.multiply(costs, plan)) + strength * cp.sum(cp.norm(plan, 2, axis=0))
    return cp.Problem(cp.Minimize(objective), limits).solve(solver=cp.CLARABEL)


def solver_noise(costs, optimum):
    return tolerances.CONVEX_SOLVER * max(np.abs(costs).sum(), abs(optimum))


CASES = {f"random {seed}": ragged(seed)[:2] for seed in range(10)} | {f"planted {s}": planted(s) for s in range(3)}
every_case = pytest.mark.parametrize("name", CASES)


@every_case
@pytest.mark.parametrize("strength", [0.05, 0.7, 5.0])
def test_relaxed_plan_is_optimal_within_its_certificate(name, strength):
    """The convex solver's optimum lies between the bounds, which are as close as was asked for."""
    costs, offsets = CASES[name]
    found = solve_relaxed(costs, offsets, strength, GAP, ITERATIONS)
    optimum = convex_optimum(costs, offsets, strength)
    noise = solver_noise(costs, optimum)
    assert found.lower <= found.upper
    assert found.lower <= optimum + noise
    assert optimum <= found.upper + noise
    assert found.upper - found.lower <= GAP * max(np.abs(costs).mean(), found.upper) * (1 + tolerances.ROUNDING)
    assert_allclose(found.upper, value(costs, strength, found.plan), rtol=tolerances.ROUNDING)


@every_case
@pytest.mark.parametrize("limit", [1, 30, ITERATIONS])
def test_relaxed_plan_is_feasible_and_certified_wherever_it_stops(name, limit):
    costs, offsets = CASES[name]
    found = solve_relaxed(costs, offsets, 0.7, 1e-9, limit)
    assert np.all(found.plan >= 0)
    assert_allclose(found.plan.sum(axis=1), 1.0, rtol=0, atol=tolerances.ROUNDING)
    for start, end in blocks(offsets):
        assert np.all(found.plan[start:end].sum(axis=0) <= 1 + tolerances.ROUNDING)
    optimum = convex_optimum(costs, offsets, 0.7)
    assert found.lower - solver_noise(costs, optimum) <= optimum <= found.upper + solver_noise(costs, optimum)


@every_case
def test_a_warm_start_does_not_move_the_optimum(name):
    """Neither one from a neighbouring problem nor one from its own solution."""
    costs, offsets = CASES[name]
    other = np.abs(costs + 0.1 * np.random.default_rng(3).normal(size=costs.shape))
    warm = solve_relaxed(other, offsets, 0.7, GAP, ITERATIONS).state
    found = solve_relaxed(costs, offsets, 0.7, GAP, ITERATIONS, warm=warm)
    optimum = convex_optimum(costs, offsets, 0.7)
    scale = max(np.abs(costs).mean(), optimum)
    assert_allclose(found.upper, optimum, rtol=0, atol=GAP * scale + solver_noise(costs, optimum))
    again = solve_relaxed(costs, offsets, 0.7, GAP, ITERATIONS, warm=found.state)
    assert_allclose(again.upper, optimum, rtol=0, atol=GAP * scale + solver_noise(costs, optimum))


@every_case
def test_without_a_price_the_relaxed_optimum_is_that_of_assignments(name):
    """The blocks' polytopes have integral vertices."""
    costs, offsets = CASES[name]
    expected = sum(costs[a:b][linear_sum_assignment(costs[a:b])].sum() for a, b in blocks(offsets))
    found = solve_relaxed(costs, offsets, 0.0, GAP, ITERATIONS)
    assert found.lower - tolerances.ROUNDING * expected <= expected <= found.upper + tolerances.ROUNDING * expected
    assert_allclose(found.upper, expected, rtol=0, atol=GAP * max(np.abs(costs).mean(), expected))


@every_case
@pytest.mark.parametrize("factor", [1e-6, 3.7, 1e7])
def test_scaling_costs_and_price_scales_the_value(name, factor):
    costs, offsets = CASES[name]
    plain = solve_relaxed(costs, offsets, 0.7, GAP, ITERATIONS)
    scaled = solve_relaxed(factor * costs, offsets, factor * 0.7, GAP, ITERATIONS)
    slack = 2 * GAP * max(np.abs(costs).mean(), plain.upper)
    assert_allclose(scaled.upper / factor, plain.upper, rtol=0, atol=slack)
    assert_allclose(scaled.upper / factor, value(costs, 0.7, scaled.plan), rtol=tolerances.ROUNDING)


def test_free_costs_leave_only_the_price():
    """All costs zero, so that their scale is no help: sharing columns is cheapest."""
    costs, offsets = np.zeros((6, 4)), np.array([0, 2, 4, 6])
    found = solve_relaxed(costs, offsets, 1.0, GAP, ITERATIONS)
    optimum = convex_optimum(costs, offsets, 1.0)
    assert found.lower - tolerances.CONVEX_SOLVER <= optimum <= found.upper + tolerances.CONVEX_SOLVER
    assert_allclose(found.upper, optimum, rtol=GAP)


# -- Binary matchings.


@functools.cache
def enumerate_binary(seed, strength):
    """Return a tiny problem and its optimum over all binary plans."""
    costs, offsets, rng = ragged(seed, max_sites=3, max_rows=3, max_spare=1)
    n_columns = costs.shape[1]
    options = [np.array(list(itertools.permutations(range(n_columns), b - a))) for a, b in blocks(offsets)]
    best = np.inf
    for choice in itertools.product(*options):
        labels = np.concatenate(choice)
        users = np.bincount(labels, minlength=n_columns)
        best = min(best, costs[np.arange(len(labels)), labels].sum() + strength * np.sqrt(users).sum())
    return costs, offsets, rng, best


def binary_value(costs, strength, labels):
    return value(costs, strength, as_plan(labels, costs.shape[1]))


SEEDS, STRENGTHS = range(20), (0.3, 1.0, 3.0)


def best_of_many(costs, offsets, strength, rng, starts=30):
    values = []
    for _ in range(starts):
        start = np.concatenate([rng.permutation(costs.shape[1])[: b - a] for a, b in blocks(offsets)])
        labels = descend_binary(costs, offsets, strength, start, rng, 100)
        values.append(binary_value(costs, strength, labels))
    return min(values)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_integral_descent_finds_the_optimum_of_most_tiny_problems(strength):
    """It is never below the optimum by enumeration, and with many starts nearly always on it."""
    hits = 0
    for seed in SEEDS:
        costs, offsets, rng, optimum = enumerate_binary(seed, strength)
        found = best_of_many(costs, offsets, strength, rng)
        assert found >= optimum * (1 - tolerances.ROUNDING)
        hits += found <= optimum * (1 + tolerances.ROUNDING)
    assert hits >= 0.9 * len(SEEDS)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("seed", range(4))
def test_relaxed_optimum_is_below_the_integral_one(seed, strength):
    costs, offsets, _, optimum = enumerate_binary(seed, strength)
    assert solve_relaxed(costs, offsets, strength, GAP, ITERATIONS).lower <= optimum * (1 + tolerances.ROUNDING)


@every_case
@pytest.mark.parametrize("strength", [0.0, 0.3, 3.0, 1e4])
def test_integral_descent_ends_no_higher_than_it_starts(name, strength):
    """And more sweeps end no higher than fewer; columns stay different inside a block."""
    costs, offsets = CASES[name]
    rng = np.random.default_rng(5)
    start = np.concatenate([rng.permutation(costs.shape[1])[: b - a] for a, b in blocks(offsets)])
    before = start.copy()
    values = [binary_value(costs, strength, start)]
    for sweeps in (1, 2, 50):
        labels = descend_binary(costs, offsets, strength, start, np.random.default_rng(6), sweeps)
        values.append(binary_value(costs, strength, labels))
        assert all(len(set(labels[a:b])) == b - a for a, b in blocks(offsets))
    assert_array_equal(start, before, "the start was overwritten")
    assert all(later <= earlier * (1 + tolerances.ROUNDING) for earlier, later in itertools.pairwise(values))


@every_case
def test_a_settled_matching_is_best_for_every_block(name):
    """No block can improve on it alone: every choice of its columns is tried."""
    costs, offsets = CASES[name]
    labels = descend_binary(costs, offsets, 0.8, None, np.random.default_rng(0), 1000)
    settled = binary_value(costs, 0.8, labels)
    for start, end in blocks(offsets):
        for columns in itertools.islice(itertools.permutations(range(costs.shape[1]), end - start), 500):
            trial = labels.copy()
            trial[start:end] = columns
            assert binary_value(costs, 0.8, trial) >= settled * (1 - tolerances.ROUNDING)


@every_case
@pytest.mark.parametrize("strength", [0.1, 0.8, 4.0])
def test_improvable_blocks_are_those_that_a_choice_of_columns_improves(name, strength):
    costs, offsets = CASES[name]
    rng = np.random.default_rng(4)
    labels = np.concatenate([rng.permutation(costs.shape[1])[: b - a] for a, b in blocks(offsets)])
    users = np.bincount(labels, minlength=costs.shape[1]).astype(float)
    improvable = []
    for number, (start, end) in enumerate(blocks(offsets)):
        values = []
        for columns in itertools.permutations(range(costs.shape[1]), end - start):
            trial = labels.copy()
            trial[start:end] = columns
            values.append(binary_value(costs, strength, trial))
        if min(values) < binary_value(costs, strength, labels) * (1 - tolerances.ROUNDING):
            improvable.append(number)
    assert_array_equal(_improvable(costs, offsets, strength, labels, users), improvable)


@every_case
@pytest.mark.parametrize("cold", [True, False])
def test_a_huge_price_uses_as_few_columns_as_it_may(name, cold):
    costs, offsets = CASES[name]
    rng = np.random.default_rng(8)
    start = np.concatenate([rng.permutation(costs.shape[1])[: b - a] for a, b in blocks(offsets)])
    labels = descend_binary(costs, offsets, 1e6, None if cold else start, rng, 1000)
    assert len(np.unique(labels)) == np.diff(offsets).max()


@every_case
def test_scaling_costs_and_price_leaves_the_matching(name):
    costs, offsets = CASES[name]
    plain = descend_binary(costs, offsets, 0.7, None, np.random.default_rng(1), 100)
    assert_array_equal(plain, descend_binary(2.5 * costs, offsets, 1.75, None, np.random.default_rng(1), 100))


@every_case
def test_the_binary_penalty_is_the_group_norm(name):
    costs, offsets = CASES[name]
    labels = assign_blocks(costs, offsets)
    norm = np.linalg.norm(as_plan(labels, costs.shape[1]), axis=0).sum()
    assert_allclose(binary_penalty(labels, costs.shape[1]), norm, rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("seed", range(30))
def test_assignments_are_those_of_scipy(seed):
    """Also where every row's cheapest column is a different one, and where rows compete; costs of any sign."""
    costs, offsets, rng = ragged(seed, max_rows=8, max_spare=8)
    costs = costs - rng.gamma(1.0, 1.0)
    expected = np.concatenate([linear_sum_assignment(costs[a:b])[1] for a, b in blocks(offsets)])
    assert_array_equal(assign_blocks(costs, offsets), expected)
    assert_array_equal(descend_binary(costs, offsets, 0.0, None, rng, 10), expected)
