"""Pooled coefficients with their intervals: normal, and those of Hartung and Knapp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from consilience.checks import Array

Interval = Literal["hartung_knapp", "truncated_hartung_knapp", "normal"]
"""How intervals of random effects are made: scaled by how sites scatter, with Student's t; the same with a scale of
1 at least; or normal quantiles, which are too narrow for few sites."""


@dataclass(frozen=True, eq=False)
class Effects:
    """Pooled coefficients.

    Parameters
    ----------
    mean : ndarray of shape (p,)
        Coefficients.
    covariance : ndarray of shape (p, p)
        Their covariance, scaled where the intervals are Hartung and Knapp's.
    intervals : ndarray of shape (p, 2)
        Confidence intervals at the level of the analysis.
    """

    mean: Array
    covariance: Array
    intervals: Array

    @property
    def standard_errors(self) -> Array:
        """Standard errors (p,)."""
        errors: Array = np.sqrt(np.diag(self.covariance))
        return errors


def _effects(mean: Array, covariance: Array, quantile: float) -> Effects:
    margin = quantile * np.sqrt(np.diag(covariance))
    return Effects(mean, covariance, np.stack([mean - margin, mean + margin], axis=1))


def normal_effects(mean: Array, covariance: Array, level: float) -> Effects:
    """Return coefficients (p,) with normal intervals."""
    return _effects(mean, covariance, float(ndtri(0.5 + level / 2.0)))


def random_effects(
    mean: Array, covariance: Array, squares: float, freedom: int, interval: str, level: float
) -> Effects:
    """Return coefficients under random effects with their intervals, of the weighted squares of the residuals.

    Hartung and Knapp: Var mu = q C with q = sum_k r_k^T W_k r_k / df, and Student's t with df = number of estimates
    less that of coefficients, J - 1 for one (Jackson and Riley 2014 for several).
    """
    if interval == "normal" or freedom < 1:
        return normal_effects(mean, covariance, level)
    scale = squares / freedom
    if interval == "truncated_hartung_knapp":
        scale = max(1.0, scale)
    return _effects(mean, scale * covariance, float(stdtrit(freedom, 0.5 + level / 2.0)))
