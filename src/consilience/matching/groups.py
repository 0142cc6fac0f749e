"""Sums over the groups of a matching: sufficient statistics t_g = sum_{l in g} w_l x_l and mass m_g = sum_{l in g} w_l.

They are all that an average needs, and additive over shards of sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from consilience.checks import Array, Labels
from consilience.families.chunks import LazyRows, row_chunks

MIN_MASS = 1e-12
"""Mass below which a group counts as empty: no division by rounding."""


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Sufficient statistics of a matching, additive over shards of sites."""

    sums: Array  # weighted sums of parameters over each group (G, P)
    mass: Array  # sum of weights of each group (G,)

    def __add__(self, other: GroupSums) -> GroupSums:
        return GroupSums(self.sums + other.sums, self.mass + other.mass)

    def means(self, fallback: Array | None = None) -> Array:
        """Return the mean of every group (G, P); empty groups take `fallback`."""
        empty = self.mass < MIN_MASS
        means: Array = self.sums / np.where(empty, 1.0, self.mass)[:, None]
        if fallback is not None:
            means[empty] = fallback[empty]
        return means


def group_sums(parameters: Array, labels: Labels, weights: Array, n_groups: int) -> GroupSums:
    """Return weighted sums of rows (L, P) over `n_groups` groups of a matching; rows labelled -1 are left out."""
    if isinstance(parameters, LazyRows):
        return _sums_in_chunks(parameters, labels, weights, n_groups)
    membership = membership_matrix(labels, weights, n_groups)
    mass = np.bincount(labels[membership.indices], weights=membership.data, minlength=n_groups)
    return GroupSums(np.asarray(membership @ parameters), mass.astype(np.float64, copy=False))  # of no rows: integers


def _sums_in_chunks(parameters: LazyRows, labels: Labels, weights: Array, n_groups: int) -> GroupSums:
    """Return ``group_sums``, one chunk of rows after another, in the same bytes."""
    sums = np.zeros((n_groups, parameters.shape[1]))
    for rows in row_chunks(*parameters.shape):
        sums = carried_sums(sums, weights[rows, None] * parameters[rows], labels[rows])
    is_in = labels >= 0
    mass = np.bincount(labels[is_in], weights=weights[is_in], minlength=n_groups)
    return GroupSums(sums, mass.astype(np.float64, copy=False))


def membership_matrix(labels: Labels, weights: Array, n_groups: int) -> csr_array:
    """Return the sparse matrix of weights (G, L) whose product with parameters (L, P) are sums over groups."""
    # Rows are made here: SciPy takes five times as long for a small matrix from coordinates.
    assigned = np.flatnonzero(labels >= 0)
    columns = assigned[np.argsort(labels[assigned], kind="stable")]
    row_starts = np.zeros(n_groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(labels[assigned], minlength=n_groups), out=row_starts[1:])
    return csr_array((weights[columns], columns, row_starts), shape=(n_groups, len(labels)))


def carried_sums(sums: Array, parameters: Array, labels: Labels) -> Array:
    """Return sums over groups (G, P) with those of more rows (n, P) added, in the bytes of one sum over all in order.

    Rows labelled -1 are left out.
    """
    n_groups = len(sums)
    with_sums = np.concatenate([np.arange(n_groups), labels])  # the sum so far is the first member of its group
    membership = membership_matrix(with_sums, np.ones(len(with_sums)), n_groups)
    return np.asarray(membership @ np.concatenate([sums, parameters]))


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
    is_assigned = labels >= 0
    result = labels.copy()
    result[is_assigned] = np.unique(labels[is_assigned], return_inverse=True)[1]
    return result
