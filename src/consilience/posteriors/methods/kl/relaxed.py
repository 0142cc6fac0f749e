"""One start of KL-fusion with the matching relaxed to P >= 0, as in the paper, and rounded at the end."""

from __future__ import annotations

import numpy as np

from consilience.checks import Array
from consilience.matching.assignment import assign_blocks
from consilience.matching.group_sparse import solve_relaxed
from consilience.matching.groups import plan_sums
from consilience.posteriors.methods.kl.descent import dissolve, refine
from consilience.posteriors.methods.kl.divergences import KLGeometry
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, compact, objective

_ADMM_STEPS = 2000
_ACTIVE_MASS = 0.999


def fit_relaxed(
    problem: KLProblem,
    centres: Array,
    strength: float,
    rng: np.random.Generator,
    max_iterations: int,
    tolerance: float,
    gap: float,
) -> KLFit:
    """Descend on (9) with P relaxed to P >= 0, each matching solved to a certified relative gap; then round.

    Columns with total mass below 0.999 are dropped, the largest are put back while a site has more components than are
    left. Rounding takes the assignment nearest the plan and improves it as a binary matching, since a plan that is
    split evenly over two equal columns has no nearest one; where that needs fewer columns, the descent goes on with
    these. The history is that of the last descent, whose plan is returned.

    Parameters
    ----------
    problem, centres, strength, rng, max_iterations, tolerance
        As in ``fit_binary``.
    gap
        Relative gap at which a matching counts as solved.
    """
    largest = int(problem.ensemble.sizes.max())
    while True:
        plan, centres, values, converged, certified = _alternate_relaxed(
            problem, centres, strength, max_iterations, tolerance, gap
        )
        mass = plan.sum(axis=0)
        active = mass >= _ACTIVE_MASS
        if active.sum() < largest:
            active[np.argsort(-mass, kind="stable")[:largest]] = True
        if not np.all(active):
            centres = centres[active]
            continue
        rounded = assign_blocks(-plan, problem.ensemble.offsets)
        labels, averages = compact(problem, rounded)
        value = objective(problem, averages, labels, strength)
        hard = KLFit(labels, averages, value, (value,), True)
        hard = dissolve(problem, refine(problem, hard, strength, rng), strength, rng, max_iterations, tolerance)
        labels, averages = compact(problem, hard.labels)
        if len(averages) == plan.shape[1]:
            return KLFit(labels, averages, values[-1], values, converged, certified, plan)
        centres = averages


def _alternate_relaxed(
    problem: KLProblem, centres: Array, strength: float, max_iterations: int, tolerance: float, gap: float
) -> tuple[Array, Array, tuple[float, ...], bool, float]:
    geometry, weights = problem.geometry, problem.ensemble.row_weights
    assert isinstance(geometry, KLGeometry)  # noqa: S101  (the options allow no other)
    values: list[float] = []
    costs, plan, warm, certified, best = problem.costs(centres), None, None, np.inf, np.inf
    for _ in range(max_iterations):
        solved = solve_relaxed(costs, problem.ensemble.offsets, strength, gap, _ADMM_STEPS, warm)
        moved = geometry.centres(plan_sums(geometry.averaged, solved.plan, weights), centres)
        moved_costs = problem.costs(moved)
        value = float(np.sum(moved_costs * solved.plan) + strength * np.linalg.norm(solved.plan, axis=0).sum())
        if plan is not None and value > best:
            return plan, centres, tuple(values), True, certified
        certified = solved.gap
        small = best - value <= tolerance * abs(value)
        plan, centres, costs, warm, best = solved.plan, moved, moved_costs, solved.state, value
        values.append(value)
        if small:
            return plan, centres, tuple(values), True, certified
    assert plan is not None  # noqa: S101  (max_iterations is at least 1)
    return plan, centres, tuple(values), False, certified
