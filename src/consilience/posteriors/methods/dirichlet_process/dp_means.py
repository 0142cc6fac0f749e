"""DP-means in the geometry of a family: hard clusters at a price each.

Kulis and Jordan 2012 let the variances of a Dirichlet-process mixture go to zero, which leaves

    sum_l w_l KL(theta_g(l) || theta_l) + lambda (G - 1)

with Kullback-Leibler divergences (or their reverse) in place of squared distances: Jiang, Kulis and Jordan 2012 do so
for every exponential family. It is the objective of KL-fusion without its rule that no two components of one model may
meet, and with a price that is linear. For points the divergence is half the squared distance.
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

_DIGITS = 1e-9  # of divergences from one matrix product, against a typical one
_HALVING_STEPS = 3
_SWEEPS = 20
_TRIED = 16
_JUDGED_ROWS = 1024
_NO_STRUCTURE = 0.25


def fit_dp_means(
    problem: KLProblem, penalty: float, rng: np.random.Generator, max_iterations: int, *, grown: bool = False
) -> KLFit:
    """Descend from one cluster of all components, or from clusters that were grown.

    Every iteration opens a cluster at each component, in random order, that is farther than `penalty` from all centres
    at its turn, assigns components to their nearest centres, and averages. Where that no longer lowers the objective,
    clusters are split in two that gain more than `penalty` by it, or else the one is closed whose members cost less
    than `penalty` more at their next nearest centres. Every step lowers the objective.

    Parameters
    ----------
    problem
        The components, not all the same, and their divergence.
    penalty
        lambda, in the units of the divergence.
    rng
        Draws the order in which components are looked at.
    max_iterations
        Steps at most.
    grown
        Whether to start from clusters to which components came one after another in random order, each to where the
        objective then was least, or to a new one.
    """
    centres = _grand_mean(problem)
    rounding = _DIGITS * float(np.median(problem.costs(centres)))
    if grown:
        labels = grow(_worth(problem, penalty), rng.permutation(len(problem.ensemble.natural)))
        centres = problem.barycenters(labels, int(labels.max()) + 1)
    fit = _assigned(problem, centres, penalty)
    history = [fit.objective]
    for _ in range(max_iterations):
        for proposed in (partial(_opened, rounding=rounding, rng=rng), _split, _closed):
            moved = _assigned(problem, proposed(problem, fit, penalty), penalty)
            if moved.objective < fit.objective - rounding:
                break
        else:
            return replace(fit, history=tuple(history), converged=True)
        fit = moved
        history.append(fit.objective)
    return replace(fit, history=tuple(history))


def refine_clusters(problem: KLProblem, fit: KLFit, penalty: float, rng: np.random.Generator) -> KLFit:
    """Move components one by one to where the objective is least, a new cluster included; parameters as above.

    Averages follow every move. Nearest centres do not foresee that a component would draw its new centre along.
    """
    labels, _ = ascend(_worth(problem, penalty), fit.labels, rng, _SWEEPS)
    labels, centres = compact(problem, labels)
    value = matched_cost(problem.costs(centres), labels) + penalty * (len(centres) - 1)
    if value >= fit.objective:
        return fit
    return KLFit(labels, centres, value, (*fit.history, value), fit.converged)


def _worth(problem: KLProblem, penalty: float) -> _Worth:
    assert isinstance(problem.geometry, KLGeometry)  # noqa: S101  (narrows the type; DP-means has no other)
    return _Worth(problem.geometry, problem.ensemble.row_weights, penalty)


@dataclass(frozen=True, eq=False)
class _Worth:
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


def best_penalty(problem: KLProblem, most: int, rng: np.random.Generator, max_iterations: int) -> float:
    """Return the penalty whose clusters have the greatest silhouette.

    The rule of Kulis and Jordan (2012, section 3.1), for G clusters the divergence of the G-th component of a
    farthest-first traversal that starts at the mean of all, is a lower end: of many copies the halves are worth more
    than one that is far out. The upper end is what one cluster costs. Between the rule for `most` and that, penalties
    are tried on a geometric grid by one descent each. Only numbers of clusters count that are at least the size of the
    largest model, and neither one nor that of all components, of which silhouettes say nothing. A silhouette of 0.25
    or less is none to speak of (Kaufman and Rousseeuw 1990); then the penalty is the largest that leaves that many.

    Parameters
    ----------
    problem, rng, max_iterations
        As in ``fit_dp_means``.
    most
        Largest number of clusters that is tried.
    """
    largest, total = int(problem.ensemble.sizes.max()), len(problem.ensemble.natural)
    if largest == total:
        return 0.0
    upper = float(problem.costs(_grand_mean(problem)).sum())
    lower = max(_farthest_first(problem, min(most, total)), _DIGITS * upper)
    rows = np.unique(np.linspace(0, total - 1, min(total, _JUDGED_ROWS)).astype(np.int64))
    between = _distances(problem, rows)
    judged: list[tuple[float, float]] = []
    for penalty in np.geomspace(upper, lower, _TRIED).tolist():
        fit = fit_dp_means(problem, penalty, rng, max_iterations)
        if fit.n_groups > most:
            break
        if fit.n_groups >= largest:
            judged.append((_silhouette(fit.labels[rows], between), penalty))
    if not judged:
        return lower
    best = max(judged)[0]
    if best <= _NO_STRUCTURE:
        return judged[0][1]
    equal = [penalty for silhouette, penalty in judged if silhouette == best]
    return equal[len(equal) // 2]  # in the middle of those that give the same clusters, none is about to change


def _grand_mean(problem: KLProblem) -> Array:
    return problem.barycenters(np.zeros(len(problem.ensemble.natural), dtype=np.int64), 1)


def _assigned(problem: KLProblem, centres: Array, penalty: float) -> KLFit:
    """Assign components to their nearest centres, drop centres without any, and average."""
    labels, averages = compact(problem, problem.costs(centres).argmin(axis=1))
    value = matched_cost(problem.costs(averages), labels) + penalty * (len(averages) - 1)
    return KLFit(labels, averages, value, (), converged=False)


def _opened(problem: KLProblem, fit: KLFit, penalty: float, rounding: float, rng: np.random.Generator) -> Array:
    """Return the centres and one at each component that is too far from all others at its turn."""
    nearest = problem.costs(fit.centres).min(axis=1)
    order = rng.permutation(len(nearest))
    rows: list[int] = []
    while (far := np.flatnonzero(nearest[order] > max(penalty, rounding))).size:
        rows.append(int(order[far[0]]))
        nearest = np.minimum(nearest, problem.costs(problem.ensemble.natural[rows[-1:]])[:, 0])
        nearest[rows[-1]] = 0.0
    return np.concatenate([fit.centres, problem.ensemble.natural[rows]])


def _split(problem: KLProblem, fit: KLFit, penalty: float) -> Array:
    """Return the centres with two in place of each whose members gain more than the penalty by it.

    Components that are all near enough to a centre between them may still be two clusters. The halves start at the
    member farthest from the centre and at the one farthest from that, and all clusters are halved at the same time.
    """
    natural, labels, here = problem.ensemble.natural, fit.labels, np.arange(len(fit.labels))
    own = problem.costs(fit.centres)[here, labels]
    from_first = problem.costs(natural[_farthest_members(own, labels)])[here, labels]
    from_second = problem.costs(natural[_farthest_members(from_first, labels)])[here, labels]
    second, halves = from_second < from_first, np.repeat(fit.centres, 2, axis=0)
    for _ in range(_HALVING_STEPS):
        halves = problem.barycenters(2 * labels + second, len(halves), halves)
        costs = problem.costs(halves)
        from_first, from_second = costs[here, 2 * labels], costs[here, 2 * labels + 1]
        second = from_second < from_first
    gain = np.bincount(labels, weights=own - np.minimum(from_first, from_second), minlength=fit.n_groups)
    return np.concatenate([fit.centres[gain <= penalty], halves[np.repeat(gain > penalty, 2)]])


def _farthest_members(costs: Array, labels: Labels) -> Labels:
    """Return the row of greatest cost of every group (G,)."""
    order = np.lexsort((-costs, labels))
    return order[np.searchsorted(labels[order], np.arange(labels.max() + 1))]


def _closed(problem: KLProblem, fit: KLFit, penalty: float) -> Array:
    """Return the centres without the one that is missed least, if it is missed by less than the penalty."""
    if fit.n_groups == 1:
        return fit.centres
    first, second = np.partition(problem.costs(fit.centres), 1, axis=1)[:, :2].T
    missed = np.bincount(fit.labels, weights=second - first, minlength=fit.n_groups)
    least = int(missed.argmin())
    return np.delete(fit.centres, least, axis=0) if missed[least] < penalty else fit.centres


def _farthest_first(problem: KLProblem, count: int) -> float:
    """Return the divergence, from those before it, of the component that is number `count` when farthest go first."""
    nearest = problem.costs(_grand_mean(problem))[:, 0]
    for _ in range(count - 1):
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
