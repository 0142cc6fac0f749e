"""Spherical linear interpolation (SLERP) of two checkpoints, each tensor as one vector.

    theta = sin((1 - t) omega) / sin(omega) a + sin(t omega) / sin(omega) b,      cos(omega) = <a, b> / (|a| |b|),

with a and b the tensors of the first and the second model, omega the angle between them and t from 0 (a) to 1 (b).
One pass over both gives the inner products. Where a and b are nearly parallel or opposite, sin(omega) vanishes and
the straight line (1 - t) a + t b is taken instead; so it is where a tensor is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import acos, sin, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorMethod, TensorSetting, linear
from consilience.checks import is_finite
from consilience.core.methods import Requirement

MAX_ARC_COSINE = 0.9995
"""Absolute cosine beyond which the straight line is taken, as in mergekit. For parallel tensors the coefficients of arc
and line differ there by less than omega^2 / 6 = 1.7e-4 of themselves."""


@dataclass(frozen=True)
class SLERP(TensorMethod):
    """Two models, interpolated along an arc.

    Parameters
    ----------
    t : float
        Position between the first model (0) and the second (1), or beyond them. Default: 0.5.

    References
    ----------
    Shoemake (1985), "Animating rotation with quaternion curves", SIGGRAPH.
    """

    name: ClassVar[str] = "slerp"
    summary: ClassVar[str] = "two models, interpolated along the arc between their directions"
    needs: ClassVar[str] = "two checkpoints of one common start, or a symmetry to align them by"
    paper: ClassVar[str] = "shoemake1985"
    count: ClassVar[int | None] = 2
    takes_weights: ClassVar[bool] = False
    double: ClassVar[bool] = False
    shows: ClassVar[bool] = True

    t: float = 0.5

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("t", is_finite(self.t), "a number")

    @property
    def surveys(self) -> int:
        """One pass for the angle; none at the ends, where the result is one of the models."""
        return 0 if self.t in (0.0, 1.0) else 1

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> NDArray[Any]:
        """Return the inner products <a, b>, <a, a>, <b, b> (3,) of a block, in 64 bits."""
        a, b = (np.asarray(model, dtype=np.float64) for model in block.models)
        return np.array([np.einsum("i,i", *pair) for pair in ((a, b), (a, a), (b, b))])

    def conclude(self, number: int, total: NDArray[Any], setting: TensorSetting, facts: Facts) -> Facts:
        """Return the cosine of the angle; 1, for the straight line, where a tensor is zero."""
        product, squared_a, squared_b = (float(value) for value in total)
        lengths = sqrt(squared_a) * sqrt(squared_b)
        return {"cosine": product / lengths if lengths > 0 else 1.0}

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return the point on the arc (n,)."""
        return linear(block.models, self.coefficients(facts.get("cosine", 1.0)))

    def coefficients(self, cosine: float) -> tuple[float, float]:
        """Return the coefficients of both tensors.

        Parameters
        ----------
        cosine : float
            Cosine of the angle between them.

        Examples
        --------
        >>> SLERP(t=0.5).coefficients(1.0)
        (0.5, 0.5)
        >>> [round(value, 6) for value in SLERP(t=0.5).coefficients(0.0)]
        [0.707107, 0.707107]
        """
        if abs(cosine) > MAX_ARC_COSINE or self.t in (0.0, 1.0):
            return 1.0 - self.t, self.t
        angle = acos(cosine)
        return sin((1.0 - self.t) * angle) / sin(angle), sin(self.t * angle) / sin(angle)
