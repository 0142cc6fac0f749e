"""hmmlearn's GaussianHMM, in and out: states with Gaussian emissions as Normal-Wisharts or Normal-Gammas."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.posteriors.adapters.hmmlearn.base import PointEstimateAdapter
from consilience.posteriors.adapters.hmmlearn.parameters import as_finite, as_shape
from consilience.posteriors.adapters.sklearn.covariance_types import (
    COVARIANCE_TYPES,
    ConjugateParameters,
    family_of,
    from_natural,
    maximum_likelihood_covariances,
    to_natural,
)
from consilience.posteriors.posterior import Posterior

SINGULAR_RATIO = 1e-14
"""Smallest over largest eigenvalue of a covariance that is no longer positive definite in float64. Chosen by hand, a
hundred roundings of 1e-16."""


class GaussianHMMAdapter(PointEstimateAdapter):
    """States that emit Gaussians, as the posterior that their counts give under a flat prior.

    As for a GaussianMixture, the natural parameters of a state are the sufficient statistics of n_k observations with
    its mean and covariance, so fused means and covariances are those of the pooled rows, scatter between sites
    included. A tied covariance is copied into every state, and the fused one is the mean by counts.
    """

    kind: ClassVar[str] = "hmmlearn.GaussianHMM"
    class_name: ClassVar[str] = "GaussianHMM"
    follows_units: ClassVar[bool] = True
    emission: ClassVar[str] = "means_"

    def unusable_components(self, model: Any) -> Labels:
        """Return the states without a mean or a positive definite covariance of their own; none where all lack one."""
        self.require_parameters(model)
        n_states, means = int(model.n_components), np.atleast_2d(np.asarray(model.means_, dtype=np.float64))
        if len(means) != n_states or model.covariance_type not in COVARIANCE_TYPES:
            return np.zeros(0, dtype=np.int64)  # refused by who describes it, of whatever states
        is_usable = np.asarray(np.isfinite(means).all(axis=1))  # (K,)
        if model.covariance_type != "tied":
            matrices = self._covariance_matrices(model, n_states, means.shape[1])
            flat = matrices.reshape(n_states, -1)
            is_usable &= np.isfinite(flat).all(axis=1)
            eigenvalues = np.linalg.eigvalsh(np.where(is_usable[:, None, None], matrices, 0.0))  # (K, D), ascending
            is_usable &= eigenvalues[:, 0] > SINGULAR_RATIO * eigenvalues[:, -1]
        return np.flatnonzero(~is_usable) if is_usable.any() else np.zeros(0, dtype=np.int64)

    def describe_emissions(self, model: Any, counts: Array, states: Labels) -> Posterior:
        """Return the posterior of means and precisions."""
        covariance_type = str(model.covariance_type)
        dim = np.atleast_2d(model.means_).shape[-1]
        family = family_of(covariance_type, dim)
        means = as_shape("means_", model.means_, (len(counts), dim))[states]
        means = as_finite("means_", means, (len(states), dim))
        counts = counts[states]
        covariances = self._covariances(model, covariance_type, dim, states)
        spread = covariances * counts.reshape(-1, *[1] * (covariances.ndim - 1))  # n_k S_k
        parameters = ConjugateParameters(means, counts, counts, spread)
        form, natural = family.evidence_form(to_natural(family, parameters))
        # n_k degrees of freedom count from none at all, which is ``flat``; a prior of zeros has a few more
        source = {"covariance_type": covariance_type}
        return Posterior(family, natural - form.flat, prior=np.zeros(family.size), source=source)

    def _covariance_matrices(self, model: Any, n_states: int, dim: int) -> Array:
        """Return the covariance matrix of every state (K, D, D), of whatever covariance type."""
        sized = copy(model)
        sized.n_features = dim  # which hmmlearn sets when it fits or scores, and which its property needs
        self.require_fitted(sized, "covars_")
        # hmmlearn 0.3.3 repeats each spherical covariance for every dimension once it is fitted
        matrices = sized.covars_[:: max(1, len(sized.covars_) // n_states)]
        return as_shape("covars_", matrices, (n_states, dim, dim))

    def _covariances(self, model: Any, covariance_type: str, dim: int, states: Labels) -> Array:
        """Return covariances of some states in the shape of their type, a tied one repeated for every state."""
        matrices = self._covariance_matrices(model, int(model.n_components), dim)[states]
        matrices = as_finite("covars_", matrices, (len(states), dim, dim))
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
