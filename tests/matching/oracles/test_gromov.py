"""Fused Gromov-Wasserstein matching against tensors of all four indices, brute force, and linear programming.

The sum over pairs of pairs of units is written as it stands in equation (10), with every sign a unit may have as an
index of its own; nothing of it is shared with the library.
"""

import itertools
from functools import cached_property

import numpy as np
import pytest

from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import alternating, conditional_gradient, is_permutation, mirror_descent
from tests.networks.methods_zoo import MARGINALS
from tests.networks.references import linear_programme, plan, sinkhorn
from tests.tolerances import CONVEX_SOLVER, DESCENT, DIFFERENCES, ROUNDING

pytestmark = pytest.mark.covering(2)

SIZES = [(3, 3), (3, 5), (6, 4), (6, 6)]
GATES = [1, 3]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_gates = pytest.mark.parametrize("gates", GATES)
every_kind = pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
SOFT = pytest.mark.parametrize("sizes", [(3, 5), (6, 4), (5, 7)], ids=str)


class Case:
    """A problem, and what it was made of: coordinates of units (even, odd), weights among them by gate."""

    def __init__(self, sizes, gates, signed=False, alpha=0.7, seed=0, features=3):
        rng = np.random.default_rng([seed, *sizes, gates, signed])
        self.alpha, self.signed, (self.K, self.k) = alpha, signed, sizes
        self.even = [rng.normal(size=(n, features)) for n in sizes]
        self.odd = [rng.normal(size=(n, features)) for n in sizes] if signed else None
        self.left, self.right = (rng.normal(size=(gates, n, n)) for n in sizes)  # not symmetric
        self.flips = tuple(bool(gate % 2 == 0) for gate in range(gates)) if signed else ()
        costs = np.zeros(sizes)
        products = np.zeros(sizes)
        for j, g in np.ndindex(*sizes):
            costs[j, g] = sum((x - y) ** 2 for x, y in zip(self.even[0][j], self.even[1][g], strict=True))
            if signed:
                costs[j, g] += (self.odd[0][j] ** 2).sum() + (self.odd[1][g] ** 2).sum()
                products[j, g] = self.odd[0][j] @ self.odd[1][g]
        self.problem = FusedGromov(costs, self.left, self.right, alpha, products if signed else None, self.flips)

    @cached_property
    def tensor(self):
        """Return the squared differences (a, b, j, q, g, s) of all gates: a, b the signs of unit g and of unit s."""
        result = np.zeros((2, 2, self.K, self.K, self.k, self.k))
        for gate, (h, own) in enumerate(zip(self.left, self.right, strict=True)):
            for a, b in itertools.product((0, 1), repeat=2):
                sign = (-1.0) ** b * ((-1.0) ** a if self.flips and self.flips[gate] else 1.0)
                result[a, b] += (h[:, :, None, None] - sign * own[None, None]) ** 2
        return result

    @cached_property
    def alone(self):
        """Return squared distances (a, j, g) of coordinates, with either sign of unit g."""
        found = np.zeros((2, self.K, self.k))
        for a, j, g in np.ndindex(*found.shape):
            found[a, j, g] = ((self.even[0][j] - self.even[1][g]) ** 2).sum()
            if self.signed:
                found[a, j, g] += ((self.odd[0][j] - (-1.0) ** a * self.odd[1][g]) ** 2).sum()
        return found

    def value(self, mass, turned=None):
        """Return F of a plan, split into what goes with either sign."""
        parts = np.stack([mass, 0 * mass]) if turned is None else np.stack([mass + turned, mass - turned]) / 2
        pairs = (np.einsum("abjqgs,bqs->ajg", self.tensor, parts) * parts).sum()
        return (self.alone * parts).sum() + self.alpha * pairs

    def gradient(self, mass, turned=None):
        """Return the derivative (a, j, g) of F in what goes from g to j with either sign."""
        parts = np.stack([mass, 0 * mass]) if turned is None else np.stack([mass + turned, mass - turned]) / 2
        tensor = self.tensor
        received = np.einsum("abjqgs,bqs->ajg", tensor, parts)
        sent = np.einsum("abjqgs,ajg->bqs", tensor, parts)
        return self.alone + self.alpha * (received + sent)

    def start(self, seed=0):
        """Return a plan inside, with its signs."""
        rng = np.random.default_rng([seed, 5])
        mass = inside(self.K, self.k, rng)
        return TransportPlan(mass, mass * rng.uniform(-1, 1, size=mass.shape) if self.signed else None)

    def vertex(self, gradient):
        """Return the plan of least cost under linear costs (a, j, g)."""
        if not self.signed:
            return TransportPlan(plan(gradient[0]))
        mass = plan(gradient.min(axis=0))
        return TransportPlan(mass, mass * np.where(gradient[0] <= gradient[1], 1.0, -1.0))

    def value_of(self, plan):
        return self.value(plan.mass, plan.signed)

    def gradient_of(self, plan):
        return self.gradient(plan.mass, plan.signed)

    def gap(self, found):
        """Return by how much the linear part of F falls on the way to the best vertex."""
        gradient = self.gradient_of(found)
        there = self.vertex(gradient)
        return (gradient * (split(found) - split(there))).sum()


def split(plan):
    """Return what goes with either sign (2, K, k)."""
    if plan.signed is None:
        return np.stack([plan.mass, 0 * plan.mass])
    return np.stack([plan.mass + plan.signed, plan.mass - plan.signed]) / 2


def between(one, other, step):
    mass = (1 - step) * one.mass + step * other.mass
    return TransportPlan(mass, None if one.signed is None else (1 - step) * one.signed + step * other.signed)


def inside(n, m, rng):
    """Return a random coupling without zeros: a mean of vertices and the uniform one."""
    vertices = [linear_programme(rng.normal(size=(n, m)), np.full(n, 1 / n), np.full(m, 1 / m)) for _ in range(3)]
    return 0.2 * sum(vertices) + 0.4 / (n * m)


def assert_marginals(found, tolerance=ROUNDING):
    n, m = found.mass.shape
    assert found.mass.min() >= -tolerance
    np.testing.assert_allclose(found.mass.sum(axis=1), 1 / n, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.mass.sum(axis=0), 1 / m, rtol=0, atol=tolerance)
    if found.signed is not None:
        assert np.all(np.abs(found.signed) <= found.mass + tolerance)


def never_rises(history):
    return bool(np.all(np.diff(history) <= DESCENT * max(1.0, abs(history[0]))))


# -- The objective, its gradient, and the costs that a coupling gives.


@every_kind
@every_gates
@every_size
def test_the_objective_is_the_sum_over_pairs_of_pairs_of_units(sizes, gates, signed):
    case = Case(sizes, gates, signed)
    for seed in range(3):
        start = case.start(seed)
        assert case.problem.value(case.problem.at(start)) == pytest.approx(case.value_of(start), rel=ROUNDING)


@every_gates
@every_size
def test_signs_that_are_all_one_are_no_signs(sizes, gates):
    case = Case(sizes, gates, True)
    mass = case.start().mass
    parts = np.concatenate([*case.even], axis=0), np.concatenate([*case.odd], axis=0)
    rows = np.hstack(parts)
    costs = ((rows[: case.K, None] - rows[None, case.K :]) ** 2).sum(-1)
    plain = FusedGromov(costs, case.left, case.right, case.alpha)
    found = case.problem.value(case.problem.at(TransportPlan(mass, mass)))
    assert found == pytest.approx(plain.value(plain.at(TransportPlan(mass))), rel=ROUNDING)


@every_gates
@every_size
def test_hidden_costs_are_the_tensor_times_the_plan(sizes, gates):
    case = Case(sizes, gates)
    start = case.start()
    result = np.zeros(sizes)
    for h, own in zip(case.left, case.right, strict=True):
        for j, g, q, s in itertools.product(range(case.K), range(case.k), range(case.K), range(case.k)):
            result[j, g] += (h[j, q] - own[g, s]) ** 2 * start.mass[q, s]
    np.testing.assert_allclose(case.problem.hidden_costs(start), result, rtol=ROUNDING, atol=ROUNDING)


@every_kind
@every_gates
@every_size
def test_gradients_are_differences_of_the_objective_along_plans(sizes, gates, signed):
    """The marginals are fixed, so a gradient is known only along changes that keep them."""
    case, step = Case(sizes, gates, signed), 1e-3
    here = case.start(0)
    by_mass, by_turned = case.problem.gradients(case.problem.at(here))
    rng = np.random.default_rng(9)
    for _ in range(4):
        change = inside(*sizes, rng) - here.mass
        ahead, behind = (case.value(here.mass + d * change, here.signed) for d in (step, -step))
        expected = (ahead - behind) / (2 * step)
        found = (by_mass * change).sum() + (0.0 if signed else (by_turned * change).sum())
        assert found == pytest.approx(expected, abs=DIFFERENCES)
        if signed:
            turn = rng.normal(size=sizes)
            ahead, behind = (case.value(here.mass, here.signed + d * turn) for d in (step, -step))
            assert (by_turned * turn).sum() == pytest.approx((ahead - behind) / (2 * step), abs=DIFFERENCES)


@every_size
def test_the_gradient_is_that_of_rows_and_columns(sizes):
    """C + alpha (L(H, H') + L(H^T, H'^T)) (x) P, and it is not twice the rows where matrices are not symmetric."""
    case = Case(sizes, 1)
    here = case.start()
    first, second = case.problem.gradients(case.problem.at(here))
    transposed = FusedGromov(case.problem.costs, case.left.swapaxes(1, 2), case.right.swapaxes(1, 2), case.alpha)
    rows, columns = case.problem.hidden_costs(here), transposed.hidden_costs(here)
    expected = case.problem.costs + case.alpha * (rows + columns)
    heuristic = case.problem.costs + 2 * case.alpha * rows
    np.testing.assert_allclose(centred(first + second), centred(expected), rtol=0, atol=ROUNDING)
    assert np.abs(centred(first + second) - centred(heuristic)).max() > 0.01


def centred(costs):
    """Return costs without what the marginals make constant."""
    return costs - costs.mean(axis=0) - costs.mean(axis=1, keepdims=True) + costs.mean()


@every_kind
def test_a_permutation_is_looked_up_as_it_is_multiplied(signed):
    case = Case((5, 5), 3, signed)
    rng = np.random.default_rng(2)
    columns = rng.permutation(5)
    signs = rng.choice([-1.0, 1.0], size=5) if signed else None
    mass = np.eye(5)[columns] / 5
    there = TransportPlan(mass, None if signs is None else mass * signs[:, None])
    found = case.problem.at_permutation(columns, signs)
    assert case.problem.value(found) == pytest.approx(case.value_of(there), rel=ROUNDING)
    assert is_permutation(there)


# -- Conditional gradients.


@every_kind
@every_gates
@every_size
def test_conditional_gradients_never_rise_and_end_where_they_say(sizes, gates, signed):
    """The one rise there may be is the jump from inside to a permutation, where one is wanted."""
    for seed in range(3):
        case = Case(sizes, gates, signed, seed=seed)
        start = case.start(seed)
        solution = conditional_gradient(case.problem, start)
        assert_marginals(solution.plan)
        rises = np.flatnonzero(np.diff(solution.history) > DESCENT * solution.history[0])
        assert len(rises) <= int(case.problem.square)
        assert all(never_rises(part) for part in np.split(solution.history, rises + 1))
        assert solution.history[0] == pytest.approx(case.value_of(start), rel=ROUNDING)
        assert solution.objective == pytest.approx(case.value_of(solution.plan), rel=1e-11)


@every_kind
@every_gates
@SOFT
def test_where_conditional_gradients_end_no_direction_falls(sizes, gates, signed):
    """Inside, steps get shorter and shorter: what is not called converged is near."""
    for seed in range(3):
        case = Case(sizes, gates, signed, seed=seed)
        solution = conditional_gradient(case.problem, case.start(seed), max_iterations=400)
        allowed = CONVEX_SOLVER if solution.converged else 1e-3
        assert case.gap(solution.plan) <= allowed * case.value_of(case.problem.uniform())


@every_kind
def test_what_ends_at_a_vertex_has_converged(signed):
    case = Case((3, 5), 1, signed, seed=1)
    vertex = min((conditional_gradient(case.problem, case.start(seed)) for seed in range(4)), key=lambda o: o.objective)
    again = conditional_gradient(case.problem, vertex.plan)
    assert vertex.converged
    assert again.converged
    assert again.objective == pytest.approx(vertex.objective, rel=ROUNDING)


@every_kind
@every_gates
@pytest.mark.parametrize("size", [4, 6])
def test_between_equal_widths_conditional_gradients_end_in_a_permutation_that_no_pull_improves(size, gates, signed):
    for seed in range(5):
        case = Case((size, size), gates, signed, seed=seed)
        found = conditional_gradient(case.problem, case.start(seed)).plan
        assert is_permutation(found)
        assert set(np.unique(np.round(size * np.abs(split(found)), 9))) <= {0.0, 1.0}
        there = case.vertex(case.gradient_of(found))
        assert case.value_of(there) >= case.value_of(found) - DESCENT


@every_kind
@every_gates
@every_size
def test_a_step_goes_as_far_as_the_objective_falls_most(sizes, gates, signed):
    for seed in range(3):
        case = Case(sizes, gates, signed, seed=seed)
        start = case.start(seed)
        there = case.vertex(case.gradient_of(start))
        grid = [case.value_of(between(start, there, step)) for step in np.linspace(0, 1, 51)]
        found = conditional_gradient(case.problem, start, max_iterations=1).history[1]
        assert found <= min(grid) + DESCENT
        assert found == pytest.approx(along(case, start, there), rel=ROUNDING)


def along(case, start, there):
    """Return the least value on a segment, from three values of the parabola."""
    at = [case.value_of(between(start, there, step)) for step in (0.0, 0.5, 1.0)]
    square, line = 2 * (at[0] - 2 * at[1] + at[2]), -3 * at[0] + 4 * at[1] - at[2]
    steps = [0.0, 1.0] + ([float(np.clip(-line / (2 * square), 0, 1))] if square > 0 else [])
    return min(case.value_of(between(start, there, step)) for step in steps)


@every_kind
@SOFT
def test_every_step_goes_as_far_as_the_objective_falls_most(sizes, signed):
    """A step's ray ends at a vertex of steepest fall; which one, where an exact step before made two of them equal."""
    case = Case(sizes, 3, signed, seed=4)
    here = case.start(0)
    history = conditional_gradient(case.problem, here, max_iterations=8).history
    for count in range(1, min(len(history), 9)):
        after = conditional_gradient(case.problem, case.start(0), max_iterations=count).plan
        there = end_of_ray(here, after)
        gradient = case.gradient_of(here)
        steepest = (gradient * split(case.vertex(gradient))).sum()
        assert (gradient * split(there)).sum() == pytest.approx(steepest, rel=1e-7)
        assert history[count] == pytest.approx(along(case, here, there), rel=1e-9)
        assert case.value_of(after) == pytest.approx(history[count], rel=1e-9)
        here = after


def end_of_ray(here, there):
    """Return the last plan on the ray from one plan through another."""
    one, change = split(here), split(there) - split(here)
    falls = change < -1e-9
    step = (one[falls] / -change[falls]).min()
    return between(here, there, step)


@every_kind
@pytest.mark.parametrize("gates", [1, 4])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_from_all_vertices_the_best_is_the_best_of_all_permutations(size, gates, signed):
    """The quadratic assignment problem by enumeration; with signs, of all signed permutations."""
    case = Case((size, size), gates, signed, seed=size)
    turns = list(itertools.product([1.0, -1.0], repeat=size)) if signed else [None]
    values, found = [], []
    for order in itertools.permutations(range(size)):
        for signs in turns:
            mass = np.eye(size)[list(order)] / size
            start = TransportPlan(mass, None if signs is None else mass * np.array(signs)[:, None])
            values.append(case.value_of(start))
            found.append(conditional_gradient(case.problem, start))
            assert found[-1].objective <= values[-1] + DESCENT
    best = min(found, key=lambda one: one.objective)
    assert best.objective == pytest.approx(min(values), rel=ROUNDING)
    assert is_permutation(best.plan)


@every_kind
@every_gates
def test_renumbered_units_are_found_from_the_costs_and_cost_nothing(gates, signed):
    case = Case((7, 7), gates, signed, seed=1)
    rng = np.random.default_rng(3)
    order, signs = rng.permutation(7), rng.choice([-1.0, 1.0], size=7) if signed else np.ones(7)
    rows = np.where(case.flips, 1, 0) if signed else np.zeros(gates)
    left = np.array([
        np.where(turns, signs[:, None], 1.0) * own[np.ix_(order, order)] * (signs[None, :])
        for own, turns in zip(case.right, rows, strict=True)
    ])  # fmt: skip
    squares = (case.even[1] ** 2).sum(1)
    costs = squares[order][:, None] + squares[None, :] - 2 * case.even[1][order] @ case.even[1].T
    odd = None
    if signed:
        mine = signs[:, None] * case.odd[1][order]
        odd = mine @ case.odd[1].T
        costs = costs + (mine**2).sum(1)[:, None] + (case.odd[1] ** 2).sum(1)[None, :]
    problem = FusedGromov(costs, left, case.right, 1.3, odd, case.flips)
    solution = conditional_gradient(problem, problem.by_costs())
    assert solution.plan.mass.argmax(axis=1).tolist() == order.tolist()
    assert abs(solution.objective) < 1e-10
    if signed:
        np.testing.assert_allclose(7 * solution.plan.signed.sum(axis=1), signs, rtol=0, atol=ROUNDING)


# -- The starts.


@every_kind
@every_size
def test_the_uniform_plan_and_the_plan_by_costs(sizes, signed):
    case = Case(sizes, 2, signed)
    np.testing.assert_allclose(case.problem.uniform().mass, 1 / (case.K * case.k), rtol=ROUNDING)
    found = case.problem.by_costs()
    assert_marginals(found)
    expected = case.vertex(case.alone)
    np.testing.assert_allclose(split(found), split(expected), rtol=0, atol=CONVEX_SOLVER)


# -- Equation (43).


@pytest.mark.parametrize("steps", [1, 3])
@every_gates
@every_size
def test_alternating_without_entropy_is_equation_43(sizes, gates, steps):
    case = Case(sizes, gates, seed=6)
    here = case.start()
    expected = here.mass
    for _ in range(steps):
        costs = case.alone[0] + case.alpha * np.einsum("jqgs,qs->jg", case.tensor[0, 0], expected)
        expected = plan(costs)
    found = alternating(case.problem, here, 0.0, max_iterations=steps).plan
    np.testing.assert_allclose(found.mass, expected, rtol=0, atol=CONVEX_SOLVER)


@every_size
def test_alternating_with_entropy_is_equation_43(sizes):
    case, epsilon = Case(sizes, 3, seed=7), 0.1
    here = case.start()
    costs = case.alone[0] + case.alpha * np.einsum("jqgs,qs->jg", case.tensor[0, 0], here.mass)
    rows, columns = np.full(case.K, 1 / case.K), np.full(case.k, 1 / case.k)
    expected = sinkhorn(costs, epsilon * costs.max(), rows, columns)
    found = alternating(case.problem, here, epsilon, max_iterations=1).plan
    np.testing.assert_allclose(found.mass, expected, rtol=0, atol=MARGINALS)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 0.001, 0.01, 0.1])
@every_gates
@every_size
def test_alternating_is_finite_and_has_its_marginals(sizes, gates, epsilon):
    case = Case(sizes, gates, alpha=5.0)
    solution = alternating(case.problem, case.start(), epsilon)
    assert np.isfinite(solution.history).all()
    assert_marginals(solution.plan, MARGINALS)
    assert solution.objective == pytest.approx(case.value_of(solution.plan), rel=1e-5)


# -- Mirror descent.


@every_gates
@every_size
def test_mirror_descent_never_rises_and_has_its_marginals(sizes, gates):
    case = Case(sizes, gates)
    start = case.start()
    solution = mirror_descent(case.problem, start)
    assert_marginals(solution.plan, MARGINALS)
    assert never_rises(solution.history)
    assert solution.history[0] == pytest.approx(case.value_of(start), rel=1e-9)
    assert solution.objective == pytest.approx(case.value_of(solution.plan), rel=1e-5)
    assert solution.objective < solution.history[0]


def test_mirror_descent_moves_no_mass_to_where_there_is_none():
    case = Case((4, 6), 2)
    start = TransportPlan(
        linear_programme(np.random.default_rng(1).normal(size=(4, 6)), np.full(4, 1 / 4), np.full(6, 1 / 6))
    )
    found = mirror_descent(case.problem, start).plan
    assert np.all(found.mass[start.mass == 0] <= MARGINALS)


@SOFT
def test_mirror_descent_ends_near_a_plan_that_no_direction_improves(sizes):
    """Steps shrink with the distance from a vertex, so that it is approached: most of the gap is gone."""
    case = Case(sizes, 3, seed=2)
    start = case.problem.uniform()
    solution = mirror_descent(case.problem, start, max_iterations=2000)
    assert case.gap(solution.plan) < 0.02 * case.gap(start)
