"""scikit-learn's NMF, in and out: its components as topics, each a distribution of words with a scale beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.features import sklearn_features
from consilience.errors import InputError
from consilience.families import Dirichlet
from consilience.posteriors.adapters.base import ASSUMED_SAMPLES, set_sklearn_features
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.topics.adapter import TopicAdapter


class NMFAdapter(TopicAdapter):
    """Non-negative factors X = W H: a row of H divided by its sum is what a topic is, and its sum a scale.

    Factors are known up to that scale only. Under a flat prior, n_k counts of these frequencies give Dirichlet(1 + n_k
    p_k); a model does not say how many counts each component explains, so the stated number is divided evenly. Scales
    are averaged. The fused model starts from no W: it transforms rows as any fitted NMF does.
    """

    kind: ClassVar[str] = "sklearn.NMF"
    library: ClassVar[str] = "sklearn"
    class_name: ClassVar[str] = "NMF"
    records_n_observations: ClassVar[bool] = False

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of the components of so many counts (words, say)."""
        self.require_fitted(model, "components_")
        H = np.asarray(model.components_, dtype=np.float64)  # (K, V)
        scales = H.sum(axis=1)
        if not (np.isfinite(H).all() and np.all(H >= 0) and np.all(scales > 0)):
            text = "has components that are negative, not finite or zero"
            raise InputError("components_", text, "fit fewer components", "E-NUMBER")
        n = ASSUMED_SAMPLES if n_observations is None else n_observations
        counts = np.full(len(H), n / len(H))
        return Posterior(
            Dirichlet(H.shape[1]),
            counts[:, None] * H / scales[:, None],  # eta = alpha - 1
            prior=np.zeros(H.shape[1]),
            counts=counts,
            attached={"scale": Attached(scales, ("component",), "mean")},
            features=sklearn_features(model),
            source={
                "kind": self.kind,
                "solver": str(model.solver),
                "beta_loss": model.beta_loss,
                "samples": "assumed" if n_observations is None else "given",
            },
        )

    def recount(self, posterior: Posterior, n_observations: float | None) -> Posterior:
        """Return the posterior of another number of counts."""
        if posterior.counts is None or posterior.prior is None:
            raise InputError("", "states no counts, so its observations cannot be counted anew", code="E-NEEDED")
        n = ASSUMED_SAMPLES if n_observations is None else n_observations
        ratio = n / posterior.counts.sum()
        return replace(
            posterior,
            natural=posterior.prior + (posterior.natural - posterior.prior) * ratio,
            counts=posterior.counts * ratio,
            source={**posterior.source, "samples": "assumed" if n_observations is None else "given"},
        )

    def rebuild(self, posterior: Posterior) -> Any:
        """Return an NMF with the frequencies of its components times their scales."""
        from sklearn.decomposition import NMF

        self.require_family(posterior, Dirichlet)
        frequencies = np.maximum(posterior.natural, 0.0)
        scales = posterior.attached["scale"].values
        source = posterior.source
        model = NMF(n_components=len(frequencies), solver=str(source["solver"]), beta_loss=source["beta_loss"])
        model.components_ = frequencies / frequencies.sum(axis=1, keepdims=True) * scales[:, None]
        model.n_components_, model.n_iter_, model.reconstruction_err_ = len(frequencies), 0, float("nan")
        set_sklearn_features(model, posterior, frequencies.shape[1])
        return model

    def topics(self, model: Any) -> tuple[Array, float]:
        """Return concentrations (K, V) of the components of `ASSUMED_SAMPLES` counts, and a document prior of 1 / K."""
        H = np.asarray(model.components_, dtype=np.float64)
        frequencies = H / H.sum(axis=1, keepdims=True)
        return ASSUMED_SAMPLES * frequencies + 1.0 / H.shape[1], 1.0 / len(H)
