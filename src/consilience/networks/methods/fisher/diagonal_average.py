"""Average of parameters weighted entry by entry by precisions: Fisher merging with diagonals.

With theta_k the parameters of model k, p_k its precisions (its Fisher diagonal, times how often it counts) and e the
precision of priors that the p_k count too often,

    theta = sum_k p_k theta_k / (sum_k p_k - e)      (Matena and Raffel 2022; with priors (5) of Recasens et al. 2023).

Where nothing is left of the denominator no model knows anything, and theta is the plain weighted mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from array_api_compat import array_namespace

from consilience.checks import AnyArray

MIN_TARGET_PRECISION = 1e-6
"""Least precision of the favoured model, the floor of Matena and Raffel's published code."""

CANCELLATION_ROUNDING = 1e-12
"""A precision below this fraction of its terms is what rounding leaves where priors cancel. Chosen by hand."""


def least_precision(share: float, floor: float, has_target: bool, is_target: bool) -> float:
    """Return the least precision of every entry of a model, its floor.

    The share is the weight of the model relative to the largest: the floor follows the weights alone, no norms of
    diagonals. Where a model is favoured it alone has a floor, of at least `MIN_TARGET_PRECISION`.

    Examples
    --------
    >>> least_precision(0.5, 1e-20, False, False), least_precision(0.5, 1e-20, True, True)
    (5e-21, 5e-07)
    """
    if not has_target:
        return share * floor
    return share * max(floor, MIN_TARGET_PRECISION) if is_target else 0.0


def diagonal_average(
    means: Sequence[AnyArray], precisions: Iterable[AnyArray], weights: Sequence[float], excess: float = 0.0
) -> AnyArray:
    """Return the average (P,) of parameters weighted entry by entry; of equal models it is the model, to the last bit.

    Precisions (P,) are needed one after the other; weights are those of the models in the plain mean.
    """
    first = means[0]
    numerator: Any = 0.0
    denominator: Any = -excess
    for mean, precision in zip(means, precisions, strict=True):
        # Differences from the first mean, so that equal parameters return to the last bit.
        numerator, denominator = numerator + precision * (mean - first), denominator + precision
    if excess:
        numerator = numerator + excess * first
    xp = array_namespace(first)
    # The terms of the denominator sum to denominator + excess before the surplus priors are taken off.
    is_informed = denominator > CANCELLATION_ROUNDING * (denominator + excess)
    if bool(xp.all(is_informed)):
        return first + numerator / denominator
    offset = sum(weight * (mean - first) for mean, weight in zip(means, weights, strict=True)) / sum(weights)
    divisor = xp.where(is_informed, denominator, xp.ones_like(denominator))
    return first + xp.where(is_informed, numerator / divisor, offset)
