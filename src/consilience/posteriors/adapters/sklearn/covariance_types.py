"""The four covariance types of scikit-learn's mixtures as conjugate families, both ways.

``full`` and ``tied`` are Normal-Wisharts. A tied covariance is one factor that all components of a model share; every
component carries it, and the mean over the fused components is the shared factor of the joint posterior, scatter of the
matched means included. ``diag`` and ``spherical`` are Normal-Gammas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array
from consilience.errors import InputError
from consilience.families import Family, NormalGamma, NormalWishart, SphericalNormalGamma
from consilience.families.linalg import variances_of
from consilience.posteriors.origin import origin_of
from consilience.posteriors.posterior import ORIGIN, Attached, Posterior

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")

EMPTY_COUNT_SHARE = 1e-9
"""A component is empty when its observations are this share of its kappa or less: its mean then differs from the prior
mean by rounding alone, and n_k is no divisor. Chosen by hand, between the rounding of kappa and any real count."""


@dataclass(frozen=True, eq=False)
class ConjugateParameters:
    """Parameters of conjugate posteriors in one form for all covariance types."""

    mean: Array  # m (n, D)
    kappa: Array  # pseudo-observations behind the means (n,)
    dof: Array  # degrees of freedom nu of the precisions (n,)
    spread: Array  # nu times a typical covariance, W^-1 of a Wishart: (n, D, D), (n, D) or (n,) by covariance type


def family_of(covariance_type: str, dim: int) -> Family:
    """Return the conjugate family of a covariance type, or raise for another type."""
    if covariance_type in ("full", "tied"):
        return NormalWishart(dim)
    if covariance_type == "diag":
        return NormalGamma(dim)
    if covariance_type == "spherical":
        return SphericalNormalGamma(dim)
    raise InputError("covariance_type", f"expected one of {', '.join(COVARIANCE_TYPES)}, found {covariance_type!r}")


def to_natural(family: Family, parameters: ConjugateParameters) -> Array:
    """Return natural parameters (n, P); spread is (n, D, D), (n, D) or (n,) by family."""
    mean, kappa, dof, spread = parameters.mean, parameters.kappa, parameters.dof, parameters.spread
    # A Wishart of one dimension with nu and W is a Gamma with shape nu / 2 and rate W^-1 / 2; one precision for D
    # dimensions has D times both.
    if isinstance(family, NormalWishart):
        return family.to_natural(mean=mean, kappa=kappa, inverse_scale=spread, dof=dof)
    if isinstance(family, NormalGamma):
        return family.to_natural(mean=mean, kappa=kappa, shape=dof / 2.0, rate=spread / 2.0)
    assert isinstance(family, SphericalNormalGamma)  # noqa: S101  (narrows the type; family_of gives no other)
    return family.to_natural(mean=mean, kappa=kappa, shape=family.dim * dof / 2.0, rate=family.dim * spread / 2.0)


def attached_origin(fitted: ConjugateParameters, counts: Array) -> dict[str, Attached]:
    """Return the origin that components of some counts (K,) are described about, by its name; none for most."""
    return origin_of(fitted.mean, variances_of(per_row(1.0 / fitted.dof, fitted.spread)), counts)


def about_origin(parameters: ConjugateParameters, attached: Mapping[str, Attached]) -> ConjugateParameters:
    """Return parameters with means from the attached origin on, where there is one."""
    return replace(parameters, mean=parameters.mean - attached[ORIGIN].values) if ORIGIN in attached else parameters


def posterior_and_prior(
    family: Family, fitted: ConjugateParameters, prior: ConjugateParameters, attached: Mapping[str, Attached]
) -> tuple[Array, Array]:
    """Return natural parameters (n, P) of fitted components and those (P,) of their one prior, about one origin."""
    names = [field.name for field in fields(ConjugateParameters)]
    stacked = (np.concatenate([getattr(fitted, name), getattr(prior, name)]) for name in names)
    natural = to_natural(family, about_origin(ConjugateParameters(*stacked), attached))
    return natural[:-1], natural[-1]


def from_natural(family: Family, natural: Array) -> ConjugateParameters:
    """Return the inverse of ``to_natural``."""
    if isinstance(family, NormalWishart):
        mean, kappa, inverse_scale, dof = family.standard(natural)
        return ConjugateParameters(mean, kappa, dof, inverse_scale)
    if isinstance(family, NormalGamma):
        mean, kappa, shape, rate = family.standard(natural)
        return ConjugateParameters(mean, kappa, 2.0 * shape, 2.0 * rate)
    assert isinstance(family, SphericalNormalGamma)  # noqa: S101  (narrows the type; family_of gives no other)
    mean, kappa, shape, rate = family.standard(natural)
    return ConjugateParameters(mean, kappa, 2.0 * shape / family.dim, 2.0 * rate[:, 0] / family.dim)


def in_units_of_data(posterior: Posterior, natural: Array | None = None) -> ConjugateParameters:
    """Return the parameters of a posterior, or of other rows about its origin, with means in units of the data."""
    found = from_natural(posterior.family, posterior.natural if natural is None else natural)
    return replace(found, mean=found.mean + posterior.origin)


def with_shared_factor(fitted: ConjugateParameters) -> ConjugateParameters:
    """Return components of a ``tied`` model with the factor that they share: the mean of their copies of it."""
    n = len(fitted.dof)
    spread = np.broadcast_to(fitted.spread.mean(axis=0), fitted.spread.shape)
    return ConjugateParameters(fitted.mean, fitted.kappa, np.full(n, fitted.dof.mean()), spread)


def flat_dof(covariance_type: str, dim: int) -> float:
    """Return the degrees of freedom at which the last natural parameter, the exponent of the precision, is zero.

    (nu - D) / 2 for a Wishart; nu / 2 - 1/2 and D nu / 2 - 1 + D / 2 for Gammas of one and of D dimensions.
    """
    return {"full": float(dim), "tied": float(dim), "diag": 1.0, "spherical": 2.0 / dim - 1.0}[covariance_type]


def pulls_of_prior(prior_kappa: Array | float, kappa: Array, counts: Array, offset: Array) -> Array:
    """Return what a prior mean adds to inverse scales, kappa_0 kappa_k / n_k (m_k - m_0)(m_k - m_0)^T (K, D, D)."""
    is_observed = counts > EMPTY_COUNT_SHARE * kappa
    strength = np.where(is_observed, prior_kappa * kappa / np.where(is_observed, counts, 1.0), 0.0)
    return strength[:, None, None] * offset[:, :, None] * offset[:, None, :]  # m_k - m_0 is (K, D)


def per_row(values: Array, matrices: Array) -> Array:
    """Return matrices (n, ...) each times its own of some values (n,)."""
    return matrices * values.reshape(-1, *[1] * (matrices.ndim - 1))


def covariances_of_components(covariances: ArrayLike, covariance_type: str, n_components: int) -> Array:
    """Return what scikit-learn keeps as ``covariances_`` for each component, a tied one again and again."""
    matrices = np.asarray(covariances, dtype=np.float64)
    return np.broadcast_to(matrices, (n_components, *matrices.shape)) if covariance_type == "tied" else matrices


def kept_covariances(fitted: ConjugateParameters, counts: Array, covariance_type: str) -> Array:
    """Return maximum likelihood covariances as models keep them: a tied one is the mean by counts."""
    covariances = maximum_likelihood_covariances(fitted, covariance_type)
    return np.einsum("n,nij->ij", counts / counts.sum(), covariances) if covariance_type == "tied" else covariances


def maximum_likelihood_covariances(fitted: ConjugateParameters, covariance_type: str) -> Array:
    """Return W^-1 / n_k in the shape of the covariance type, n_k being the degrees of freedom beyond a flat prior.

    Not kappa, which is n_k too unless sites differ in the means.
    """
    counts = fitted.dof - flat_dof(covariance_type, fitted.mean.shape[1])
    return np.asarray(fitted.spread / counts.reshape(-1, *[1] * (fitted.spread.ndim - 1)))


def precision_factors(covariances: Array, covariance_type: str) -> tuple[Array, Array]:
    """Return scikit-learn's ``precisions_cholesky_`` and ``precisions_`` of covariances of a type."""
    if covariance_type in ("diag", "spherical"):
        factor = 1.0 / np.sqrt(covariances)
        return factor, factor**2
    upper = np.swapaxes(np.linalg.inv(np.linalg.cholesky(covariances)), -1, -2)  # L^-T, as scikit-learn keeps it
    return upper, upper @ np.swapaxes(upper, -1, -2)
