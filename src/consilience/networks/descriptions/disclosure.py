"""What of a site's statistics may leave it, and the least observations that each statistic needs.

``min_count`` alone decides what is withheld: a class with fewer observations is named, but its count is not said, and
it is left out of the number of all. The other numbers are statistical: a covariance of few rows has the rows themselves
as its leading directions, so a direction stands for ten observations at least.

Differences must not tell what is withheld. With the moments of all classes but one, the moments of all observations
would give those of that one, so observations whose class is not described are left out of all other statistics too,
unless there are enough of them for a description of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from consilience.checks import Labels
from consilience.drawing.words import first_names

MIN_OBSERVATIONS = 100
"""Observations behind the range of all inputs and statistics of channels and layers, at least. Chosen by hand."""

MIN_CLASS_OBSERVATIONS = 20
"""Observations behind the moments and features of a class, at least: two directions of ten each. Moments of all inputs
are over as many: they betray no more than those of a class, and 20 regressions over sites of 23 to 123 rows explain 65
percent of the variance by them, 47 without (``experiments/network_battery/small_sites.py``)."""

OBSERVATIONS_PER_DIRECTION = 10
"""Observations behind each direction of a covariance, at least. Twenty directions of twenty images span the images."""

MAX_RANK = 64
"""Directions of the covariance of all inputs, at most. Two networks agree on as many inputs drawn from 16, from 64 and
from all directions: on half of them, and on 77 % of real ones (clothes of 14 x 14 pixels)."""

MAX_CLASS_RANK = 20
"""Directions of the covariance of a class, at most."""

MIN_TOKENS = 1000
"""Tokens behind counts of tokens, at least."""

MIN_TOKEN_COUNT = 10
"""Occurrences of a token, or a pair of them, at least; rarer ones are pooled."""

MAX_NAMED = 8
"""Classes that a line names; more are counted. Chosen by hand for short lines."""


def allowed_rank(n: float, most: int) -> int:
    """Return how many directions of a covariance of n observations may leave."""
    return min(most, int(n) // OBSERVATIONS_PER_DIRECTION)


def least_class_observations(min_count: float) -> float:
    """Return how many observations a class must have for statistics of its own."""
    return max(MIN_CLASS_OBSERVATIONS, min_count)


@dataclass
class Leaving:
    """What may leave of statistics by class, once all observations were counted.

    Groups of observations are the classes, and at the end those without one.
    """

    counts: Labels  # (C + 1,): observations of every group
    are_labelled: bool  # whether groups are classes
    min_count: float  # statistics of fewer observations stay at the site
    left_out: list[str] = field(default_factory=list)  # what does not leave, a line each: statistics add to it

    @property
    def by_class(self) -> Labels:
        """Observations of every class (C,)."""
        return self.counts[:-1]

    @cached_property
    def withheld(self) -> Labels:
        """Classes of which only the names leave."""
        return np.flatnonzero((self.by_class > 0) & (self.by_class < self.min_count))

    @cached_property
    def undescribed(self) -> Labels:
        """Classes of which no statistics leave."""
        return np.setdiff1d(np.flatnonzero(self.by_class), self.described)

    @property
    def described(self) -> Labels:
        """Classes with enough observations for statistics of their own."""
        return np.flatnonzero(self.by_class >= least_class_observations(self.min_count))

    @cached_property
    def said(self) -> Labels:
        """Groups that statistics of all are of: those not withheld, or those whose classes are described."""
        rest = np.setdiff1d(self.undescribed, self.withheld)
        n_rest = int(self.by_class[rest].sum()) + int(self.counts[-1])  # whose class is not described
        if self.are_labelled and self.min_count > 0 and 0 < n_rest < least_class_observations(self.min_count):
            return np.setdiff1d(np.flatnonzero(self.by_class), self.undescribed)
        return np.setdiff1d(np.arange(len(self.counts)), self.withheld)

    @property
    def n_said(self) -> int:
        """Observations of these groups."""
        return int(self.counts[self.said].sum())

    @property
    def is_all(self) -> bool:
        """Whether every observation is of these groups: sums that do not tell classes apart leave whole, or not."""
        return len(np.setdiff1d(np.flatnonzero(self.counts), self.said)) == 0

    @property
    def is_described(self) -> bool:
        """Whether there are enough observations for moments of all inputs."""
        return self.n_said >= least_class_observations(self.min_count)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough observations for statistics of channels and layers."""
        return self.n_said >= MIN_OBSERVATIONS


def named(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return first_names(names, MAX_NAMED)
