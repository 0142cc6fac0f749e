"""scikit-learn's GaussianMixture, in and out: maximum-likelihood components as posteriors under a flat prior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.features import sklearn_features
from consilience.core.scores import ScoreKind, Scores
from consilience.errors import InputError
from consilience.posteriors.adapters.base import ASSUMED_SAMPLES, Adapter, set_sklearn_features
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    covariances_of_components,
    family_of,
    flat_dof,
    from_natural,
    kept_covariances,
    mixture_scores,
    per_row,
    precision_factors,
    to_natural,
    with_shared_factor,
)
from consilience.posteriors.mixture_density import MixtureDensity
from consilience.posteriors.posterior import Posterior


class GaussianMixtureAdapter(Adapter):
    """Maximum-likelihood mixtures, as the posterior that their counts give under a flat prior.

    A component with weight w, of n observations in all, stands for n_k = n w with its mean and covariance S. Under a
    flat prior (all natural parameters zero) the posterior of that component has exactly their sufficient statistics as
    natural parameters: kappa = n_k and W^-1 = n_k S. Fused means and covariances are then those of the pooled
    responsibilities, between-site scatter included, whichever way they are combined. scikit-learn does not record n,
    which is therefore asked for. Less than one observation counts as one.
    """

    kind: ClassVar[str] = "sklearn.GaussianMixture"
    library: ClassVar[str] = "sklearn"
    class_name: ClassVar[str] = "GaussianMixture"
    follows_units: ClassVar[bool] = True
    records_n_observations: ClassVar[bool] = False
    counts_are_rows: ClassVar[bool] = True

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of counts ``n_observations * weights_`` under a flat prior."""
        self.require_fitted(model, "means_")
        covariance_type = str(model.covariance_type)
        n_components, dim = model.means_.shape
        family = family_of(covariance_type, dim)
        counts = self._component_counts(model.weights_, n_observations)  # n_k (K,)
        covariances = covariances_of_components(model.covariances_, covariance_type, n_components)
        dof, spread = counts + flat_dof(covariance_type, dim), per_row(counts, covariances)  # W^-1 = n_k S
        return Posterior(
            family,
            to_natural(family, ConjugateParameters(model.means_, counts, dof, spread)),
            prior=np.zeros(family.size),
            counts=counts,
            weights=model.weights_,
            features=sklearn_features(model),
            source={
                "kind": self.kind,
                "covariance_type": covariance_type,
                "samples": "assumed" if n_observations is None else "given",
            },
        )

    @staticmethod
    def _component_counts(weights: Array, n_observations: float | None) -> Array:
        """Return the observations behind each component (K,), one at least."""
        n_rows = ASSUMED_SAMPLES if n_observations is None else n_observations
        return np.asarray(np.maximum(n_rows * weights, 1.0))

    def recount(self, posterior: Posterior, n_observations: float | None) -> Posterior:
        """Return the posterior of another number of observations: its natural parameters are counts times moments."""
        if posterior.counts is None or posterior.weights is None:
            raise InputError(
                "", "states no counts or no weights, so its observations cannot be counted anew", code="E-NEEDED"
            )
        counts = self._component_counts(posterior.weights, n_observations)
        natural = posterior.natural * (counts / posterior.counts)[:, None]  # the prior is flat: zeros
        source = {**posterior.source, "samples": "assumed" if n_observations is None else "given"}
        return replace(posterior, natural=natural, counts=counts, source=source)

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted GaussianMixture."""
        from sklearn.mixture import GaussianMixture

        covariance_type = posterior.source["covariance_type"]
        self.require_family(posterior, type(family_of(covariance_type, 1)))
        fitted = from_natural(posterior.family, posterior.natural)
        model = GaussianMixture(n_components=posterior.n_components, covariance_type=covariance_type)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        covariances = kept_covariances(fitted, counts, covariance_type)
        model.means_, model.covariances_ = fitted.mean, covariances
        model.precisions_cholesky_, model.precisions_ = precision_factors(covariances, covariance_type)
        model.weights_ = counts / counts.sum()
        model.converged_, model.n_iter_ = True, 0
        set_sklearn_features(model, posterior, fitted.mean.shape[1])
        return model

    def mixture(self, posterior: Posterior) -> MixtureDensity:
        """Return the densities of the mixture; plug-in covariances are of maximum likelihood, as the model has them.

        The predictive density is that of the flat prior: a Student t with n_k + 1 degrees of freedom and scale S for
        ``full`` and ``diag``. It needs the number of observations, which a model alone does not record.
        """
        covariance_type, fitted = posterior.source["covariance_type"], from_natural(posterior.family, posterior.natural)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        covariances = kept_covariances(fitted, counts, covariance_type)
        if covariance_type == "tied":
            fitted, covariances = with_shared_factor(fitted), np.broadcast_to(covariances, fitted.spread.shape)
        if covariance_type == "spherical":
            covariances = np.broadcast_to(covariances[:, None], fitted.mean.shape)
        natural, knows_counts = to_natural(posterior.family, fitted), posterior.source.get("samples") != "assumed"
        return MixtureDensity(posterior.family, natural, counts, covariances, knows_counts=knows_counts)

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the log density of every row."""
        return mixture_scores(model, data, "log plug-in density", ScoreKind.PLUG_IN)
