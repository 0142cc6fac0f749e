"""Effects of two by two counts: log odds ratio, log risk ratio and risk difference, with their variances."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, OptionError

Measure = Literal["log_odds_ratio", "log_risk_ratio", "risk_difference"]
"""Effects of two by two counts."""

CORRECTION = 0.5
"""What is added to all four counts of a site one of which is zero, as is customary (metafor's ``add = 1/2``)."""


def checked_measure(measure: object) -> Measure:
    """Return the name of an effect; raises OptionError for any other."""
    for known in get_args(Measure):
        if measure == known:
            return known
    raise OptionError("measure", f"expected one of {', '.join(get_args(Measure))}, found {measure!r}")


def effects_of_counts(counts: Array, measure: Measure) -> tuple[Array, Array]:
    """Return effects (J,) and variances (J,) of counts (J, 2, 2): by group, treated first, events and the others.

    Ratios of a site with a zero count are those of all its counts plus `CORRECTION`. Raises InputError for counts that
    are negative or not finite, and groups without anybody.

    Examples
    --------
    >>> effect, variance = effects_of_counts(np.array([[[4.0, 119.0], [11.0, 128.0]]]), "log_risk_ratio")
    >>> effect.round(4), variance.round(4)
    (array([-0.8893]), array([0.3256]))
    """
    if not np.isfinite(counts).all() or np.any(counts < 0):
        raise InputError("", "has counts that are negative or not finite", "count people", "E-NUMBER")
    if np.any(counts.sum(axis=2) == 0):
        raise InputError("", "has a group of nobody", "leave the site out", "E-FEW")
    has_zero = (counts == 0).any(axis=(1, 2)) & (measure != "risk_difference")
    counts = counts + CORRECTION * has_zero[:, None, None]
    (a, b), (c, d) = np.moveaxis(counts, 0, -1)
    n, m = a + b, c + d
    if measure == "log_odds_ratio":
        return np.log(a * d / (b * c)), 1 / a + 1 / b + 1 / c + 1 / d
    if measure == "log_risk_ratio":
        return np.log((a / n) / (c / m)), 1 / a - 1 / n + 1 / c - 1 / m
    return a / n - c / m, a * b / n**3 + c * d / m**3
