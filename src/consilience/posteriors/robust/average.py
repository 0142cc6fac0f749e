"""The fused posterior under hostile sites: components, counts, weights, priors and attached arrays, each robust.

Copies of a component are judged from their medoid (`core.robust_estimator`) by the symmetric Kullback-Leibler
divergence d(a, b) = KL(a || b) + KL(b || a). ``"trim"`` averages those that are left as ever, then trims again from
that average until the same copies are left: one copy alone is a noisy centre. ``"median"`` takes of the inliers the
geometric median (`core.robust`), argmin_c sum_l w_l sqrt(KL(c || theta_l)), from their average on.

Both are convex combinations of copies, so they stay in the family's domain; and since KL(m || .) is convex in natural
parameters, the divergence of an average from what its copies were judged by, m, is at most that of the farthest copy
that is averaged, which is no farther than some honest one. That is the breakdown law that the tests state. A
coordinate-wise median would have neither property, and the geometric median of all copies not the second: sqrt(KL) is
no metric, so one copy of absurd precision would draw it away (docs/adr/0017).

What is added up is bounded twice: first a site's total is cut to the largest total that remains when as many sites as
may be hostile are left out, then within each group of three or more a count to the largest that remains there. So no
count decides the mixture weights, however large; and a site that is honestly much larger than all others counts no more
than the next ones, which is the price. Priors and attached arrays are averaged over the sites that are nearest to their
medoid, entry by entry in what follows the matching, as whole arrays in what does not: a convex combination of
covariances is a covariance.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.robust import geometric_median
from consilience.core.robust_estimator import Divergence, RobustEstimator, squared_distance
from consilience.families import Direction, Family
from consilience.posteriors.average import MIN_PRECISION, AverageFunction, Inclusion, Value, likelihoods
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Attached

MAX_TRIMMING_ROUNDS = 5
"""Trimming and averaging in turn: a bound against cycling; how often it is reached was not measured."""


def robust_average(
    robust: RobustEstimator,
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    average: AverageFunction,
    direction: Direction,
) -> tuple[Array, Array]:
    """Return the robust averages (G, P) of a matching and which rows are in them (L,), 1 or 0.

    `average` is the method's own average, and `direction` says which divergence the geometric median takes: KL(centre
    || local) or the other way round.
    """
    votes, divergence = group_votes(ensemble, labels), symmetric_divergence(ensemble.family)
    inliers, _ = robust.inliers(divergence, ensemble.natural, labels, votes, n_groups)
    voting = with_row_weights(ensemble, votes * ensemble.row_weights)
    if robust.how == "median":
        return _geometric_medians(voting, np.where(inliers > 0, labels, -1), n_groups, average, direction), inliers
    centres = average(voting, np.where(inliers > 0, labels, -1), n_groups)
    for _ in range(MAX_TRIMMING_ROUNDS):
        trimmed, _ = robust.inliers(divergence, ensemble.natural, labels, votes, n_groups, centres)
        if np.array_equal(trimmed, inliers):
            break
        inliers = trimmed
        centres = average(voting, np.where(inliers > 0, labels, -1), n_groups)
    return centres, inliers


def group_votes(ensemble: Ensemble, labels: Labels) -> Array:
    """Return the vote of each component in its group (L,): a site has one vote there, shared by its copies."""
    pairs = ensemble.owner * (int(labels.max(initial=0)) + 2) + labels
    _, pair_of_row, n_copies = np.unique(pairs, return_inverse=True, return_counts=True)
    votes: Array = np.where(labels >= 0, 1.0 / n_copies[pair_of_row], 0.0)
    return votes


def symmetric_divergence(family: Family) -> Divergence:
    """Return KL(a || b) + KL(b || a) (n_a, n_b), which neither a too narrow nor a too wide copy keeps small."""
    return lambda a, b: family.kl(a, b) + family.kl(b, a).T


def with_row_weights(ensemble: Ensemble, weights: Array) -> Ensemble:
    """Return the same ensemble with a weight for every component (L,) in the place of its site's."""
    weighted = copy(ensemble)
    weighted.__dict__["row_weights"] = weights
    return weighted


def _geometric_medians(
    ensemble: Ensemble, labels: Labels, n_groups: int, average: AverageFunction, direction: Direction
) -> Array:
    """Return the geometric medians (G, P) of the rows with a label, by the weights of the ensemble's rows."""
    order = np.argsort(labels, kind="stable")
    rows = order[labels[order] >= 0]
    group = labels[rows]
    sizes = np.bincount(group, minlength=n_groups)
    place = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[group]  # of each row in its group
    votes = np.zeros((sizes.max(initial=0), n_groups))
    votes[place, group] = ensemble.row_weights[rows]

    def centres(weights: Array) -> Array:
        row_weights = np.zeros(len(labels))
        # of mean 1 in every group, since averages take a group of little weight for an empty one
        row_weights[rows] = (weights * sizes)[place, group]
        return average(with_row_weights(ensemble, row_weights), labels, n_groups)

    def divergences(weights: Array) -> Array:
        pairs = (centres(weights)[group], ensemble.natural[rows])
        values = np.zeros_like(votes)
        values[place, group] = ensemble.family.kl_pairs(*(pairs if direction == "forward" else pairs[::-1]))
        return values

    return centres(geometric_median(divergences, votes)[0])


@dataclass(frozen=True)
class RobustInclusion(Inclusion):
    """The copies near to where most are, and no more of any total than other sites make credible."""

    estimator: RobustEstimator  # the rule, and how many sites may be hostile
    direction: Direction  # divergence that the geometric median takes: KL(fused || local) or KL(local || fused)

    def site_shares(self, priors: Array, site_weights: Array) -> Array:
        """Return equal shares by weight of the priors that are inliers, 0 of the others."""
        groups = np.zeros(len(priors), dtype=np.int64)
        inliers, _ = self.estimator.inliers(squared_distance, priors, groups, np.ones(len(priors)), 1)
        shares: Array = inliers * site_weights
        return shares / shares.sum() if shares.sum() > 0 else inliers / inliers.sum()

    def averages(self, ensemble: Ensemble, labels: Labels, n_groups: int, average: AverageFunction) -> Array:
        """Return the robust averages."""
        return robust_average(self.estimator, ensemble, labels, n_groups, average, self.direction)[0]

    def likelihood_sums(self, ensemble: Ensemble, labels: Labels, n_groups: int, average: AverageFunction) -> Array:
        """Return the sums over the inliers, as if the copies left out had said what the others say."""
        inliers = robust_average(self.estimator, ensemble, labels, n_groups, average, self.direction)[1]
        assigned = labels >= 0
        weights = group_votes(ensemble, labels) * ensemble.row_weights  # (L,)
        all_weight = np.bincount(labels[assigned], weights=ensemble.row_weights[assigned], minlength=n_groups)
        inlier_weight = np.bincount(labels[assigned], weights=(weights * inliers)[assigned], minlength=n_groups)
        sums = np.zeros((n_groups, ensemble.natural.shape[1]))
        np.add.at(sums, labels[assigned], (likelihoods(ensemble) * (weights * inliers)[:, None])[assigned])
        # Inliers stand for all members: their likelihoods are scaled up to the weight of everyone in the group.
        scaled: Array = sums * (all_weight / inlier_weight)[:, None]
        return scaled

    def credible_counts(self, counts: Array, ensemble: Ensemble) -> Array:
        """Return the counts with sites cut before groups: one site could else be largest in every group."""
        totals = np.add.reduceat(np.abs(counts), ensemble.offsets[:-1])  # (J,)
        return counts * self.estimator.cap_factors(totals)[ensemble.owner]

    def totals(self, values: Array, ensemble: Ensemble, labels: Labels, n_groups: int) -> Array:
        """Return the sums of values that are cut to what remains credible in their group."""
        return super().totals(_capped(values, labels, n_groups, self.estimator), ensemble, labels, n_groups)

    def attached(self, arrays: Sequence[Attached], ensemble: Ensemble, labels: Labels, n_groups: int) -> Attached:
        """Return the robust average of an attached array."""
        return _average_attached(arrays, ensemble, labels, n_groups, self.estimator)

    def agreed(self, values: Sequence[Value]) -> Value:
        """Return what most sites say: what only says what the model is cannot be averaged."""
        texts = [_text(value) for value in values]
        return values[texts.index(Counter(texts).most_common(1)[0][0])]


def _text(value: Any) -> str:
    """Return the JSON text of features or of a source, to compare them by."""
    fields = value.to_json() if hasattr(value, "to_json") else dict(value)
    return json.dumps(fields, sort_keys=True, default=str)


def _capped(values: Array, labels: Labels, n_groups: int, robust: RobustEstimator) -> Array:
    """Return values (L,) cut to the largest that remains of their group when the tolerated number is set aside."""
    order = np.lexsort((values, labels))
    ends = np.searchsorted(labels[order], np.arange(n_groups + 1))
    limits = np.full(n_groups + 1, np.inf)  # the last is for rows that are in no group
    for group in range(n_groups):
        size = int(ends[group + 1] - ends[group])
        if size:
            limits[group] = values[order[ends[group + 1] - 1 - robust.tolerated(size)]]
    return np.minimum(values, limits[labels])


def _cells_of(labels: Labels, n_groups: int, n_axes: int) -> Labels:
    """Return the row-major index (n^a,) of the cell of every tuple of a components with these labels (n,)."""
    cells = np.zeros(1, dtype=np.int64)
    for _ in range(n_axes):
        cells = (cells[:, None] * n_groups + labels).ravel()
    return cells


def _total_factors(entries: Array, site_of_row: Labels, robust: RobustEstimator) -> Array:
    """Return the factors of rows (n,) that cut what sites sum to, to the most that those that take part are believed.

    Where half are left out, the zeros of these would be the most that is credible.
    """
    _, position = np.unique(site_of_row, return_inverse=True)
    totals = np.bincount(position, np.abs(entries).sum(axis=1)).astype(np.float64, copy=False)
    factors: Array = robust.cap_factors(totals)[position]
    return factors


def _average_attached(
    arrays: Sequence[Attached], ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator
) -> Attached:
    """Return one attached array: a robust average in every cell, of blocks of the fixed axes.

    A cell is a tuple of groups, one for each component axis: G^a cells for a axes. Its rows are the blocks of all sites
    that have an entry there, with the fixed axes flattened.
    """
    first = arrays[0]
    component_axes = [axis for axis, tag in enumerate(first.axes) if tag == "component"]
    fixed_axes = [axis for axis, tag in enumerate(first.axes) if tag != "component"]
    fixed_shape = tuple(first.values.shape[axis] for axis in fixed_axes)
    block_size = math.prod(fixed_shape)
    order = component_axes + fixed_axes
    blocks, precisions, cells, site_rows = [], [], [], []
    for site, attached in enumerate(arrays):
        site_labels = labels[ensemble.offsets[site] : ensemble.offsets[site + 1]]
        assigned = np.flatnonzero(site_labels >= 0)
        entries_of_site = attached.take(assigned)
        site_cells = _cells_of(site_labels[assigned], n_groups, len(component_axes))
        shape = (len(site_cells), block_size)
        blocks.append(np.transpose(entries_of_site.values, order).reshape(shape))
        if entries_of_site.precision is not None:
            precisions.append(np.transpose(entries_of_site.precision, order).reshape(shape))
        cells.append(site_cells)
        site_rows.append(np.full(len(site_cells), site))
    entries, cell_of_row, site_of_row = np.concatenate(blocks), np.concatenate(cells), np.concatenate(site_rows)
    n_cells = n_groups ** len(component_axes)
    if first.rule == "sum":
        entries = entries * _total_factors(entries, site_of_row, robust)[:, None]
    weights = ensemble.site_weights[site_of_row]
    if first.rule == "precision-mean":  # every number has a weight of its own, so every number is a place of its own
        cell_of_row = (cell_of_row[:, None] * block_size + np.arange(block_size)).ravel()
        entries, weights = entries.reshape(-1, 1), np.repeat(weights, block_size)
        weights = weights * _capped(np.concatenate(precisions).ravel(), cell_of_row, n_cells * block_size, robust)
        n_cells, block_size = n_cells * block_size, 1
    inliers, medoids = robust.inliers(squared_distance, entries, cell_of_row, np.ones(len(cell_of_row)), n_cells)
    if first.rule == "keep":
        result = np.where((medoids >= 0)[:, None], entries[medoids], 0.0)
    else:
        sums, mass = np.zeros((n_cells, block_size)), np.bincount(cell_of_row, weights * inliers, n_cells)
        np.add.at(sums, cell_of_row, entries * (weights * inliers)[:, None])
        result = sums / np.where(mass > 0, mass, 1.0)[:, None]
    total = np.bincount(cell_of_row, weights, n_cells)
    if first.rule == "sum":
        result = result * total[:, None]
    inverse_axes = sorted(range(len(first.axes)), key=order.__getitem__)

    def shaped(values: Array) -> Array:
        return np.transpose(values.reshape((n_groups,) * len(component_axes) + fixed_shape), inverse_axes)

    precision = shaped(np.maximum(total, MIN_PRECISION)) if first.rule == "precision-mean" else None
    return Attached(shaped(result), first.axes, first.rule, precision)
