"""Solvers of fused Gromov-Wasserstein problems: conditional gradient, the iteration of the paper, mirror descent.

Conditional gradient (Vayer et al. 2019) and mirror descent lower F at every step, to a local minimum; the alternation
of the paper's equation (43) may raise it. A result that reached its last iteration says so by ``converged``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array
from consilience.matching.gromov import FusedGromov, PlanProducts, TransportPlan
from consilience.matching.transport import entropic_plan, exact_plan

PERMUTATION_GAP = 1e-5
"""Frank-Wolfe gap, in the scale of F, that ends a descent towards a permutation: below, it zigzags. Chosen by hand."""
OBJECTIVE_ROUNDING = 1e-7
"""Fall of F, in the scale of F, below which it is rounding. Chosen by hand; weights may be float32."""
WHOLE_MASS_TOLERANCE = 1e-9
"""Part of its mass that a unit of a permutation may send elsewhere, by rounding."""
MAX_WHOLE_STEPS = 50
"""Steps between permutations: a bound, for each of them lowers F and there are finitely many permutations."""
MIN_CHANGE = 1e-5
"""Mean change of an entry, times K k, at which an alternation ends."""
MIN_MASS = 1e-300
"""Mass whose logarithm stands for that of zero."""
MAX_HALVINGS = 20
"""Halvings of a mirror step before F counts as at its minimum: to a millionth of the first step. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class GromovSolution:
    """A local solution of a fused Gromov-Wasserstein problem."""

    plan: TransportPlan
    objective: float  # F of the plan
    # F after each step of the descent; where that ended between permutations, F of the plan may be higher.
    history: Array
    converged: bool  # whether no step lowers F


def conditional_gradient(problem: FusedGromov, start: TransportPlan, max_iterations: int = 100) -> GromovSolution:
    """Descend F by going towards the vertex of the steepest fall, as far as F falls most.

    No step of the descent raises F. Where there are as many units on both sides, a permutation is wanted: if the
    descent ends inside, it goes on from the nearest permutation in whole steps, and that is what is returned.

    Examples
    --------
    >>> weights = np.array([[[0.0, 1, 0], [0, 0, 2], [3, 0, 0]]])
    >>> order = [2, 0, 1]
    >>> problem = FusedGromov(np.zeros((3, 3)), weights[:, order][:, :, order], weights, 1.0)
    >>> solution = conditional_gradient(problem, TransportPlan(np.eye(3)[order] / 3))
    >>> solution.plan.mass.argmax(axis=1), round(solution.objective, 9) + 0.0
    (array([2, 0, 1]), 0.0)
    """
    state = problem.at(start)
    history = [problem.value(state)]
    converged = False
    for _ in range(max_iterations):
        state, has_moved = _step(problem, state)
        if not has_moved:
            converged = True
            break
        history.append(problem.value(state))
    # Between equal widths a permutation is wanted: a descent that ends inside goes on from the nearest one.
    if problem.square and not is_permutation(state.plan):
        return _rounded(problem, state, history)
    return GromovSolution(state.plan, history[-1], np.array(history), converged)


def _step(problem: FusedGromov, state: PlanProducts, whole: bool = False) -> tuple[PlanProducts, bool]:
    """Return the state after one step of exact length, or of length one, and whether there was any."""
    by_mass, by_signed = problem.gradients(state)
    vertex = problem.vertex(by_mass, by_signed)
    mass_change = vertex.plan.mass - state.plan.mass
    signed_change = vertex.plan.signed_mass - state.plan.signed_mass
    # Minus the Frank-Wolfe gap: zero where no direction lowers F to first order.
    slope = float(np.vdot(by_mass, mass_change) + np.vdot(by_signed, signed_change))
    if -slope <= (PERMUTATION_GAP if problem.square and not whole else OBJECTIVE_ROUNDING) * problem.objective_scale:
        return state, False
    quadratic = np.vdot(vertex.received_even - state.received_even, mass_change)
    quadratic += np.vdot(vertex.received_odd - state.received_odd, signed_change)
    second_order = -2.0 * problem.alpha * float(quadratic)
    # F is quadratic along the segment, F(t) = F + slope t + second_order t^2: its minimum on [0, 1] is closed.
    length = 1.0 if second_order <= 0.0 else min(1.0, -slope / (2.0 * second_order))
    if whole:
        falls = slope + second_order < -OBJECTIVE_ROUNDING * problem.objective_scale
        return (vertex, True) if falls else (state, False)
    return (vertex if length == 1.0 else state.moved(length, vertex)), True


def is_permutation(plan: TransportPlan) -> bool:
    """Return whether every unit goes to one unit, with one sign."""
    whole = np.abs(plan.signed_mass).max(axis=1) * len(plan.mass)
    return bool(np.all(whole > 1.0 - WHOLE_MASS_TOLERANCE))


def _rounded(problem: FusedGromov, state: PlanProducts, history: list[float]) -> GromovSolution:
    """Return the best permutation that is reached in whole steps from the nearest one, or from where it pulls."""
    descents: list[tuple[float, PlanProducts, bool]] = []
    zeros = np.zeros_like(problem.costs)
    for start in (
        problem.vertex(-state.plan.mass if problem.odd is None else zeros, -state.plan.signed_mass),
        problem.vertex(*problem.gradients(state)),
    ):
        current, has_moved, n_steps = start, True, 0
        while has_moved and n_steps < MAX_WHOLE_STEPS:
            current, has_moved = _step(problem, current, whole=True)
            n_steps += 1
        descents.append((problem.value(current), current, not has_moved))
    value, best, converged = min(descents, key=lambda descent: descent[0])
    return GromovSolution(best.plan, value, np.array(history), converged)


def alternating(problem: FusedGromov, start: TransportPlan, epsilon: float, max_iterations: int = 50) -> GromovSolution:
    """Repeat equation (43) of the paper: the plan of least cost under C + alpha L (x) P of the plan before.

    For matrices that are not symmetric this is no descent of F, since only the rows of H count; it may rise. `epsilon`
    is the weight of the entropy relative to the largest cost, 0 to solve exactly. The problem has no signs.
    """
    plan = start
    history = [problem.value(problem.at(plan))]
    for _ in range(max_iterations):
        costs = problem.costs + problem.alpha * problem.hidden_costs(plan)  # (K, k)
        new = exact_plan(costs) if epsilon == 0 else entropic_plan(costs, epsilon)
        change = float(np.abs(new - plan.mass).sum())
        plan = TransportPlan(new)
        history.append(problem.value(problem.at(plan)))
        if change < MIN_CHANGE:
            return GromovSolution(plan, history[-1], np.array(history), True)
    return GromovSolution(plan, history[-1], np.array(history), False)


def mirror_descent(problem: FusedGromov, start: TransportPlan, max_iterations: int = 100) -> GromovSolution:
    """Descend F by steps that stay inside: P is multiplied by exp(-tau times the gradient) and given its marginals.

    tau is halved until F falls, and doubled after a step that did. Entries that are zero at the start stay so. The
    problem has no signs.
    """
    state = problem.at(start)
    history = [problem.value(state)]
    tau: float | None = None
    for _ in range(max_iterations):
        gradient = np.add(*problem.gradients(state))
        spread = float(gradient.max() - gradient.min())
        if spread == 0.0:
            return GromovSolution(state.plan, history[-1], np.array(history), True)
        # Before the marginals are restored, the first step changes no entry by more than a factor e against another.
        tau = 1.0 / spread if tau is None else 2.0 * tau
        # A mirror step in the entropy is an entropic plan whose costs hold the plan before: P' ~ P exp(-tau grad F).
        logarithm = np.log(np.maximum(state.plan.mass, MIN_MASS))
        has_fallen = False
        for _ in range(MAX_HALVINGS):
            costs = gradient - logarithm / tau
            trial = problem.at(TransportPlan(entropic_plan(costs, 1.0 / (tau * float(np.abs(costs).max())))))
            value = problem.value(trial)
            if value < history[-1]:
                has_fallen = True
                break
            tau /= 2.0
        if not has_fallen:
            return GromovSolution(state.plan, history[-1], np.array(history), True)
        state = trial
        history.append(value)
        if history[-2] - value <= OBJECTIVE_ROUNDING * problem.objective_scale:
            return GromovSolution(state.plan, history[-1], np.array(history), True)
    return GromovSolution(state.plan, history[-1], np.array(history), False)
