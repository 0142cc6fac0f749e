"""Hellinger affinities between the units of two Gaussian networks, as gains of an assignment.

Minus the logarithm of the affinity of two mean-field Gaussians with means m, deviations s and variances v = s^2 is

    -log int sqrt(q0 q1) = sum over weights of (m0 - m1)^2 / (4 (v0 + v1)) + log((v0 + v1) / (2 s0 s1)) / 2.

It is a sum over weights, so that one assignment per group maximises the affinity; but it is no inner product of
features of the two posteriors. It is summed entry by entry for every pair of units, which takes a thousand times as
long as a matrix product does for layers of some hundred units.
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

_MAX_ENTRY_PAIRS = 2**24
"""Pairs of entries in memory at a time: 128 MiB in float64. Chosen by hand; it decides how the rows are split, not what
comes out."""


class HellingerAffinities(InnerProducts):
    """Logarithms of affinities between units of a network that is permuted and units of a target that is not.

    Terms log(2 s0 s1) / 2 are left out, as their sum is the same for every permutation. A mean and its deviation count
    together, at the places of means; places in arrays of deviations gain nothing. Units do not change sign.
    """

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return the gain (K, K) at a place: rows are units of the network that moves, columns of the target."""
        if place not in self._cache:
            self._cache[place] = self._affinity(place, arrays)
        return self._cache[place]

    def update(
        self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]
    ) -> None:
        """Update the cache after the units of a group have moved: rows follow, other gains are computed anew."""
        for place in list(self._cache):
            axes = self._symmetry.layouts[place.array].axes
            moved_axes = [n for n, axis in enumerate(axes) if any(s.group == group for s in axis.segments)]
            if not moved_axes:
                continue
            # Rows that move as a whole keep their affinities; not those whose entries moved among themselves.
            if moved_axes == [place.axis] and axes[place.axis].segments[place.segment].group == group:
                self._cache[place] = self._cache[place].with_rows_moved(move)
            else:
                del self._cache[place]

    def _affinity(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return log affinities (K, K), K the number of slots of the group, from rows of F weights."""
        key = place.array
        layout = self._symmetry.layouts[key]
        xp = array_namespace(arrays[key])

        def rows(values: AnyArray) -> AnyArray:
            return xp.astype(unit_rows(values, layout, place, self._width), xp.float64)

        k = self._width[str(layout.axes[place.axis].segments[place.segment].group)]
        if is_deviation(key):
            return AssignmentGain(xp.zeros((k, k), dtype=xp.float64, device=arrays[key].device))
        m0, v0 = rows(arrays[key]), rows(arrays[key + DEVIATION]) ** 2  # (K, F)
        target_rows: tuple[Any, Any] = (rows(self.target[key]), rows(self.target[key + DEVIATION]) ** 2)
        m1, v1 = target_rows  # (K, F)
        step = max(1, _MAX_ENTRY_PAIRS // max(1, int(np.prod(m1.shape))))
        blocks = []
        for start in range(0, k, step):
            chunk = slice(start, start + step)
            total = v0[chunk, None, :] + v1[None, :, :]  # (step, K, F)
            total = xp.where(total > 0, total, xp.ones_like(total))  # outside the blocks of a grouped convolution
            difference = m0[chunk, None, :] - m1[None, :, :]  # (step, K, F)
            blocks.append(-xp.sum(0.25 * difference**2 / total + 0.5 * xp.log(total), axis=-1))  # (step, K)
        return AssignmentGain(xp.concat(blocks, axis=0))
