"""Averages of attached arrays: summed at the groups of a matching, then normalised as each array's rule says.

An attached array of site j, such as transition counts (L_j, L_j), is put where its components were matched: entry
(l, m) goes to (labels[l], labels[m]). Sums are additive over sites and shards; ``sum`` returns them, ``mean`` and
``precision-mean`` divide by the summed weights, ``keep`` takes the entry of the first site that has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.posteriors.posterior import Attached, AxisTag, Rule

MIN_PRECISION = 1e-300
"""Precision of an entry that no site has: positive, since a precision must be, and next to nothing."""


@dataclass(frozen=True, eq=False)
class AttachedSums:
    """Sums of an attached array at the groups of a matching; additive over sites, in any order.

    Parameters
    ----------
    total : Array
        Weighted sums of the entries; component axes have length G.
    mass : Array of the same shape
        Weights of the entries that were summed.
    first : Array of the same shape
        The entry of the site of the lowest key that has one; NaN where none has.
    key : array of uint64, of the same shape
        That key; the largest number where no site has an entry.
    """

    total: Array
    mass: Array
    first: Array
    key: NDArray[np.uint64]

    def __add__(self, other: AttachedSums) -> AttachedSums:
        first_entries = np.where(other.key < self.key, other.first, self.first)
        key = np.minimum(self.key, other.key)
        return AttachedSums(self.total + other.total, self.mass + other.mass, first_entries, key)


def carry(
    arrays: Sequence[Attached],
    offsets: Labels,
    labels: Labels,
    weights: Array,
    n_groups: int,
    keys: NDArray[np.uint64] | None = None,
) -> AttachedSums:
    """Return the sums of one attached array of several sites at its groups.

    Parameters
    ----------
    arrays : sequence of Attached
        The array of each site.
    offsets : Labels of shape (J + 1,)
        Where each site starts among the components, and the end.
    labels : Labels of shape (L,)
        Group of each component; -1 for none.
    weights : Array of shape (J,)
        Weight of each site.
    n_groups : int
        Number G of groups.
    keys : array of uint64 of shape (J,), optional
        Order of the sites by contents. Default: as they stand.
    """
    keys = np.arange(len(arrays), dtype=np.uint64) if keys is None else keys
    first = arrays[0]
    pairs = zip(first.axes, first.values.shape, strict=True)
    shape = tuple(n_groups if tag == "component" else size for tag, size in pairs)
    total, mass, first_entries = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    lowest_keys = np.full(shape, np.iinfo(np.uint64).max)
    for site, attached in enumerate(arrays):
        site_labels = labels[offsets[site] : offsets[site + 1]]
        rows = np.flatnonzero(site_labels >= 0)
        values = attached.take(rows)
        cells = np.ix_(
            *(
                site_labels[rows] if tag == "component" else np.arange(size)
                for tag, size in zip(first.axes, shape, strict=True)
            )
        )
        # Several components of a site may share a group, so entries are added unbuffered.
        weight = weights[site] * (1.0 if values.precision is None else values.precision)
        np.add.at(total, cells, weight * values.values)
        np.add.at(mass, cells, np.broadcast_to(weight, values.values.shape))
        # Sites come in any order in a sharded pass: the key, not the arrival, decides which entry is first.
        is_lower = keys[site] < lowest_keys[cells]
        first_entries[cells] = np.where(is_lower, values.values, first_entries[cells])
        lowest_keys[cells] = np.minimum(lowest_keys[cells], keys[site])
    return AttachedSums(total, mass, first_entries, lowest_keys)


def fused_attached(carried: AttachedSums, axes: tuple[AxisTag, ...], rule: Rule) -> Attached:
    """Return the fused array: sums, means, or what the first sites had."""
    if rule == "sum":
        return Attached(carried.total, axes, "sum")
    if rule == "keep":
        return Attached(np.nan_to_num(carried.first), axes, "keep")
    means = carried.total / np.where(carried.mass > 0, carried.mass, 1.0)
    return Attached(means, axes, rule, np.maximum(carried.mass, MIN_PRECISION) if rule == "precision-mean" else None)
