"""Matching on the median site, and averages of the sites that are kept: ``robust=True``.

1. The cost of component a of one site and b of another is the squared distance of their plug-in means in deviations
   of a, and D/2 min(log^2 of the ratio of their traces, 25), at most 1e4: no site can make a cost infinite. D_ij is
   the value of the best assignment of two sites, and 1e4 for each component that one has more. The **median site** has
   the smallest median of D_ij; as long as fewer than half are hostile, it is honest or as near to most as an honest
   one is.
2. Every site is assigned to it; a pair dearer than 25 times the median accepted cost is no match. Components that the
   median site lacks are matched once more among themselves. A group that fewer than half hold is dropped.
3. Whole sites are judged (``core.robust``) by coordinates of their copies that no shift and no common scale changes.
4. The sites that are kept are matched on the median site of theirs. That says little where fits end in different
   optima: what one holds as one component is two elsewhere, and their average is neither. So where in some group half
   of the copies or more are not one with its medoid, or fewer than half of the sites hold it, all sites are judged
   again by the mean and covariance of their whole mixture, which are those of its data whatever the optimum, and what
   matched anything at those kept is matched by the method itself. Of its groups those stay that half of the sites
   hold or have room for (`minority`). That is taken where it accounts for all components of half of the sites.
5. Groups are averaged by geometric-median weights w: m = sum w m_l, C = sum w (C_l + (m_l - m)(m_l - m)^T), the moments
   of a convex mixture, positive definite. Counts are N = median count of a holder, times the number of holders, so
   nobody's claim counts for more than the usual one, and mixture weights are medians of shares.

Families without means and covariances are judged by their points (square roots of mean probabilities for topics, so
that distances are Hellinger's), and averaged in natural parameters with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.core.robust import (
    MAX_COORDINATE,
    MIN_VOTES,
    Groups,
    Judgement,
    cap_factors,
    copy_weights,
    evenly_spaced,
    judge,
    judge_twice,
    pairwise_squares,
    standardized_squares,
)
from consilience.core.robust_estimator import RobustEstimator
from consilience.families.base import Family
from consilience.families.dirichlet import Dirichlet
from consilience.matching.assignment import assign_block
from consilience.posteriors.average import AverageFunction
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import shares_of
from consilience.posteriors.robust.average import RobustInclusion, group_votes
from consilience.posteriors.robust.minority import outer_squares

MAX_COST = 1e4
"""Largest cost of a pair, in squared deviations, and the cost of a component that has none: a bound, far beyond a
match."""
MAX_LOG_RATIO = 25.0
"""Largest squared logarithm of the ratio of two traces that costs: e^5, a hundred and fifty times the variance."""
MATCH_RATIO = 25.0
"""Cost, in the median accepted cost, beyond which a pair is no match: five times the distance."""
MIN_COST = 1e-12
"""Median accepted cost where all copies are equal, to multiply."""
MAX_CANDIDATES = 64
"""Sites among which the median site is sought, evenly spaced: one honest one is enough. Chosen by hand for its cost."""
WHOLE_RADIUS = 2.0
"""Distance of a site's whole mixture from the centre, in the median distance, beyond which it is left out. Chosen on
chains of the seeds 300 to 307, 500 and 501 of benchmarks/hostile_sites.py: of ten honest sites 1.5 leaves out 2.3, 2
leaves out 0.8 and 3 nobody; of four mimics with noise of .6 these let 0.5, 1.6 and 2.9 stay."""
PRIOR_ROUNDING = 1e-9
"""Priors that differ by less, relatively, are one: sites compute them in different orders."""
MIN_OBSERVATIONS = 2.0
"""Effective observations below which a component has no spread of its own; no method matches it a second time."""
MIN_SCALE = 1e-12
"""Least spread of copies, relative to their size, that coordinates are divided by; equal copies have none."""


@dataclass(frozen=True, eq=False)
class _Components:
    """Plug-in means (L, D) and covariances (L, D, D) or variances (L, D) of all components; else points and None."""

    means: Array
    spreads: Array | None

    @classmethod
    def of(cls, family: Family, natural: Array) -> _Components:
        with np.errstate(all="ignore"):
            gaussians = family.plug_in(natural)
            if gaussians is None:
                probabilities = family.mean_probabilities(natural)
                points = family.points(natural) if probabilities is None else np.sqrt(np.maximum(probabilities, 0.0))
                return cls(np.nan_to_num(points), None)
            means, spreads = (np.nan_to_num(np.asarray(part)) for part in gaussians)
        return cls(means, spreads)

    @property
    def variances(self) -> Array | None:
        """Variances (L, D)."""
        if self.spreads is None or self.spreads.ndim == 2:
            return self.spreads
        return np.diagonal(self.spreads, axis1=1, axis2=2)


def _costs(components: _Components, rows: Labels, columns: Labels, scale: Array) -> Array:
    """Return the costs (n, m) of matching some components to others."""
    differences = components.means[rows, None] - components.means[None, columns]  # (n, m, D)
    variances = components.variances
    with np.errstate(all="ignore"):
        if variances is None:
            return np.nan_to_num(np.minimum((differences**2 / scale).sum(axis=2), MAX_COST), nan=MAX_COST)
        assert components.spreads is not None  # noqa: S101  (narrows the type)
        if components.spreads.ndim == 2:
            distances = (differences**2 / components.spreads[rows, None]).sum(axis=2)
        else:
            factors = np.linalg.cholesky(components.spreads[rows])  # (n, D, D)
            whitened = np.linalg.solve(factors, np.swapaxes(differences, 1, 2))  # (n, D, m)
            distances = (whitened**2).sum(axis=1)
        traces = np.log(variances.sum(axis=1))
        ratios = np.minimum((traces[rows, None] - traces[None, columns]) ** 2, MAX_LOG_RATIO)
        costs = distances + 0.5 * differences.shape[2] * ratios
    return np.nan_to_num(np.minimum(costs, MAX_COST), nan=MAX_COST)


def _assignment(costs: Array) -> tuple[Labels, Labels]:
    """Return rows and columns of the cheapest pairs of costs (n, m), as many as the fewer of the two."""
    if costs.shape[0] > costs.shape[1]:
        columns, rows = _assignment(costs.T)
        return rows, columns
    return np.arange(len(costs)), assign_block(costs)


def median_site(ensemble: Ensemble, components: _Components, rows_of_site: list[Labels]) -> int:
    """Return the site whose median distance to all others is smallest."""
    n_sites = len(rows_of_site)
    candidates = evenly_spaced(n_sites, MAX_CANDIDATES)
    scale = _scale(components)
    distances = np.zeros((len(candidates), len(candidates)))
    for i, first in enumerate(candidates.tolist()):
        for j, second in enumerate(candidates.tolist()):
            if i == j:
                continue
            rows, columns = rows_of_site[first], rows_of_site[second]
            if not len(rows) or not len(columns):
                distances[i, j] = MAX_COST * max(len(rows), len(columns))
                continue
            costs = _costs(components, rows, columns, scale)
            pairs = _assignment(costs)
            distances[i, j] = costs[pairs].sum() + MAX_COST * abs(len(rows) - len(columns))
    np.fill_diagonal(distances, np.nan)
    return int(candidates[np.argmin(np.nanmedian(distances, axis=1))]) if len(candidates) > 1 else int(candidates[0])


def _scale(components: _Components) -> Array:
    """Return the squared spread (D,) of points of families without covariances: their median squared deviation."""
    centre = np.median(components.means, axis=0)
    spread = np.median((components.means - centre) ** 2, axis=0)
    usual = float(spread.mean())
    return np.full(len(spread), usual if usual > 0 else 1.0)


def match_on_median_site(ensemble: Ensemble) -> Labels:
    """Return the groups (L,) of all components, numbered from 0; -1 of those that match nothing.

    The sites are in canonical order, so that the result does not depend on the order in which they came.
    """
    components = _Components.of(ensemble.family, ensemble.natural)
    labels = np.full(len(ensemble.natural), -1, dtype=np.int64)
    rows_of_site = [
        np.arange(start, end) for start, end in zip(ensemble.offsets[:-1], ensemble.offsets[1:], strict=True)
    ]
    n_groups = _match_to_median(ensemble, components, rows_of_site, labels, 0)
    # Components that the median site lacks are matched among themselves, once.
    leftovers = [rows[labels[rows] < 0] for rows in rows_of_site]
    if 2 * sum(len(rows) > 0 for rows in leftovers) >= ensemble.n_sites:
        _match_to_median(ensemble, components, leftovers, labels, n_groups)
    return labels


def has_spread(ensemble: Ensemble) -> NDArray[np.bool_]:
    """Return which components (L,) have observations enough for a spread of their own."""
    counts = ensemble.column("counts")
    return np.ones(len(ensemble.owner), dtype=np.bool_) if counts is None else counts >= MIN_OBSERVATIONS


def _match_to_median(
    ensemble: Ensemble, components: _Components, rows_of_site: list[Labels], labels: Labels, first_label: int
) -> int:
    """Label the components of the median site, and what matches them, from `first_label` on; return the next label."""
    centre = rows_of_site[median_site(ensemble, components, rows_of_site)]
    if not len(centre):
        return first_label
    labels[centre] = first_label + np.arange(len(centre))
    scale, pairs = _scale(components), []
    for rows in rows_of_site:
        if len(rows) and not np.array_equal(rows, centre):
            costs = _costs(components, centre, rows, scale)
            positions, columns = _assignment(costs)
            pairs.append((positions, rows[columns], costs[positions, columns]))
    if pairs:
        usual = max(float(np.median(np.concatenate([costs for _, _, costs in pairs]))), MIN_COST)
        for positions, rows, costs in pairs:
            near = costs <= min(MATCH_RATIO * usual, MAX_COST * (1.0 - MIN_COST))
            labels[rows[near]] = first_label + positions[near]
    return first_label + len(centre)


def coordinates(family: Family, natural: Array, priors: Array | None = None) -> Array:
    """Return the coordinates (n, P) in which the copies of one group are judged.

    Means in deviations of the usual copy, and the matrix logarithms of covariances relative to its covariance C_0,
    which starts at the copy of middle determinant and takes three steps C_0 <- C_0^1/2 exp(med L) C_0^1/2. Where the
    `priors` (n, P) of the copies are known, means and covariances are those of the data alone.
    """
    components, moments = _Components.of(family, natural), DataMoments.of(family, natural, priors)
    means, spreads = components.means, components.spreads
    if moments is not None:
        means, spreads = moments.means, moments.covariances
    if spreads is None:
        scaled = (means - np.median(means, axis=0)) / _scale_of_points(means)
        return np.clip(np.nan_to_num(scaled), -MAX_COORDINATE, MAX_COORDINATE)
    return _gaussian_coordinates(means, spreads, family)


def _gaussian_coordinates(means: Array, spreads: Array, family: Family) -> Array:
    """Return the coordinates (n, P) of means (n, D) and covariances (n, D, D), or variances (n, D)."""
    centre = np.median(means, axis=0)
    with np.errstate(all="ignore"):
        if spreads.ndim == 2:
            logarithms = np.log(spreads)
            usual = np.median(logarithms, axis=0)
            ratios, whitened = logarithms - usual, (means - centre) / _deviations(means - centre, np.exp(usual), family)
            parts = [whitened, ratios / np.sqrt(2.0)]
        else:
            parts = _matrix_coordinates(means - centre, spreads, family)
    return np.clip(np.nan_to_num(np.concatenate(parts, axis=1)), -MAX_COORDINATE, MAX_COORDINATE)


def _scale_of_points(points: Array) -> float:
    """Return what the points (n, D) of copies without covariances are measured in: their usual deviation."""
    centre = np.median(points, axis=0)
    usual = float(np.median(np.abs(points - centre), axis=0).mean())
    return max(usual, MIN_SCALE * max(float(np.abs(centre).max(initial=0.0)), 1e-300))


def _deviations(differences: Array, variances: Array, family: Family) -> Array:
    """Return what means are measured in (D,): deviations of data, or, of laws of parameters, of the copies too."""
    if family.describes_data:
        return np.sqrt(variances)
    return np.sqrt(variances + np.median(np.abs(differences), axis=0) ** 2)


def _matrix_coordinates(differences: Array, covariances: Array, family: Family) -> list[Array]:
    """Return the coordinates of means, and of covariances off and on the diagonal."""
    dim = differences.shape[1]
    _, log_determinants = np.linalg.slogdet(covariances)
    centre = covariances[np.argsort(log_determinants, kind="stable")[len(covariances) // 2]]
    logarithms = np.zeros_like(covariances)
    for step in range(4):  # three steps, then the logarithms relative to the last
        root, inverse_root = _roots(centre)
        logarithms = _matrix_function(inverse_root @ covariances @ inverse_root, np.log)
        if step < 3:
            centre = root @ _matrix_function(np.median(logarithms, axis=0)[None], np.exp)[0] @ root
    if family.describes_data:
        whitened = differences @ inverse_root
    else:
        whitened = differences / _deviations(differences, np.diagonal(centre), family)
    rows, columns = np.triu_indices(dim, 1)
    diagonal = np.diagonal(logarithms, axis1=1, axis2=2)
    return [whitened, logarithms[:, rows, columns], diagonal / np.sqrt(2.0)]


def _roots(matrix: Array) -> tuple[Array, Array]:
    """Return the symmetric square root of a covariance, and its inverse."""
    values, vectors = np.linalg.eigh(matrix)
    roots = np.sqrt(np.maximum(values, np.finfo(np.float64).tiny))
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def _matrix_function(matrices: Array, function: Callable[[Array], Array]) -> Array:
    """Return a function of symmetric matrices (n, D, D), of their eigenvalues."""
    symmetric = 0.5 * (matrices + np.swapaxes(matrices, 1, 2))
    symmetric = np.where(np.isfinite(symmetric), symmetric, 0.0)
    values, vectors = np.linalg.eigh(symmetric)
    if function is np.log:
        values = np.maximum(values, np.finfo(np.float64).tiny)
    mapped: Array = (vectors * function(values)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return mapped


def other_priors(ensemble: Ensemble) -> NDArray[np.bool_]:
    """Return which sites (J,) state another prior than more than half of them: it is a constant of the plan."""
    rows, nobody = _priors(ensemble, np.arange(ensemble.n_sites)), np.zeros(ensemble.n_sites, dtype=np.bool_)
    if rows is None:
        return nobody
    usual = rows[np.argmin(np.abs(rows - np.median(rows, axis=0)).max(axis=1))]
    differs: NDArray[np.bool_] = ~np.isclose(rows, usual, rtol=PRIOR_ROUNDING, atol=0.0).all(axis=1)
    # Of sites that fitted the prior to their data nobody is at fault.
    return differs if 2 * np.count_nonzero(differs) < len(rows) else nobody


def judge_sites(ensemble: Ensemble, labels: Labels, n_groups: int) -> Judgement:
    """Return which sites are averaged, of a matching in which no site has two rows in one group."""
    rows_of_group = [np.flatnonzero(labels == group) for group in range(n_groups)]
    owners = [ensemble.owner[rows] for rows in rows_of_group]
    points = [
        coordinates(ensemble.family, ensemble.natural[rows], _priors(ensemble, ensemble.owner[rows]))
        for rows in rows_of_group
    ]

    def standardized(kept: NDArray[np.bool_]) -> Groups:
        """Return the groups of the sites that passed, in standardized coordinates."""
        return [
            (owner[kept[owner]], standardized_squares(group_points[kept[owner]]))
            for owner, group_points in zip(owners, points, strict=True)
            if np.count_nonzero(kept[owner]) >= MIN_VOTES  # of two copies both are as far from their median
        ]

    is_matched = np.bincount(ensemble.owner[labels >= 0], minlength=ensemble.n_sites) > 0
    out = {
        **dict.fromkeys(np.flatnonzero(~is_matched).tolist(), "no component matches most"),
        **dict.fromkeys(np.flatnonzero(other_priors(ensemble)).tolist(), "another prior than most"),
    }
    groups = [(owner, pairwise_squares(group_points)) for owner, group_points in zip(owners, points, strict=True)]
    n_coordinates = sum(p.shape[1] for p in points)
    return judge_twice(
        groups, standardized, ensemble.n_sites, n_coordinates, out, _by_sampling(ensemble, rows_of_group, points)
    )


def judge_whole_mixtures(ensemble: Ensemble) -> Judgement | None:
    """Return which sites are averaged, by the mean and covariance of all data of each; None where none says them.

    These do not depend on the optimum in which a fit ended.
    """
    components = _Components.of(ensemble.family, ensemble.natural)
    counts, spreads = ensemble.column("counts"), components.spreads
    if not ensemble.family.describes_data or counts is None or spreads is None:
        return None
    sites = range(ensemble.n_sites)
    rows = [np.flatnonzero(ensemble.owner == site) for site in sites]
    shares = [shares_of(counts[of_site]) for of_site in rows]
    means = np.stack([w @ components.means[of_site] for w, of_site in zip(shares, rows, strict=True)])  # (J, D)
    squares = spreads + outer_squares(components.means - means[ensemble.owner], spreads)
    totals = np.stack([np.tensordot(w, squares[of_site], 1) for w, of_site in zip(shares, rows, strict=True)])
    points = _gaussian_coordinates(means, totals, ensemble.family)  # (J, P)
    groups = [(np.arange(ensemble.n_sites), pairwise_squares(points))]
    out = dict.fromkeys(np.flatnonzero(other_priors(ensemble)).tolist(), "another prior than most")
    return judge(groups, ensemble.n_sites, points.shape[1], out, radius=WHOLE_RADIUS)


def _by_sampling(ensemble: Ensemble, rows_of_group: Sequence[Labels], points: Sequence[Array]) -> list[float] | None:
    """Return of every group the squared distance that sampling alone gives two copies; None if unknown.

    In deviations of the data means have variance 1 / n each, and logarithms of covariances as scaled here about as
    much; the square root of a frequency has 1 / (4 n), and that of a word hardly seen less than its mean. The count n
    of a copy is the usual one of its group, for any site may claim another.
    """
    family, counts = ensemble.family, ensemble.column("counts")
    if isinstance(family, Dirichlet):
        words = family.information(ensemble.natural)[:, 0]
        return [_between_frequencies(family.points(ensemble.natural[rows]), words[rows]) for rows in rows_of_group]
    if counts is None or not family.describes_data:
        return None
    return [
        2.0 * of_group.shape[1] / max(float(np.median(counts[rows])), 1.0)
        for rows, of_group in zip(rows_of_group, points, strict=True)
    ]


def _between_frequencies(roots: Array, counts: Array) -> float:
    """Return the squared distance that sampling gives square roots of frequencies (n, V) of so many words (n,)."""
    with np.errstate(all="ignore"):
        count = max(float(np.median(counts)), 1.0)
        variances = np.minimum(0.25 / count, np.median(np.nan_to_num(roots), axis=0) ** 2)
        return 2.0 * float(variances.sum()) / _scale_of_points(np.nan_to_num(roots)) ** 2


@dataclass(frozen=True)
class JudgedInclusion(RobustInclusion):
    """Copies of the sites that are kept, by the weights of the geometric median of their group."""

    is_total: bool  # whether the width of a fused component is that of all holders' data, or of one site's

    def averages(self, ensemble: Ensemble, labels: Labels, n_groups: int, average: AverageFunction) -> Array:
        """Return the averages (G, P)."""
        fused = np.empty((n_groups, ensemble.natural.shape[1]))
        votes = group_votes(ensemble, labels) * ensemble.row_weights
        for group in range(n_groups):
            rows = np.flatnonzero(labels == group)
            priors = _priors(ensemble, ensemble.owner[rows])
            points = coordinates(ensemble.family, ensemble.natural[rows], priors)
            weights = copy_weights(pairwise_squares(points), votes[rows])
            holders = float(len(np.unique(ensemble.owner[rows]))) if self.is_total else 1.0
            fused[group] = weighted_member(ensemble.family, ensemble.natural[rows], weights, priors, holders)
        return fused

    def credible_counts(self, counts: Array, ensemble: Ensemble) -> Array:
        """Return the counts with each site's total cut to the median total."""
        totals = np.add.reduceat(counts, ensemble.offsets[:-1])  # (J,)
        credible: Array = counts * cap_factors(totals, float(np.median(totals)))[ensemble.owner]
        return credible

    def totals(self, values: Array, ensemble: Ensemble, labels: Labels, n_groups: int) -> Array:
        """Return the median value of the holders of each group (G,), times their number."""
        totals = np.zeros(n_groups)
        for group in range(n_groups):
            is_in = labels == group
            holders, position = np.unique(ensemble.owner[is_in], return_inverse=True)
            of_holders = np.bincount(position, values[is_in], len(holders))
            totals[group] = np.median(of_holders) * len(holders) if len(holders) else 0.0
        return totals


def weighted_member(family: Family, natural: Array, weights: Array, priors: Array | None, holders: float) -> Array:
    """Return the average (P,) of copies (n, P) by convex weights, with the width of `holders` usual copies' data.

    Where their priors (n, P) are stated, the median one is that of the average.
    """
    plain: Array = weights @ natural
    if (form := family.scatter_form(natural)) is not None:
        return _conjugate_member(family, natural, form, weights, priors, holders)
    if isinstance(family, Dirichlet) and priors is not None:
        learned = np.maximum(natural - priors, 0.0)  # (n, V): alpha less the prior's
        totals = learned.sum(axis=1)
        if not (totals > 0).all():
            return plain
        shares = learned / totals[:, None]
        member: Array = np.median(priors, axis=0) + float(np.median(totals)) * holders * (weights @ shares)
        return plain if family.check(member[None]) else member
    if family.plug_in(natural[:1]) is not None:  # Gaussians: moments of the mixture, at the width of one copy
        averaged: Array = family.from_mean((weights @ family.mean_parameters(natural))[None])[0]
        return averaged * (holders if priors is not None else 1.0)
    return plain


@dataclass(frozen=True, eq=False)
class DataMoments:
    """What the data say behind copies of a component, without their priors: means, covariances and pseudo-counts.

    With a prior (m_0, kappa_0, W_0, nu_0), of which W^-1 is the scatter (`Family.scatter_form`), divided out:
    c = kappa - kappa_0, x = m + (kappa_0 / c)(m - m_0), and
    S = W^-1 - W_0^-1 - (kappa_0 c / kappa)(x - m_0)(x - m_0)^T,
    so that the covariance (n, D, D) is S / (nu - nu_0); likewise, as variances (n, D), of every block of dimensions
    with one variance.
    """

    means: Array
    covariances: Array
    kappas: Array
    dofs: Array

    @classmethod
    def of(cls, family: Family, natural: Array, priors: Array | None) -> DataMoments | None:
        """Return the moments of copies (n, P) with priors (n, P); None for other families, and without priors.

        A copy that says less than its prior has none: it stands as it is. None too where most copies are such.
        """
        is_valid: NDArray[np.bool_]
        # A conjugate posterior is its prior plus what the data add, so each site's own prior is taken off: what is left
        # does not depend on it, and sites of different priors can be compared.
        with np.errstate(all="ignore"):
            form, prior_form = (None if rows is None else family.scatter_form(rows) for rows in (natural, priors))
            if form is None or prior_form is None:
                return None
            mean, kappa, spread, dof = form
            mean_0, kappa_0, spread_0, dof_0 = (np.nan_to_num(part) for part in prior_form)
            kappas, dofs = kappa - kappa_0, dof - dof_0
            means = mean + (kappa_0 / kappas)[:, None] * np.where(kappa_0[:, None] > 0, mean - mean_0, 0.0)
            offsets = np.where(kappa_0[:, None] > 0, means - mean_0, 0.0)
            factors = kappa_0 * kappas / kappa
            if spread.ndim == 3:
                between = factors[:, None, None] * offsets[:, :, None] * offsets[:, None, :]
                covariances = (spread - spread_0 - between) / dofs[:, None, None]
                is_finite = np.asarray(np.isfinite(covariances).all(axis=(1, 2)), dtype=np.bool_)
                least = np.linalg.eigvalsh(np.where(is_finite[:, None, None], covariances, np.eye(mean.shape[1])))[:, 0]
                is_valid = is_finite & (least > 0)
            else:
                between = _by_block(factors[:, None] * offsets**2, spread.shape[1]).sum(axis=2)
                variances = (spread - spread_0 - between) / dofs[:, None]
                covariances = np.repeat(variances, mean.shape[1] // spread.shape[1], axis=1)
                is_valid = np.asarray((np.isfinite(covariances) & (covariances > 0)).all(axis=1), dtype=np.bool_)
            is_valid &= np.isfinite(kappas) & (kappas > 0) & np.isfinite(dofs) & (dofs > 0)
            is_valid &= np.isfinite(means).all(axis=1)
            if 2 * np.count_nonzero(is_valid) <= len(natural):
                return None
            raw_means, raw_covariances = _gaussians(family, natural)
        of_matrix = is_valid.reshape(-1, *([1] * (covariances.ndim - 1)))
        return cls(
            np.where(is_valid[:, None], means, np.nan_to_num(raw_means)),
            np.where(of_matrix, covariances, np.nan_to_num(raw_covariances)),
            np.where(is_valid, kappas, kappa),
            np.where(is_valid, dofs, dof),
        )


def _priors(ensemble: Ensemble, sites: Labels) -> Array | None:
    """Return the priors of some sites (n, P); None where one states none."""
    priors = [ensemble.posteriors[site].prior for site in sites.tolist()]
    return None if any(prior is None for prior in priors) else np.stack([p for p in priors if p is not None])


def _by_block(values: Array, n_blocks: int) -> Array:
    """Return rows (n, D) as blocks of dimensions with one variance each, (n, R, D / R)."""
    return values.reshape(len(values), n_blocks, -1)


def _gaussians(family: Family, natural: Array) -> tuple[Array, Array]:
    """Return plug-in means and covariances, or variances, of a family with a scatter form."""
    gaussians = family.plug_in(natural)
    assert gaussians is not None  # noqa: S101  (families with scatter forms describe Gaussians)
    return gaussians


def _conjugate_member(
    family: Family,
    natural: Array,
    form: tuple[Array, Array, Array, Array],
    weights: Array,
    priors: Array | None,
    holders: float,
) -> Array:
    """Return the average (P,) of posteriors in scatter form: moments by weights, counts by medians."""
    means, kappas, scatters, dofs = form
    dim, n_blocks = means.shape[1], scatters.shape[1]
    moments = DataMoments.of(family, natural, priors)
    mean_0, kappa_0, dof_0, scatter_0 = np.zeros(dim), 0.0, 0.0, np.zeros(scatters.shape[1:])
    if moments is None:  # the copies as they are, each with its prior
        moments = DataMoments(*_gaussians(family, natural), kappas, dofs)
        holders = 1.0
    elif priors is not None:
        with np.errstate(all="ignore"):
            prior_form = family.scatter_form(np.median(priors, axis=0)[None])
        assert prior_form is not None  # noqa: S101  (the family has such forms)
        mean_0, kappa_0, scatter_0, dof_0 = (np.nan_to_num(part)[0] for part in prior_form)
    mean = weights @ moments.means
    offsets = moments.means - mean
    kappa, dof = holders * float(np.median(moments.kappas)), holders * float(np.median(moments.dofs))
    total = kappa + kappa_0
    from_prior = mean - mean_0 if kappa_0 > 0 else np.zeros(dim)
    shrinkage = kappa_0 * kappa / total
    if scatters.ndim == 3:
        outer = np.einsum("n,ni,nj->ij", weights, offsets, offsets)
        scatter = dof * (np.einsum("n,nij->ij", weights, moments.covariances) + outer)
        scatter = scatter + shrinkage * np.outer(from_prior, from_prior)
    else:
        variances = weights @ (moments.covariances + offsets**2)
        scatter = dof * _by_block(variances[None], n_blocks)[0].mean(axis=1)
        scatter = scatter + shrinkage * _by_block(from_prior[None] ** 2, n_blocks)[0].sum(axis=1)
    posterior_mean = mean - (kappa_0 / total) * from_prior
    rows = family.from_scatter_form(
        posterior_mean[None], np.array([total]), (scatter + scatter_0)[None], np.array([dof + dof_0])
    )
    row: Array = rows[0]
    return row


MEDIAN_OF_ATTACHED = RobustEstimator("median", 0.2)
"""How arrays that are attached are averaged: by those near their medoid; the part to be trimmed is not used."""
