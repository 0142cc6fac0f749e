"""Spherical interpolation: between two tensors along the great circle of their directions.

    theta = sin((1 - t) omega) / sin(omega) a + sin(t omega) / sin(omega) b,      cos(omega) = a b / (|a| |b|),

with each tensor as one vector. Where a and b are nearly parallel or opposite, sin(omega) vanishes and the straight line
is taken instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import acos, sin, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import Block, Facts, Floats, Setting, TensorMethod, linear
from consilience.checks import is_number

_PARALLEL = 0.9995
"""Cosines from which on the straight line differs from the arc by less than a part in ten thousand."""


@dataclass(frozen=True)
class SLERP(TensorMethod):
    """Two models, interpolated along an arc.

    Parameters
    ----------
    t
        Where between the first (0) and the second (1).

    References
    ----------
    Shoemake (1985), "Animating rotation with quaternion curves", SIGGRAPH.
    """

    name: ClassVar[str] = "slerp"
    summary: ClassVar[str] = "two models, interpolated along the arc between their directions"
    needs: ClassVar[str] = "two checkpoints of one common start, or a symmetry to align them by"
    gives: ClassVar[str] = "one checkpoint"
    paper: ClassVar[str] = "shoemake1985"
    count: ClassVar[int | None] = 2
    double: ClassVar[bool] = False
    shows: ClassVar[bool] = True

    t: float = 0.5

    def __post_init__(self) -> None:
        self.require(
            ("t", is_number(self.t) and self.t <= 1, "a number from 0 to 1"),
        )

    @property
    def surveys(self) -> int:
        """One for the angle, but at the ends."""
        return 0 if self.t in (0.0, 1.0) else 1

    def survey(self, number: int, block: Block, setting: Setting, facts: Facts) -> NDArray[Any]:
        """Return the inner products a b, a a, b b (3,) of a block."""
        one, two = (np.asarray(model, dtype=np.float64) for model in block.models)
        return np.array([np.sum(one * two), np.sum(one * one), np.sum(two * two)])

    def conclude(self, number: int, total: NDArray[Any], setting: Setting, facts: Facts) -> Facts:
        """Return the cosine; 1, for the straight line, where a tensor is zero."""
        product, one, two = (float(value) for value in total)
        lengths = sqrt(one) * sqrt(two)
        return {"cosine": product / lengths if lengths > 0 else 1.0}

    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the point on the arc."""
        return linear(block.models, self.coefficients(facts.get("cosine", 1.0)))

    def coefficients(self, cosine: float) -> tuple[float, float]:
        """Return what both tensors are multiplied by.

        Examples
        --------
        >>> SLERP(t=0.5).coefficients(1.0)
        (0.5, 0.5)
        >>> [round(value, 6) for value in SLERP(t=0.5).coefficients(0.0)]
        [0.707107, 0.707107]
        """
        if abs(cosine) > _PARALLEL or self.t in (0.0, 1.0):
            return 1.0 - self.t, self.t
        angle = acos(cosine)
        return sin((1.0 - self.t) * angle) / sin(angle), sin(self.t * angle) / sin(angle)
