"""Paired differences: two models scored on the same observations, and how sure their mean difference is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from consilience.checks import Array

LEVEL = 0.95
"""Probability of confidence intervals wherever no other is asked for: the convention of clinical journals."""
NEGLIGIBLE = 1e-9
"""Differences below this part of the scores themselves are rounding, and count as none."""


@dataclass(frozen=True)
class PairedDifference:
    """The score of the fused model minus that of the own model, observation by observation."""

    mean: float  # the mean difference, in the unit of the score
    standard_error: float  # its standard error, in the same unit; infinite with one observation
    interval: tuple[float, float]  # 95 % confidence interval of the mean: (low, high)
    n_observations: int  # number of observations that both models scored

    @property
    def margin(self) -> float:
        """Half the width of the interval."""
        return (self.interval[1] - self.interval[0]) / 2.0

    @property
    def sign(self) -> int:
        """1 or -1 where the interval tells the sign of the difference, 0 where it does not."""
        low, high = self.interval
        return int(low > 0) - int(high < 0)


def paired_difference(fused: Array, own: Array, weights: Array) -> PairedDifference:
    """Return the weighted mean of ``fused - own`` (n,) and its uncertainty.

    With weights w (held-out tokens of a document, or ones), r = sum w d / sum w is a ratio of two sums, whose standard
    error is by linearisation

        se^2 = n / (n - 1) * sum w^2 (d - r)^2 / (sum w)^2,

    the usual s / sqrt(n) for equal weights. The interval is r ± t se with Student's t for n - 1 degrees of freedom. It
    takes the observations to be independent. With few and skewed ones every interval is too narrow; in simulations this
    one covered the truth at least as often as the normal one and the percentile bootstrap (10 normal values: 96 %,
    93 %, 90 %; 20 log-normal ones: 86 %, 85 %, 85 %), and it needs no random numbers.

    Examples
    --------
    >>> paired_difference(np.array([3.0, 4.0, 6.0]), np.array([2.0, 2.0, 3.0]), np.ones(3)).mean
    2.0
    """
    used = weights > 0
    difference, weight = (fused - own)[used], weights[used]
    count = len(difference)
    if count == 0:
        return PairedDifference(math.nan, math.inf, (-math.inf, math.inf), 0)
    if np.max(np.abs(difference)) <= NEGLIGIBLE * max(np.max(np.abs(fused[used])), np.max(np.abs(own[used]))):
        difference = np.zeros(count)
    mean = float(np.average(difference, weights=weight))
    if count == 1:
        return PairedDifference(mean, math.inf, (-math.inf, math.inf), 1)
    deviations = np.square(weight * (difference - mean)).sum() * count / (count - 1)
    error = float(np.sqrt(deviations) / weight.sum())
    margin = float(stdtrit(count - 1, (1.0 + LEVEL) / 2.0)) * error
    return PairedDifference(mean, error, (mean - margin, mean + margin), count)
