"""Inner products of what two models have at every place, kept up to date while the units of one of them move.

Weight matching visits a group again after a neighbour has moved. Its worth is a sum of products, one for each place. A
place that the neighbour does not touch keeps its product; where only some of the neighbour's units moved, only what
they touch is multiplied anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Labels
from consilience.networks.symmetry.axes import Axis, Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection
from consilience.networks.symmetry.unit_rows import odd_columns, unit_rows

_MOST_MOVED = 0.6
"""Where more of a group's units moved, multiplying anew is as cheap."""


@dataclass(frozen=True, eq=False)
class Worth:
    """What it is worth to have a unit (row) beside another (column), (K, K).

    Parameters
    ----------
    even
        What does not change sign with the unit that moves.
    odd
        What does; None for units that cannot change sign.
    """

    even: AnyArray
    odd: AnyArray | None = None

    @property
    def best(self) -> AnyArray:
        """The worth with the better sign."""
        return self.even if self.odd is None else self.even + abs(self.odd)

    @property
    def now(self) -> AnyArray:
        """The worth with the signs that there are."""
        return self.even if self.odd is None else self.even + self.odd

    def plus(self, other: Worth) -> Worth:
        """Return the sum of two, of the same units."""
        odd = None if self.odd is None or other.odd is None else self.odd + other.odd
        return Worth(self.even + other.even, odd)

    def moved(self, move: Injection) -> Worth:
        """Return it after the units that move have moved."""
        xp = array_namespace(self.even)
        rows = xp.asarray(move.order, device=self.even.device)
        even = xp.take(self.even, rows, axis=0)
        return Worth(even, None if self.odd is None else move.move(self.odd, 0, "output"))


class Products:
    """Products of the rows of units of one model, which move, and of another, which stay.

    Parameters
    ----------
    symmetry
        Which axes move together.
    width
        Number of units of every group, of both models.
    other
        The arrays of the model that stays.
    turning
        The groups whose units may change sign.
    """

    def __init__(
        self, symmetry: Symmetry, width: Mapping[str, int], other: Mapping[str, AnyArray], turning: Collection[str]
    ) -> None:
        self._symmetry, self._width, self._turning = symmetry, width, turning
        self.other = other
        self._kept: dict[Place, Worth] = {}

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> Worth:
        """Return the products (K, K) at a place: rows of the model that moves, columns of the one that stays."""
        if place not in self._kept:
            self._kept[place] = self._product(place, arrays[place.array], self.other[place.array])
        return self._kept[place]

    def moved(self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]) -> None:
        """Take note that the units of a group have moved.

        Parameters
        ----------
        group
            The group.
        move
            How.
        before, after
            The arrays then and now.
        """
        turned = move.signs is not None and move.signs[move.order] < 0
        changed = np.flatnonzero((move.order != np.arange(move.width)) | turned)
        for place in list(self._kept):
            axes = self._symmetry.layouts[place.array].axes
            own = axes[place.axis].segments[place.segment].group == group
            across = [n for n, axis in enumerate(axes) if n != place.axis and _has(axis, group)]
            if own:
                self._kept[place] = self._kept[place].moved(move)
            if len(across) == 1 and not own and len(changed) <= _MOST_MOVED * move.width:
                self._update(place, across[0], group, changed, before[place.array], after[place.array])
            elif across:
                del self._kept[place]

    def _update(
        self, place: Place, number: int, group: str, changed: Labels, before: AnyArray, after: AnyArray
    ) -> None:
        """Add what changed on another axis of a place's array."""
        xp = array_namespace(after)
        entries = _entries(self._symmetry.layouts[place.array].axes[number], group, changed, self._width)
        indices = xp.asarray(entries, device=after.device)
        difference = xp.take(after, indices, axis=number) - xp.take(before, indices, axis=number)
        stays = xp.take(self.other[place.array], indices, axis=number)
        self._kept[place] = self._kept[place].plus(self._product(place, difference, stays))

    def _product(self, place: Place, one: AnyArray, other: AnyArray) -> Worth:
        layout = self._symmetry.layouts[place.array]
        xp = array_namespace(one)
        rows, columns = (unit_rows(values, layout, place, self._width) for values in (one, other))
        segment = layout.axes[place.axis].segments[place.segment]
        if segment.group not in self._turning:
            return Worth(xp.matmul(rows, xp.matrix_transpose(columns)))
        if segment.odd is None:
            odd = xp.matmul(rows, xp.matrix_transpose(columns))
            return Worth(xp.zeros_like(odd), odd)
        parity = odd_columns(tuple(one.shape), layout, place)
        parts = [xp.asarray(np.flatnonzero(which), device=one.device) for which in (~parity, parity)]
        even, odd = (
            xp.matmul(xp.take(rows, part, axis=1), xp.matrix_transpose(xp.take(columns, part, axis=1)))
            for part in parts
        )
        return Worth(even, odd)


def _has(axis: Axis, group: str) -> bool:
    return any(segment.group == group for segment in axis.segments)


def _entries(axis: Axis, group: str, units: Labels, width: Mapping[str, int]) -> Labels:
    """Return where on an axis some units of a group are."""
    found, start = [], 0
    for segment in axis.segments:
        if segment.group == group:
            outer = np.arange(segment.outer)[:, None, None] * width[group]
            inside = (outer + units[:, None]) * segment.inner + np.arange(segment.inner)
            found.append(start + inside.ravel())
        start += segment.length(width)
    return np.concatenate(found)
