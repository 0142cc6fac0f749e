"""What a model says of each observation: how well it explains it, and by which component."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.checks import Array, Labels


@dataclass(frozen=True, eq=False)
class Scores:
    """One score for each of n observations, and which of the K components explains it best.

    Parameters
    ----------
    name
        What is measured, such as ``log density``.
    unit
        Unit of the score, such as ``nats per row``.
    larger_is_better
        Whether a larger score is a better one.
    observations
        What is observed, in the plural: ``rows`` or ``documents``.
    values
        The score of every observation (n,), in `unit`; of no meaning where its weight is zero.
    weights
        How much every observation counts in the mean (n,): one for a row, held-out tokens for a document. An
        observation that cannot be scored has none.
    labels
        Component that explains every observation best (n,); -1 where nothing tells.
    usage
        How much every component explains (K,), in `usage_unit`.
    usage_unit
        What `usage` counts, in the plural: ``rows`` or ``tokens``.
    """

    name: str
    unit: str
    larger_is_better: bool
    observations: str
    values: Array
    weights: Array
    labels: Labels
    usage: Labels
    usage_unit: str

    @property
    def mean(self) -> float:
        """The mean score, in `unit`: that of all rows, or of all held-out tokens."""
        scored = self.weights > 0
        return float(np.average(self.values[scored], weights=self.weights[scored]))


def row_scores(
    name: str, unit: str, values: Array, labels: Labels, n_components: int, *, larger_is_better: bool
) -> Scores:
    """Return the scores of rows that all count the same and each belong to one component.

    Examples
    --------
    >>> row_scores("log density", "nats per row", [-1.0, -2.0], [2, 0], 3, larger_is_better=True).usage
    array([1, 0, 1])
    """
    values, labels = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    usage = np.bincount(labels, minlength=n_components)
    return Scores(name, unit, larger_is_better, "rows", values, np.ones(len(values)), labels, usage, "rows")


def without_feature_names(model: Any) -> Any:
    """Return a shallow copy of a scikit-learn estimator that does not ask for named columns.

    Whoever scores has matched the columns already, and an estimator that knows names warns at every plain array.
    """
    bare = copy.copy(model)
    vars(bare).pop("feature_names_in_", None)
    return bare
