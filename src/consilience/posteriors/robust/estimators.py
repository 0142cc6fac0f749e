"""Robust averages of matched components: medoid, trimmed mean and geometric median in Kullback-Leibler divergence.

Of n copies of a component, one site one vote, the **medoid** is the copy within whose smallest radius more than half of
the votes lie, by the symmetric divergence d(a, b) = KL(a || b) + KL(b || a). As long as fewer than half of the votes
are hostile, that radius is at most the largest divergence between two honest copies, whatever the others send.
``"trim"`` leaves out the given part of the votes that is farthest from the medoid and averages the rest as ever, then
does the same from that average until the same copies are left: one copy alone is a noisy centre. ``"median"`` takes
those no farther from the medoid than twice the distance (four times the divergence) that half of the votes keep, and of
these the geometric median,

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

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Direction, Family
from consilience.posteriors.ensemble import Ensemble

RobustRule = Literal["trim", "median"]
"""Robust averages by name, which trust the method's own matching more than ``robust=True`` does."""
Robust = RobustRule | bool | None
"""The option: True is the default for sites that are not trusted, None and False trust every site."""
Divergence = Callable[[Array, Array], Array]
"""Gives the divergences (n_a, n_b) between two sets of rows."""

MIN_VOTES = 3
"""Below three copies nothing tells which of them is right."""
MAX_MEDOID_CANDIDATES = 64
"""Copies among which the medoid is sought: one honest one is enough for the bound. Chosen by hand for its cost."""
OUTLIER_RADIUS_RATIO = 4.0
"""Divergence, in that of half of the votes, beyond which a copy is no inlier: twice the distance. Chosen by hand."""
MAX_TRIMMING_ROUNDS = 5
"""Trimming and averaging in turn: a bound against cycling; how often it is reached was not measured."""
MAX_WEISZFELD_STEPS = 50
"""Steps towards the geometric median: a bound, for they end where no group's sum falls any more."""
WEISZFELD_TOLERANCE = 1e-9
"""Relative fall of a group's sum that ends the steps. Chosen by hand."""
WEISZFELD_SMOOTHING = 1e-6
"""Part of the mean divergence that is added to each: a thousandth of the distance. Chosen by hand."""
DIVERGENCE_ROUNDING = 1e-9
"""Divergences below are rounding, so copies that are equal are inliers at radius 0."""
VOTE_ROUNDING = 1e-9
"""Votes are fractions 1 / m of a site's m copies in a group; sums of them are compared up to this."""


@dataclass(frozen=True)
class RobustEstimator:
    """How much of what sites send may be wrong, and what is done about it.

    Parameters
    ----------
    how
        ``"trim"`` or ``"median"``.
    trim
        Part of the votes that may be hostile, under ``"trim"``; under ``"median"`` it is anything below half.
    """

    how: RobustRule
    trim: float

    def tolerated(self, votes: float) -> int:
        """Return how many of so many votes may be hostile: at least the part to be trimmed, always fewer than half.

        Examples
        --------
        >>> [RobustEstimator("trim", 0.2).tolerated(n) for n in (2, 3, 5, 6, 10)]
        [0, 1, 1, 2, 2]
        >>> RobustEstimator("median", 0.2).tolerated(10)
        4
        """
        fewer_than_half = max(0, math.ceil(votes - VOTE_ROUNDING) - 1) // 2
        if self.how == "median":
            return fewer_than_half
        return min(math.ceil(self.trim * votes - VOTE_ROUNDING), fewer_than_half)

    def cap_factors(self, sizes: Array) -> Array:
        """Return the factors (J,) that cut sizes to the largest that is credible.

        Of what J sites state the largest sizes, as many as sites may be hostile, are not credible.

        Examples
        --------
        >>> RobustEstimator("trim", 0.25).cap_factors(np.array([1.0, 2.0, 8.0, 0.0]))
        array([1.  , 1.  , 0.25, 1.  ])
        """
        limit = np.sort(sizes)[len(sizes) - 1 - self.tolerated(len(sizes))]
        is_larger = sizes > limit
        factors: Array = np.where(is_larger, limit / np.where(is_larger, sizes, 1.0), 1.0)
        return factors

    def inliers(
        self, divergence: Divergence, rows: Array, labels: Labels, votes: Array, n_groups: int
    ) -> tuple[Array, Labels]:
        """Return which rows are inliers (L,), 1 or 0, and the medoid of every group (G,), -1 for one without members.

        Groups with fewer than ``MIN_VOTES`` votes keep all rows.

        Parameters
        ----------
        divergence : callable
            Gives the divergences (n_a, n_b) between two sets of rows.
        rows : Array of shape (L, P)
            What was sent.
        labels : Labels of shape (L,)
            Group of each row; -1 is in none.
        votes : Array of shape (L,)
            Vote of each row, see ``group_votes``.
        n_groups : int
            Number G of groups.
        """
        inliers, medoids = (labels >= 0).astype(np.float64), np.full(n_groups, -1, dtype=np.int64)
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(n_groups + 1))
        for group in range(n_groups):
            members = order[ends[group] : ends[group + 1]]
            if members.size == 0:
                continue
            medoids[group] = members[0]
            if votes[members].sum() >= MIN_VOTES - VOTE_ROUNDING:
                group_inliers, medoid = self._group_inliers(divergence, rows[members], votes[members])
                inliers[members], medoids[group] = group_inliers, members[medoid]
        return inliers, medoids

    def _group_inliers(self, divergence: Divergence, rows: Array, votes: Array) -> tuple[Array, int]:
        """Return which rows of one group are inliers (n,), 1 or 0, and which is the medoid."""
        total = float(votes.sum())
        candidates = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MAX_MEDOID_CANDIDATES)).astype(np.int64))
        divergences = finite_divergences(divergence, rows[candidates], rows)  # (candidates, n)
        order = np.argsort(divergences, axis=1, kind="stable")
        cumulative_votes = np.cumsum(votes[order], axis=1)  # (candidates, n): votes of the nearest rows
        # A candidate's radius is its divergence from the member at which half of the votes are passed.
        median_rank = np.argmax(cumulative_votes > total / 2.0 + VOTE_ROUNDING, axis=1)
        radius = divergences[np.arange(len(candidates)), order[np.arange(len(candidates)), median_rank]]
        # Of two nearest neighbours each has the other's radius: the nearer to all rows is taken, however rounded.
        reach = np.minimum(divergences, OUTLIER_RADIUS_RATIO * radius.min()) @ votes
        is_tied = radius <= radius.min() * (1.0 + DIVERGENCE_ROUNDING) + DIVERGENCE_ROUNDING
        medoid = int(np.argmin(np.where(is_tied, reach, np.inf)))
        if self.how == "median":
            is_inlier = divergences[medoid] <= OUTLIER_RADIUS_RATIO * radius[medoid] + DIVERGENCE_ROUNDING
            return is_inlier.astype(np.float64), int(candidates[medoid])
        # A row is in if the votes of the nearer ones do not yet make up all that may be trusted.
        limit = total - self.tolerated(total)
        inliers = np.zeros(len(rows))
        inliers[order[medoid]] = (cumulative_votes[medoid] - votes[order[medoid]]) < limit - VOTE_ROUNDING
        return inliers, int(candidates[medoid])

    def average(
        self,
        ensemble: Ensemble,
        labels: Labels,
        n_groups: int,
        average: Callable[[Ensemble, Labels, int], Array],
        direction: Direction,
    ) -> tuple[Array, Array]:
        """Return the robust averages (G, P) and which rows are in them (L,), 1 or 0.

        Parameters
        ----------
        ensemble, labels, n_groups
            The matching: stacked models, group of each row (L,), number G of groups.
        average : callable
            The method's own average of a matching, (G, P).
        direction : {"forward", "reverse"}
            Which divergence the geometric median takes: KL(centre || local) or the other way round.
        """
        votes = group_votes(ensemble, labels)
        inliers, _ = self.inliers(symmetric_divergence(ensemble.family), ensemble.natural, labels, votes, n_groups)
        weights = votes * ensemble.row_weights
        voting = with_row_weights(ensemble, weights)
        centres = average(voting, np.where(inliers > 0, labels, -1), n_groups)
        if self.how == "median":
            return _weiszfeld(voting, np.where(inliers > 0, labels, -1), weights, centres, average, direction), inliers
        for _ in range(MAX_TRIMMING_ROUNDS):
            trimmed = self._trim_farthest(ensemble, labels, votes, centres)
            if np.array_equal(trimmed, inliers):
                break
            inliers = trimmed
            centres = average(voting, np.where(inliers > 0, labels, -1), n_groups)
        return centres, inliers

    def _trim_farthest(self, ensemble: Ensemble, labels: Labels, votes: Array, centres: Array) -> Array:
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
        kept_votes = np.array([total - self.tolerated(total) for total in totals])
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


def squared_distance(a: Array, b: Array) -> Array:
    """Return squared Euclidean distances (n_a, n_b), by differences: nothing large is left to cancel."""
    distances: Array = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    return distances


def finite_divergences(divergence: Divergence, rows: Array, columns: Array) -> Array:
    """Return divergences (n_a, n_b), infinite where they cannot be calculated for rows of absurd size."""
    with np.errstate(all="ignore"):
        try:
            divergences = divergence(rows, columns)
        except np.linalg.LinAlgError:  # one row at fault spoils the factorisation of all
            divergences = np.full((len(rows), len(columns)), np.inf)
            for i in range(len(rows)):
                for j in range(len(columns)):
                    try:
                        divergences[i, j] = divergence(rows[i : i + 1], columns[j : j + 1])[0, 0]
                    except np.linalg.LinAlgError:
                        continue
    return np.where(np.isnan(divergences), np.inf, divergences)


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
