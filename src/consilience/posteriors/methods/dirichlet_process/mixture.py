"""A Dirichlet-process mixture of Gaussians over points, by variational inference (Blei and Jordan 2006).

scikit-learn's mixture with stick-breaking weights fits it; here are its base law and how the settings are chosen. In
the units of the points' own spread, the mean of a cluster is drawn around zero with variance about 1, and its points
around it with a variance of about `share`: with mean precision ``share`` and D degrees of freedom at ``share`` each.
(With scikit-learn's own mean precision of 1 clusters lie no farther apart than the points of one, or pay for it.)
Share and concentration are those of the greatest lower bound. What scikit-learn leaves out of its bound, since it is
constant in one fit, differs between settings and is added: T sticks with priors B(1, a) = 1 / a, and T base laws.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from consilience.checks import Array, Labels

CovarianceType = Literal["diag", "spherical"]

INITIALISATIONS = ("k-means++", "random_from_data", "random")
"""scikit-learn's ways to start, used in turn."""
SPREAD_ROUNDING = 1e-12
"""Spread, in units of the points, below which a coordinate counts as constant."""
OUTLIER_DISTANCE_RATIO = 10.0
"""Distance, in median distances, beyond which a point does not set the scale. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class MixtureSetting:
    """Hyper-parameters of one mixture."""

    truncation: int  # number T of sticks, at most that of the points
    covariance_type: CovarianceType  # shape of the clusters' covariances
    concentration: float  # a, of the Dirichlet process: the larger, the more clusters
    share: float = 1.0  # variance of points around their cluster's mean, in that of all


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fitted mixture: clusters of the points and the lower bound of its log evidence."""

    setting: MixtureSetting  # what was fitted
    labels: Labels  # cluster of each point (N,), consecutive from 0; clusters that no point is surest of are dropped
    confidence: Array  # probability of that cluster (N,)
    # Lower bound of the log evidence after each iteration, in nats, up to what is the same for every setting.
    bounds: Array
    converged: bool  # whether the last iteration changed it by less than 1e-3

    @property
    def n_clusters(self) -> int:
        """Number of clusters that points are in."""
        return int(self.labels.max()) + 1


def standardised(points: Array, covariance_type: CovarianceType) -> Array:
    """Return points (N, D') less their median, in units of their spread; (N, 0) where they are all the same.

    Diagonal covariances do not mind the units of coordinates, so each is divided by its own standard deviation.
    Spherical ones do: all are divided by one number, the root mean of their variances. Points more than ten times as
    far from the median as is typical have no say in that, or one fit gone wrong would make all others look alike.
    Coordinates that are all the same are left out. Spherical covariances do not mind rotations either: more coordinates
    than points are replaced by as many as there are points, between which all distances are the same.
    """
    offsets = points - np.median(points, axis=0)
    varying = offsets.std(axis=0) > SPREAD_ROUNDING * np.abs(points).max(axis=0)
    offsets = offsets[:, varying]
    if not offsets.shape[1]:
        return offsets
    if covariance_type == "spherical" and offsets.shape[1] > len(offsets):
        directions, lengths, _ = np.linalg.svd(offsets, full_matrices=False)
        offsets = (directions * lengths)[:, lengths > SPREAD_ROUNDING * lengths[0]]
    spread_of_all = _spread(offsets, covariance_type)
    distances = np.linalg.norm(offsets / spread_of_all, axis=1)  # from the median, in spreads (N,)
    is_near = distances <= OUTLIER_DISTANCE_RATIO * np.median(distances)
    spread_of_near = _spread(offsets[is_near], covariance_type)
    return offsets / np.where(spread_of_near > SPREAD_ROUNDING * spread_of_all, spread_of_near, spread_of_all)


def _spread(offsets: Array, covariance_type: CovarianceType) -> Array:
    """Return the standard deviation of every coordinate (D,), or the root mean of the variances (1,)."""
    variances = offsets.var(axis=0)
    return np.sqrt(variances if covariance_type == "diag" else variances.mean(keepdims=True))


def fit_mixture(points: Array, setting: MixtureSetting, restarts: int, max_iterations: int, seed: int) -> MixtureFit:
    """Return the fit of greatest lower bound of `restarts` starts: k-means++ seeds, other points, and chance in turn.

    Points (N, D) are ``standardised``, at least two and not all the same.
    """
    counts = {start: len(range(index, restarts, len(INITIALISATIONS))) for index, start in enumerate(INITIALISATIONS)}
    models = [_fitted(points, setting, start, count, max_iterations, seed) for start, count in counts.items() if count]
    model = max(models, key=lambda fitted: float(fitted.lower_bound_))
    # The terms of the bound that scikit-learn drops: log a per stick, and the base law's normaliser per cluster.
    responsibilities = model.predict_proba(points)
    labels = np.unique(responsibilities.argmax(axis=1), return_inverse=True)[1].astype(np.int64)
    dim = points.shape[1]
    constants = np.log(setting.concentration) + 0.5 * dim * (1 + dim) * np.log(setting.share)
    bounds = np.asarray(getattr(model, "lower_bounds_", [model.lower_bound_]))  # scikit-learn of old keeps the last
    return MixtureFit(
        setting, labels, responsibilities.max(axis=1), bounds + setting.truncation * constants, bool(model.converged_)
    )


def _fitted(points: Array, setting: MixtureSetting, start: str, count: int, max_iterations: int, seed: int) -> Any:
    """Return scikit-learn's mixture of greatest lower bound of `count` starts of a kind."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import BayesianGaussianMixture

    dim, share = points.shape[1], setting.share
    model = BayesianGaussianMixture(
        n_components=setting.truncation,
        covariance_type=setting.covariance_type,
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=setting.concentration,
        mean_prior=np.zeros(dim),
        mean_precision_prior=share,
        degrees_of_freedom_prior=dim,
        covariance_prior=dim * share if setting.covariance_type == "spherical" else np.full(dim, dim * share),
        n_init=count,
        init_params=start,
        max_iter=max_iterations,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what it says is the status of the fusion
        return model.fit(points)
