"""One start of KL-fusion: alternate matching and averaging until neither lowers the objective.

The objective, equation (9) of Claici et al. 2020, with theta_g for fused and theta_l for local components:

    sum_l w_l sum_g P_lg KL(theta_g || theta_l) + lambda sum_g ||P_g||_2.

Matching is exact given the averages (block by block when P is binary, to a certified gap when it is relaxed), averaging
is the closed-form barycenter given the matching. Every step that would raise the objective is rejected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import assign_block, assign_blocks
from consilience.matching.group_sparse import binary_penalty, descend_binary
from consilience.matching.groups import group_sums
from consilience.posteriors.methods.kl.divergences import KLGeometry
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, compact, matched_cost, objective

_SWEEPS = 20
_ROUNDING = 1e-12
_REFINE_EVERY_START_ROWS = 64


def fit_binary(
    problem: KLProblem, centres: Array, strength: float, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> KLFit:
    """Descend on (9) with binary P from `centres`.

    A group that nobody uses may have any centre at no cost, so it is offered the worst-matched local component; the
    next matching opens it only if that lowers the objective. At the end groups are dissolved as long as that does.

    Parameters
    ----------
    problem
        The objective's data.
    centres
        First centres (G, P), at least as many as the largest site has components.
    strength
        lambda.
    rng
        Draws the order of sites.
    max_iterations
        Matching and averaging steps at most.
    tolerance
        Relative decrease below which the descent has converged.
    """
    fit = _alternate(problem, centres, strength, None, rng, max_iterations, tolerance, ())
    if strength > 0:
        fit = dissolve(problem, fit, strength, rng, max_iterations, tolerance)
    labels, centres = compact(problem, fit.labels)
    fit = replace(fit, labels=labels, centres=centres)
    return refine(problem, fit, strength, rng) if len(labels) <= _REFINE_EVERY_START_ROWS else fit


def fit_number(
    problem: KLProblem, centres: Array, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> KLFit:
    """Descend on (6), where no component has a price, without refinement; parameters as in ``fit_binary``."""
    fit = _alternate(problem, centres, 0.0, None, rng, max_iterations, tolerance, ())
    labels, centres = compact(problem, fit.labels)
    return replace(fit, labels=labels, centres=centres)


def _alternate(
    problem: KLProblem,
    centres: Array,
    strength: float,
    labels: Labels | None,
    rng: np.random.Generator,
    max_iterations: int,
    tolerance: float,
    history: tuple[float, ...],
) -> KLFit:
    offsets, n_groups = problem.ensemble.offsets, centres.shape[0]
    values = list(history)
    costs = problem.costs(centres)
    current = labels
    best = np.inf if current is None else matched_cost(costs, current) + strength * binary_penalty(current, n_groups)
    converged = False
    for _ in range(max_iterations):
        proposed = descend_binary(costs, offsets, strength, current, rng, _SWEEPS)
        moved = problem.barycenters(proposed, n_groups, centres)
        moved = _offer_spares(problem, moved, proposed, costs)
        moved_costs = problem.costs(moved)
        value = matched_cost(moved_costs, proposed) + strength * binary_penalty(proposed, n_groups)
        if current is not None and value > best:
            converged = True
            break
        settled = current is not None and np.array_equal(proposed, current)
        small = best - value <= tolerance * abs(best) if np.isfinite(best) else False
        current, centres, costs, best = proposed, moved, moved_costs, value
        values.append(value)
        if settled or small:
            converged = True
            break
    assert current is not None  # noqa: S101  (max_iterations is at least 1)
    return KLFit(current, centres, best, tuple(values), converged)


def _offer_spares(problem: KLProblem, centres: Array, labels: Labels, costs: Array) -> Array:
    """Put the centres of unused groups on the worst-matched local components."""
    unused = np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0)
    if unused.size:
        worst = np.argsort(-costs[np.arange(len(labels)), labels], kind="stable")[: unused.size]
        centres[unused[: worst.size]] = problem.ensemble.natural[worst]
    return centres


def dissolve(
    problem: KLProblem, fit: KLFit, strength: float, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> KLFit:
    """Try to do without each group, smallest first, as long as the objective falls."""
    largest = int(problem.ensemble.sizes.max())
    improved = True
    while improved:
        improved = False
        labels, centres = compact(problem, fit.labels)
        fit = replace(fit, labels=labels, centres=centres)
        if fit.n_groups <= largest:
            break
        costs = problem.costs(fit.centres)
        for group in np.argsort(np.bincount(fit.labels), kind="stable"):
            others = np.arange(fit.n_groups) != group
            trial = descend_binary(costs[:, others], problem.ensemble.offsets, strength, None, rng, 3)
            left, averages = compact(problem, trial)
            value = objective(problem, averages, left, strength)
            if value < fit.objective:
                kept = KLFit(trial, problem.barycenters(trial, fit.n_groups - 1, fit.centres[others]), value, (), True)
                fit = _alternate(
                    problem, kept.centres, strength, trial, rng, max_iterations, tolerance, (*fit.history, value)
                )
                improved = True
                break
    return fit


def fit_clusters(problem: KLProblem, centres: Array, max_iterations: int) -> KLFit:
    """Cluster from `centres` without the constraint of one per site: nearest centres and barycenters in turn.

    Bregman hard clustering, algorithm 1 of Banerjee et al. 2005.
    """
    history: list[float] = []
    labels, converged = np.full(len(problem.ensemble.natural), -1), False
    for _ in range(max_iterations):
        proposed = problem.costs(centres).argmin(axis=1)
        if np.array_equal(proposed, labels):
            converged = True
            break
        labels = proposed
        centres = problem.barycenters(labels, len(centres), centres)
        history.append(matched_cost(problem.costs(centres), labels))
    consecutive, averages = compact(problem, labels)
    return KLFit(consecutive, averages, history[-1], tuple(history), converged)


def without_one_group(problem: KLProblem, fit: KLFit) -> Array:
    """Return the centres (G - 1, P) left when the group goes whose members cost least to place elsewhere."""
    costs = problem.costs(fit.centres)
    trials = []
    for group in range(fit.n_groups):
        left = np.delete(costs, group, axis=1)
        trials.append(matched_cost(left, assign_blocks(left, problem.ensemble.offsets)))
    return np.delete(fit.centres, int(np.argmin(trials)), axis=0)


def refine(problem: KLProblem, fit: KLFit, strength: float, rng: np.random.Generator) -> KLFit:
    """Improve a binary matching site by site, exactly: averages follow every choice, not every round of choices.

    The least cost of a group of mass m with barycenter b is sum_l w_l phi(l) - m phi(b), a Jensen gap of the potential
    phi whose Bregman divergence the objective sums. Without site j, component l therefore raises the objective by
    m phi(b) + w_l phi(l) - (m + w_l) phi(new), `new` the barycenter with l, and by the price of a user. One assignment
    of these increments is the best choice for site j given the others. With a divergence
    that is not Kullback-Leibler the fit comes back as it is.

    Parameters
    ----------
    problem, strength, rng
        As in ``fit_binary``.
    fit
        Where to start; its objective is never exceeded.
    """
    ensemble, geometry, labels = problem.ensemble, problem.geometry, fit.labels.copy()
    if not isinstance(geometry, KLGeometry):
        return fit
    weights, rows_of = ensemble.row_weights, geometry.averaged * ensemble.row_weights[:, None]
    own_potential = weights * geometry.potential(geometry.averaged)
    start = group_sums(geometry.averaged, labels, weights, fit.n_groups)
    sums, mass = start.sums, start.mass
    users = np.bincount(labels, minlength=fit.n_groups).astype(np.float64)
    for _ in range(_SWEEPS):
        changed = False
        for site in rng.permutation(ensemble.n_sites):
            rows = np.arange(ensemble.offsets[site], ensemble.offsets[site + 1])
            own, here = labels[rows], np.arange(len(rows))
            sums[own] -= rows_of[rows]
            mass[own] -= weights[rows]
            users[own] -= 1.0
            used = np.flatnonzero(users > 0)
            increments = np.tile(strength * (np.sqrt(users + 1.0) - np.sqrt(users)), (len(rows), 1))
            if used.size:
                grown = mass[used] + weights[rows, None]
                moved = (sums[used] + rows_of[rows, None]) / grown[:, :, None]
                value = geometry.potential(moved.reshape(-1, moved.shape[2])).reshape(grown.shape)
                stayed = mass[used] * geometry.potential(sums[used] / mass[used, None])
                increments[:, used] += stayed + own_potential[rows, None] - grown * value
            chosen = assign_block(increments)
            had, has = increments[here, own].sum(), increments[here, chosen].sum()
            if has < had - _ROUNDING * np.abs(increments[here, own]).sum():
                labels[rows], changed = chosen, True
            else:
                chosen = own
            sums[chosen] += rows_of[rows]
            mass[chosen] += weights[rows]
            users[chosen] += 1.0
        if not changed:
            break
    labels, centres = compact(problem, labels)
    lowest = objective(problem, centres, labels, strength)
    if lowest >= fit.objective:
        return fit
    return replace(fit, labels=labels, centres=centres, objective=lowest, history=(*fit.history, lowest))
