"""Coefficients of fused estimators by name, with intervals where least squares or a fit's information has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array
from consilience.core.paired import LEVEL
from consilience.errors import InputError
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.fused_results import FusedResults
from consilience.estimators.inference import LinearInference, linear_inference
from consilience.estimators.rebuild import rebuild
from consilience.estimators.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of an estimator.

    Parameters
    ----------
    names : tuple of str of length p
        Names of the columns, with the output that they are for where there are several.
    values : ndarray of shape (p,)
        The coefficients.
    intervals : ndarray of shape (p, 2), optional
        Their intervals; None where neither least squares nor a fit's information gives them.
    errors : ndarray of shape (p,), optional
        Their standard errors, of results of statsmodels.
    """

    names: tuple[str, ...]
    values: Array
    intervals: Array | None
    errors: Array | None = None


def column_names(statistics: Statistics) -> tuple[str, ...]:
    """Return the names of the columns, by their number where they have none."""
    return statistics.features.names or tuple(f"column {number}" for number in range(statistics.n_columns))


def coefficients_of(statistics: Statistics, level: float = LEVEL) -> Coefficients | None:
    """Return the coefficients of the estimator that sums give; None for one without, or without its last step."""
    if statistics.last_step is not None or adapter_of_kind(statistics.kind).needs == "nothing":
        return None
    model = rebuild(statistics)
    if isinstance(model, FusedResults):
        values, errors = (of if of.ndim == 1 else of.T.ravel() for of in (model.params, model.bse))
        return Coefficients(tuple(model.coefficient_names), values, model.conf_int(1.0 - level), errors)
    if not hasattr(model, "coef_"):
        return None
    values = np.atleast_2d(model.coef_)  # (q, d)
    outputs = [""] if len(values) == 1 else [f" → {number}" for number in range(len(values))]
    if statistics.classes is not None and len(values) == len(statistics.classes):
        outputs = [f" → {name}" for name in statistics.classes.names]
    names = tuple(f"{name}{output}" for output in outputs for name in column_names(statistics))
    inference = inference_of(statistics)
    return Coefficients(names, values.ravel(), None if inference is None else inference.intervals(level))


def inference_of(statistics: Statistics) -> LinearInference | None:
    """Return least squares with its errors; None of another estimator, or of too few rows."""
    try:
        return linear_inference(statistics)
    except InputError:
        return None
