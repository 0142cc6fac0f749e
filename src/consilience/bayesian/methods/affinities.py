"""What it is worth to merge units of two Gaussian networks by their Hellinger affinity.

    -log int sqrt(q0 q1) = sum over weights of (m0 - m1)^2 / (4 (v0 + v1)) + log((v0 + v1) / (2 s0 s1)) / 2

is no inner product: it is summed entry by entry for every pair of units, which takes a thousand times as long as a
matrix product does for layers of some hundred units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from consilience.bayesian.gaussian_arrays import DEVIATION, is_deviation
from consilience.checks import AnyArray
from consilience.networks.methods.weight_matching.products import AssignmentGain, InnerProducts
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.transport import Injection
from consilience.networks.symmetry.unit_rows import unit_rows

_CHUNK = 2**24
"""Pairs of entries that are held at once."""


class Affinities(InnerProducts):
    """Minus the divergence above of the rows of units of one network, which move, and of another, which stay.

    Means and deviations of a weight count together: at the places of the means; those of the deviations add nothing.
    Units do not change sign.
    """

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return the worth (K, K) at a place: rows of the network that moves, columns of the one that stays."""
        if place not in self._cache:
            self._cache[place] = self._affinity(place, arrays)
        return self._cache[place]

    def update(
        self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]
    ) -> None:
        """Take note that the units of a group have moved: rows follow, and what they touch is computed anew."""
        for place in list(self._cache):
            axes = self._symmetry.layouts[place.array].axes
            touched = [n for n, axis in enumerate(axes) if any(s.group == group for s in axis.segments)]
            if not touched:
                continue
            if touched == [place.axis] and axes[place.axis].segments[place.segment].group == group:
                self._cache[place] = self._cache[place].with_rows_moved(move)
            else:
                del self._cache[place]

    def _affinity(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        key = place.array
        layout = self._symmetry.layouts[key]
        xp = array_namespace(arrays[key])

        def rows(values: AnyArray) -> AnyArray:
            return xp.astype(unit_rows(values, layout, place, self._width), xp.float64)

        count = self._width[str(layout.axes[place.axis].segments[place.segment].group)]
        worth = xp.zeros((count, count), dtype=xp.float64, device=arrays[key].device)
        if is_deviation(key):
            return AssignmentGain(worth)
        mean, variance = rows(arrays[key]), rows(arrays[key + DEVIATION]) ** 2
        others: tuple[Any, Any] = (rows(self.target[key]), rows(self.target[key + DEVIATION]) ** 2)
        step = max(1, _CHUNK // max(1, int(np.prod(others[0].shape))))
        parts = []
        for start in range(0, count, step):
            part = slice(start, start + step)
            total = variance[part, None, :] + others[1][None, :, :]
            total = xp.where(total > 0, total, xp.ones_like(total))  # outside the blocks of a grouped convolution
            apart = mean[part, None, :] - others[0][None, :, :]
            parts.append(-xp.sum(0.25 * apart**2 / total + 0.5 * xp.log(total), axis=-1))
        return AssignmentGain(xp.concat(parts, axis=0))
