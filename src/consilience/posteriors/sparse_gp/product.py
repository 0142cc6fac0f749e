"""Bayes product of sparse Gaussian processes: one prior times the data factors of all sites.

A site's q(u_j) is its prior times a Gaussian factor that stands for its data. In natural parameters the factor has
precision S_j^-1 - K_jj^-1 and linear term S_j^-1 (m_j - c_j). The posterior of all sites' data is the common prior
times all factors (the sum of posteriors less J - 1 priors): with the same inducing inputs, kernels and noise it equals
the posterior that pooling the data would give, exactly, because data terms add up.

**Whose kernel?** The factor at a site's own inducing inputs is taken with the site's own kernel, which is what the site
fitted. How values there bear on values at the fused inducing inputs is a matter of the prior alone, so from there on
the fused kernel is used. (Moving with the site's kernel would read wild extrapolations of a smooth kernel as data of a
rougher one.) Where the kernels are equal, both are the same.

**Moving a factor.** Marginalised over u_j given the values u at the fused inputs, it is the precision of the site's
posterior re-expressed there, less the prior's. With D = I - S_j = U diag(d) U^T whitened at Z_j, V the whitened
covariance of u and u_j, and F = V U diag(d)^1/2, that difference is

    C = F (I - F^T F)^-1 F^T,    I - F^T F = diag(1 - d) + diag(d)^1/2 U^T (I - V^T V) U diag(d)^1/2,

positive semi-definite as it stands, of cost M^2 M_j, and without loss (I = V^T V) where the fused inputs contain Z_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, eigh

from consilience.checks import Array
from consilience.errors import InputError, Problem
from consilience.posteriors.sparse_gp.kernels import Kernel, make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP, lower_solve, prior_factor, whitened_cross_covariance

LARGEST_LOG_RATIO = 2.0
"""Kernel parameters and noise whose log differs by more from the mean are not averaged but refused.

A factor of 7.4. Chosen by hand (docs/guides/sparse_gp.md); nobody has measured other values.
"""

SILENT_EXCESS = 1e-3
"""Excess over 1 of a whitened posterior variance that is clipped without a warning.

Optimisers leave about so much; chosen by hand.
"""

MIN_VARIANCE = 1e-14
"""Least whitened posterior variance, so that its inverse is finite: 45 units in the last place of the prior's, 1."""


@dataclass(frozen=True, eq=False)
class GPPrior:
    """The prior of the fused process; all in standardised units, as in SparseGP."""

    kernel: Kernel
    noise: float  # variance of an observation about the function; 0 where no site knows it
    constant: float  # the mean function
    jitter: float  # noise on every inducing value, relative to the kernel's variance


@dataclass(frozen=True, eq=False)
class BayesProduct:
    """The fused process, and in how many directions some site's posterior was wider than its prior.

    An exact posterior never is; one from an unfinished optimisation may be. In such a direction the site's factor would
    have negative precision, so its eigenvalue is clipped at 0: the site is taken to say nothing there.
    """

    model: SparseGP
    clipped: int  # directions, over all sites


@dataclass(frozen=True, eq=False)
class _SiteFactor:
    """A site's posterior under the fused prior at its own inducing inputs, whitened."""

    mean: Array  # (M_j,)
    vectors: Array  # eigenvectors U of the covariance (M_j, M_j)
    values: Array  # its eigenvalues 1 - d (M_j,)
    prior_factor: Array  # lower Cholesky factor of the fused prior there (M_j, M_j)
    clipped: int  # directions


def fused_prior(models: Sequence[SparseGP], weights: Array, names: Sequence[str]) -> GPPrior:
    """Return the prior of the fused process: geometric means of kernel parameters and noise, the mean of constants.

    Processes without noise have no part in its mean; those of weight zero are not used. Names are for messages: an
    error lists every model and parameter that differs from the mean by a factor above e^2, and every model that is
    standardised by other constants than the first.
    """
    problems = _other_standards(models, names)
    relative_weights, voters = weights[weights > 0] / weights.sum(), np.flatnonzero(weights > 0).tolist()
    voting, voter_names = [models[i] for i in voters], [names[i] for i in voters]
    kernel_names = {model.kernel.name for model in voting}
    if len(kernel_names) > 1:
        known = ", ".join(sorted(kernel_names))
        raise InputError("", f"the models have kernels {known}; fit them with the same one", code="E-MISMATCH")
    numbers = [(model.kernel.variance, model.noise, model.jitter, model.constant) for model in voting]
    variances, noises, jitters, constants = np.array(list(zip(*numbers, strict=True)))[:, :, None]  # (voters, 1) each
    lengthscales = np.stack([model.kernel.lengthscales for model in voting])  # (voters, d)
    means = {}
    for name, values in (("variance", variances), ("length-scale", lengthscales)):
        means[name] = _geometric_mean(values, relative_weights)
        problems += _outlying_parameters(name, values, means[name], voter_names)
    stated, mean_noise = np.flatnonzero(noises[:, 0] > 0), np.zeros(1)
    if stated.size:
        mean_noise = _geometric_mean(noises[stated], relative_weights[stated] / relative_weights[stated].sum())
        problems += _outlying_parameters("noise", noises[stated], mean_noise, [voter_names[i] for i in stated])
    if problems:
        raise InputError(problems)
    jitter = _geometric_mean(jitters, relative_weights)[0] if np.all(jitters > 0) else 0.0
    kernel = voting[0].kernel
    if not all(kernel.same_as(other.kernel) for other in voting):
        kernel = make_kernel(kernel.name, means["variance"][0], means["length-scale"])
    constant = constants[0, 0] if np.all(constants == constants[0]) else relative_weights @ constants[:, 0]
    return GPPrior(kernel, float(mean_noise[0]), float(constant), float(jitter))


def _other_standards(models: Sequence[SparseGP], names: Sequence[str]) -> list[Problem]:
    """Return which models are standardised by other constants than the first."""
    text, remedy = f"is standardised by other constants than {names[0]}", "fit it again with the same public ones"
    return [
        Problem(name, text, remedy, "E-MISMATCH")
        for name, model in zip(names, models, strict=True)
        if not (np.array_equal(model.shift, models[0].shift) and np.array_equal(model.scale, models[0].scale))
    ]


def _geometric_mean(values: Array, relative_weights: Array) -> Array:
    """Return the weighted geometric mean (p,) of rows (J, p); a column of equal values keeps them to the last bit."""
    mean = np.exp(relative_weights @ np.log(values))
    return np.asarray(np.where(np.all(values == values[0], axis=0), values[0], mean))


def _outlying_parameters(name: str, values: Array, mean: Array, voter_names: Sequence[str]) -> list[Problem]:
    """Return which models differ from the mean by more than the largest ratio, each with the remedy."""
    return [
        Problem(
            voter_names[row],
            f"has {name}{f' {column}' if values.shape[1] > 1 else ''} {values[row, column]:.3g}, more"
            f" than a factor of {np.exp(LARGEST_LOG_RATIO):.1f} from the mean {mean[column]:.3g} of all models",
            "agree on kernel parameters and noise, and fit again with these fixed",
            "E-SHAPE",
        )
        for row, column in np.argwhere(np.abs(np.log(values / mean)) > LARGEST_LOG_RATIO).tolist()
    ]


def bayes_product(models: Sequence[SparseGP], inputs: Array, prior: GPPrior, weights: Array) -> BayesProduct:
    """Return the process at `inputs` (M, d) whose factors are those of all models, under one prior.

    Models are of one input dimension and one standardisation, and their data count as often as the weights (J,) say. In
    the whitened basis at `inputs`, Lam = I + sum_j w_j C_j and h = sum_j w_j (I + C_j) V_j m_j give S = Lam^-1 and m =
    S h. The cost is O(J M^2 M_j + M^3).
    """
    first = models[0]
    factor = prior_factor(prior.kernel, inputs, prior.jitter)
    precision, linear = np.eye(len(inputs)), np.zeros(len(inputs))  # Lam (M, M) and h (M,): of the prior
    clipped = 0
    for model, weight in zip(models, weights, strict=True):
        if weight == 0:
            continue
        site_factor = _site_factor(model, prior)
        clipped += site_factor.clipped
        cross, is_lossless = whitened_cross_covariance(
            prior.kernel, inputs, factor, model.inducing_inputs, site_factor.prior_factor, prior.jitter
        )
        precision_root = _root_of_precision(site_factor, cross, is_lossless)
        cross_mean = cross @ site_factor.mean
        # Lam += w C and h += w (I + C) V m_j, with C = H^T H
        precision += weight * (precision_root.T @ precision_root)
        linear += weight * (cross_mean + precision_root.T @ (precision_root @ cross_mean))
    root = cholesky(precision, lower=True)
    root_inverse = lower_solve(root, np.eye(len(inputs)))
    observation_counts = [model.n_observations for model, weight in zip(models, weights, strict=True) if weight > 0]
    fused = SparseGP.whitened(
        inputs,
        cho_solve((root, True), linear),
        root_inverse.T @ root_inverse,
        prior.kernel,
        noise=prior.noise,
        constant=prior.constant,
        jitter=prior.jitter,
        n_observations=sum(observation_counts) if min(observation_counts) > 0 else 0.0,
        shift=first.shift,
        scale=first.scale,
    )
    return BayesProduct(fused, clipped)


def _site_factor(model: SparseGP, prior: GPPrior) -> _SiteFactor:
    """Return a site's posterior under the fused prior, at its own inducing inputs."""
    values, vectors = eigh(model.whitened_covariance)
    clipped = int(np.count_nonzero(values > 1.0 + SILENT_EXCESS))
    values = np.clip(values, MIN_VARIANCE, 1.0)  # at most the prior's, so that the factor has no negative precision
    has_same_prior = model.kernel.same_as(prior.kernel) and model.jitter == prior.jitter
    if has_same_prior and model.constant == prior.constant:
        return _SiteFactor(model.whitened_mean, vectors, values, model.factor, clipped)
    precision = (vectors * ((1.0 - values) / values)) @ vectors.T  # S_j^-1 - I, whitened (M_j, M_j)
    # Under another constant the same factor has its linear term moved by what that changes the whitened values.
    offset = lower_solve(model.factor, np.full(model.n_inducing, prior.constant - model.constant))
    # h_j = S_j^-1 m_j, less what a change of the constant takes (M_j,)
    linear = vectors @ (vectors.T @ model.whitened_mean / values) - precision @ offset
    factor = model.factor
    if not has_same_prior:  # from the basis whitened by the site's prior to the one whitened by the fused prior
        factor = prior_factor(prior.kernel, model.inducing_inputs, prior.jitter)
        basis_change = lower_solve(model.factor, factor).T
        precision, linear = basis_change @ precision @ basis_change.T, basis_change @ linear
        excess_precision, vectors = eigh(precision)  # of the factor alone; S_j^-1 = I + factor in the new basis
        values = 1.0 / (1.0 + np.maximum(excess_precision, 0.0))
    return _SiteFactor(vectors @ (values * (vectors.T @ linear)), vectors, values, factor, clipped)


def _root_of_precision(site_factor: _SiteFactor, cross: Array, is_lossless: bool) -> Array:
    """Return H (M_j, M) with H^T H = C, what the site's data say at the fused inputs beyond the prior."""
    root = np.sqrt(1.0 - site_factor.values)
    spread = (cross @ site_factor.vectors) * root  # F (M, M_j)
    if is_lossless:
        return spread.T / np.sqrt(site_factor.values)[:, None]
    # I - F^T F, the inner matrix of C; I - V^T V is the variance that the fused inputs do not see.
    lost_variance = np.eye(len(site_factor.values)) - cross.T @ cross
    rooted = site_factor.vectors * root
    eigenvalues, vectors = eigh(np.diag(site_factor.values) + rooted.T @ lost_variance @ rooted)
    # Lost variance only adds to the eigenvalues; rounding may take some off.
    positive_eigenvalues = np.maximum(eigenvalues, site_factor.values.min())
    return (vectors / np.sqrt(positive_eigenvalues)).T @ spread.T
