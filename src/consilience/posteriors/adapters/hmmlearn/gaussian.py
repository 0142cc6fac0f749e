"""hmmlearn's GaussianHMM and VariationalGaussianHMM, in and out: states with Normal-Wisharts or Normal-Gammas."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.posteriors.adapters.hmmlearn.base import PointEstimateAdapter, VariationalAdapter
from consilience.posteriors.adapters.hmmlearn.parameters import (
    as_finite,
    as_positive,
    as_shape,
    common_value,
    counts_beyond_prior,
    prior_of,
)
from consilience.posteriors.adapters.sklearn.covariance_types import (
    COVARIANCE_TYPES,
    ConjugateParameters,
    about_origin,
    attached_origin,
    family_of,
    in_units_of_data,
    kept_covariances,
    per_row,
    posterior_and_prior,
    pulls_of_prior,
    to_natural,
)
from consilience.posteriors.posterior import Attached, Posterior

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
        parameters = ConjugateParameters(means, counts, counts, per_row(counts, covariances))  # n_k S_k
        attached = attached_origin(parameters, counts)
        form, natural = family.evidence_form(to_natural(family, about_origin(parameters, attached)))
        # n_k degrees of freedom count from none at all, which is ``flat``; a prior of zeros has a few more
        source = {"covariance_type": covariance_type}
        return Posterior(family, natural - form.flat, prior=np.zeros(family.size), attached=attached, source=source)

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
        fitted = in_units_of_data(posterior)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        model = GaussianHMM(n_components=len(counts), covariance_type=covariance_type)
        model.n_features = fitted.mean.shape[1]
        model.means_, model.covars_ = fitted.mean, kept_covariances(fitted, counts, covariance_type)
        return model


class VariationalGaussianHMMAdapter(VariationalAdapter):
    """States that emit Gaussians, with the conjugate posterior that hmmlearn's M step gives.

    ``scale_posterior_`` is the inverse scale matrix W^-1, ``dof_posterior_`` nu, and hmmlearn scores with the typical
    covariance W^-1 / nu. ``full`` states are Normal-Wisharts. ``diag`` and ``spherical`` ones are Normal-Gammas with
    shape nu / 2 and rate scale / 2 (D times both where one precision serves all D dimensions, since hmmlearn takes the
    mean scatter of these): its updates are theirs to the last term, though its bound is that of a Wishart.

    A tied factor has its prior once and the scatter of all states: W^-1 = W0^-1 + sum_k S_k and nu = nu0 + sum_k n_k.
    Each state carries W0^-1 + S_k and nu0 + n_k, where S_k is the pull of the prior mean on it and its part, by count,
    of all else. The fused factor is the prior and the sum over fused states of what they have beyond theirs, for which
    ``scale_prior`` (component, fixed, fixed) and ``dof_prior`` (component,) travel along.
    """

    kind: ClassVar[str] = "hmmlearn.VariationalGaussianHMM"
    class_name: ClassVar[str] = "VariationalGaussianHMM"
    follows_units: ClassVar[bool] = True
    in_squared_units: ClassVar[tuple[str, ...]] = ("scale_prior",)
    counts_are_rows: ClassVar[bool] = True
    emission: ClassVar[str] = "means_posterior_"

    def describe_emissions(self, model: Any) -> Posterior:
        """Return the posterior of means and precisions."""
        covariance_type = str(model.covariance_type)
        n_states, dim = int(model.n_components), np.atleast_2d(model.means_posterior_).shape[-1]
        family = family_of(covariance_type, dim)
        fitted = _parameters(model, "posterior_", covariance_type, n_states, dim)
        state_priors = _parameters(model, "prior_", covariance_type, n_states, dim)
        counts = counts_beyond_prior("beta_posterior_", fitted.kappa, state_priors.kappa)  # n_k (K,)
        attached = attached_origin(fitted, counts)
        if covariance_type == "tied":
            attached["scale_prior"] = Attached(state_priors.spread, ("component", "fixed", "fixed"), "mean")
            attached["dof_prior"] = Attached(state_priors.dof, ("component",), "mean")
            fitted = _divide_tied_factor(fitted, state_priors, counts)
        prior = ConjugateParameters(
            common_value("means_prior_", state_priors.mean)[None],
            common_value("beta_prior_", state_priors.kappa)[None],
            common_value("dof_prior_", state_priors.dof)[None],
            common_value("scale_prior_", state_priors.spread)[None],
        )
        natural, prior_natural = posterior_and_prior(family, fitted, prior, attached)
        return Posterior(
            family,
            natural,
            prior=prior_natural,
            counts=counts,
            attached=attached,
            source={"covariance_type": covariance_type},
        )

    def rebuild_emissions(self, posterior: Posterior) -> Any:
        """Return a VariationalGaussianHMM with the posteriors of means and precisions, and their priors."""
        from hmmlearn.vhmm import VariationalGaussianHMM

        covariance_type = posterior.source["covariance_type"]
        self.require_family(posterior, type(family_of(covariance_type, 1)))
        fused, prior = in_units_of_data(posterior), in_units_of_data(posterior, prior_of(posterior))
        n_states, dim = fused.mean.shape
        dof_prior: Any = np.repeat(prior.dof, n_states)
        dof: Any = fused.dof
        scale_prior, scale = np.repeat(prior.spread, n_states, axis=0), fused.spread
        covariances = scale / dof.reshape(-1, *[1] * (scale.ndim - 1))
        if covariance_type == "tied":  # W^-1 = W0^-1 + sum_k (W_k^-1 - W0^-1), and nu alike; see the class
            attached = posterior.attached
            state_scale_priors, state_dof_priors = attached["scale_prior"].values, attached["dof_prior"].values
            scale_prior, dof_prior = state_scale_priors.mean(axis=0), float(state_dof_priors.mean())
            scale = scale_prior + (scale - state_scale_priors).sum(axis=0)
            dof = dof_prior + float((dof - state_dof_priors).sum())
            covariances = scale / dof
        priors = {
            "means_prior": np.repeat(prior.mean, n_states, axis=0),
            "beta_prior": np.repeat(prior.kappa, n_states),
            "dof_prior": dof_prior,
            "scale_prior": scale_prior,
        }
        model = VariationalGaussianHMM(n_components=n_states, covariance_type=covariance_type, **priors)
        for name, value in priors.items():
            setattr(model, f"{name}_", value)
        model.n_features = dim
        model.means_posterior_, model.beta_posterior_ = fused.mean, fused.kappa
        model.dof_posterior_, model.scale_posterior_ = dof, scale
        model.covars_ = covariances
        return model


def _parameters(model: Any, suffix: str, covariance_type: str, n_states: int, dim: int) -> ConjugateParameters:
    """Return the parameters of the posterior or of the prior of every state; tied ones are repeated for every state."""
    k, is_tied = n_states, covariance_type == "tied"
    shape = {"full": (k, dim, dim), "tied": (dim, dim), "diag": (k, dim), "spherical": (k,)}[covariance_type]
    spread = as_finite(f"scale_{suffix}", getattr(model, f"scale_{suffix}"), shape)
    dof = as_positive(f"dof_{suffix}", getattr(model, f"dof_{suffix}"), () if is_tied else (k,))
    return ConjugateParameters(
        as_finite(f"means_{suffix}", getattr(model, f"means_{suffix}"), (k, dim)),
        as_positive(f"beta_{suffix}", getattr(model, f"beta_{suffix}"), (k,)),
        np.repeat(dof, k) if is_tied else dof,
        np.repeat(spread[None], k, axis=0) if is_tied else spread,
    )


def _divide_tied_factor(tied: ConjugateParameters, prior: ConjugateParameters, counts: Array) -> ConjugateParameters:
    """Return every state with its part of the tied factor; see the class.

    The prior mean m0 pulls state k by kappa0 kappa_k / n_k (m_k - m0)(m_k - m0)^T, which must stay with the state: with
    less than its own, a product of posteriors could leave the domain. The scatter of the rows, which is all else in the
    factor, follows the counts.
    """
    total = counts.sum()
    count_shares = counts / total if total > 0.0 else np.full(len(counts), 1.0 / len(counts))  # (K,)
    pulls = pulls_of_prior(prior.kappa, tied.kappa, counts, tied.mean - prior.mean)  # (K, D, D)
    scatter = tied.spread - prior.spread - pulls.sum(axis=0)  # the same in all K copies
    spread = prior.spread + pulls + count_shares[:, None, None] * scatter
    dof = prior.dof + count_shares * (tied.dof - prior.dof)
    return ConjugateParameters(tied.mean, tied.kappa, dof, spread)
