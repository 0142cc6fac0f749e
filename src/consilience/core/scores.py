"""Scores of observations under a model: log densities, distances or held-out likelihoods, and component labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from consilience.checks import Array, Labels


class ScoreKind(StrEnum):
    """What a score is, which decides what it may be compared with; every score of an evaluation says it."""

    PREDICTIVE = "predictive"
    """Log density of new data with the parameters integrated out: a density, comparable between any two models."""
    PLUG_IN = "plug-in"
    """The same at a point estimate of the parameters: a density too, over-confident where data are few."""
    BOUND = "bound"
    """A lower bound of the log density, by an amount that differs between models: compares fits of one model only."""
    COMPLETION = "held-out completion"
    """How well one part of an observation is predicted from the other."""
    DISTANCE = "distance"
    """No density: a distance to the model, which shrinks with every component."""
    COHERENCE = "coherence"
    """How often words of a topic occur together in reference documents: not about prediction."""
    AGREEMENT = "agreement with classes"
    """Agreement of components with known classes, of which the model was told nothing."""
    REFERENCE = "distance to reference draws"
    """How far draws are from draws of the posterior of all data, which somebody has."""


DENSITIES = (ScoreKind.PREDICTIVE, ScoreKind.PLUG_IN, ScoreKind.BOUND)
"""Kinds of scores that are log densities of a row, or bounds of them."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One score for each of n observations, and which of the K components explains it best.

    Parameters
    ----------
    name : str
        What is measured, such as ``log density``.
    unit : str
        Unit of the score, such as ``nats per row``.
    larger_is_better : bool
        Whether a larger score is a better one.
    observations : str
        What is observed, in the plural: ``rows`` or ``documents``.
    values : ndarray of shape (n,)
        The score of every observation, in `unit`; of no meaning where its weight is zero.
    weights : ndarray of shape (n,)
        Weight of every observation in the mean: one for a row, the number of held-out tokens for a document. An
        observation that cannot be scored has weight zero.
    labels : ndarray of int of shape (n,)
        Component that explains every observation best; -1 where no component does.
    usage : ndarray of int of shape (K,)
        Number of rows or tokens that every component explains best, in `usage_unit`.
    usage_unit : str
        What `usage` counts, in the plural: ``rows`` or ``tokens``.
    kind : ScoreKind, optional
        What the score is. Default: None, where an adapter does not say.
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
    kind: ScoreKind | None = None

    @property
    def mean(self) -> float:
        """The mean score, in `unit`: that of all rows, or of all held-out tokens."""
        is_scored = self.weights > 0
        return float(np.average(self.values[is_scored], weights=self.weights[is_scored]))


def row_scores(
    name: str,
    unit: str,
    values: Array,
    labels: Labels,
    n_components: int,
    *,
    larger_is_better: bool,
    kind: ScoreKind | None = None,
) -> Scores:
    """Return the scores of rows that all have weight one and each belong to one component.

    Parameters
    ----------
    name, unit, larger_is_better, kind
        As in ``Scores``.
    values : array_like of shape (n,)
        The score of every row.
    labels : array_like of int of shape (n,)
        The component of every row.
    n_components : int
        Number K of components.

    Examples
    --------
    >>> row_scores("log density", "nats per row", [-1.0, -2.0], [2, 0], 3, larger_is_better=True).usage
    array([1, 0, 1])
    """
    values, labels = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    usage = np.bincount(labels, minlength=n_components)
    return Scores(name, unit, larger_is_better, "rows", values, np.ones(len(values)), labels, usage, "rows", kind)


def without_feature_names(model: Any) -> Any:
    """Return a shallow copy of a scikit-learn estimator that does not ask for named columns.

    Whoever scores has matched the columns already, and an estimator that knows names warns at every plain array.
    """
    unnamed = copy.copy(model)
    vars(unnamed).pop("feature_names_in_", None)
    return unnamed
