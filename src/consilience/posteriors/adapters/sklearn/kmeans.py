"""scikit-learn's KMeans, in and out: cluster centres as posteriors N(centre, s I / n_k)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.families import SphericalGaussian
from consilience.posteriors.adapters.base import Adapter, set_sklearn_features, sklearn_features
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.scores import ScoreKind, Scores, row_scores, without_feature_names

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

    def describe(self, model: Any, samples: float | None) -> Posterior:
        """Return the posterior of the centres; the model records its counts."""
        del samples
        self.require_fitted(model, "cluster_centers_")
        centres = np.asarray(model.cluster_centers_, dtype=np.float64)
        family = SphericalGaussian(centres.shape[1])
        counts = getattr(model, "counts_", None)  # only rebuilt models have it, and they have no labels
        if counts is None:
            counts = np.bincount(model.labels_, minlength=len(centres)).astype(np.float64)
        within = float(model.inertia_) / (counts.sum() * centres.shape[1])  # mean squared distance per dimension
        s = max(within, _MIN_VARIANCE_SHARE * float(np.var(centres)), _MIN_VARIANCE)
        return Posterior(
            family,
            family.to_natural(mean=centres, variance=s / np.maximum(counts, 1.0)),
            prior=np.zeros(family.size),  # flat: all natural parameters zero
            counts=counts,
            weights=counts / counts.sum(),
            attached={"inertia": Attached(np.array(float(model.inertia_)), (), "sum")},
            features=sklearn_features(model),
            source={"kind": self.kind},
        )

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted KMeans with ``counts_`` and no ``labels_``; its ``inertia_`` is the sum of the sites'."""
        from sklearn.cluster import KMeans

        self.require_family(posterior, SphericalGaussian)
        centres = np.ascontiguousarray(posterior.parameters()["mean"])
        model = KMeans(n_clusters=len(centres), init=centres, n_init=1, max_iter=1)
        # Fitting sets private state that `predict` needs; any distinct points serve.
        distinct_points = np.zeros_like(centres) + np.arange(len(centres))[:, None]
        model.set_params(init=distinct_points).fit(distinct_points)
        model.set_params(init="k-means++", n_init="auto", max_iter=300)
        model.cluster_centers_ = centres
        model.inertia_, model.n_iter_ = float(posterior.attached["inertia"].values), 0
        del model.labels_
        model.counts_ = np.ones(len(centres)) if posterior.counts is None else np.array(posterior.counts)
        set_sklearn_features(model, posterior, centres.shape[1])
        return model

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the squared distance of every row to the nearest centre."""
        bare = without_feature_names(model)
        centres = np.array(model.cluster_centers_, dtype=np.float64)  # a model may be in float32, which rows are not
        bare.cluster_centers_ = centres
        labels = bare.predict(data)
        distances = np.square(data - centres[labels]).sum(axis=1)
        name, unit = "squared distance to the nearest centre", "squared units per row"
        return row_scores(name, unit, distances, labels, len(centres), larger_is_better=False, kind=ScoreKind.DISTANCE)
