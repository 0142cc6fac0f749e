"""Robust averages of matched components: medoid, trimmed mean and geometric median in Kullback-Leibler divergence.

Copies are judged from their medoid (`core.robust_estimator`) by the symmetric divergence d(a, b) = KL(a || b) + KL(b ||
a). ``"trim"`` averages those that are left as ever, then trims again from that average until the same copies are left:
one copy alone is a noisy centre. ``"median"`` takes of the inliers the geometric median,

    argmin_c sum_l w_l sqrt(KL(c || theta_l)),

by Weiszfeld's iteration: averages with weights w_l / sqrt(KL(c || theta_l)); a step that would raise the sum is
rejected.

Both are convex combinations of copies, so they stay in the family's domain; and since KL(m || .) is convex in natural
parameters, the divergence of an average from what its copies were judged by, m, is at most that of the farthest copy
that is averaged, which is no farther than some honest one. That is the breakdown law that the tests state. A
coordinate-wise median would have neither property, and the geometric median of all copies not the second: sqrt(KL) is
no metric, so one copy of absurd precision would draw it away (docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.robust_estimator import VOTE_ROUNDING, Divergence, RobustEstimator, finite_divergences
from consilience.families import Direction, Family
from consilience.posteriors.ensemble import Ensemble

MAX_TRIMMING_ROUNDS = 5
"""Trimming and averaging in turn: a bound against cycling; how often it is reached was not measured."""
MAX_WEISZFELD_STEPS = 50
"""Steps towards the geometric median: a bound, for they end where no group's sum falls any more."""
WEISZFELD_TOLERANCE = 1e-9
"""Relative fall of a group's sum that ends the steps. Chosen by hand."""
WEISZFELD_SMOOTHING = 1e-6
"""Part of the mean divergence that is added to each: a thousandth of the distance. Chosen by hand."""


def robust_average(
    robust: RobustEstimator,
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    average: Callable[[Ensemble, Labels, int], Array],
    direction: Direction,
) -> tuple[Array, Array]:
    """Return the robust averages (G, P) and which rows are in them (L,), 1 or 0.

    Parameters
    ----------
    robust : RobustEstimator
        Which copies are left out.
    ensemble, labels, n_groups
        The matching: stacked models, group of each row (L,), number G of groups.
    average : callable
        The method's own average of a matching, (G, P).
    direction : {"forward", "reverse"}
        Which divergence the geometric median takes: KL(centre || local) or the other way round.
    """
    votes = group_votes(ensemble, labels)
    inliers, _ = robust.inliers(symmetric_divergence(ensemble.family), ensemble.natural, labels, votes, n_groups)
    weights = votes * ensemble.row_weights
    voting = with_row_weights(ensemble, weights)
    centres = average(voting, np.where(inliers > 0, labels, -1), n_groups)
    if robust.how == "median":
        return _weiszfeld(voting, np.where(inliers > 0, labels, -1), weights, centres, average, direction), inliers
    for _ in range(MAX_TRIMMING_ROUNDS):
        trimmed = _trim_farthest(robust, ensemble, labels, votes, centres)
        if np.array_equal(trimmed, inliers):
            break
        inliers = trimmed
        centres = average(voting, np.where(inliers > 0, labels, -1), n_groups)
    return centres, inliers


def _trim_farthest(robust: RobustEstimator, ensemble: Ensemble, labels: Labels, votes: Array, centres: Array) -> Array:
    """Return which rows (L,) are left, 1 or 0, when in every group those farthest from its centre are left out."""
    assigned = np.flatnonzero(labels >= 0)
    group_of_row, family = labels[assigned], ensemble.family
    divergences = _paired_divergences(family, centres[group_of_row], ensemble.natural[assigned])
    order = np.lexsort((divergences, group_of_row))  # by group, nearest first
    cumulative_votes = np.cumsum(votes[assigned][order])
    totals = np.bincount(group_of_row, weights=votes[assigned], minlength=len(centres))
    # Votes of the group's nearer rows: what all groups before have is taken off.
    votes_before = (
        cumulative_votes - votes[assigned][order] - np.concatenate([[0.0], np.cumsum(totals)])[group_of_row[order]]
    )
    kept_votes = np.array([total - robust.tolerated(total) for total in totals])
    inliers = np.zeros(len(labels))
    inliers[assigned[order]] = votes_before < kept_votes[group_of_row[order]] - VOTE_ROUNDING
    return inliers


def group_votes(ensemble: Ensemble, labels: Labels) -> Array:
    """Return the vote of each component in its group (L,): a site has one vote there, shared by its copies."""
    pairs = ensemble.owner * (int(labels.max(initial=0)) + 2) + labels
    _, pair_of_row, n_copies = np.unique(pairs, return_inverse=True, return_counts=True)
    votes: Array = np.where(labels >= 0, 1.0 / n_copies[pair_of_row], 0.0)
    return votes


def symmetric_divergence(family: Family) -> Divergence:
    """Return KL(a || b) + KL(b || a) (n_a, n_b), which neither a too narrow nor a too wide copy keeps small."""
    return lambda a, b: family.kl(a, b) + family.kl(b, a).T


def _paired_divergences(family: Family, a: Array, b: Array) -> Array:
    """Return the symmetric divergence (n,) row by row; infinite where it cannot be calculated."""
    with np.errstate(all="ignore"):
        try:
            divergences = family.kl_pairs(a, b) + family.kl_pairs(b, a)
        except np.linalg.LinAlgError:
            divergence = symmetric_divergence(family)
            divergences = np.array(
                [finite_divergences(divergence, a[i : i + 1], b[i : i + 1])[0, 0] for i in range(len(a))]
            )
    return np.where(np.isnan(divergences), np.inf, divergences)


def with_row_weights(ensemble: Ensemble, weights: Array) -> Ensemble:
    """Return the same ensemble with a weight for every component (L,) in the place of its site's."""
    weighted = copy(ensemble)
    weighted.__dict__["row_weights"] = weights
    return weighted


def _weiszfeld(
    ensemble: Ensemble,
    labels: Labels,
    weights: Array,
    centres: Array,
    average: Callable[[Ensemble, Labels, int], Array],
    direction: Direction,
) -> Array:
    """Return the geometric medians (G, P) of the rows with a label, from `centres`; a group that would rise stays."""
    rows, n_groups = np.flatnonzero(labels >= 0), len(centres)
    group_of_row = labels[rows]

    def divergences(points: Array) -> Array:
        pairs = (points[group_of_row], ensemble.natural[rows])
        first, second = pairs if direction == "forward" else pairs[::-1]
        return np.maximum(ensemble.family.kl_pairs(first, second), 0.0)

    current = divergences(centres)
    # Departure from Weiszfeld: a copy at the very centre would have infinite weight: distances are smoothed by a
    # thousandth of the usual one.
    smoothing = (
        WEISZFELD_SMOOTHING
        * np.bincount(group_of_row, weights=current, minlength=n_groups)
        / np.bincount(group_of_row, minlength=n_groups)
        + 1e-15
    )
    best = np.bincount(
        group_of_row, weights=weights[rows] * np.sqrt(current + smoothing[group_of_row]), minlength=n_groups
    )
    for _ in range(MAX_WEISZFELD_STEPS):
        row_weights = np.zeros(len(labels))
        row_weights[rows] = weights[rows] / np.sqrt(current + smoothing[group_of_row])
        # weights of mean 1 in every group, since averages take a group of little weight for an empty one
        mean_weight = np.bincount(group_of_row, weights=row_weights[rows], minlength=n_groups) / np.bincount(
            group_of_row, minlength=n_groups
        )
        row_weights[rows] /= mean_weight[group_of_row]
        proposal = average(with_row_weights(ensemble, row_weights), labels, n_groups)
        proposed = divergences(proposal)
        value = np.bincount(
            group_of_row, weights=weights[rows] * np.sqrt(proposed + smoothing[group_of_row]), minlength=n_groups
        )
        better = value < best
        centres = np.where(better[:, None], proposal, centres)
        current = np.where(better[group_of_row], proposed, current)
        gain = np.where(better, best - value, 0.0)
        best = np.minimum(best, value)
        if np.all(gain <= WEISZFELD_TOLERANCE * best):
            break
    return centres
