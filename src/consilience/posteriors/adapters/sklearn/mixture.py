"""scikit-learn's GaussianMixture, in and out: maximum-likelihood components as posteriors under a flat prior."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.errors import InputError
from consilience.posteriors.adapters.base import ASSUMED_SAMPLES, Adapter, set_sklearn_features, sklearn_features
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    family_of,
    from_natural,
    precision_factors,
    to_natural,
)
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.scores import Scores, row_scores, without_feature_names


class GaussianMixtureAdapter(Adapter):
    """Maximum-likelihood mixtures, as the posterior that their counts give under a flat prior.

    A component with weight w out of n samples stands for n_k = n w observations with its mean and covariance S. Under a
    flat prior (all natural parameters zero) the posterior of that component has exactly their sufficient statistics as
    natural parameters: kappa = n_k and W^-1 = n_k S. Fused means and covariances are then those of the pooled
    responsibilities, between-site scatter included, whichever way they are combined. scikit-learn does not record n:
    give it as ``samples``, or all models are taken to have seen 1000. Less than one observation counts as one.
    """

    kind: ClassVar[str] = "sklearn.GaussianMixture"
    library: ClassVar[str] = "sklearn"
    class_name: ClassVar[str] = "GaussianMixture"

    def describe(self, model: Any, samples: float | None) -> Posterior:
        """Return the posterior of counts ``samples * weights_`` under a flat prior."""
        self.require_fitted(model, "means_")
        if samples is not None and not 0 < samples < float("inf"):
            raise InputError("samples", f"expected a positive number of observations, found {samples}")
        covariance_type = str(model.covariance_type)
        n_components, dim = model.means_.shape
        family = family_of(covariance_type, dim)
        counts = np.maximum((ASSUMED_SAMPLES if samples is None else samples) * model.weights_, 1.0)  # n_k (K,)
        covariances = np.asarray(model.covariances_, dtype=np.float64)
        if covariance_type == "tied":
            covariances = np.broadcast_to(covariances, (n_components, dim, dim))
        flat_dof = self.flat_dof(covariance_type, dim)
        spread = covariances * counts.reshape(-1, *[1] * (covariances.ndim - 1))  # W^-1 = n_k S
        return Posterior(
            family,
            to_natural(family, ConjugateParameters(model.means_, counts, counts + flat_dof, spread)),
            prior=np.zeros(family.size),
            counts=counts,
            weights=model.weights_,
            features=sklearn_features(model),
            source={
                "kind": self.kind,
                "covariance_type": covariance_type,
                "samples": "assumed" if samples is None else "given",
            },
        )

    @staticmethod
    def flat_dof(covariance_type: str, dim: int) -> float:
        """Return the degrees of freedom at which the last natural parameter, the exponent of the precision, is zero.

        (nu - D) / 2 for a Wishart; nu / 2 - 1/2 and D nu / 2 - 1 + D / 2 for Gammas of one and of D dimensions.
        """
        return {"full": float(dim), "tied": float(dim), "diag": 1.0, "spherical": 2.0 / dim - 1.0}[covariance_type]

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted GaussianMixture."""
        from sklearn.mixture import GaussianMixture

        covariance_type = posterior.source["covariance_type"]
        self.require_family(posterior, type(family_of(covariance_type, 1)))
        fitted = from_natural(posterior.family, posterior.natural)
        model = GaussianMixture(n_components=posterior.n_components, covariance_type=covariance_type)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        # The maximum-likelihood covariance S = W^-1 / n_k, n_k being kappa under the flat prior.
        covariances = fitted.spread / fitted.kappa.reshape(-1, *[1] * (fitted.spread.ndim - 1))
        if covariance_type == "tied":
            covariances = np.einsum("n,nij->ij", counts / counts.sum(), covariances)
        model.means_, model.covariances_ = fitted.mean, covariances
        model.precisions_cholesky_, model.precisions_ = precision_factors(covariances, covariance_type)
        model.weights_ = counts / counts.sum()
        model.converged_, model.n_iter_ = True, 0
        set_sklearn_features(model, posterior, fitted.mean.shape[1])
        return model

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the log density of every row."""
        bare = without_feature_names(model)
        values, labels = bare.score_samples(data), bare.predict(data)
        return row_scores("log density", "nats per row", values, labels, len(model.means_), larger_is_better=True)
