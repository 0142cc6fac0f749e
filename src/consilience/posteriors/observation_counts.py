"""Numbers of observations behind models whose libraries do not record them: counted from data, stated, or refused.

The natural parameters of such a model (scikit-learn's GaussianMixture, hmmlearn's point estimates) are counts times
moments, so a wrong number is a wrong weight in every average. Nothing is guessed: a site states the number when it
describes or saves its model, whoever fuses states it, or all models are said to count alike (``"equal"``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.errors import InputError, OptionError, Problem
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.posterior import Posterior

RECORDED_ROUNDING = 0.05
"""Relative difference from what a model records up to which a stated number is the same. Wide, since withheld
components are not counted, and expected counts of variational fits miss whole numbers. Chosen by hand."""


def count_observations(model: Any, adapter: Adapter, posterior: Posterior, data: Any, sample_weight: Any) -> float:
    """Return the number of observations in the data that a model was fitted to: rows, or the sum of their weights.

    The data, which ``core.observations.read_observations`` takes, must have the columns of the posterior that the model
    was described as. Weights of rows are one number that is not negative for each, and only of models that do not
    record them.
    """
    n_columns = adapter.n_columns(posterior)
    dim = getattr(posterior.family, "dim", None)
    names = posterior.features.names if n_columns == dim else None  # a column of symbols has no name
    rows = read_observations(data, None, ExpectedColumns(n_columns, names, adapter.takes_counts)).values
    n_rows = int(rows.shape[0])
    if sample_weight is None:
        return float(n_rows)
    if adapter.records_n_observations:
        raise OptionError(
            "sample_weight", f"a {type(model).__name__} records the weight of its observations itself; leave it out"
        )
    weights: Array = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_rows,) or not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights > 0):
        raise OptionError(
            "sample_weight",
            f"expected one finite number that is not negative for each of the {n_rows} rows, found shape"
            f" {weights.shape}",
        )
    return float(weights.sum())


def require_same_as_recorded(
    adapter: Adapter, posterior: Posterior, n_observations: float, subject: str = "n_observations"
) -> None:
    """Raise InputError where a number contradicts the observations that a posterior records.

    Only models whose counts are of rows can be compared: those of topic models are tokens.
    """
    if not adapter.counts_are_rows or posterior.counts is None or not posterior.states_observations:
        return
    recorded = float(posterior.counts.sum())
    # Components with less than one observation count as one, so K of them may add up to K more.
    if abs(recorded - n_observations) > posterior.n_components + RECORDED_ROUNDING * max(recorded, n_observations):
        raise InputError(
            subject,
            f"is {n_observations:g}, but the model records {recorded:g} observations",
            "leave it out, or give what the model was fitted to",
            "E-MISMATCH",
        )


def unknown_number(label: str | Path, kind: str) -> Problem:
    """Return that a model's number of observations is not known, and what to do about it."""
    return Problem(
        label,
        f"does not say how many observations it was fitted to, which a {kind} does not record and by which it counts",
        "give n_observations, one number for each model, save it with `n_observations=` or `data=`, or say"
        " `n_observations='equal'` if all models are to count alike",
        "E-OBSERVATIONS",
    )
