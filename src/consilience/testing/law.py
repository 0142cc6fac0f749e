"""Laws as checks: what raises when one is broken, and comparisons up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ROUNDING = 1e-9
"""Relative error that a law allows where exact arithmetic would have none: far above rounding of well-conditioned
members, far below any mistake. Chosen by hand."""


class BrokenLawError(AssertionError):
    """A family, an adapter or a transport breaks a law, which the text names first."""


def require(law: str, holds: Any, text: str) -> None:
    """Raise BrokenLawError, with the name of the law and what was seen, unless the law holds."""
    if not holds:
        raise BrokenLawError(f"{law}: {text}")


def require_equal(law: str, actual: ArrayLike, expected: ArrayLike, what: str, rounding: float = ROUNDING) -> None:
    """Raise unless two arrays are equal up to `rounding`, relative to the largest entry that is expected.

    Raises BrokenLawError with the name of the law, both shapes or the largest difference.
    """
    a, b = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    require(law, a.shape == b.shape, f"{what} has shape {a.shape}, expected {b.shape}")
    if not a.size:
        return
    scale = float(np.abs(b).max())
    difference = float(np.abs(a - b).max())
    within = difference <= rounding * scale or difference == 0.0
    require(law, within, f"{what} differs by {difference:.3g} where entries are up to {scale:.3g}")
