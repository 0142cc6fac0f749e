"""The matching problem of KL-fusion and its descent from one start: costs, barycenters, seeds, matching and averaging.

The objective is equation (9) of Claici et al. 2020, with theta_g for the G fused and theta_l for the L local
components, w_l the weight of a component's site and P the binary (or relaxed) matching:

    F(theta, P) = sum_l w_l sum_g P_lg KL(theta_g || theta_l) + lambda sum_g ||P_g||_2.

``KLProblem`` holds what is fixed in it and shared by every restart; ``KLFit`` is a matching with its barycenters.

Seeds are those of greedy k-means++ with divergences for squared distances (appendix E; the published code keeps the
candidate of the largest remaining sum, here it is the smallest, as in scikit-learn).

In the descent matching is exact given the averages (block by block when P is binary, to a certified gap when it is
relaxed), and averaging is the closed-form barycenter (4) given the matching. Every step that would raise the objective
is rejected. After it, groups are dissolved while that lowers F, and small problems are refined site by site with
averages that follow every choice. Reaching ``max_iterations`` leaves ``converged`` False; the fit is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress, silent
from consilience.families import Direction
from consilience.matching.assignment import assign_block
from consilience.matching.group_sparse import binary_penalty, descend_binary
from consilience.matching.groups import group_sums
from consilience.posteriors.ensemble import Stacked
from consilience.posteriors.methods.kl.divergences import Geometry, KLGeometry

SPREAD_SAMPLE_ROWS = 256
"""Components whose divergences from all others estimate the spread. Chosen by hand, no other value was measured."""
SPREAD_CHUNK_ROWS, SPREAD_CHUNK_BYTES = 8, 2**22
"""Components whose divergences are held at once while the spread is summed, and their memory, 4 MiB; at least one. They
bound memory; chosen by hand."""
MAX_CACHED_ROWS = 2048
"""Components up to which all pairwise divergences are kept between restarts: 32 MiB at most. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class KLProblem:
    """The data of one objective: fixed once and shared by every restart."""

    ensemble: Stacked  # the stacked models, L components in all, with one weight per component
    geometry: Geometry  # the divergence between fused and local components, and its average

    @classmethod
    def of(cls, ensemble: Stacked, direction: Direction = "forward") -> Self:
        """Return the problem with a Kullback-Leibler divergence."""
        return cls(ensemble, KLGeometry(ensemble.family, ensemble.natural, direction))

    def costs(self, centres: Array) -> Array:
        """Return the weighted divergences (L, G) of local components from centres (G, P)."""
        costs: Array = self.geometry.costs(centres).T  # (L, G): the geometry has centres as rows
        weights = self.ensemble.row_weights
        return costs if np.all(weights == 1.0) else costs * weights[:, None]  # (L, G)

    def barycenters(self, labels: Labels, n_groups: int, fallback: Array | None = None) -> Array:
        """Return the averages (G, P) of a binary matching; groups without members keep their row of `fallback`."""
        used = np.flatnonzero(np.bincount(labels[labels >= 0], minlength=n_groups))  # (U,)
        if len(used) == n_groups:
            return self.geometry.averages(labels, self.ensemble.row_weights, n_groups)
        if fallback is None:
            raise ValueError("a group without members has no average")
        # A barycenter needs members, so only groups in use are averaged; eta_bar of the others stays, as in step (4).
        number = np.full(n_groups + 1, -1)  # index -1 reads the last entry
        number[used] = np.arange(len(used))
        centres = fallback.copy()
        centres[used] = self.geometry.averages(number[labels], self.ensemble.row_weights, len(used))
        return centres

    def seeds(self, count: int, rng: np.random.Generator, *, spread_out: bool = True) -> Array:
        """Return natural parameters (count, P) of local components drawn as first centres; fewer where there are fewer.

        By k-means++ on divergences (appendix E of Claici et al. 2020), else uniformly.
        """
        natural = self.ensemble.natural
        if not spread_out:
            return natural[rng.choice(len(natural), size=min(count, len(natural)), replace=False)]
        return natural[greedy_plus_plus(self._divergences_from, self.ensemble.row_weights, count, rng)]

    def _divergences_from(self, rows: Labels) -> Array:
        """Return the divergences (k, L) of all local components from some of them, cached for few components."""
        if len(self.ensemble.natural) <= MAX_CACHED_ROWS:
            return self._pairwise[rows]
        return self.geometry.costs(self.ensemble.natural[rows])

    @cached_property
    def _pairwise(self) -> Array:
        return self.geometry.costs(self.ensemble.natural)

    @cached_property
    def spread(self) -> float:
        """Standard deviation of divergences between components of different sites, over a fixed sample of pairs.

        It is what ``regularization`` multiplies to give lambda. Claici et al. scale by the standard deviation of the
        divergences from the first centres instead. Here the sample depends on nothing random, so that every restart and
        every value of the multiplier has the same objective.
        """
        n_rows, owner = len(self.ensemble.natural), self.ensemble.owner
        sample = np.unique(np.linspace(0, n_rows - 1, min(n_rows, SPREAD_SAMPLE_ROWS)).astype(np.int64))
        n_values, mean, sum_of_squares = 0, 0.0, 0.0
        n_chunk = max(1, min(SPREAD_CHUNK_ROWS, SPREAD_CHUNK_BYTES // (8 * n_rows)))
        for start in range(0, len(sample), n_chunk):
            chunk = sample[start : start + n_chunk]
            # Pairs of one site are left out: no matching may join them, and a site's components lie far apart.
            values = self._divergences_from(chunk)[owner[chunk][:, None] != owner]
            if values.size:  # mean and sum of squares of this chunk are merged into those of the chunks before
                shift = float(values.mean()) - mean
                sum_of_squares += float(values.var()) * values.size + shift**2 * n_values * values.size / (
                    n_values + values.size
                )
                n_values += values.size
                mean += shift * values.size / n_values
        return float(np.sqrt(sum_of_squares / n_values)) if n_values else 0.0


@dataclass(frozen=True, eq=False)
class KLFit:
    """A matching and the averages that belong to it."""

    labels: Labels  # (L,), group of each local component, consecutive from 0
    centres: Array  # (G, P), natural parameters of the barycenters
    objective: float  # value of (9)
    history: tuple[float, ...]  # the objective after each averaging step
    converged: bool  # whether the last step changed nothing, or less than the tolerance
    gap: float | None = None  # relative certified gap of the last matching; None for a binary one
    plan: Array | None = None  # (L, G), the relaxed matching before rounding; None for a binary one

    @property
    def n_groups(self) -> int:
        """Number G of groups."""
        return int(self.centres.shape[0])


def matched_cost(costs: Array, labels: Labels) -> float:
    """Return the total cost of a binary matching."""
    return float(costs[np.arange(len(labels)), labels].sum())


def compact(problem: KLProblem, labels: Labels) -> tuple[Labels, Array]:
    """Return labels without gaps and the barycenters of the groups that are left."""
    is_used = np.bincount(labels) > 0
    consecutive = (np.cumsum(is_used) - 1)[labels]
    return consecutive, problem.barycenters(consecutive, int(np.count_nonzero(is_used)))


def objective(problem: KLProblem, centres: Array, labels: Labels, strength: float) -> float:
    """Return (9) of a binary matching with consecutive labels at some centres."""
    costs = problem.geometry.matched_costs(centres, labels)
    weights = problem.ensemble.row_weights
    if np.any(weights != 1.0):
        costs = costs * weights
    return float(costs.sum()) + strength * binary_penalty(labels, len(centres))


def greedy_plus_plus(
    divergences: Callable[[Labels], Array], weights: Array, count: int, rng: np.random.Generator
) -> Labels:
    """Return the `count` rows chosen as first centres (all rows, if there are fewer).

    The first is drawn by weight (L,); each further one is the best of 2 + floor(log count) candidates drawn in
    proportion to weight times divergence from the nearest centre (Arthur & Vassilvitskii 2007, with greedy trials).
    Where every row coincides with a centre, rows not yet chosen fill up in order. `divergences` takes row indices (k,)
    and returns the divergences (k, L) of all rows from each of these as centres.
    """
    count = min(count, len(weights))
    n_trials = 2 + int(np.log(count))
    chosen = [int(rng.choice(len(weights), p=weights / weights.sum()))]
    nearest = divergences(np.array(chosen))[0]
    while len(chosen) < count:
        mass = weights * nearest  # probabilities of the next centre, unnormalised (L,)
        total = mass.sum()
        if not total > 0:
            unchosen = np.setdiff1d(np.arange(len(weights)), chosen)
            chosen += unchosen[: count - len(chosen)].tolist()
            break
        candidates = np.unique(rng.choice(len(mass), size=n_trials, p=mass / total))
        candidate_nearest = np.minimum(nearest, divergences(candidates))  # (candidates, L)
        best_candidate = int((candidate_nearest @ weights).argmin())
        chosen.append(int(candidates[best_candidate]))
        nearest = candidate_nearest[best_candidate]
    return np.array(chosen)


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
    """Descend on (9) with binary P from centres (G, P), at least as many as the largest site has components.

    A group that nobody uses may have any centre at no cost, so it is offered the worst-matched local component; the
    next matching opens it only if that lowers the objective. At the end groups are dissolved as long as that does. The
    strength is lambda, the price of a component in the units of the divergence; the generator draws the order of sites;
    the tolerance is the relative decrease of the objective below which the descent has converged. Labels are
    consecutive.
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
    """Cluster from centres (G, P) without the constraint of one per site: nearest centres and barycenters in turn.

    Bregman hard clustering, algorithm 1 of Banerjee et al. 2005. `passed` are the partitions that other starts have
    passed, each without an empty group. From them on all is as it was there, so that None is returned; those of this
    start are added.
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

    A start that comes upon a partition that another one has passed ends there. Clusters that lose all members are
    dropped; the first of several starts that are equal but for rounding is taken.
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
    phi whose Bregman divergence the objective sums. Without site j, component l therefore raises the objective by m
    phi(b) + w_l phi(l) - (m + w_l) phi(new), `new` the barycenter with l, and by the price of a user, lambda (sqrt(n +
    1) - sqrt(n)). One assignment of these increments is the best choice for site j given the others (the subtraction
    trick of Yurochkin et al. 2019, Proposition 1). The objective of the fit is never exceeded; with a divergence that
    is not Kullback-Leibler the fit comes back as it is.
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
