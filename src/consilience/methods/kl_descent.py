"""One start of KL-fusion: alternate matching and averaging until neither lowers the objective.

The objective, equation (9) of Claici et al. 2020, with theta_g for fused and theta_l for local components:

    sum_l w_l sum_g P_lg KL(theta_g || theta_l) + lambda sum_g ||P_g||_2.

Matching is exact given the averages (block by block when P is binary, to a certified gap when it is relaxed), averaging
is the closed-form barycenter given the matching. Every step that would raise the objective is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction, Family, FixedSide
from consilience.families.ensemble import Ensemble
from consilience.matching.assignment import assign_block, assign_blocks
from consilience.matching.group_sparse import binary_penalty, descend_binary, solve_relaxed
from consilience.matching.seeding import greedy_plus_plus
from consilience.methods.combine import GroupSums, averaged_parameters, from_averaged, group_sums, plan_sums

_SPREAD_ROWS = 256
_REMEMBER_ROWS = 2048
_REFINE_ROWS = 64
_SWEEPS = 20
_ADMM_STEPS = 2000
_ACTIVE_MASS = 0.999


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of one objective: fixed once and shared by every restart.

    Parameters
    ----------
    ensemble
        The stacked models, L components in all.
    direction
        ``forward``: KL(fused || local) and means of natural parameters; ``reverse``: the other of both.
    """

    ensemble: Ensemble
    direction: Direction

    @property
    def family(self) -> Family:
        """The family of every component."""
        return self.ensemble.family

    @cached_property
    def divergence(self) -> FixedSide:
        """Divergences between moving centres and all local components."""
        return FixedSide(self.family, self.ensemble.natural, self.direction)

    @cached_property
    def averaged(self) -> Array:
        """Parameters (L, P) whose weighted mean is the barycenter."""
        return averaged_parameters(self.family, self.ensemble.natural, self.direction)

    def costs(self, centres: Array) -> Array:
        """Return the weighted divergences (L, G) of local components from centres (G, P)."""
        weighted: Array = self.divergence.costs(centres).T * self.ensemble.row_weights[:, None]
        return weighted

    def centres(self, sums: GroupSums, fallback: Array | None = None) -> Array:
        """Return the barycenters (G, P); groups without mass keep their row of `fallback`."""
        used = sums.mass >= 1e-12
        centres = np.empty_like(sums.sums) if fallback is None else fallback.copy()
        means = GroupSums(sums.sums[used], sums.mass[used]).means()
        centres[used] = from_averaged(self.family, means, self.direction)
        return centres

    def barycenters(self, labels: Labels, n_groups: int, fallback: Array | None = None) -> Array:
        """Return the barycenters (G, P) of a binary matching."""
        return self.centres(group_sums(self.averaged, labels, self.ensemble.row_weights, n_groups), fallback)

    def pairs(self, fused: Array, local: Array) -> Array:
        """Return the divergence of the objective between rows, fused and local."""
        if self.direction == "forward":
            return self.family.kl_pairs(fused, local)
        return self.family.kl_pairs(local, fused)

    def matched_cost(self, centres: Array, labels: Labels) -> float:
        """Return the weighted divergence of local components from their centres, without the penalty."""
        return _matched(self.costs(centres), labels)

    def seeds(self, count: int, rng: np.random.Generator, *, spread_out: bool = True) -> Array:
        """Return local components (`count`, P) drawn as first centres: by k-means++, or else uniformly."""
        natural = self.ensemble.natural
        if not spread_out:
            return natural[rng.choice(len(natural), size=min(count, len(natural)), replace=False)]
        return natural[greedy_plus_plus(self._divergences_from, self.ensemble.row_weights, count, rng)]

    def _divergences_from(self, rows: Labels) -> Array:
        """Return the divergences (k, L) of all local components from some of them; remembered for few components."""
        if len(self.ensemble.natural) <= _REMEMBER_ROWS:
            return self._pairwise[rows]
        return self.divergence.costs(self.ensemble.natural[rows])

    @cached_property
    def _pairwise(self) -> Array:
        return self.divergence.costs(self.ensemble.natural)

    @cached_property
    def spread(self) -> float:
        """Standard deviation of divergences between components of different sites, over a fixed sample of pairs.

        It is what ``regularization`` multiplies. The sample depends on nothing random, so that every restart and every
        value of the multiplier has the same objective.
        """
        total = len(self.ensemble.natural)
        sample = np.unique(np.linspace(0, total - 1, min(total, _SPREAD_ROWS)).astype(np.int64))
        values = self._divergences_from(sample)
        across = self.ensemble.owner[sample][:, None] != self.ensemble.owner
        return float(values[across].std()) if np.any(across) else 0.0


@dataclass(frozen=True, eq=False)
class Fit:
    """A matching and the averages that belong to it.

    Parameters
    ----------
    labels
        Group of each local component (L,), consecutive from 0.
    centres
        Barycenters (G, P).
    objective
        Value of (9).
    history
        The objective after each averaging step.
    converged
        Whether the last step changed nothing.
    gap
        Relative certified gap of the last relaxed matching, for the relaxed objective.
    plan
        The relaxed matching (L, G) before rounding.
    """

    labels: Labels
    centres: Array
    objective: float
    history: tuple[float, ...]
    converged: bool
    gap: float | None = None
    plan: Array | None = None

    @property
    def n_groups(self) -> int:
        """Number G of groups."""
        return int(self.centres.shape[0])


def _matched(costs: Array, labels: Labels) -> float:
    """Return the total cost of a binary matching."""
    return float(costs[np.arange(len(labels)), labels].sum())


def _compact(problem: Problem, labels: Labels) -> tuple[Labels, Array]:
    """Return labels without gaps and the barycenters of the groups that are left."""
    used, consecutive = np.unique(labels, return_inverse=True)
    return consecutive, problem.barycenters(consecutive, len(used))


def fit_binary(
    problem: Problem, centres: Array, strength: float, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> Fit:
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
        fit = _dissolve(problem, fit, strength, rng, max_iterations, tolerance)
    labels, centres = _compact(problem, fit.labels)
    fit = replace(fit, labels=labels, centres=centres)
    return refine(problem, fit, strength, rng) if len(labels) <= _REFINE_ROWS else fit


def _alternate(
    problem: Problem,
    centres: Array,
    strength: float,
    labels: Labels | None,
    rng: np.random.Generator,
    max_iterations: int,
    tolerance: float,
    history: tuple[float, ...],
) -> Fit:
    offsets, n_groups = problem.ensemble.offsets, centres.shape[0]
    values = list(history)
    costs = problem.costs(centres)
    current = labels
    best = np.inf if current is None else _matched(costs, current) + strength * binary_penalty(current, n_groups)
    converged = False
    for _ in range(max_iterations):
        proposed = descend_binary(costs, offsets, strength, current, rng, _SWEEPS)
        moved = problem.barycenters(proposed, n_groups, centres)
        moved = _offer_spares(problem, moved, proposed, costs)
        moved_costs = problem.costs(moved)
        value = _matched(moved_costs, proposed) + strength * binary_penalty(proposed, n_groups)
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
    return Fit(current, centres, best, tuple(values), converged)


def _offer_spares(problem: Problem, centres: Array, labels: Labels, costs: Array) -> Array:
    """Put the centres of unused groups on the worst-matched local components."""
    unused = np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0)
    if unused.size:
        worst = np.argsort(-costs[np.arange(len(labels)), labels], kind="stable")[: unused.size]
        centres[unused[: worst.size]] = problem.ensemble.natural[worst]
    return centres


def _dissolve(
    problem: Problem, fit: Fit, strength: float, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> Fit:
    """Try to do without each group, smallest first, as long as the objective falls."""
    largest = int(problem.ensemble.sizes.max())
    improved = True
    while improved:
        improved = False
        labels, centres = _compact(problem, fit.labels)
        fit = replace(fit, labels=labels, centres=centres)
        if fit.n_groups <= largest:
            break
        costs = problem.costs(fit.centres)
        for group in np.argsort(np.bincount(fit.labels), kind="stable"):
            others = np.arange(fit.n_groups) != group
            trial = descend_binary(costs[:, others], problem.ensemble.offsets, strength, None, rng, 3)
            value = _value(problem, trial, strength)
            if value < fit.objective:
                kept = Fit(trial, problem.barycenters(trial, fit.n_groups - 1, fit.centres[others]), value, (), True)
                fit = _alternate(
                    problem, kept.centres, strength, trial, rng, max_iterations, tolerance, (*fit.history, value)
                )
                improved = True
                break
    return fit


def without_one_group(problem: Problem, fit: Fit) -> Array:
    """Return the centres (G - 1, P) left when the group goes whose members cost least to place elsewhere."""
    costs = problem.costs(fit.centres)
    trials = []
    for group in range(fit.n_groups):
        left = np.delete(costs, group, axis=1)
        trials.append(_matched(left, assign_blocks(left, problem.ensemble.offsets)))
    return np.delete(fit.centres, int(np.argmin(trials)), axis=0)


def _value(problem: Problem, labels: Labels, strength: float) -> float:
    """Return (9) at the barycenters of a binary matching."""
    compact, centres = _compact(problem, labels)
    return _matched(problem.costs(centres), compact) + strength * binary_penalty(compact, len(centres))


def refine(problem: Problem, fit: Fit, strength: float, rng: np.random.Generator) -> Fit:
    """Improve a binary matching site by site, exactly: averages follow every choice, not every round of choices.

    Without site j, adding component l to a group of mass m and barycenter b raises the objective by
    m KL(new || b) + w_l KL(new || l) and the price of a user, where `new` is the barycenter with l (arguments swapped
    in the reverse direction). One assignment of these increments is the best choice for site j given the others.

    Parameters
    ----------
    problem, strength, rng
        As in ``fit_binary``.
    fit
        Where to start; its objective is never exceeded.
    """
    ensemble, family = problem.ensemble, problem.family
    weights, labels = ensemble.row_weights, fit.labels.copy()
    for _ in range(_SWEEPS):
        changed = False
        for site in rng.permutation(ensemble.n_sites):
            rows = np.arange(ensemble.offsets[site], ensemble.offsets[site + 1])
            others = labels.copy()
            others[rows] = -1
            sums = group_sums(problem.averaged, others, weights, fit.n_groups)
            used = sums.mass >= 1e-12
            increments = np.zeros((len(rows), fit.n_groups))
            local, group = (index.ravel() for index in np.meshgrid(rows, np.flatnonzero(used), indexing="ij"))
            if group.size:
                mass = sums.mass[group] + weights[local]
                mean = (sums.sums[group] + weights[local, None] * problem.averaged[local]) / mass[:, None]
                moved = from_averaged(family, mean, problem.direction)
                centres = problem.centres(GroupSums(sums.sums[used], sums.mass[used]))
                stayed = centres[np.searchsorted(np.flatnonzero(used), group)]
                raised = sums.mass[group] * problem.pairs(moved, stayed)
                raised += weights[local] * problem.pairs(moved, ensemble.natural[local])
                increments[:, used] = raised.reshape(len(rows), -1)
            users = np.bincount(others[others >= 0], minlength=fit.n_groups)
            increments += strength * (np.sqrt(users + 1.0) - np.sqrt(users))
            chosen = assign_block(increments)
            own = labels[rows]
            here = np.arange(len(rows))
            if increments[here, chosen].sum() < increments[here, own].sum() * (1.0 - 1e-12):
                labels[rows], changed = chosen, True
        if not changed:
            break
    labels, centres = _compact(problem, labels)
    value = _matched(problem.costs(centres), labels) + strength * binary_penalty(labels, len(centres))
    if value >= fit.objective:
        return fit
    return replace(fit, labels=labels, centres=centres, objective=value, history=(*fit.history, value))


def fit_relaxed(
    problem: Problem,
    centres: Array,
    strength: float,
    rng: np.random.Generator,
    max_iterations: int,
    tolerance: float,
    gap: float,
) -> Fit:
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
        labels, averages = _compact(problem, rounded)
        value = _matched(problem.costs(averages), labels) + strength * binary_penalty(labels, len(averages))
        hard = Fit(labels, averages, value, (value,), True)
        hard = _dissolve(problem, refine(problem, hard, strength, rng), strength, rng, max_iterations, tolerance)
        labels, averages = _compact(problem, hard.labels)
        if len(averages) == plan.shape[1]:
            return Fit(labels, averages, values[-1], values, converged, certified, plan)
        centres = averages


def _alternate_relaxed(
    problem: Problem, centres: Array, strength: float, max_iterations: int, tolerance: float, gap: float
) -> tuple[Array, Array, tuple[float, ...], bool, float]:
    values: list[float] = []
    costs, plan, warm, certified, best = problem.costs(centres), None, None, np.inf, np.inf
    for _ in range(max_iterations):
        solved = solve_relaxed(costs, problem.ensemble.offsets, strength, gap, _ADMM_STEPS, warm)
        moved = problem.centres(plan_sums(problem.averaged, solved.plan, problem.ensemble.row_weights), centres)
        moved_costs = problem.costs(moved)
        value = float(np.sum(moved_costs * solved.plan) + strength * np.linalg.norm(solved.plan, axis=0).sum())
        if plan is not None and value > best:
            return plan, centres, tuple(values), True, certified
        certified = (solved.upper - solved.lower) / max(1.0, abs(solved.upper))
        small = best - value <= tolerance * abs(value)
        plan, centres, costs, warm, best = solved.plan, moved, moved_costs, solved.state, value
        values.append(value)
        if small:
            return plan, centres, tuple(values), True, certified
    assert plan is not None  # noqa: S101  (max_iterations is at least 1)
    return plan, centres, tuple(values), False, certified
