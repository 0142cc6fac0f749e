"""Ridge classifiers: ridge regression on targets of 1 and -1, from the moments of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Json
from consilience.errors import Problem
from consilience.estimators.adapters.base import ClassMomentsAdapter, RefittedAdapter, require_two_classes
from consilience.estimators.adapters.linear_regression import (
    RIDGE_SOLVERS,
    refuse_positive,
    ridge_coefficients,
    ridge_ravels_one_target,
)
from consilience.estimators.statistics import Statistics


class RidgeClassifierAdapter(ClassMomentsAdapter, RefittedAdapter):
    """Ridge classifiers. Weights of classes multiply the moments of the class, "balanced" ones those of all sites."""

    kind: ClassVar[str] = "sklearn.RidgeClassifier"
    module: ClassVar[str] = "sklearn.linear_model"
    loose_solvers: ClassVar[Mapping[str, tuple[str, ...]]] = RIDGE_SOLVERS
    lacks: ClassVar[str | None] = "the number of rows and the moments of every class"

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse coefficients that are held positive."""
        return refuse_positive(parameters)

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set coefficients and intercepts of one target for each class, of one for two classes."""
        from sklearn.preprocessing import LabelBinarizer

        require_two_classes(statistics)
        record, labels = statistics.rows, statistics.classes
        classes = np.array([]) if labels is None else labels.array()
        if isinstance(model.class_weight, str):  # "balanced", n / (C n_c)
            record = record.reweighted(record.n.sum() / (len(record.n) * record.n))
        elif model.class_weight:
            record = record.reweighted(np.array([float(model.class_weight.get(c, 1.0)) for c in classes.tolist()]))
        total, n_classes = record.total(), len(classes)
        targets = 2.0 * np.eye(n_classes) - 1.0 if n_classes != 2 else np.array([[-1.0], [1.0]])  # (C, q)
        shares = record.weight / total.weight
        y_mean = shares @ targets  # (q,)
        if model.fit_intercept:
            gram, x_mean = total.scatter, total.mean
            cross = (record.weight[:, None] * (record.mean - x_mean)).T @ (targets - y_mean)
        else:
            gram, x_mean, y_mean = total.raw_scatter(), np.zeros(record.n_columns), np.zeros(targets.shape[1])
            cross = (record.weight[:, None] * record.mean).T @ targets
        coefficients = ridge_coefficients(gram, cross, model.alpha)  # (d, q)
        model.coef_ = np.ascontiguousarray(coefficients.T)
        if n_classes == 2 and ridge_ravels_one_target():
            model.coef_ = model.coef_.ravel()
        model.intercept_ = y_mean - x_mean @ coefficients if model.fit_intercept else 0.0
        model.n_iter_, model.solver_ = None, "cholesky" if model.solver == "auto" else model.solver
        model._label_binarizer = LabelBinarizer(pos_label=1, neg_label=-1).fit(classes)
