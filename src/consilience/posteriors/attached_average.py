"""Attached arrays, carried through a matching: added up at their groups' places, then normalised as their rule says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.posteriors.posterior import Attached, AxisTag, Rule


@dataclass(frozen=True, eq=False)
class AttachedSums:
    """An attached array of some sites at its groups' places; additive over sites, in any order.

    Parameters
    ----------
    total
        Weighted sums.
    mass
        Weights of what was summed.
    kept
        The entry of the site of the lowest key that has one; NaN where none has.
    key
        That key; the largest number where no site has an entry.
    """

    total: Array
    mass: Array
    kept: Array
    key: NDArray[np.uint64]

    def __add__(self, other: AttachedSums) -> AttachedSums:
        kept = np.where(other.key < self.key, other.kept, self.kept)
        key = np.minimum(self.key, other.key)
        return AttachedSums(self.total + other.total, self.mass + other.mass, kept, key)


def carry(
    arrays: Sequence[Attached],
    offsets: Labels,
    labels: Labels,
    weights: Array,
    n_groups: int,
    keys: NDArray[np.uint64] | None = None,
) -> AttachedSums:
    """Return the array of several sites at its groups' places.

    Parameters
    ----------
    arrays
        The array of each site.
    offsets
        Where each site starts among the components, and the end (J + 1,).
    labels
        Group of each component (L,); -1 for none.
    weights
        Weight of each site (J,).
    n_groups
        Number G of groups.
    keys
        Order of the sites by contents (J,); None takes them as they stand.
    """
    keys = np.arange(len(arrays), dtype=np.uint64) if keys is None else keys
    first = arrays[0]
    pairs = zip(first.axes, first.values.shape, strict=True)
    shape = tuple(n_groups if tag == "component" else size for tag, size in pairs)
    total, mass, kept = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    lowest = np.full(shape, np.iinfo(np.uint64).max)
    for site, attached in enumerate(arrays):
        own = labels[offsets[site] : offsets[site + 1]]
        rows = np.flatnonzero(own >= 0)
        values = attached.take(rows)
        places = np.ix_(
            *(own[rows] if tag == "component" else np.arange(size) for tag, size in zip(first.axes, shape, strict=True))
        )
        weight = weights[site] * (1.0 if values.precision is None else values.precision)
        np.add.at(total, places, weight * values.values)
        np.add.at(mass, places, np.broadcast_to(weight, values.values.shape))
        lower = keys[site] < lowest[places]
        kept[places] = np.where(lower, values.values, kept[places])
        lowest[places] = np.minimum(lowest[places], keys[site])
    return AttachedSums(total, mass, kept, lowest)


def fused_attached(carried: AttachedSums, axes: tuple[AxisTag, ...], rule: Rule) -> Attached:
    """Return the fused array: sums, means, or what the first sites had."""
    if rule == "sum":
        return Attached(carried.total, axes, "sum")
    if rule == "keep":
        return Attached(np.nan_to_num(carried.kept), axes, "keep")
    means = carried.total / np.where(carried.mass > 0, carried.mass, 1.0)
    return Attached(means, axes, rule, np.maximum(carried.mass, 1e-300) if rule == "precision-mean" else None)
