"""scikit-learn's KMeans, in and out: cluster centres as posteriors N(centre, s I / n_k)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Json, Labels
from consilience.core.features import sklearn_features
from consilience.core.scores import ScoreKind, Scores, row_scores, without_feature_names
from consilience.errors import InputError
from consilience.families import SphericalGaussian
from consilience.posteriors.adapters.base import Adapter, set_sklearn_features
from consilience.posteriors.posterior import Attached, Posterior

_MIN_VARIANCE_SHARE = 1e-12
"""Variance within clusters at least, as a share of that between centres: where every point is a centre, s is zero, and
a Gaussian needs a width. Chosen by hand."""

_MIN_VARIANCE = 1e-300
"""And where all centres coincide too. Against division by zero only."""


class KMeansAdapter(Adapter):
    """Cluster centres as the posterior of their means: N(centre, s I / n_k) under a flat prior.

    s is the site's mean squared distance per dimension and n_k the cluster's size, so a fused centre is the mean of its
    copies weighted by their precision: with equal s, the mean of the pooled points.
    """

    kind: ClassVar[str] = "sklearn.KMeans"
    library: ClassVar[str] = "sklearn"
    class_name: ClassVar[str] = "KMeans"
    follows_units: ClassVar[bool] = True
    in_squared_units: ClassVar[tuple[str, ...]] = ("inertia",)
    counts_are_rows: ClassVar[bool] = True

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of the centres; the model records its counts."""
        del n_observations
        centres = self.centres(model)
        family = SphericalGaussian(centres.shape[1])
        counts, inertia = self.counts(model), self.inertia(model)
        within = inertia / (counts.sum() * centres.shape[1])  # mean squared distance per dimension
        s = max(within, _MIN_VARIANCE_SHARE * float(np.var(centres)), _MIN_VARIANCE)
        return Posterior(
            family,
            family.to_natural(mean=centres, variance=s / np.maximum(counts, 1.0)),
            prior=np.zeros(family.size),  # flat: all natural parameters zero
            counts=counts,
            weights=counts / counts.sum(),
            attached={"inertia": Attached(np.array(inertia), (), "sum")},
            features=sklearn_features(model),
            source={"kind": self.kind, **self.settings(model)},
        )

    def centres(self, model: Any) -> Array:
        """Return the centres (K, D) of a fitted model."""
        self.require_fitted(model, "cluster_centers_")
        return np.asarray(model.cluster_centers_, dtype=np.float64)

    def counts(self, model: Any) -> Array:
        """Return the rows (K,) of every cluster."""
        counts = getattr(model, "counts_", None)  # only rebuilt models have it, and they have no labels
        if counts is not None:
            return np.asarray(counts, dtype=np.float64)
        return np.bincount(self._labels(model), minlength=len(self.centres(model))).astype(np.float64)

    def _labels(self, model: Any) -> Labels:
        labels = getattr(model, "labels_", None)
        if labels is None:
            raise InputError(
                f"this {self.class_name}",
                "keeps no labels of its rows, so that no cluster's size is known",
                "fit with `compute_labels=True`",
                "E-NEEDED",
            )
        return np.asarray(labels)

    def inertia(self, model: Any) -> float:
        """Return the sum of squared distances of rows to their centres."""
        return float(model.inertia_)

    def settings(self, model: Any) -> dict[str, Json]:
        """Return hyper-parameters that rebuilding needs, as JSON values."""
        del model
        return {}

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model with ``counts_`` and no ``labels_``; its ``inertia_`` is the sum of the sites'."""
        self.require_family(posterior, SphericalGaussian)
        centres = np.ascontiguousarray(posterior.parameters()["mean"])
        counts = np.ones(len(centres)) if posterior.counts is None else np.array(posterior.counts)
        model = self.fitted(centres, counts, float(posterior.attached["inertia"].values), posterior)
        model.counts_ = counts
        set_sklearn_features(model, posterior, centres.shape[1])
        return model

    def fitted(self, centres: Array, counts: Array, inertia: float, posterior: Posterior) -> Any:
        """Return a fitted model of some centres (K, D), without labels of rows."""
        from sklearn.cluster import KMeans

        del counts, posterior
        model = fitted_to_distinct_points(KMeans(n_clusters=len(centres), n_init=1, max_iter=1), centres)
        model.set_params(init="k-means++", n_init="auto", max_iter=300)
        model.cluster_centers_ = centres
        model.inertia_, model.n_iter_ = inertia, 0
        return model

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the squared distance of every row to the centre of its cluster."""
        bare = without_feature_names(model)
        centres = np.array(model.cluster_centers_, dtype=np.float64)  # a model may be in float32, which rows are not
        bare.cluster_centers_ = centres
        return distance_scores(data, centres, bare.predict(data))


def fitted_to_distinct_points(model: Any, centres: Array) -> Any:
    """Return a model fitted to points of its own, without labels: this sets private state that `predict` needs."""
    distinct_points = np.zeros_like(centres) + np.arange(len(centres))[:, None]
    if hasattr(model, "init"):
        model.set_params(init=distinct_points)
    model.fit(distinct_points)
    del model.labels_
    return model


def distance_scores(data: Any, centres: Array, labels: Labels) -> Scores:
    """Return squared distances of rows to their centres as scores."""
    distances = np.square(data - centres[labels]).sum(axis=1)
    name, unit = "squared distance to the nearest centre", "squared units per row"
    return row_scores(name, unit, distances, labels, len(centres), larger_is_better=False, kind=ScoreKind.DISTANCE)
