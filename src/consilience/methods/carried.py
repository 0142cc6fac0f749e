"""Attached arrays, carried through a matching: added up at their groups' places, then normalised as their rule says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.families.posterior import Attached, AxisTag, Rule


@dataclass(frozen=True, eq=False)
class Carried:
    """An attached array of some sites at its groups' places; additive over sites, those of `other` coming later.

    Parameters
    ----------
    total
        Weighted sums.
    mass
        Weights of what was summed.
    kept
        The entry of the first site that has one; NaN where none has.
    """

    total: Array
    mass: Array
    kept: Array

    def __add__(self, other: Carried) -> Carried:
        kept = np.where(np.isnan(self.kept), other.kept, self.kept)
        return Carried(self.total + other.total, self.mass + other.mass, kept)


def carry(arrays: Sequence[Attached], offsets: Labels, labels: Labels, weights: Array, n_groups: int) -> Carried:
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
    """
    first = arrays[0]
    pairs = zip(first.axes, first.values.shape, strict=True)
    shape = tuple(n_groups if tag == "component" else size for tag, size in pairs)
    total, mass, kept = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
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
        fresh = np.isnan(kept[places])
        kept[places] = np.where(fresh, values.values, kept[places])
    return Carried(total, mass, kept)


def finished(carried: Carried, axes: tuple[AxisTag, ...], rule: Rule) -> Attached:
    """Return the fused array: sums, means, or what the first sites had."""
    if rule == "sum":
        return Attached(carried.total, axes, "sum")
    if rule == "keep":
        return Attached(np.nan_to_num(carried.kept), axes, "keep")
    means = carried.total / np.where(carried.mass > 0, carried.mass, 1.0)
    return Attached(means, axes, rule, np.maximum(carried.mass, 1e-300) if rule == "precision-mean" else None)
