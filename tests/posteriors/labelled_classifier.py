"""A Gaussian classifier that the library has never heard of, and its adapter: components with labels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.core.features import Features
from consilience.core.scores import Scores, row_scores
from consilience.families import NormalGamma
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.posterior import Posterior


class GaussianClasses:
    """A Gaussian of independent columns for every class."""

    def fit(self, rows: np.ndarray, labels: np.ndarray) -> GaussianClasses:
        self.classes, self.counts = np.unique(labels, return_counts=True)
        self.means = np.stack([rows[labels == c].mean(axis=0) for c in self.classes])
        self.variances = np.stack([rows[labels == c].var(axis=0) for c in self.classes])
        return self

    def log_densities(self, rows: np.ndarray) -> np.ndarray:
        z = (rows[:, None] - self.means) ** 2 / self.variances + np.log(2.0 * np.pi * self.variances)
        return np.log(self.counts / self.counts.sum()) - 0.5 * z.sum(axis=2)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return self.classes[self.log_densities(rows).argmax(axis=1)]


class GaussianClassesAdapter(Adapter):
    """Sufficient statistics of each class under a flat prior, so that a product is the model of the pooled data."""

    kind: ClassVar[str] = "tests.GaussianClasses"
    library: ClassVar[str] = "tests"
    class_name: ClassVar[str] = "GaussianClasses"
    components: ClassVar[Any] = "labelled"
    recommended_options: ClassVar[Any] = {"combine": "product"}

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        del n_observations
        self.require_fitted(model, "means")
        family, n = NormalGamma(dim=model.means.shape[1]), model.counts.astype(np.float64)
        natural = family.to_natural(
            mean=model.means, kappa=n, shape=0.5 * (n + 1.0), rate=0.5 * n[:, None] * model.variances
        )
        return Posterior(
            family,
            natural,
            prior=np.zeros(family.size),
            counts=n,
            features=Features(classes=tuple(map(str, model.classes))),
            source={"kind": self.kind},
        )

    def rebuild(self, posterior: Posterior) -> GaussianClasses:
        self.require_family(posterior, NormalGamma)
        assert isinstance(posterior.family, NormalGamma)
        model = GaussianClasses()
        model.means, kappa, _, rate = posterior.family.standard(posterior.natural)
        model.classes, model.counts = np.array(posterior.features.classes), posterior.counts
        model.variances = 2.0 * rate / kappa[:, None]
        return model

    def scores(self, model: Any, data: Any) -> Scores:
        joint = model.log_densities(data)
        return row_scores(
            "log density", "nats per row", np.logaddexp.reduce(joint, axis=1), joint.argmax(axis=1),
            len(model.classes), larger_is_better=True,
        )  # fmt: skip
