"""Fitted heads: classifiers and regressions that compute features of their inputs and judge these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax
from scipy.stats import t as student_t

from consilience.checks import Array
from consilience.core.scores import LEVEL
from consilience.errors import InputError, UnsupportedError
from consilience.estimators.heads.feature_maps import FeatureMap, as_rows, frozen, parsed_record
from consilience.files.labelled_arrays import read_labelled_arrays

REMEDY = "give what computes them: `fusion.model.with_features(module)`"


def clip_norms(features: Array, bound: float | None) -> Array:
    """Return features divided by a bound, and rows longer than 1 then shortened; as they are without a bound."""
    if bound is None:
        return features
    scaled = np.asarray(features, dtype=np.float64) / bound
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.maximum(norms, 1.0)


class FittedHead(ABC):
    """A classifier of features; with its feature map, of inputs.

    Parameters
    ----------
    kind : str
        Name of its class in files, such as ``consilience.RidgeHead``.
    classes : ndarray of shape (C,)
        Labels of the classes.
    n_features : int
        Number d of features.
    record : str
        What files say of the feature map.
    features : FeatureMap or None
        The map; None where it is not at hand.
    bound : float, optional
        Norm to which features are clipped, with noise for privacy. Default: none.
    """

    has_probabilities: ClassVar[bool] = True

    def __init__(
        self,
        kind: str,
        classes: Any,
        n_features: int,
        record: str,
        features: FeatureMap | None,
        bound: float | None = None,
    ) -> None:
        self.head_kind = kind
        self.classes_ = classes
        self.n_features_in_ = n_features
        self.features_record_ = record
        self.features = features
        self.norm_bound_ = bound

    @property
    def estimator_kind(self) -> str:
        """The kind of estimator that it stands for."""
        return self.head_kind

    def __repr__(self) -> str:
        """Return the class of the head, its features, and its classes or targets."""
        name, kind = parsed_record(self.features_record_)["name"], self.head_kind.rpartition(".")[2]
        return f"{kind}({self.n_features_in_} features of {name}, {self._judges()})"

    def _judges(self) -> str:
        return f"{len(self.classes_)} classes"

    def with_features(self, features: Any) -> FittedHead:
        """Return the head with what computes its features.

        Parameters
        ----------
        features : torch module, transformer, callable or FeatureMap
            What all sites used; its digest is compared.

        Raises
        ------
        InputError
            For features of another digest.
        """
        made = frozen(features)
        stated = parsed_record(self.features_record_)
        if made.digest != stated["digest"]:
            text = f"have the digest {made.digest[:12]}, expected {stated['digest'][:12]} of {stated['name']}"
            remedy = "give the module or transformer that the sites used, with its weights"
            raise InputError(f"features: {made.name}", text, remedy, "E-MISMATCH")
        return self._with_map(made)

    def on_features(self) -> FittedHead:
        """Return the head as a classifier of rows of features."""
        return self._with_map(frozen(None))

    def _with_map(self, features: FeatureMap) -> FittedHead:
        head = copy(self)
        head.features = features
        return head

    def features_of(self, X: Any) -> Array:
        """Return the features (n, d) of inputs (n, ...), clipped where the sums were.

        Raises
        ------
        InputError
            Where the map is not at hand, or gives another number of features.
        """
        if self.features is None:
            name = parsed_record(self.features_record_)["name"]
            raise InputError("features", f"are of {name}, which no file holds", REMEDY, "E-NEEDED")
        rows = as_rows(self.features(X), f"features: {self.features.name}")
        if rows.shape[1] != self.n_features_in_:
            raise InputError("X", f"has {rows.shape[1]} features, expected {self.n_features_in_}", code="E-SHAPE")
        return clip_norms(rows, self.norm_bound_)

    def labelled_features(self, data: Any) -> tuple[Array, Any]:
        """Return the features and the labels of data: ``(X, y)``, or the path of a .npz with x and y."""
        if isinstance(data, tuple) and len(data) == 2:
            return self.features_of(data[0]), data[1]
        arrays = read_labelled_arrays(data)
        if arrays.labels is None:
            raise InputError(data, "has no array y", "write a .npz with x and y", "E-NEEDED")
        return self.features_of(arrays.inputs), arrays.labels

    @abstractmethod
    def scores(self, features: Array) -> Array:
        """Return the scores (n, C) of rows of features."""

    def decision_function(self, X: Any) -> Array:
        """Return the scores (n, C) of inputs; the largest one decides."""
        return self.scores(self.features_of(X))

    def predict(self, X: Any) -> Any:
        """Return the class (n,) of inputs."""
        return self.classes_[self.decision_function(X).argmax(axis=1)]

    def module(self) -> Any:
        """Return a torch module: the features and the head, with logits as its answer.

        Raises
        ------
        UnsupportedError
            For heads that are not linear, and features that are no module.
        """
        raise UnsupportedError(f"a {self.head_kind}", "is not linear, so that no module holds it", "use predict")


class LinearHead(FittedHead):
    """A head whose scores are linear in the features: ``coef_`` (C, d) and ``intercept_`` (C,)."""

    has_probabilities: ClassVar[bool] = False

    def set_rows(self, coefficients: Array, intercepts: Array) -> LinearHead:
        """Set the rows of the head; return it."""
        self.coef_ = np.ascontiguousarray(coefficients)
        self.intercept_ = np.asarray(intercepts)
        return self

    def scores(self, features: Array) -> Array:
        """Return W phi + b (n, C)."""
        values: Array = np.asarray(features, dtype=np.float64) @ self.coef_.T + self.intercept_
        return values

    def module(self) -> Any:
        """Return a torch module: the frozen features, flattened, and a linear layer."""
        import torch
        from torch import nn

        if self.norm_bound_ is not None:
            text = "clips its features, which a linear layer does not"
            raise UnsupportedError("a head with noise", text, "use predict")
        inner = getattr(self.features, "module", None)
        if inner is None:
            name = parsed_record(self.features_record_)["name"]
            raise UnsupportedError("features", f"are of {name}, which is no torch module here", REMEDY)
        layer = nn.Linear(self.n_features_in_, len(self.coef_))
        dtype = next((p.dtype for p in inner.parameters() if p.is_floating_point()), torch.float32)
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(self.coef_))
            layer.bias.copy_(torch.as_tensor(self.intercept_))
        return nn.Sequential(inner, nn.Flatten(), layer.to(dtype)).eval()


class DiscriminantHead(LinearHead):
    """A linear head whose scores are log posteriors up to a constant."""

    has_probabilities: ClassVar[bool] = True

    def predict_log_proba(self, X: Any) -> Array:
        """Return the log probabilities (n, C) of the classes."""
        values: Array = log_softmax(self.decision_function(X), axis=1)
        return values

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (n, C) of the classes."""
        return np.exp(self.predict_log_proba(X))


class BayesianLinearHead(LinearHead):
    """A linear head with the posterior of its rows: Student's t for every class, with unknown noise."""

    def set_posterior(self, covariance: Array, mean: Array, n: float, dof: float, noise: Array) -> None:
        """Set V (d, d) of centred features, their mean (d,), rows, degrees of freedom and noise variances (C,)."""
        self.covariance_, self.mean_, self.n_rows_ = covariance, mean, n
        self.degrees_of_freedom_, self.noise_variance_ = dof, noise

    def set_evidence(self, ridge: float, log_evidence: float) -> None:
        """Set the ridge of each row that was chosen, and its log marginal likelihood."""
        self.ridge_, self.log_evidence_ = ridge, log_evidence

    def deviations(self, X: Any) -> Array:
        """Return the scale (n, C) of each score's predictive distribution, Student's t.

        sigma_c sqrt(1 + 1 / n + phi^T V phi), phi centred.
        """
        return self._scales(X)

    def _scales(self, X: Any) -> Array:
        centred = self.features_of(X) - self.mean_
        spread = 1.0 + 1.0 / self.n_rows_ + np.einsum("nd,de,ne->n", centred, self.covariance_, centred)
        return np.sqrt(spread)[:, None] * np.sqrt(self.noise_variance_)

    def interval(self, X: Any, level: float = LEVEL) -> Array:
        """Return the central intervals (n, C, 2) of the scores at a level."""
        scores, scale = self.decision_function(X), self._scales(X)
        width = student_t.ppf(0.5 + level / 2.0, self.degrees_of_freedom_) * scale
        return np.stack([scores - width, scores + width], axis=-1)


class RealTargets(FittedHead):
    """What heads of real targets have in common: predictions in the shape that the targets had, ``target_shape_``."""

    target_shape_: tuple[int, ...] = ()

    def _judges(self) -> str:
        n_targets = self.target_shape_[0] if self.target_shape_ else 1
        return f"{n_targets} target{'s' if n_targets > 1 else ''}"

    def predict(self, X: Any) -> Array:
        """Return the targets (n,) or (n, q) of inputs."""
        return self._as_targets(self.decision_function(X))

    def _as_targets(self, values: Array) -> Array:
        """Return values (n, q, ...) in the shape of the targets: (n, ...) where they were a vector."""
        return values if self.target_shape_ else values[:, 0]


class RegressionHead(RealTargets, LinearHead):
    """A linear head for real targets."""


class BayesianRegressionHead(RealTargets, BayesianLinearHead):
    """A linear head for real targets with the posterior of its rows."""

    def deviations(self, X: Any) -> Array:
        """Return the scale (n,) or (n, q) of each target's predictive distribution, Student's t."""
        return self._as_targets(super().deviations(X))

    def interval(self, X: Any, level: float = LEVEL) -> Array:
        """Return the central predictive intervals (n, 2) or (n, q, 2) of the targets at a level."""
        return self._as_targets(super().interval(X, level))


class DelegatedHead(FittedHead):
    """A head that a fitted classifier of scikit-learn judges: Gaussian naive Bayes, quadratic discriminants."""

    def set_estimator(self, estimator: Any) -> DelegatedHead:
        """Set the classifier of features; return the head."""
        self.estimator_ = estimator
        return self

    def scores(self, features: Array) -> Array:
        """Return the log probabilities (n, C)."""
        values: Array = np.asarray(self.estimator_.predict_log_proba(np.asarray(features, dtype=np.float64)))
        return values

    def predict_log_proba(self, X: Any) -> Array:
        """Return the log probabilities (n, C) of the classes."""
        return self.decision_function(X)

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (n, C) of the classes."""
        return np.exp(self.decision_function(X))
