"""The step of one site: which groups its components go into, and what it takes to open new ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from consilience.checks import Array, Labels


@dataclass(frozen=True)
class Openings:
    """What it takes to open new groups.

    Parameters
    ----------
    max_groups
        Number of groups at most, 0 for none but those that are there; None sets no limit. There must be room for the
        components of a site.
    factorial
        Whether the k-th group that a site opens is worth log k less, as in Yurochkin et al. (2019). That counts the
        orders of new groups once more: the steps of different sites then belong to no common objective.
    """

    max_groups: int | None = None
    factorial: bool = False

    def best(self, gains: Array, opening: Array) -> Labels:
        """Return for each row its group 0 ... G - 1, all different, or G + its own number where it opens a new one.

        Maximises the sum of `gains` (k, G) and `opening` (k,) of what is chosen. Where the best choices do not collide
        and new groups are not short, they are the optimum.
        """
        n_rows, n_groups = gains.shape
        here = np.arange(n_rows)
        room = n_rows if self.max_groups is None else max(0, min(n_rows, self.max_groups - n_groups))
        if n_groups:
            best = gains.argmax(axis=1)
            opens = opening > gains[here, best]
            chosen = np.where(opens, n_groups + here, best)
        else:
            opens, chosen = np.ones(n_rows, dtype=np.bool_), n_groups + here
        count = np.count_nonzero(opens)
        if len(set(chosen.tolist())) == n_rows and count <= (min(room, 1) if self.factorial else room):
            return chosen
        new = np.repeat(opening[:, None], room, axis=1)
        if self.factorial:
            new -= np.log(np.arange(1, room + 1))
        columns: Labels = linear_sum_assignment(np.concatenate([gains, new], axis=1), maximize=True)[1]
        return np.where(columns < n_groups, columns, n_groups + here)

    def worth(self, gains: Array, opening: Array, chosen: Labels) -> float:
        """Return what a choice adds, as ``best`` counts it."""
        n_groups = gains.shape[1]
        opens = chosen >= n_groups
        kept = np.flatnonzero(~opens)
        total = float(gains[kept, chosen[kept]].sum() + opening[opens].sum())
        return total - float(gammaln(np.count_nonzero(opens) + 1.0)) if self.factorial else total


UNLIMITED = Openings()
"""As many new groups as pay."""

NO_NEW_GROUPS = Openings(max_groups=0)
"""None but those that are there."""
