"""Inner products between the unit rows of two models, updated while the units of one of them move.

The gain of assigning a unit to a slot is a sum of inner products, one matrix (K, K) for every place where the group
stands in an array. Coordinate descent visits a group again after a neighbouring group has moved. A place that the
neighbour does not touch keeps its product. Where only some units of the neighbour moved, only the entries that they
touch are multiplied again, and the difference is added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Labels
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection
from consilience.networks.symmetry.unit_rows import odd_columns, unit_rows

MAX_UPDATED_FRACTION = 0.6
"""Largest fraction of a group's units that may have moved for an update; above it the product is computed again. The
update multiplies differences, which costs as much as the product of the fraction that moved, and copies these entries.
Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True, eq=False)
class AssignmentGain:
    """Gain of putting the unit in one slot (row) into another slot (column)."""

    even: AnyArray  # (K, K): the part that does not depend on the sign of the unit that moves
    odd: AnyArray | None = None  # (K, K): the part that changes sign with the unit

    @property
    def with_best_signs(self) -> AnyArray:
        """The gain (K, K) with the better sign of every pair."""
        return self.even if self.odd is None else self.even + abs(self.odd)

    @property
    def with_current_signs(self) -> AnyArray:
        """The gain (K, K) with the signs that units have now."""
        return self.even if self.odd is None else self.even + self.odd

    def plus(self, other: AssignmentGain) -> AssignmentGain:
        """Return the sum of two gains of the same units."""
        odd = None if self.odd is None or other.odd is None else self.odd + other.odd
        return AssignmentGain(self.even + other.even, odd)

    def with_rows_moved(self, move: Injection) -> AssignmentGain:
        """Return the gain after units moved: rows are permuted, and odd rows change sign."""
        xp = array_namespace(self.even)
        rows = xp.asarray(move.order, device=self.even.device)
        even = xp.take(self.even, rows, axis=0)
        return AssignmentGain(even, None if self.odd is None else move.move(self.odd, 0, "output"))


class InnerProducts:
    """Inner products of the unit rows of a model that moves with those of a target that stays.

    The target is the weighted sum of the models that stay. Products are computed at first use and kept by place.
    """

    def __init__(
        self, symmetry: Symmetry, width: Mapping[str, int], target: Mapping[str, AnyArray], sign_groups: Collection[str]
    ) -> None:
        self._symmetry, self._width, self._sign_groups = symmetry, width, sign_groups
        self.target = target
        self._cache: dict[Place, AssignmentGain] = {}

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return the products (K, K) at one place: rows of the model that moves, columns of the target."""
        if place not in self._cache:
            self._cache[place] = self._product(place, arrays[place.array], self.target[place.array])
        return self._cache[place]

    def update(
        self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]
    ) -> None:
        """Update the products after the units of a group have moved from slot to slot, and arrays with them."""
        has_turned = move.signs is not None and move.signs[move.order] < 0
        changed = np.flatnonzero((move.order != np.arange(move.width)) | has_turned)
        for place in list(self._cache):
            axes = self._symmetry.layouts[place.array].axes
            is_own = axes[place.axis].segments[place.segment].group == group
            numbers = (n for n, axis in enumerate(axes) for segment in axis.segments if segment.group == group)
            other_axes = sorted({n for n in numbers if n != place.axis})
            if is_own:
                self._cache[place] = self._cache[place].with_rows_moved(move)
            # A group on both axes of one array (recurrent weights) would need a correction of second order: recompute.
            if len(other_axes) == 1 and not is_own and len(changed) <= MAX_UPDATED_FRACTION * move.width:
                self._add_change(place, other_axes[0], group, changed, before[place.array], after[place.array])
            elif other_axes:
                del self._cache[place]

    def _add_change(
        self, place: Place, number: int, group: str, changed: Labels, before: AnyArray, after: AnyArray
    ) -> None:
        """Add to the product at a place what changed on another axis (`number`) of its array."""
        xp = array_namespace(after)
        is_changed = np.isin(np.arange(self._width[group]), changed)
        axis = self._symmetry.layouts[place.array].axes[number]
        entries = np.flatnonzero(axis.along({group: is_changed.astype(float)}, self._width, 0.0))
        indices = xp.asarray(entries, device=after.device)
        difference = xp.take(after, indices, axis=number) - xp.take(before, indices, axis=number)
        target = xp.take(self.target[place.array], indices, axis=number)
        self._cache[place] = self._cache[place].plus(self._product(place, difference, target))

    def _product(self, place: Place, values: AnyArray, target: AnyArray) -> AssignmentGain:
        """Return the products (K, K) of the unit rows of two arrays, split by parity where units may change sign."""
        layout = self._symmetry.layouts[place.array]
        xp = array_namespace(values)
        rows, columns = (unit_rows(array, layout, place, self._width) for array in (values, target))  # (K, F) each
        segment = layout.axes[place.axis].segments[place.segment]
        if segment.group not in self._sign_groups:
            return AssignmentGain(xp.matmul(rows, xp.matrix_transpose(columns)))
        if segment.odd is None:  # the whole row changes sign with its unit
            odd = xp.matmul(rows, xp.matrix_transpose(columns))
            return AssignmentGain(xp.zeros_like(odd), odd)
        # Of a recurrent cell only the rows of the proposing gate change sign with the unit.
        is_odd = odd_columns(tuple(values.shape), layout, place)  # (F,)
        parts = [xp.asarray(np.flatnonzero(mask), device=values.device) for mask in (~is_odd, is_odd)]
        even, odd = (
            xp.matmul(xp.take(rows, part, axis=1), xp.matrix_transpose(xp.take(columns, part, axis=1)))
            for part in parts
        )
        return AssignmentGain(even, odd)
