"""The assignment step of one site, with new groups: max over distinct choices of the sum of gains.

Row l takes one of G groups, which gains B_lg, or opens a new one, which is worth o_l: one rectangular assignment of
(k, G + new) gains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels


@dataclass(frozen=True)
class Openings:
    """Which new groups a site may open.

    Parameters
    ----------
    max_groups : int, optional
        Number of groups at most, 0 for none but those that are there. There must be room for the components of a site.
        Default: no limit.
    """

    max_groups: int | None = None

    def assign(self, gains: Array, opening: Array) -> Labels:
        """Return for each row its group 0 ... G - 1, all different, or G + its own number where it opens a new one.

        Maximises the sum of `gains` (k, G) and `opening` (k,) of what is chosen. Where the best choices do not collide
        and new groups are not short, they are the optimum.
        """
        n_rows, n_groups = gains.shape
        row_range = np.arange(n_rows)
        max_new = n_rows if self.max_groups is None else max(0, min(n_rows, self.max_groups - n_groups))
        if n_groups:
            best_groups = gains.argmax(axis=1)
            is_new = opening > gains[row_range, best_groups]
            chosen = np.where(is_new, n_groups + row_range, best_groups)
        else:
            is_new, chosen = np.ones(n_rows, dtype=np.bool_), n_groups + row_range
        n_new = np.count_nonzero(is_new)
        if len(set(chosen.tolist())) == n_rows and n_new <= max_new:
            return chosen
        new_gains = np.repeat(opening[:, None], max_new, axis=1)
        columns: Labels = linear_sum_assignment(np.concatenate([gains, new_gains], axis=1), maximize=True)[1]
        return np.where(columns < n_groups, columns, n_groups + row_range)

    def assigned_gain(self, gains: Array, opening: Array, chosen: Labels) -> float:
        """Return what a choice adds, as ``assign`` counts it."""
        n_groups = gains.shape[1]
        is_new = chosen >= n_groups
        matched_rows = np.flatnonzero(~is_new)
        return float(gains[matched_rows, chosen[matched_rows]].sum() + opening[is_new].sum())


UNLIMITED = Openings()
"""As many new groups as pay."""

NO_NEW_GROUPS = Openings(max_groups=0)
"""None but those that are there."""
