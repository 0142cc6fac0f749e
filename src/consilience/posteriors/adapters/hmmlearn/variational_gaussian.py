"""hmmlearn's VariationalGaussianHMM, in and out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.posteriors.adapters.hmmlearn.base import VariationalAdapter
from consilience.posteriors.adapters.hmmlearn.parameters import (
    as_finite,
    as_positive,
    common_value,
    counts_beyond_prior,
    prior_of,
)
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    family_of,
    from_natural,
    to_natural,
)
from consilience.posteriors.posterior import Attached, Posterior


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
    emission: ClassVar[str] = "means_posterior_"

    def emissions(self, model: Any) -> Posterior:
        """Return the posterior of means and precisions."""
        kind = str(model.covariance_type)
        count, dim = int(model.n_components), np.atleast_2d(model.means_posterior_).shape[-1]
        family = family_of(kind, dim)
        own = _parameters(model, "posterior_", kind, count, dim)
        before = _parameters(model, "prior_", kind, count, dim)
        counts = counts_beyond_prior("beta_posterior_", own.kappa, before.kappa)
        attached = {}
        if kind == "tied":
            attached["scale_prior"] = Attached(before.spread, ("component", "fixed", "fixed"), "mean")
            attached["dof_prior"] = Attached(before.dof, ("component",), "mean")
            own = _untied(own, before, counts)
        prior = ConjugateParameters(
            common_value("means_prior_", before.mean)[None],
            common_value("beta_prior_", before.kappa)[None],
            common_value("dof_prior_", before.dof)[None],
            common_value("scale_prior_", before.spread)[None],
        )
        return Posterior(
            family,
            to_natural(family, own),
            prior=to_natural(family, prior)[0],
            counts=counts,
            attached=attached,
            source={"covariance_type": kind},
        )

    def with_emissions(self, posterior: Posterior) -> Any:
        """Return a VariationalGaussianHMM with the posteriors of means and precisions, and their priors."""
        from hmmlearn.vhmm import VariationalGaussianHMM

        kind = posterior.source["covariance_type"]
        self.require_family(posterior, type(family_of(kind, 1)))
        own, before = (from_natural(posterior.family, eta) for eta in (posterior.natural, prior_of(posterior)))
        count, dim = own.mean.shape
        dof_prior: Any = np.repeat(before.dof, count)
        dof: Any = own.dof
        scale_prior, scale = np.repeat(before.spread, count, axis=0), own.spread
        covariances = scale / dof.reshape(-1, *[1] * (scale.ndim - 1))
        if kind == "tied":
            scales, dofs = (posterior.attached[name].values for name in ("scale_prior", "dof_prior"))
            scale_prior, dof_prior = scales.mean(axis=0), float(dofs.mean())
            scale, dof = scale_prior + (scale - scales).sum(axis=0), dof_prior + float((dof - dofs).sum())
            covariances = scale / dof
        priors = {
            "means_prior": np.repeat(before.mean, count, axis=0),
            "beta_prior": np.repeat(before.kappa, count),
            "dof_prior": dof_prior,
            "scale_prior": scale_prior,
        }
        model = VariationalGaussianHMM(n_components=count, covariance_type=kind, **priors)
        for name, value in priors.items():
            setattr(model, f"{name}_", value)
        model.n_features = dim
        model.means_posterior_, model.beta_posterior_ = own.mean, own.kappa
        model.dof_posterior_, model.scale_posterior_ = dof, scale
        model.covars_ = covariances
        return model


def _parameters(model: Any, suffix: str, kind: str, count: int, dim: int) -> ConjugateParameters:
    """Return the parameters of the posterior or of the prior of every state; tied ones are repeated for every state."""
    shape = {"full": (count, dim, dim), "tied": (dim, dim), "diag": (count, dim), "spherical": (count,)}[kind]
    spread = as_finite(f"scale_{suffix}", getattr(model, f"scale_{suffix}"), shape)
    dof = as_positive(f"dof_{suffix}", getattr(model, f"dof_{suffix}"), () if kind == "tied" else (count,))
    return ConjugateParameters(
        as_finite(f"means_{suffix}", getattr(model, f"means_{suffix}"), (count, dim)),
        as_positive(f"beta_{suffix}", getattr(model, f"beta_{suffix}"), (count,)),
        np.repeat(dof, count) if kind == "tied" else dof,
        np.repeat(spread[None], count, axis=0) if kind == "tied" else spread,
    )


def _untied(tied: ConjugateParameters, prior: ConjugateParameters, counts: Array) -> ConjugateParameters:
    """Return every state with its part of the tied factor; see the class.

    The prior mean m0 pulls state k by kappa0 kappa_k / n_k (m_k - m0)(m_k - m0)^T, which must stay with the state: with
    less than its own, a product of posteriors could leave the domain. The rest of the factor follows the counts.
    """
    total = counts.sum()
    share = counts / total if total > 0.0 else np.full(len(counts), 1.0 / len(counts))
    seen = counts > 1e-9 * tied.kappa  # the mean of a state without rows differs from the prior mean by rounding alone
    strength = np.where(seen, prior.kappa * tied.kappa / np.where(seen, counts, 1.0), 0.0)
    offset = tied.mean - prior.mean
    pulls = strength[:, None, None] * offset[:, :, None] * offset[:, None, :]
    rest = tied.spread - prior.spread - pulls.sum(axis=0)
    spread = prior.spread + pulls + share[:, None, None] * rest
    return ConjugateParameters(tied.mean, tied.kappa, prior.dof + share * (tied.dof - prior.dof), spread)
