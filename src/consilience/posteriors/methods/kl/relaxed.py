"""Relaxed KL-fusion from one start: the matching P >= 0 as in the paper, rounded to a binary one at the end.

Claici et al. 2020 relax the binary matching of (9) to P >= 0 with rows that sum to 1 and, within a site, columns that
sum to at most 1. For fixed averages that is convex; ``group_sparse.solve_relaxed`` solves it to a certified gap.
Averages are closed given a plan, eta_bar_g = sum_l w_l P_lg eta_l / sum_l w_l P_lg, equation (4).
"""

from __future__ import annotations

import numpy as np

from consilience.checks import Array
from consilience.matching.assignment import assign_blocks
from consilience.matching.group_sparse import solve_relaxed
from consilience.matching.groups import plan_sums
from consilience.posteriors.methods.kl.descent import dissolve, refine
from consilience.posteriors.methods.kl.divergences import KLGeometry
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, compact, objective

MAX_ADMM_STEPS = 2000
"""Steps of one relaxed matching: a bound, for 100 to 300 usually reach a relative gap of 1e-5."""
MIN_ACTIVE_MASS = 0.999
"""Total mass from which a column counts as a component: that of the published code of Claici et al. 2020."""


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
    gap : float
        Relative gap at which a matching counts as solved.

    Returns
    -------
    KLFit
        The rounded matching and its barycenters; objective, history, gap and plan are those of the relaxed problem.
    """
    largest_site = int(problem.ensemble.sizes.max())
    while True:
        plan, centres, values, converged, certified_gap = _alternate_relaxed(
            problem, centres, strength, max_iterations, tolerance, gap
        )
        mass = plan.sum(axis=0)  # (G,)
        active = mass >= MIN_ACTIVE_MASS
        if active.sum() < largest_site:
            active[np.argsort(-mass, kind="stable")[:largest_site]] = True
        if not np.all(active):
            # The mass on dropped columns would be lost, so the descent goes on with the others (ours, not the paper's).
            centres = centres[active]
            continue
        nearest_labels = assign_blocks(-plan, problem.ensemble.offsets)
        labels, averages = compact(problem, nearest_labels)
        value = objective(problem, averages, labels, strength)
        binary = KLFit(labels, averages, value, (value,), True)
        binary = dissolve(problem, refine(problem, binary, strength, rng), strength, rng, max_iterations, tolerance)
        labels, averages = compact(problem, binary.labels)
        if len(averages) == plan.shape[1]:
            return KLFit(labels, averages, values[-1], values, converged, certified_gap, plan)
        centres = averages


def _alternate_relaxed(
    problem: KLProblem, centres: Array, strength: float, max_iterations: int, tolerance: float, gap: float
) -> tuple[Array, Array, tuple[float, ...], bool, float]:
    """Return plan (L, G), centres (G, P), history, whether it converged, and the certified gap of the plan."""
    geometry, weights = problem.geometry, problem.ensemble.row_weights
    assert isinstance(geometry, KLGeometry)  # noqa: S101  (the options allow no other)
    values: list[float] = []
    costs, plan, warm_start, certified_gap, lowest = problem.costs(centres), None, None, np.inf, np.inf
    for _ in range(max_iterations):
        solution = solve_relaxed(costs, problem.ensemble.offsets, strength, gap, MAX_ADMM_STEPS, warm_start)
        new_centres = geometry.centres(plan_sums(geometry.averaged, solution.plan, weights), centres)
        new_costs = problem.costs(new_centres)
        value = float(np.sum(new_costs * solution.plan) + strength * np.linalg.norm(solution.plan, axis=0).sum())
        # The matching is solved to a gap only, so a rise below it can happen; such a step is rejected.
        if plan is not None and value > lowest:
            return plan, centres, tuple(values), True, certified_gap
        certified_gap = solution.gap
        is_small_gain = lowest - value <= tolerance * abs(value)
        plan, centres, costs, warm_start, lowest = solution.plan, new_centres, new_costs, solution.state, value
        values.append(value)
        if is_small_gain:
            return plan, centres, tuple(values), True, certified_gap
    assert plan is not None  # noqa: S101  (max_iterations is at least 1)
    return plan, centres, tuple(values), False, certified_gap
