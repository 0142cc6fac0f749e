"""Nearest centroids and nearest shrunken centroids (Tibshirani et al. 2002), from means and variances of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Json
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import ClassMomentsAdapter, RefittedAdapter, require_two_classes
from consilience.estimators.statistics import Statistics


class NearestCentroidAdapter(ClassMomentsAdapter, RefittedAdapter):
    """Nearest centroids by the Euclidean distance."""

    kind: ClassVar[str] = "sklearn.NearestCentroid"
    module: ClassVar[str] = "sklearn.neighbors"
    lacks: ClassVar[str | None] = "the number of rows of every class"
    is_diagonal: ClassVar[bool] = True
    compared: ClassVar[tuple[str, ...]] = ("centroids_",)

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse medians."""
        if parameters.get("metric") != "euclidean":
            metric = parameters.get("metric")
            return Problem("metric", f"is {metric!r}: centroids are then medians, which do not add up", "use euclidean")
        return None

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set centroids, and what shrinking them takes."""
        record, total = statistics.rows, statistics.rows.total()
        n, n_classes = float(total.n), len(record.n)
        require_two_classes(statistics)
        if not np.any(total.variances > 0):
            raise InputError("", "all columns are constant over all rows", "leave them out", "E-NUMBER")
        priors = statistics.parameters.get("priors", "uniform")
        if priors == "empirical":
            model.class_prior_ = record.n / n
        elif priors == "uniform":
            model.class_prior_ = np.full(n_classes, 1.0 / n_classes)
        else:
            model.class_prior_ = np.asarray(priors, dtype=np.float64) / np.sum(priors)
        model.centroids_ = record.mean.copy()
        model.within_class_std_dev_ = np.sqrt(record.variances.sum(axis=0) / (n - n_classes))
        # Deviations from the centroid of all, by their standard errors (ESL, equation 18.4).
        spread = model.within_class_std_dev_ + np.median(model.within_class_std_dev_)
        errors = np.sqrt(1.0 / record.n - 1.0 / n)[:, None] * spread
        with np.errstate(divide="ignore", invalid="ignore"):
            model.deviations_ = (model.centroids_ - total.mean) / errors
        if model.shrink_threshold:
            signs = np.sign(model.deviations_)
            model.deviations_ = signs * np.clip(np.abs(model.deviations_) - model.shrink_threshold, 0.0, None)
            model.centroids_ = total.mean + errors * model.deviations_
