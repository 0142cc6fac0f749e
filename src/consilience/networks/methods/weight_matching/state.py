"""Models side by side in the slots of one network, and what it is worth to put a unit into a slot.

The fused network has K slots in every group. A model with k units holds k of them; the rest of its arrays is zero.
Units of different models in one slot are *merged*. What merging costs is the squared distance of everything that
touches the merged units: the objective of all matching by weights here is

    E = sum_{i < j} a_i a_j sum_entries [the entry touches a unit merged from i and j] (theta_i - theta_j)^2,

so that units held by one model alone cost nothing. With as many slots as units all are merged, and E is the weighted
sum of squared distances of the models: weight matching, a sum of bilinear assignments. For one group, all others held,
the best slots solve an assignment problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.matching.assignment import assign_block
from consilience.matching.nested_assignment import assign_nested
from consilience.networks.methods.weight_matching.products import Products, Worth
from consilience.networks.network import Network, square_sum, to_numpy
from consilience.networks.symmetry.axes import Axis, Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, move_axis, to_dense
from consilience.networks.symmetry.unit_rows import unit_rows

STATISTICS = ("running_mean", "running_var")
"""Buffers of batch normalisation: what data did, not what units are; no matching by weights looks at them."""


@dataclass(eq=False)
class Placed:
    """One model in the slots.

    Parameters
    ----------
    arrays
        Its arrays that move, dense, in the shape of the fused network.
    slots
        By group, where its units are.
    """

    arrays: dict[str, AnyArray]
    slots: dict[str, Injection]

    def move(self, symmetry: Symmetry, group: str, relative: Injection, width: Mapping[str, int]) -> None:
        """Put the units of one group into other slots."""
        self.slots[group] = self.slots[group].then(relative)
        moves = {group: relative}
        for key, number in {(place.array, place.axis): None for place in symmetry.places(group)}:
            if key in self.arrays:
                axis = symmetry.layouts[key].axes[number]
                self.arrays[key] = move_axis(self.arrays[key], number, axis, moves, width)


@dataclass(frozen=True, eq=False)
class Others:
    """The models that stay while one moves.

    Parameters
    ----------
    models
        With their weights.
    products
        Of the model that moves and the weighted sum of these.
    """

    models: Sequence[tuple[float, Placed]]
    products: Products


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of the fused network.

    Parameters
    ----------
    symmetry
        Which axes move together.
    width
        Number of slots of every group.
    full
        Whether every model fills every slot.
    signs
        Whether units may change sign, where that changes no output.
    held
        Groups whose units stay in their order, since the same weights make them in all models.
    products
        What compares the rows of units.
    rounding
        Gains below this share of what is at stake move nothing, so that a descent ends.
    """

    symmetry: Symmetry
    width: Mapping[str, int]
    full: bool
    signs: bool = False
    held: frozenset[str] = frozenset()
    products: type[Products] = Products
    rounding: float = 1e-7

    @cached_property
    def turning(self) -> frozenset[str]:
        """The groups whose units may change sign: none that has others inside, or lies inside another."""
        nested = {group.parent for group in self.symmetry.all_groups}
        return frozenset(
            group.name
            for group in self.symmetry.all_groups
            if self.signs and "sign" in group.actions and group.parent is None and group.name not in nested
        )

    def place(self, network: Network, slots: Mapping[str, Injection]) -> Placed:
        """Return a network in the slots."""
        arrays = {}
        for key, values in network.working.items():
            layout = self.symmetry.layouts[key]
            if key.rpartition(".")[2] in STATISTICS or not any(axis.moves for axis in layout.axes):
                continue
            moved = to_dense(values, layout)
            for number, axis in enumerate(layout.axes):
                moved = move_axis(moved, number, axis, slots, network.units)
            arrays[key] = moved
        return Placed(arrays, dict(slots))

    def places(self, group: str, arrays: Iterable[str]) -> list[Place]:
        """Return the places of a group in these arrays."""
        known = set(arrays)
        return [place for place in self.symmetry.places(group) if place.array in known]

    def worth(self, one: Placed, others: Others, group: str, places: Sequence[Place]) -> Worth:
        """Return what it is worth (K, K) to move what `one` has in a slot (rows) into another slot (columns).

        Half of what E falls by, divided by a_i, over the given places, all other groups held.

        Parameters
        ----------
        one
            The model that moves.
        others
            The models that stay.
        group
            The group.
        places
            The places that count.
        """
        total: Worth | None = None
        for place in places:
            products = others.products.at(place, one.arrays)
            total = products if total is None else total.plus(products)
        count = self.width[group]
        if total is None:  # units that stand nowhere themselves, only those inside them
            nothing = np.zeros((count, count))
            return Worth(nothing, nothing if group in self.turning else None)
        worth = Worth(to_numpy(total.even), None if total.odd is None else to_numpy(total.odd))
        if self.full:
            return worth
        held = np.stack([other.slots[group].owned for _, other in others.models])
        own, theirs = np.zeros((len(held), count)), np.zeros(count)
        for place in places:
            layout = self.symmetry.layouts[place.array]
            mine = to_numpy(unit_rows(one.arrays[place.array] ** 2, layout, place, self.width))
            for number, (weight, other) in enumerate(others.models):
                alone = self._alone(one, other, place)
                squares = to_numpy(unit_rows(other.arrays[place.array] ** 2, layout, place, self.width))
                own[number] += weight * (mine @ alone)
                theirs += weight * (squares @ alone) * held[number]
        own_slots = one.slots[group].owned[:, None]
        even = (worth.even - 0.5 * (own.T @ held + theirs)) * own_slots
        return Worth(even, None if worth.odd is None else worth.odd * own_slots)

    def _alone(self, one: Placed, other: Placed, place: Place) -> Array:
        """Return 1 for entries of a unit's row (F,) that touch no merged unit but those of the place, 0 for others."""
        found = np.ones(1)
        for number, axis in enumerate(self.symmetry.layouts[place.array].axes):
            if number == place.axis:
                segment = axis.segments[place.segment]
                part = np.ones(segment.outer * segment.inner)
            else:
                part = 1.0 - self._merged(axis, one, other)
            found = np.multiply.outer(found, part).ravel()
        return found

    def _merged(self, axis: Axis, one: Placed, other: Placed) -> Array:
        """Return 1 for entries of an axis whose unit both models hold."""
        parts = []
        for segment in axis.segments:
            if segment.group is None:
                parts.append(np.zeros(segment.length(self.width)))
            else:
                both = one.slots[segment.group].owned * other.slots[segment.group].owned
                parts.append(segment.along(both))
        return np.concatenate(parts)

    def others(self, models: Sequence[tuple[float, Placed]]) -> Others:
        """Return models that stay, ready to be held against one that moves."""
        if not models:
            return Others(models, self.products(self.symmetry, self.width, {}, self.turning))
        arrays = {
            key: models[0][1].arrays[key]
            if len(models) == 1 and models[0][0] == 1.0
            else sum((weight * model.arrays[key] for weight, model in models[1:]), start=models[0][0] * first)
            for key, first in models[0][1].arrays.items()
        }
        return Others(models, self.products(self.symmetry, self.width, arrays, self.turning))

    def distance(self, one: Placed, other: Placed, keys: Iterable[str] | None = None) -> float:
        """Return the squared distance of two models over what touches merged units."""
        total = 0.0
        for key in one.arrays if keys is None else keys:
            difference = one.arrays[key] - other.arrays[key]
            if self.full:
                total += square_sum(difference)
                continue
            xp = array_namespace(difference)
            apart: Any = 1.0
            for number, axis in enumerate(self.symmetry.layouts[key].axes):
                if axis.moves:
                    alone = xp.asarray(
                        1.0 - self._merged(axis, one, other), dtype=difference.dtype, device=difference.device
                    )
                    shape = tuple(-1 if n == number else 1 for n in range(difference.ndim))
                    apart = apart * xp.reshape(alone, shape)
            total += square_sum(difference * (1.0 - apart))
        return total

    def assign(self, worth: Worth, one: Placed, group: str, inside: Mapping[str, Worth]) -> dict[str, Injection]:
        """Return the best slots for what `one` has, as moves from slot to slot, of a group and the groups inside it.

        Parameters
        ----------
        worth
            Of the group itself (K, K).
        one
            The model that moves.
        group
            The group.
        inside
            Worth of the groups inside it (K_inside, K_inside).
        """
        if inside:
            found = assign_nested(-worth.even, {name: -values.even for name, values in inside.items()})
            moves = {name: Injection(slots, self.width[name]) for name, slots in found.inner.items()}
            return {group: Injection(found.outer, self.width[group]), **moves}
        held = np.arange(self.width[group]) if self.full else np.sort(one.slots[group].slots)
        columns = assign_block(-worth.best[held])
        target = np.full(self.width[group], -1, dtype=np.int64)
        target[held] = columns
        target[target < 0] = np.setdiff1d(np.arange(self.width[group]), columns)
        signs = None
        if worth.odd is not None and np.any(worth.odd[held, columns] < 0):
            signs = np.ones(self.width[group])
            signs[held] = np.where(worth.odd[held, columns] < 0, -1.0, 1.0)
        return {group: Injection(target, self.width[group], signs)}
