"""hmmlearn's GaussianHMM, in and out: states with Gaussian emissions as Normal-Wisharts or Normal-Gammas."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.posteriors.adapters.hmmlearn.base import PointEstimateAdapter
from consilience.posteriors.adapters.hmmlearn.parameters import as_finite
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    family_of,
    from_natural,
    maximum_likelihood_covariances,
    to_natural,
)
from consilience.posteriors.posterior import Posterior


class GaussianHMMAdapter(PointEstimateAdapter):
    """States that emit Gaussians, as the posterior that their counts give under a flat prior.

    As for a GaussianMixture, the natural parameters of a state are the sufficient statistics of n_k observations with
    its mean and covariance, so fused means and covariances are those of the pooled rows, scatter between sites
    included. A tied covariance is copied into every state, and the fused one is the mean by counts.
    """

    kind: ClassVar[str] = "hmmlearn.GaussianHMM"
    class_name: ClassVar[str] = "GaussianHMM"
    emission: ClassVar[str] = "means_"

    def describe_emissions(self, model: Any, counts: Array) -> Posterior:
        """Return the posterior of means and precisions."""
        covariance_type = str(model.covariance_type)
        dim = np.atleast_2d(model.means_).shape[-1]
        family = family_of(covariance_type, dim)
        means = as_finite("means_", model.means_, (len(counts), dim))
        covariances = self._covariances(model, covariance_type, means)
        spread = covariances * counts.reshape(-1, *[1] * (covariances.ndim - 1))  # n_k S_k
        parameters = ConjugateParameters(means, counts, counts, spread)
        form, natural = family.evidence_form(to_natural(family, parameters))
        # n_k degrees of freedom count from none at all, which is ``flat``; a prior of zeros has a few more
        source = {"covariance_type": covariance_type}
        return Posterior(family, natural - form.flat, prior=np.zeros(family.size), source=source)

    def _covariances(self, model: Any, covariance_type: str, means: Array) -> Array:
        """Return covariances in the shape of their type, a tied one repeated for every state."""
        n_states, dim = means.shape
        sized = copy(model)
        sized.n_features = dim  # which hmmlearn sets when it fits or scores, and which its property needs
        self.require_fitted(sized, "covars_")
        # hmmlearn 0.3.3 repeats each spherical covariance for every dimension once it is fitted
        matrices = sized.covars_[:: max(1, len(sized.covars_) // n_states)]
        matrices = as_finite("covars_", matrices, (n_states, dim, dim))
        if covariance_type in ("full", "tied"):
            return matrices
        diagonals = np.diagonal(matrices, axis1=1, axis2=2)  # (K, D)
        return diagonals if covariance_type == "diag" else diagonals.mean(axis=1)

    def rebuild_emissions(self, posterior: Posterior) -> Any:
        """Return a GaussianHMM with means and covariances."""
        from hmmlearn.hmm import GaussianHMM

        covariance_type = posterior.source["covariance_type"]
        self.require_family(posterior, type(family_of(covariance_type, 1)))
        fitted = from_natural(posterior.family, posterior.natural)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        covariances = maximum_likelihood_covariances(fitted, covariance_type)
        if covariance_type == "tied":
            covariances = np.einsum("n,nij->ij", counts / counts.sum(), covariances)
        model = GaussianHMM(n_components=len(counts), covariance_type=covariance_type)
        model.n_features = fitted.mean.shape[1]
        model.means_, model.covars_ = fitted.mean, covariances
        return model
