"""Robust averages of copies, one site one vote: what may be hostile, and which copies lie where most are.

Of n copies the **medoid** is the copy within whose smallest radius more than half of the votes lie. As long as fewer
than half of the votes are hostile, that radius is at most the largest divergence between two honest copies, whatever
the others send. ``"trim"`` leaves out the given part of the votes that is farthest from the medoid, ``"median"`` those
farther than twice the distance (four times the divergence) that half of the votes keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.core.robust import MIN_VOTES, cap_factors, evenly_spaced, tolerated

RobustRule = Literal["trim", "median"]
"""Robust averages by name, which trust the method's own matching more than ``robust=True`` does."""
Robust = RobustRule | bool | None
"""The option: True is the default for sites that are not trusted, None and False trust every site."""
Divergence = Callable[[Array, Array], Array]
"""Gives the divergences (n_a, n_b) between two sets of rows."""

MAX_MEDOID_CANDIDATES = 64
"""Copies among which the medoid is sought: one honest one is enough for the bound. Chosen by hand for its cost."""
OUTLIER_RADIUS_RATIO = 4.0
"""Divergence, in that of half of the votes, beyond which a copy is no inlier: twice the distance. Chosen by hand."""
DIVERGENCE_ROUNDING = 1e-9
"""Divergences below are rounding, so copies that are equal are inliers at radius 0."""
VOTE_ROUNDING = 1e-9
"""Votes are fractions 1 / m of a site's m copies in a group; sums of them are compared up to this."""


@dataclass(frozen=True)
class RobustEstimator:
    """How much of what sites send may be wrong, and what is done about it."""

    how: RobustRule  # ``"trim"`` or ``"median"``
    trim: float  # part of the votes that may be hostile, under ``"trim"``; under ``"median"`` it is anything below half

    def tolerated(self, votes: float) -> int:
        """Return how many of so many votes may be hostile: at least the part to be trimmed, always fewer than half.

        Examples
        --------
        >>> [RobustEstimator("trim", 0.2).tolerated(n) for n in (2, 3, 5, 6, 10)]
        [0, 1, 1, 2, 2]
        >>> RobustEstimator("median", 0.2).tolerated(10)
        4
        """
        fewer_than_half = tolerated(math.ceil(votes - VOTE_ROUNDING))
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
        return cap_factors(sizes, float(np.sort(sizes)[len(sizes) - 1 - self.tolerated(len(sizes))]))

    def inliers(
        self,
        divergence: Divergence,
        rows: Array,
        labels: Labels,
        votes: Array,
        n_groups: int,
        centres: Array | None = None,
    ) -> tuple[Array, Labels]:
        """Return which rows are inliers (L,), 1 or 0, and the medoid of every group (G,), -1 for one without members.

        Groups with fewer than ``MIN_VOTES`` votes keep all rows. The divergence returns (n_a, n_b) between two sets of
        rows; labels (L,) are -1 for no group, and rows are trimmed from `centres` (G, P), by default the medoids.
        """
        inliers, medoids = (labels >= 0).astype(np.float64), np.full(n_groups, -1, dtype=np.int64)
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(n_groups + 1))
        for group in range(n_groups):
            members = order[ends[group] : ends[group + 1]]
            if members.size == 0:
                continue
            medoids[group] = members[0]
            if votes[members].sum() < MIN_VOTES - VOTE_ROUNDING:
                continue
            if centres is None:
                medoid, divergences, radius = _medoid(divergence, rows[members], votes[members])
                medoids[group] = members[medoid]
            else:
                divergences = finite_divergences(divergence, centres[group : group + 1], rows[members])[0]
            if self.how == "median" and centres is None:
                inliers[members] = divergences <= OUTLIER_RADIUS_RATIO * radius + DIVERGENCE_ROUNDING
            else:
                inliers[members] = self.nearest(divergences, votes[members])
        return inliers, medoids

    def nearest(self, distances: Array, votes: Array) -> NDArray[np.bool_]:
        """Return which points (n,) are left when the farthest go whose votes may be hostile.

        Examples
        --------
        >>> RobustEstimator("trim", 0.25).nearest(np.array([1.0, 0.2, 9.0, 0.9]), np.ones(4))
        array([ True,  True, False,  True])
        """
        order = np.argsort(distances, kind="stable")
        total, nearer = float(votes.sum()), np.cumsum(votes[order]) - votes[order]
        is_left = np.zeros(len(votes), dtype=np.bool_)
        # A point is in if the votes of the nearer ones do not yet make up all that may be trusted.
        is_left[order] = nearer < total - self.tolerated(total) - VOTE_ROUNDING
        return is_left


def _medoid(divergence: Divergence, rows: Array, votes: Array) -> tuple[int, Array, float]:
    """Return the medoid of one group, the divergences of all rows (n,) from it, and the radius of half of the votes."""
    candidates = evenly_spaced(len(rows), MAX_MEDOID_CANDIDATES)
    divergences = finite_divergences(divergence, rows[candidates], rows)  # (candidates, n)
    order = np.argsort(divergences, axis=1, kind="stable")
    cumulative_votes = np.cumsum(votes[order], axis=1)  # (candidates, n): votes of the nearest rows
    # A candidate's radius is its divergence from the member at which half of the votes are passed.
    median_rank = np.argmax(cumulative_votes > float(votes.sum()) / 2.0 + VOTE_ROUNDING, axis=1)
    radius = divergences[np.arange(len(candidates)), order[np.arange(len(candidates)), median_rank]]
    # Of two nearest neighbours each has the other's radius: the nearer to all rows is taken, however rounded.
    reach = np.minimum(divergences, OUTLIER_RADIUS_RATIO * radius.min()) @ votes
    is_tied = radius <= radius.min() * (1.0 + DIVERGENCE_ROUNDING) + DIVERGENCE_ROUNDING
    medoid = int(np.argmin(np.where(is_tied, reach, np.inf)))
    return int(candidates[medoid]), divergences[medoid], float(radius[medoid])


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
