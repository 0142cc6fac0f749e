"""Descent of KL-fusion from one start: matching and averaging in turn, until neither lowers the objective.

The objective, equation (9) of Claici et al. 2020, with theta_g for fused and theta_l for local components:

    F = sum_l w_l sum_g P_lg KL(theta_g || theta_l) + lambda sum_g ||P_g||_2.

Matching is exact given the averages (block by block when P is binary, to a certified gap when it is relaxed), averaging
is the closed-form barycenter (4) given the matching. Every step that would raise the objective is rejected. After the
descent, groups are dissolved while that lowers F, and small problems are refined site by site with averages that follow
every choice. Reaching ``max_iterations`` leaves ``converged`` False; the fit is valid all the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress, silent
from consilience.matching.assignment import assign_block
from consilience.matching.group_sparse import binary_penalty, descend_binary
from consilience.matching.groups import group_sums
from consilience.posteriors.methods.kl.divergences import KLGeometry
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, compact, matched_cost, objective

MAX_SWEEPS = 20
"""Passes over all sites in one matching step or refinement: a bound, for passes end at the first without a move."""
DISSOLVE_SWEEPS = 3
"""Passes over all sites when a group is tried to be dissolved; the descent that follows goes on. Chosen by hand."""
INCREMENT_ROUNDING = 1e-12
"""Relative gain below which a site's new matching is rounding: increments are differences of log normalisers."""
START_ROUNDING = 1e-9
"""Relative difference of the objectives of two starts below which it is rounding."""
REFINE_EVERY_START_ROWS = 64
"""Components up to which every start is refined, not the best one alone. Chosen by hand for its cost."""


def fit_binary(
    problem: KLProblem, centres: Array, strength: float, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> KLFit:
    """Descend on (9) with binary P from `centres`.

    A group that nobody uses may have any centre at no cost, so it is offered the worst-matched local component; the
    next matching opens it only if that lowers the objective. At the end groups are dissolved as long as that does.

    Parameters
    ----------
    problem : KLProblem
        The objective's data.
    centres : Array of shape (G, P)
        First centres, at least as many as the largest site has components.
    strength : float
        lambda, the price of a component, in the units of the divergence.
    rng : Generator
        Draws the order of sites.
    max_iterations : int
        Matching and averaging steps at most.
    tolerance : float
        Relative decrease of the objective below which the descent has converged.

    Returns
    -------
    KLFit
        The matching, with consecutive labels, and its barycenters.
    """
    fit = _alternate(problem, centres, strength, None, rng, max_iterations, tolerance, ())
    if strength > 0:
        fit = dissolve(problem, fit, strength, rng, max_iterations, tolerance)
    labels, centres = compact(problem, fit.labels)  # groups without members go
    fit = replace(fit, labels=labels, centres=centres)
    return refine(problem, fit, strength, rng) if len(labels) <= REFINE_EVERY_START_ROWS else fit


def _alternate(
    problem: KLProblem,
    centres: Array,
    strength: float,
    start_labels: Labels | None,
    rng: np.random.Generator,
    max_iterations: int,
    tolerance: float,
    history: tuple[float, ...],
) -> KLFit:
    """Match and average in turn from `centres`, and from a matching where there is one; groups may be left empty."""
    offsets, n_groups = problem.ensemble.offsets, centres.shape[0]
    values = list(history)
    costs = problem.costs(centres)  # (L, G)
    labels = start_labels
    lowest = np.inf if labels is None else matched_cost(costs, labels) + strength * binary_penalty(labels, n_groups)
    converged = False
    for _ in range(max_iterations):
        proposal = descend_binary(costs, offsets, strength, labels, rng, MAX_SWEEPS)
        new_centres = problem.barycenters(proposal, n_groups, centres)
        new_centres = _reseed_unused(problem, new_centres, proposal, costs)
        del costs  # they may fill the memory, and no others are there at once
        costs = problem.costs(new_centres)
        value = matched_cost(costs, proposal) + strength * binary_penalty(proposal, n_groups)
        # Both half steps are exact descents, so a rise is rounding (or a Renyi average that has not moved): stop there.
        if labels is not None and value > lowest:
            converged = True
            break
        is_unchanged = labels is not None and np.array_equal(proposal, labels)
        is_small_gain = lowest - value <= tolerance * abs(lowest) if np.isfinite(lowest) else False
        labels, centres, lowest = proposal, new_centres, value
        values.append(value)
        if is_unchanged or is_small_gain:
            converged = True
            break
    assert labels is not None  # noqa: S101  (max_iterations is at least 1)
    return KLFit(labels, centres, lowest, tuple(values), converged)


def _reseed_unused(problem: KLProblem, centres: Array, labels: Labels, costs: Array) -> Array:
    """Put the centres of unused groups on the worst-matched local components."""
    unused = np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0)
    if unused.size:
        matched_costs = costs[np.arange(len(labels)), labels]  # (L,)
        worst_rows = np.argsort(-matched_costs, kind="stable")[: unused.size]
        centres[unused[: worst_rows.size]] = problem.ensemble.natural[worst_rows]
    return centres


def dissolve(
    problem: KLProblem, fit: KLFit, strength: float, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> KLFit:
    """Try to do without each group, smallest first, as long as the objective falls.

    Alternation alone cannot close a group: (9) has to pass over the cost of moving its members at unchanged averages.
    The price lambda sqrt(n_g) is concave in the number n_g of users: most of it is saved by the last user who leaves.
    """
    largest_site = int(problem.ensemble.sizes.max())
    improved = True
    while improved:
        improved = False
        labels, centres = compact(problem, fit.labels)  # groups without members go
        fit = replace(fit, labels=labels, centres=centres)
        if fit.n_groups <= largest_site:
            break
        # Members of a closed group go where they cost least, at unchanged centres; the descent then follows.
        costs = problem.costs(fit.centres)
        for group in np.argsort(np.bincount(fit.labels), kind="stable"):
            others = np.arange(fit.n_groups) != group
            trial = _without_group(costs, int(group), problem.ensemble.offsets, strength, rng)
            trial_labels, averages = compact(problem, trial)
            value = objective(problem, averages, trial_labels, strength)
            if value < fit.objective:
                smaller = KLFit(
                    trial, problem.barycenters(trial, fit.n_groups - 1, fit.centres[others]), value, (), True
                )
                del costs
                fit = _alternate(
                    problem, smaller.centres, strength, trial, rng, max_iterations, tolerance, (*fit.history, value)
                )
                improved = True
                break
    return fit


def _without_group(costs: Array, group: int, offsets: Labels, strength: float, rng: np.random.Generator) -> Labels:
    """Return the matching to all groups but one, which are numbered without it; the costs are not copied for that."""
    own = costs[:, group].copy()
    costs[:, group] = np.inf
    labels = descend_binary(costs, offsets, strength, None, rng, DISSOLVE_SWEEPS)
    costs[:, group] = own
    labels[labels > group] -= 1
    return labels


def fit_clusters(problem: KLProblem, centres: Array, max_iterations: int, passed: set[bytes]) -> KLFit | None:
    """Cluster from `centres` without the constraint of one per site: nearest centres and barycenters in turn.

    Bregman hard clustering, algorithm 1 of Banerjee et al. 2005.

    Parameters
    ----------
    problem : KLProblem
        The objective's data.
    centres : Array of shape (G, P)
        Where to start.
    max_iterations : int
        Steps at most.
    passed : set of bytes
        Partitions that other starts have passed, each without an empty group. From them on all is as it was there, so
        that None is returned; those of this start are added.
    """
    history: list[float] = []
    labels, converged = np.full(len(problem.ensemble.natural), -1), False
    costs = problem.costs(centres)  # (L, G)
    partitions: set[bytes] = set()
    for _ in range(max_iterations):
        nearest = costs.argmin(axis=1)  # (L,)
        if np.array_equal(nearest, labels):
            converged = True
            break
        first_rows, groups = np.unique(nearest, return_index=True, return_inverse=True)[1:]
        if len(first_rows) == len(centres):  # an empty group would stay where it was
            partition = np.argsort(np.argsort(first_rows))[groups].tobytes()  # groups by their first rows
            if partition in passed:
                return None
            partitions.add(partition)
        labels = nearest
        centres = problem.barycenters(labels, len(centres), centres)
        costs = problem.costs(centres)
        history.append(matched_cost(costs, labels))
    if converged:
        passed |= partitions
    consecutive, barycenters = compact(problem, labels)
    return KLFit(consecutive, barycenters, history[-1], tuple(history), converged)


def best_clusters(
    problem: KLProblem,
    n_clusters: int,
    rng: np.random.Generator,
    restarts: int,
    max_iterations: int,
    progress: Progress = silent,
) -> KLFit:
    """Return the clustering of the lowest objective of several starts, from seeds by k-means++.

    A start that comes upon a partition that another one has passed ends there.

    Parameters
    ----------
    problem : KLProblem
        The objective's data.
    n_clusters : int
        Clusters to begin with; those that lose all members are dropped.
    rng : Generator
        Draws the seeds.
    restarts : int
        Number of starts. The first of several that are equal but for rounding is taken.
    max_iterations : int
        Steps at most in one start.
    progress : Progress, optional
        Is told of every start.
    """
    best: KLFit | None = None
    passed: set[bytes] = set()
    for start, generator in enumerate(rng.spawn(restarts)):
        progress(start, restarts)
        fit = fit_clusters(problem, problem.seeds(n_clusters, generator), max_iterations, passed)
        if fit is None:
            continue
        if best is None or fit.objective < best.objective - START_ROUNDING * abs(best.objective):
            best = fit
    assert best is not None  # noqa: S101  (there is at least one start)
    progress(restarts, restarts)
    return best


def refine(problem: KLProblem, fit: KLFit, strength: float, rng: np.random.Generator) -> KLFit:
    """Improve a binary matching site by site, exactly: averages follow every choice, not every round of choices.

    The least cost of a group of mass m with barycenter b is sum_l w_l phi(l) - m phi(b), a Jensen gap of the potential
    phi whose Bregman divergence the objective sums. Without site j, component l therefore raises the objective by
    m phi(b) + w_l phi(l) - (m + w_l) phi(new), `new` the barycenter with l, and by the price of a user,
    lambda (sqrt(n + 1) - sqrt(n)). One assignment of these increments is the best choice for site j given the others
    (the subtraction trick of Yurochkin et al. 2019, Proposition 1). With a divergence that is not Kullback-Leibler the
    fit comes back as it is.

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
    # Sums, mass and users of every group are kept up to date while one site after another is taken out and put back.
    weights, weighted = ensemble.row_weights, geometry.averaged * ensemble.row_weights[:, None]
    row_potentials = weights * geometry.potential(geometry.averaged)
    groups = group_sums(geometry.averaged, labels, weights, fit.n_groups)
    sums, mass = groups.sums, groups.mass
    n_users = np.bincount(labels, minlength=fit.n_groups).astype(np.float64)
    for _ in range(MAX_SWEEPS):
        has_moved = False
        for site in rng.permutation(ensemble.n_sites):
            rows = np.arange(ensemble.offsets[site], ensemble.offsets[site + 1])
            old_labels, positions = labels[rows], np.arange(len(rows))
            sums[old_labels] -= weighted[rows]
            mass[old_labels] -= weights[rows]
            n_users[old_labels] -= 1.0
            used = np.flatnonzero(n_users > 0)
            # A group that nobody else uses costs lambda and no divergence: its barycenter is the newcomer itself.
            increments = np.tile(strength * (np.sqrt(n_users + 1.0) - np.sqrt(n_users)), (len(rows), 1))
            if used.size:
                # (k, G) increments: Jensen gap with component l less Jensen gap without it, for every group in use.
                new_mass = mass[used] + weights[rows, None]  # (k, G)
                averages = (sums[used] + weighted[rows, None]) / new_mass[:, :, None]  # (k, G, P)
                potentials = geometry.potential(averages.reshape(-1, averages.shape[2])).reshape(new_mass.shape)
                old_potentials = mass[used] * geometry.potential(sums[used] / mass[used, None])  # (G,)
                increments[:, used] += old_potentials + row_potentials[rows, None] - new_mass * potentials
            new_labels = assign_block(increments)
            old_cost, new_cost = increments[positions, old_labels].sum(), increments[positions, new_labels].sum()
            if new_cost < old_cost - INCREMENT_ROUNDING * np.abs(increments[positions, old_labels]).sum():
                labels[rows], has_moved = new_labels, True
            else:
                new_labels = old_labels
            sums[new_labels] += weighted[rows]
            mass[new_labels] += weights[rows]
            n_users[new_labels] += 1.0
        if not has_moved:
            break
    labels, centres = compact(problem, labels)
    value = objective(problem, centres, labels, strength)
    if value >= fit.objective:
        return fit
    return replace(fit, labels=labels, centres=centres, objective=value, history=(*fit.history, value))
