"""Robust averages: what copies of one component are together when some of the sites may send anything.

Of n copies, one site one vote, the **medoid** is the copy within whose smallest radius more than half of the votes lie,
by the symmetric divergence KL(a || b) + KL(b || a). As long as fewer than half of the votes are hostile, that radius is
at most the largest divergence between two honest copies, whatever the others send. ``"trim"`` leaves out the given part
of the votes that is farthest from the medoid and averages the rest as ever, then does the same from that average until
the same copies are left, five times at most: one copy alone is a noisy centre. ``"median"`` takes those no farther from
the medoid than twice the distance (four times the divergence) that half of the votes keep, and of these the geometric
median,

    argmin_c sum_l w_l sqrt(KL(c || theta_l)),

by Weiszfeld's iteration: averages with weights w_l / sqrt(KL(c || theta_l)), of which none raises that sum.

Both are convex combinations of copies, so they stay in the family's domain; and since KL(m || .) is convex in natural
parameters, the divergence of an average from what its copies were judged by, m, is at most that of the farthest copy
kept, which is no farther than some honest one. That is the breakdown law that the tests state. A coordinate-wise median
would have neither property, and the geometric median of all copies not the second: sqrt(KL) is no metric, so one copy
of absurd precision would draw it away.
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

How = Literal["trim", "median"]
Apart = Callable[[Array, Array], Array]
"""Gives the divergences (n_a, n_b) between two sets of rows."""

MIN_VOTES = 3
"""Below three copies nothing tells which of them is right."""

_CANDIDATES = 64  # copies among which the medoid is sought: one honest one is enough for the bound
_TWICE_AS_FAR = 4.0
_ROUNDS = 5
_STEPS = 50
_TOLERANCE = 1e-9
_SAME = 1e-9  # divergences below are rounding


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

    how: How
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
        fewer_than_half = max(0, math.ceil(votes - 1e-9) - 1) // 2
        if self.how == "median":
            return fewer_than_half
        return min(math.ceil(self.trim * votes - 1e-9), fewer_than_half)

    def kept(self, apart: Apart, rows: Array, labels: Labels, votes: Array, n_groups: int) -> tuple[Array, Labels]:
        """Return which rows are kept (L,), 1 or 0, and the medoid of every group (G,), -1 for one without members.

        Parameters
        ----------
        apart
            Divergences between rows.
        rows
            What was sent (L, P).
        labels
            Group of each row (L,); -1 is in none.
        votes
            What each row counts (L,), see ``group_votes``.
        n_groups
            Number G of groups.
        """
        kept, medoids = (labels >= 0).astype(np.float64), np.full(n_groups, -1, dtype=np.int64)
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(n_groups + 1))
        for group in range(n_groups):
            members = order[ends[group] : ends[group + 1]]
            if members.size == 0:
                continue
            medoids[group] = members[0]
            if votes[members].sum() >= MIN_VOTES - 1e-9:
                own, medoid = self._of_group(apart, rows[members], votes[members])
                kept[members], medoids[group] = own, members[medoid]
        return kept, medoids

    def _of_group(self, apart: Apart, rows: Array, votes: Array) -> tuple[Array, int]:
        total = float(votes.sum())
        asked = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _CANDIDATES)).astype(np.int64))
        far = finite(apart, rows[asked], rows)
        order = np.argsort(far, axis=1, kind="stable")
        reached = np.cumsum(votes[order], axis=1)
        half = np.argmax(reached > total / 2.0 + 1e-9, axis=1)
        radius = far[np.arange(len(asked)), order[np.arange(len(asked)), half]]
        best = int(np.argmin(radius))
        if self.how == "median":
            return (far[best] <= _TWICE_AS_FAR * radius[best] + _SAME).astype(np.float64), int(asked[best])
        limit = total - self.tolerated(total)
        kept = np.zeros(len(rows))
        kept[order[best]] = (reached[best] - votes[order[best]]) < limit - 1e-9
        return kept, int(asked[best])

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
            Who is who, as for any average.
        average
            The method's own.
        direction
            Which divergence the geometric median takes: KL(centre || local) or the other way round.
        """
        votes = group_votes(ensemble, labels)
        kept, _ = self.kept(symmetric_divergence(ensemble.family), ensemble.natural, labels, votes, n_groups)
        weights = votes * ensemble.row_weights
        weighed = with_row_weights(ensemble, weights)
        centres = average(weighed, np.where(kept > 0, labels, -1), n_groups)
        if self.how == "median":
            return _weiszfeld(weighed, np.where(kept > 0, labels, -1), weights, centres, average, direction), kept
        for _ in range(_ROUNDS):
            nearest = self._nearest(ensemble, labels, votes, centres)
            if np.array_equal(nearest, kept):
                break
            kept = nearest
            centres = average(weighed, np.where(kept > 0, labels, -1), n_groups)
        return centres, kept

    def _nearest(self, ensemble: Ensemble, labels: Labels, votes: Array, centres: Array) -> Array:
        """Return which rows (L,) are left, 1 or 0, when in every group those farthest from its centre are left out."""
        held = np.flatnonzero(labels >= 0)
        own, family = labels[held], ensemble.family
        far = _by_pair(family, centres[own], ensemble.natural[held])
        order = np.lexsort((far, own))
        sums = np.cumsum(votes[held][order])
        totals = np.bincount(own, weights=votes[held], minlength=len(centres))
        before = sums - votes[held][order] - np.concatenate([[0.0], np.cumsum(totals)])[own[order]]
        limits = np.array([total - self.tolerated(total) for total in totals])
        kept = np.zeros(len(labels))
        kept[held[order]] = before < limits[own[order]] - 1e-9
        return kept


def group_votes(ensemble: Ensemble, labels: Labels) -> Array:
    """Return what each component counts in its group (L,): a site has one vote, however many it has there."""
    pairs = ensemble.owner * (int(labels.max(initial=0)) + 2) + labels
    _, place, count = np.unique(pairs, return_inverse=True, return_counts=True)
    votes: Array = np.where(labels >= 0, 1.0 / count[place], 0.0)
    return votes


def symmetric_divergence(family: Family) -> Apart:
    """Return KL(a || b) + KL(b || a) (n_a, n_b), which neither a too narrow nor a too wide copy keeps small."""
    return lambda a, b: family.kl(a, b) + family.kl(b, a).T


def squared_distance(a: Array, b: Array) -> Array:
    """Return squared Euclidean distances (n_a, n_b), by differences: nothing large is left to cancel."""
    distances: Array = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    return distances


def finite(apart: Apart, some: Array, others: Array) -> Array:
    """Return divergences in which what cannot be calculated, for rows of absurd size, is infinitely far."""
    with np.errstate(all="ignore"):
        try:
            far = apart(some, others)
        except np.linalg.LinAlgError:  # one row at fault spoils the factorisation of all
            far = np.full((len(some), len(others)), np.inf)
            for i in range(len(some)):
                for j in range(len(others)):
                    try:
                        far[i, j] = apart(some[i : i + 1], others[j : j + 1])[0, 0]
                    except np.linalg.LinAlgError:
                        continue
    return np.where(np.isnan(far), np.inf, far)


def _by_pair(family: Family, a: Array, b: Array) -> Array:
    """Return the symmetric divergence (n,) row by row; infinite where it cannot be calculated."""
    with np.errstate(all="ignore"):
        try:
            far = family.kl_pairs(a, b) + family.kl_pairs(b, a)
        except np.linalg.LinAlgError:
            divergence = symmetric_divergence(family)
            far = np.array([finite(divergence, a[i : i + 1], b[i : i + 1])[0, 0] for i in range(len(a))])
    return np.where(np.isnan(far), np.inf, far)


def with_row_weights(ensemble: Ensemble, weights: Array) -> Ensemble:
    """Return the same ensemble with a weight for every component (L,) in the place of its site's."""
    weighed = copy(ensemble)
    weighed.__dict__["row_weights"] = weights
    return weighed


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
    own = labels[rows]

    def divergences(at: Array) -> Array:
        pairs = (at[own], ensemble.natural[rows])
        first, second = pairs if direction == "forward" else pairs[::-1]
        return np.maximum(ensemble.family.kl_pairs(first, second), 0.0)

    far = divergences(centres)
    # A copy at the very centre would have infinite weight: distances are smoothed by a thousandth of the usual one.
    smooth = 1e-6 * np.bincount(own, weights=far, minlength=n_groups) / np.bincount(own, minlength=n_groups) + 1e-15
    best = np.bincount(own, weights=weights[rows] * np.sqrt(far + smooth[own]), minlength=n_groups)
    for _ in range(_STEPS):
        share = np.zeros(len(labels))
        share[rows] = weights[rows] / np.sqrt(far + smooth[own])
        # weights of mean 1 in every group, since averages take a group of little weight for an empty one
        mean = np.bincount(own, weights=share[rows], minlength=n_groups) / np.bincount(own, minlength=n_groups)
        share[rows] /= mean[own]
        moved = average(with_row_weights(ensemble, share), labels, n_groups)
        apart = divergences(moved)
        value = np.bincount(own, weights=weights[rows] * np.sqrt(apart + smooth[own]), minlength=n_groups)
        better = value < best
        centres = np.where(better[:, None], moved, centres)
        far = np.where(better[own], apart, far)
        gained = np.where(better, best - value, 0.0)
        best = np.minimum(best, value)
        if np.all(gained <= _TOLERANCE * best):
            break
    return centres
