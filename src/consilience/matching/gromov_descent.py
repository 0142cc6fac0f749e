"""Solving fused Gromov-Wasserstein problems: conditional gradients, the iteration of the paper, mirror descent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array
from consilience.matching.gromov import FusedGromov, PlanProducts, TransportPlan
from consilience.matching.transport import entropic_plan, exact_plan

_GAP = 1e-5
"""A gap below this share of what is at stake ends a descent towards a permutation: the rest is zigzag."""
_SETTLED = 1e-7
"""A fall of F below this share of what is at stake is rounding."""


@dataclass(frozen=True, eq=False)
class GromovSolution:
    """A plan.

    Parameters
    ----------
    plan
        The plan.
    objective
        F of it.
    history
        F after each step of the descent; where that ended between permutations, F of the plan may be higher.
    converged
        Whether no step lowers F.
    """

    plan: TransportPlan
    objective: float
    history: Array
    converged: bool


def conditional_gradient(problem: FusedGromov, start: TransportPlan, max_iterations: int = 100) -> GromovSolution:
    """Descend F by going towards the vertex of the steepest fall, as far as F falls most.

    No step of the descent raises F. Where there are as many units on both sides, a permutation is wanted: if the
    descent ends inside, it goes on from the nearest permutation in whole steps, and that is what is returned.

    Parameters
    ----------
    problem
        The problem.
    start
        Where to start.
    max_iterations
        Steps at most.

    Examples
    --------
    >>> among = np.array([[[0.0, 1, 0], [0, 0, 2], [3, 0, 0]]])
    >>> order = [2, 0, 1]
    >>> problem = FusedGromov(np.zeros((3, 3)), among[:, order][:, :, order], among, 1.0)
    >>> found = conditional_gradient(problem, TransportPlan(np.eye(3)[order] / 3))
    >>> found.plan.mass.argmax(axis=1), round(found.objective, 9) + 0.0
    (array([2, 0, 1]), 0.0)
    """
    state = problem.at(start)
    history = [problem.value(state)]
    converged = False
    for _ in range(max_iterations):
        state, moved = _step(problem, state)
        if not moved:
            converged = True
            break
        history.append(problem.value(state))
    if problem.square and not is_permutation(state.plan):
        return _rounded(problem, state, history)
    return GromovSolution(state.plan, history[-1], np.array(history), converged)


def _step(problem: FusedGromov, state: PlanProducts, whole: bool = False) -> tuple[PlanProducts, bool]:
    """Return the state after one step of exact length, or of length one, and whether there was any."""
    by_mass, by_turned = problem.gradients(state)
    towards = problem.vertex(by_mass, by_turned)
    change = towards.plan.mass - state.plan.mass
    turn = towards.plan.turned - state.plan.turned
    slope = float(np.vdot(by_mass, change) + np.vdot(by_turned, turn))
    if -slope <= (_GAP if problem.square and not whole else _SETTLED) * problem.stake:
        return state, False
    curve = np.vdot(towards.received_even - state.received_even, change)
    curve += np.vdot(towards.received_odd - state.received_odd, turn)
    bend = -2.0 * problem.alpha * float(curve)
    length = 1.0 if bend <= 0.0 else min(1.0, -slope / (2.0 * bend))
    if whole:
        return (towards, True) if slope + bend < -_SETTLED * problem.stake else (state, False)
    return (towards if length == 1.0 else state.moved(length, towards)), True


def is_permutation(plan: TransportPlan) -> bool:
    """Return whether every unit goes to one unit, with one sign."""
    whole = np.abs(plan.turned).max(axis=1) * len(plan.mass)
    return bool(np.all(whole > 1.0 - 1e-9))


def _rounded(problem: FusedGromov, state: PlanProducts, history: list[float]) -> GromovSolution:
    """Return the best permutation that is reached in whole steps from the nearest one, or from where it pulls."""
    found: list[tuple[float, PlanProducts, bool]] = []
    zeros = np.zeros_like(problem.costs)
    for first in (
        problem.vertex(-state.plan.mass if problem.odd is None else zeros, -state.plan.turned),
        problem.vertex(*problem.gradients(state)),
    ):
        here, moved, steps = first, True, 0
        while moved and steps < _WHOLE_STEPS:
            here, moved = _step(problem, here, whole=True)
            steps += 1
        found.append((problem.value(here), here, not moved))
    value, best, converged = min(found, key=lambda one: one[0])
    return GromovSolution(best.plan, value, np.array(history), converged)


_WHOLE_STEPS = 50


def alternating(
    problem: FusedGromov, start: TransportPlan, epsilon: float, max_iterations: int = 50, tolerance: float = 1e-5
) -> GromovSolution:
    """Repeat equation (43) of the paper: the plan of least cost under C + alpha L (x) P of the plan before.

    For matrices that are not symmetric this is no descent of F, since only the rows of H count; it may rise.

    Parameters
    ----------
    problem
        The problem; without signs.
    start
        Where to start.
    epsilon
        Weight of the entropy relative to the largest cost; 0 solves exactly.
    max_iterations
        Repetitions at most.
    tolerance
        Mean change of an entry, times K k, that ends it.
    """
    plan = start
    history = [problem.value(problem.at(plan))]
    for _ in range(max_iterations):
        costs = problem.costs + problem.alpha * problem.hidden_costs(plan)
        new = exact_plan(costs) if epsilon == 0 else entropic_plan(costs, epsilon)
        change = float(np.abs(new - plan.mass).sum())
        plan = TransportPlan(new)
        history.append(problem.value(problem.at(plan)))
        if change < tolerance:
            return GromovSolution(plan, history[-1], np.array(history), True)
    return GromovSolution(plan, history[-1], np.array(history), False)


def mirror_descent(problem: FusedGromov, start: TransportPlan, max_iterations: int = 100) -> GromovSolution:
    """Descend F by steps that stay inside: P is multiplied by exp(-tau times the gradient) and given its marginals.

    tau is halved until F falls, and doubled after a step that did.

    Parameters
    ----------
    problem
        The problem; without signs.
    start
        Where to start; entries that are zero stay so.
    max_iterations
        Steps at most.
    """
    state = problem.at(start)
    history = [problem.value(state)]
    tau: float | None = None
    for _ in range(max_iterations):
        gradient = np.add(*problem.gradients(state))
        spread = float(gradient.max() - gradient.min())
        if spread == 0.0:
            return GromovSolution(state.plan, history[-1], np.array(history), True)
        tau = 1.0 / spread if tau is None else 2.0 * tau
        logarithm = np.log(np.maximum(state.plan.mass, _LEAST_MASS))
        moved = False
        for _ in range(_HALVINGS):
            costs = gradient - logarithm / tau
            trial = problem.at(TransportPlan(entropic_plan(costs, 1.0 / (tau * float(np.abs(costs).max())))))
            value = problem.value(trial)
            if value < history[-1]:
                moved = True
                break
            tau /= 2.0
        if not moved:
            return GromovSolution(state.plan, history[-1], np.array(history), True)
        state = trial
        history.append(value)
        if history[-2] - value <= _SETTLED * problem.stake:
            return GromovSolution(state.plan, history[-1], np.array(history), True)
    return GromovSolution(state.plan, history[-1], np.array(history), False)


_LEAST_MASS = 1e-300
_HALVINGS = 20
