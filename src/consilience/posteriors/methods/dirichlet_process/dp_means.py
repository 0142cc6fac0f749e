"""DP-means by Kullback-Leibler divergence: hard clusters at a price each.

Kulis and Jordan 2012 let the variances of a Dirichlet-process mixture go to zero, which leaves

    sum_l w_l KL(theta_g(l) || theta_l) + lambda (G - 1)

with Kullback-Leibler divergences (or their reverse) in place of squared distances: Jiang, Kulis and Jordan 2012 do so
for every exponential family. It is the objective of KL-fusion without its rule that no two components of one model may
meet, and with a price that is linear. For points the divergence is half the squared distance. Every step lowers the
objective; where the penalty is not given, ``best_penalty`` takes the one of the greatest silhouette.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_by_site import ascend, grow, subtraction_gains
from consilience.posteriors.methods.kl.divergences import KLGeometry
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, compact, matched_cost

DIVERGENCE_ROUNDING = 1e-9
"""Error of divergences from one matrix product, in units of a typical one."""
HALVING_STEPS = 3
"""Steps of two-means that halve a cluster before its gain is looked at. Chosen by hand."""
MAX_SWEEPS = 20
"""Passes over all components in a refinement: a bound, for passes end at the first without a move."""
N_PENALTIES = 16
"""Penalties that are tried, on a geometric grid. Chosen by hand for their cost."""
MAX_SILHOUETTE_ROWS = 1024
"""Components of which a silhouette is computed. Chosen by hand for its cost."""
MIN_SILHOUETTE = 0.25
"""Silhouette up to which there is no structure to speak of (Kaufman and Rousseeuw 1990)."""


def fit_dp_means(
    problem: KLProblem, penalty: float, rng: np.random.Generator, max_iterations: int, *, grown: bool = False
) -> KLFit:
    """Descend from one cluster of all components, or from clusters that were grown.

    Every iteration opens a cluster at each component, in random order, that is farther than `penalty` (in the units of
    the divergence) from all centres at its turn, assigns components to their nearest centres, and averages. Where that
    no longer lowers the objective, clusters are split in two that gain more than `penalty` by it, or else the one is
    closed whose members cost less than `penalty` more at their next nearest centres. Every step lowers the objective.
    Clusters are grown where components come one after another in random order, each to where the objective then is
    least, or to a new one.
    """
    centres = _grand_mean(problem)
    rounding = DIVERGENCE_ROUNDING * float(np.median(problem.costs(centres)))
    if grown:
        labels = grow(_cluster_objective(problem, penalty), rng.permutation(len(problem.ensemble.natural)))
        centres = problem.barycenters(labels, int(labels.max()) + 1)
    fit = _assigned(problem, centres, penalty)
    history = [fit.objective]
    for _ in range(max_iterations):
        # In turn: open far components, else split clusters, else close one; the first that lowers the objective is
        # taken.
        for propose in (partial(_opened, rounding=rounding, rng=rng), _split, _closed):
            candidate = _assigned(problem, propose(problem, fit, penalty), penalty)
            if candidate.objective < fit.objective - rounding:
                break
        else:
            return replace(fit, history=tuple(history), converged=True)
        fit = candidate
        history.append(fit.objective)
    return replace(fit, history=tuple(history))


def refine_clusters(problem: KLProblem, fit: KLFit, penalty: float, rng: np.random.Generator) -> KLFit:
    """Move components one by one to where the objective is least, a new cluster included; parameters as above.

    Averages follow every move. Nearest centres do not foresee that a component would draw its new centre along.
    """
    labels, _ = ascend(_cluster_objective(problem, penalty), fit.labels, rng, MAX_SWEEPS)
    labels, centres = compact(problem, labels)
    value = matched_cost(problem.costs(centres), labels) + penalty * (len(centres) - 1)
    if value >= fit.objective:
        return fit
    return KLFit(labels, centres, value, (*fit.history, value), fit.converged)


def _cluster_objective(problem: KLProblem, penalty: float) -> _ClusterObjective:
    assert isinstance(problem.geometry, KLGeometry)  # noqa: S101  (narrows the type; DP-means has no other)
    return _ClusterObjective(problem.geometry, problem.ensemble.row_weights, penalty)


@dataclass(frozen=True, eq=False)
class _ClusterObjective:
    """Minus the objective as a sum over clusters, in which every component is a site of its own.

    The least cost of a cluster of mass m with barycenter b is a Jensen gap, sum_l w_l phi(l) - m phi(b), of the
    potential phi whose Bregman divergence the objective sums; its first part is the same whatever the clusters are.
    """

    geometry: KLGeometry
    weights: Array
    penalty: float

    @cached_property
    def pieces(self) -> Array:
        """Weighted parameters and the weight (L, P + 1)."""
        return self.weights[:, None] * np.column_stack([self.geometry.averaged, np.ones(len(self.weights))])

    @property
    def offsets(self) -> Labels:
        """A site for each component (L + 1,)."""
        return np.arange(len(self.weights) + 1)

    def opening(self, rows: Labels) -> Array:
        """Return what components are worth alone (k,)."""
        return self._value(GroupSums(self.pieces[rows], np.ones(len(rows)))) - self.penalty

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return what clusters gain by components (k, G)."""
        if not len(groups.mass):
            return np.empty((len(rows), 0))
        return subtraction_gains(self._value, self.pieces[rows], groups)

    def total(self, labels: Labels) -> float:
        """Return what consecutive labels are worth."""
        count = int(labels.max()) + 1
        groups = group_sums(self.pieces, labels, np.ones(len(labels)), count)
        return float(self._value(groups).sum()) - self.penalty * count

    def _value(self, groups: GroupSums) -> Array:
        mass: Array = groups.sums[:, -1]
        return mass * self.geometry.potential(groups.sums[:, :-1] / mass[:, None])


def best_penalty(problem: KLProblem, max_clusters: int, rng: np.random.Generator, max_iterations: int) -> float:
    """Return the penalty whose clusters, at most `max_clusters`, have the greatest silhouette.

    The rule of Kulis and Jordan (2012, section 3.1), for G clusters the divergence of the G-th component of a
    farthest-first traversal that starts at the mean of all, is a lower end: of many copies the halves are worth more
    than one that is far out. The upper end is what one cluster costs. Between the rule for `max_clusters` and that,
    penalties are tried on a geometric grid by one descent each. Only numbers of clusters count that are at least the
    size of the largest model, and neither one nor that of all components, of which silhouettes say nothing. A
    silhouette of 0.25 or less is none to speak of (Kaufman and Rousseeuw 1990); then the penalty is the largest that
    leaves that many.
    """
    largest_site, n_rows = int(problem.ensemble.sizes.max()), len(problem.ensemble.natural)
    if largest_site == n_rows:
        return 0.0
    upper = float(problem.costs(_grand_mean(problem)).sum())
    lower = max(_farthest_first(problem, min(max_clusters, n_rows)), DIVERGENCE_ROUNDING * upper)
    rows = np.unique(np.linspace(0, n_rows - 1, min(n_rows, MAX_SILHOUETTE_ROWS)).astype(np.int64))
    distances = _distances(problem, rows)
    silhouettes: list[tuple[float, float]] = []
    # From one cluster upwards: smaller penalties give more clusters, so the grid ends at the first above the maximum.
    for penalty in np.geomspace(upper, lower, N_PENALTIES).tolist():
        fit = fit_dp_means(problem, penalty, rng, max_iterations)
        if fit.n_groups > max_clusters:
            break
        if fit.n_groups >= largest_site:
            silhouettes.append((_silhouette(fit.labels[rows], distances), penalty))
    if not silhouettes:
        return lower
    greatest = max(silhouettes)[0]
    if greatest <= MIN_SILHOUETTE:
        return silhouettes[0][1]
    equal_penalties = [penalty for silhouette, penalty in silhouettes if silhouette == greatest]
    return equal_penalties[
        len(equal_penalties) // 2
    ]  # in the middle of those that give the same clusters, none is about to change


def _grand_mean(problem: KLProblem) -> Array:
    return problem.barycenters(np.zeros(len(problem.ensemble.natural), dtype=np.int64), 1)


def _assigned(problem: KLProblem, centres: Array, penalty: float) -> KLFit:
    """Assign components to their nearest centres, drop centres without any, and average."""
    labels, averages = compact(problem, problem.costs(centres).argmin(axis=1))
    value = matched_cost(problem.costs(averages), labels) + penalty * (len(averages) - 1)
    return KLFit(labels, averages, value, (), converged=False)


def _opened(problem: KLProblem, fit: KLFit, penalty: float, rounding: float, rng: np.random.Generator) -> Array:
    """Return the centres and one at each component that is too far from all others at its turn."""
    nearest = problem.costs(fit.centres).min(axis=1)  # (L,)
    order = rng.permutation(len(nearest))
    rows: list[int] = []
    while (too_far := np.flatnonzero(nearest[order] > max(penalty, rounding))).size:
        rows.append(int(order[too_far[0]]))
        nearest = np.minimum(nearest, problem.costs(problem.ensemble.natural[rows[-1:]])[:, 0])
        nearest[rows[-1]] = 0.0
    return np.concatenate([fit.centres, problem.ensemble.natural[rows]])


def _split(problem: KLProblem, fit: KLFit, penalty: float) -> Array:
    """Return the centres with two in place of each whose members gain more than the penalty by it.

    Components that are all near enough to a centre between them may still be two clusters. The halves start at the
    member farthest from the centre and at the one farthest from that, and all clusters are halved at the same time.
    """
    natural, labels, row_range = problem.ensemble.natural, fit.labels, np.arange(len(fit.labels))
    costs_unsplit = problem.costs(fit.centres)[row_range, labels]
    from_first = problem.costs(natural[_farthest_members(costs_unsplit, labels)])[row_range, labels]
    from_second = problem.costs(natural[_farthest_members(from_first, labels)])[row_range, labels]
    second, halves = from_second < from_first, np.repeat(fit.centres, 2, axis=0)
    for _ in range(HALVING_STEPS):
        halves = problem.barycenters(2 * labels + second, len(halves), halves)  # (2 G, P)
        costs = problem.costs(halves)
        from_first, from_second = costs[row_range, 2 * labels], costs[row_range, 2 * labels + 1]
        second = from_second < from_first
    gain = np.bincount(labels, weights=costs_unsplit - np.minimum(from_first, from_second), minlength=fit.n_groups)
    return np.concatenate([fit.centres[gain <= penalty], halves[np.repeat(gain > penalty, 2)]])


def _farthest_members(costs: Array, labels: Labels) -> Labels:
    """Return the row of greatest cost of every group (G,)."""
    order = np.lexsort((-costs, labels))  # by group, dearest first
    return order[np.searchsorted(labels[order], np.arange(labels.max() + 1))]


def _closed(problem: KLProblem, fit: KLFit, penalty: float) -> Array:
    """Return the centres without the one that is missed least, if it is missed by less than the penalty."""
    if fit.n_groups == 1:
        return fit.centres
    # Costs at the nearest and the next nearest centre (L,).
    first, second = np.partition(problem.costs(fit.centres), 1, axis=1)[:, :2].T
    loss_of_group = np.bincount(fit.labels, weights=second - first, minlength=fit.n_groups)
    cheapest = int(loss_of_group.argmin())
    return np.delete(fit.centres, cheapest, axis=0) if loss_of_group[cheapest] < penalty else fit.centres


def _farthest_first(problem: KLProblem, n_clusters: int) -> float:
    """Return the divergence, from those before it, of the component that is number `count` when farthest go first."""
    nearest = problem.costs(_grand_mean(problem))[:, 0]
    for _ in range(n_clusters - 1):
        row = int(nearest.argmax())
        nearest = np.minimum(nearest, problem.costs(problem.ensemble.natural[[row]])[:, 0])
        nearest[row] = 0.0
    return float(nearest.max())


def _distances(problem: KLProblem, rows: Labels) -> Array:
    """Return the roots of the mean of both divergences of some components (n, n): proportional to those of points."""
    divergences = problem.geometry.costs(problem.ensemble.natural[rows])[:, rows]
    distances: Array = np.sqrt((divergences + divergences.T) / 2.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _silhouette(labels: Labels, distances: Array) -> float:
    """Return the mean silhouette, from -1 to 1; -1 where there is one cluster, or as many as components."""
    from sklearn.metrics import silhouette_score  # here, so that other methods start without scikit-learn

    if not 2 <= len(np.unique(labels)) < len(labels):
        return -1.0
    return float(silhouette_score(distances, labels, metric="precomputed"))
