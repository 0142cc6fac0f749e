"""SPAHM with the price of new atoms in Yurochkin et al. (2019): the k-th that a site opens costs log k more.

That counts the orders of new atoms once more than the likelihood of a site's points does: the steps of different sites
then belong to no common objective, and the posterior may fall (docs/adr/0009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

import consilience as cs
from consilience.checks import Array, Labels
from consilience.matching.assignment import Openings


@dataclass(frozen=True)
class FactorialOpenings(Openings):
    """New groups of which the k-th that a site opens is worth log k less."""

    def assign(self, gains: Array, opening: Array) -> Labels:
        """Return for each row its group 0 ... G - 1, all different, or G + its own number where it opens a new one."""
        n_rows, n_groups = gains.shape
        max_new = n_rows if self.max_groups is None else max(0, min(n_rows, self.max_groups - n_groups))
        new_gains = np.repeat(opening[:, None], max_new, axis=1) - np.log(np.arange(1, max_new + 1))
        columns: Labels = linear_sum_assignment(np.concatenate([gains, new_gains], axis=1), maximize=True)[1]
        return np.where(columns < n_groups, columns, n_groups + np.arange(n_rows))

    def assigned_gain(self, gains: Array, opening: Array, chosen: Labels) -> float:
        """Return what a choice adds, as ``assign`` counts it."""
        n_new = np.count_nonzero(chosen >= gains.shape[1])
        return super().assigned_gain(gains, opening, chosen) - float(gammaln(n_new + 1.0))


@dataclass(frozen=True)
class PublishedSPAHM(cs.methods.SPAHM):
    """SPAHM, with the price of new atoms as published where `factorial` is on."""

    factorial: bool = False

    @property
    def openings(self) -> Openings:
        """Which new groups a site may open, and at what price."""
        return FactorialOpenings(self.max_components) if self.factorial else super().openings
