"""scikit-learn's KMeans, MiniBatchKMeans, BisectingKMeans and Birch, in and out: centres as posteriors N(c, s I / n_k).

None but KMeans is a function of sums of rows (batches, splits and trees depend on their order), so that no fit on
pooled rows is what a fusion of the others gives: centres that are the same cluster are averaged, and the verdict
compares with the sites.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.cluster.hierarchy import ward

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
    centres_are_means: ClassVar[bool] = True

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of the centres; the model records its counts."""
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
            text = "keeps no labels of its rows, so that no cluster's size is known"
            raise InputError(f"this {self.class_name}", text, "fit with `compute_labels=True`", "E-NEEDED")
        return np.asarray(labels)

    def inertia(self, model: Any) -> float:
        """Return the sum of squared distances of rows to their centres."""
        return float(model.inertia_)

    def settings(self, model: Any) -> dict[str, Json]:
        """Return hyper-parameters that rebuilding needs, as JSON values."""
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


class MiniBatchKMeansAdapter(KMeansAdapter):
    """Centres of k-means on batches, with the sizes of the clusters that rows were assigned to at the end."""

    kind: ClassVar[str] = "sklearn.MiniBatchKMeans"
    class_name: ClassVar[str] = "MiniBatchKMeans"
    centres_are_means: ClassVar[bool] = False

    def fitted(self, centres: Array, counts: Array, inertia: float, posterior: Posterior) -> Any:
        """Return a fitted model, which goes on with `partial_fit` from the sizes of its clusters."""
        from sklearn.cluster import MiniBatchKMeans

        del posterior
        made = MiniBatchKMeans(n_clusters=len(centres), n_init=1, max_iter=1, random_state=0)
        model = fitted_to_distinct_points(made, centres)
        model.set_params(init="k-means++", n_init="auto", max_iter=100, random_state=None)
        model.cluster_centers_, model._counts = centres, counts.copy()
        model.inertia_, model.n_iter_, model.n_steps_ = inertia, 0, 0
        return model


class BisectingKMeansAdapter(KMeansAdapter):
    """Centres of bisecting k-means; the tree of a rebuilt one joins the nearest centres first, by Ward's criterion."""

    kind: ClassVar[str] = "sklearn.BisectingKMeans"
    class_name: ClassVar[str] = "BisectingKMeans"

    def fitted(self, centres: Array, counts: Array, inertia: float, posterior: Posterior) -> Any:
        """Return a fitted model."""
        from sklearn.cluster import BisectingKMeans

        del posterior
        distinct_points = np.zeros_like(centres) + np.arange(len(centres))[:, None]
        model = BisectingKMeans(n_clusters=len(centres), random_state=0).fit(distinct_points)
        model.set_params(random_state=None)
        del model.labels_
        model.cluster_centers_, model.inertia_ = centres, inertia
        model._X_mean = np.zeros(centres.shape[1])
        model._bisecting_tree = _tree(type(model._bisecting_tree), centres, np.maximum(counts, 1.0))
        return model


def _tree(node: Any, centres: Array, counts: Array) -> Any:
    """Return the root of a binary tree over centres (K, D), with the mean of its rows in every node."""
    nodes, sizes, means = [], list(counts), list(centres)
    for label, centre in enumerate(centres):
        nodes.append(node(center=centre, indices=None, score=0.0))
        nodes[-1].label = label
    for left, right in ward(centres)[:, :2].astype(int) if len(centres) > 1 else ():
        size = sizes[left] + sizes[right]
        means.append((sizes[left] * means[left] + sizes[right] * means[right]) / size)
        sizes.append(size)
        nodes.append(node(center=means[-1], indices=None, score=0.0))
        nodes[-1].left, nodes[-1].right = nodes[left], nodes[right]
    return nodes[-1]


class BirchAdapter(KMeansAdapter):
    """Subclusters of a clustering-feature tree: their counts, sums and sums of squares are in its leaves.

    A rebuilt model has the fused subclusters, and clusters them as its `n_clusters` says; it has no tree, so that it
    cannot go on with `partial_fit`.
    """

    kind: ClassVar[str] = "sklearn.Birch"
    class_name: ClassVar[str] = "Birch"

    def centres(self, model: Any) -> Array:
        """Return the centres of the subclusters."""
        self.require_fitted(model, "subcluster_centers_")
        return np.asarray(model.subcluster_centers_, dtype=np.float64)

    def counts(self, model: Any) -> Array:
        """Return the rows of every subcluster."""
        counts = getattr(model, "counts_", None)
        if counts is not None:
            return np.asarray(counts, dtype=np.float64)
        return np.array([one.n_samples_ for one in _subclusters(model)], dtype=np.float64)

    def inertia(self, model: Any) -> float:
        """Return the sum of squared distances of rows to the centres of their subclusters."""
        stored = getattr(model, "inertia_", None)
        if stored is not None:
            return float(stored)
        return float(
            sum(
                max(0.0, one.squared_sum_ - float(np.dot(one.linear_sum_, one.linear_sum_)) / one.n_samples_)
                for one in _subclusters(model)
            )
        )

    def settings(self, model: Any) -> dict[str, Json]:
        """Return how subclusters are clustered."""
        n_clusters = model.n_clusters
        if n_clusters is not None and not isinstance(n_clusters, int | np.integer):
            raise InputError("n_clusters", f"is a {type(n_clusters).__name__}", "fit with a number, or None", "E-TYPE")
        return {"n_clusters": None if n_clusters is None else int(n_clusters), "threshold": float(model.threshold)}

    def fitted(self, centres: Array, counts: Array, inertia: float, posterior: Posterior) -> Any:
        """Return a fitted model."""
        from sklearn.cluster import Birch

        del counts
        n_clusters, threshold = posterior.source["n_clusters"], float(posterior.source["threshold"])
        # No more clusters than subclusters, of which a fusion may leave fewer.
        n_clusters = None if n_clusters is None else min(int(n_clusters), len(centres))
        made = Birch(threshold=threshold, n_clusters=None)
        model = fitted_to_distinct_points(made, centres)
        model.set_params(n_clusters=n_clusters)
        model.subcluster_centers_ = centres
        model._n_features_out = len(centres)
        model._global_clustering()
        model.inertia_ = inertia
        del model.root_, model.dummy_leaf_
        return model

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the squared distance of every row to the nearest subcluster."""
        from sklearn.metrics import pairwise_distances_argmin

        centres = self.centres(model)
        return distance_scores(data, centres, pairwise_distances_argmin(data, centres))


def _subclusters(model: Any) -> list[Any]:
    """Return the subclusters of all leaves, in the order of the centres."""
    if not hasattr(model, "dummy_leaf_"):
        text = "has no tree, so that no subcluster's size is known"
        raise InputError("this Birch", text, "give the model as it was fitted", "E-NEEDED")
    leaf, subclusters = model.dummy_leaf_.next_leaf_, []
    while leaf is not None:
        subclusters += leaf.subclusters_
        leaf = leaf.next_leaf_
    return subclusters
