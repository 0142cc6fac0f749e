"""Sums over the groups of a matching: the sufficient statistics that travel, additive over shards of sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from consilience.checks import Array, Labels


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Sufficient statistics of a matching, additive over shards of sites.

    Parameters
    ----------
    sums
        Weighted sums of parameters over each group (G, P).
    mass
        Sum of weights of each group (G,).
    """

    sums: Array
    mass: Array

    def __add__(self, other: GroupSums) -> GroupSums:
        return GroupSums(self.sums + other.sums, self.mass + other.mass)

    def means(self, fallback: Array | None = None) -> Array:
        """Return the mean of every group (G, P); empty groups take `fallback`."""
        empty = self.mass < 1e-12
        means: Array = self.sums / np.where(empty, 1.0, self.mass)[:, None]
        if fallback is not None:
            means[empty] = fallback[empty]
        return means


def group_sums(parameters: Array, labels: Labels, weights: Array, n_groups: int) -> GroupSums:
    """Return the statistics of rows with integer labels; rows labelled -1 are left out."""
    kept = np.flatnonzero(labels >= 0)
    member = csr_array((weights[kept], (labels[kept], kept)), shape=(n_groups, len(labels)))
    return GroupSums(np.asarray(member @ parameters), np.asarray(member.sum(axis=1)).ravel())


def plan_sums(parameters: Array, plan: Array, weights: Array) -> GroupSums:
    """Return the statistics of rows with a soft plan (L, G)."""
    weighted = plan * weights[:, None]
    return GroupSums(weighted.T @ parameters, weighted.sum(axis=0))


def consecutive(labels: Labels) -> Labels:
    """Return labels with the same groups, numbered from 0 without gaps; -1 stays.

    Examples
    --------
    >>> consecutive(np.array([7, -1, 2, 7]))
    array([ 1, -1,  0,  1])
    """
    kept = labels >= 0
    result = labels.copy()
    result[kept] = np.unique(labels[kept], return_inverse=True)[1]
    return result
