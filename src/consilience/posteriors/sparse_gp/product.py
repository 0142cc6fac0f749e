"""Several sparse Gaussian processes into one: the product of what their data say, and one prior.

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
from consilience.errors import InputError
from consilience.posteriors.sparse_gp.kernels import Kernel, make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP, lower_solve, prior_factor, transfer

LARGEST_LOG_RATIO = 2.0
"""Hyper-parameters that differ from the fused ones by more than this many powers of e are not averaged."""

_WIDER = 1e-3  # eigenvalues above 1 by less are what an optimiser leaves, and are clipped without a word
_LEAST = 1e-14


@dataclass(frozen=True, eq=False)
class Prior:
    """What the fused process believes before any data: kernel, noise, mean function and jitter, as in SparseGP."""

    kernel: Kernel
    noise: float
    constant: float
    jitter: float


@dataclass(frozen=True, eq=False)
class Product:
    """The fused process, and in how many directions some site's posterior was wider than its prior.

    An exact posterior never is; one from an unfinished optimisation may be. In such a direction the site's factor
    would have negative precision, so its eigenvalue is clipped at 0: the site is taken to say nothing there.
    """

    model: SparseGP
    clipped: int


@dataclass(frozen=True, eq=False)
class _Factor:
    """A site's posterior under the fused prior at its own inducing inputs, whitened: mean, and eigenvectors of S."""

    mean: Array
    vectors: Array
    values: Array
    prior_factor: Array
    clipped: int


def common_prior(models: Sequence[SparseGP], weights: Array, names: Sequence[str]) -> Prior:
    """Return the prior of the fused process: geometric means of kernel parameters and noise, the mean of constants.

    Parameters
    ----------
    models
        The sites' processes; those without noise have no part in its mean.
    weights
        What each counts (J,); those of weight zero are not looked at.
    names
        What to call each in messages.

    Raises
    ------
    InputError
        Naming every model and parameter that differs from the mean by a factor above e^2, and every model that is
        standardised by other constants than the first.
    """
    first = models[0]
    problems = [
        f"{name}: is standardised by other constants than {names[0]}; fit it again with the same public ones"
        for name, model in zip(names, models, strict=True)
        if not (np.array_equal(model.shift, first.shift) and np.array_equal(model.scale, first.scale))
    ]
    voting = [model for model, weight in zip(models, weights, strict=True) if weight > 0]
    called = [name for name, weight in zip(names, weights, strict=True) if weight > 0]
    share = weights[weights > 0] / weights.sum()
    kernels = [model.kernel for model in voting]
    forms = {kernel.name for kernel in kernels}
    if len(forms) > 1:
        raise InputError(f"the models have kernels {', '.join(sorted(forms))}; fit them with the same one")
    columns = {"variance": np.array([[kernel.variance] for kernel in kernels])}
    columns |= {"length-scale": np.stack([kernel.lengthscales for kernel in kernels])}
    noise = np.array([[model.noise] for model in voting])
    stated = noise[:, 0] > 0
    means = {}
    for name, values in columns.items():
        means[name] = _geometric_mean(values, share)
        problems += _far(name, values, means[name], called)
    mean_noise = _geometric_mean(noise[stated], share[stated] / share[stated].sum()) if stated.any() else np.zeros(1)
    with_noise = [name for name, known in zip(called, stated, strict=True) if known]
    problems += _far("noise", noise[stated], mean_noise, with_noise)
    if problems:
        raise InputError(problems)
    constants, jitters = np.array([m.constant for m in voting]), np.array([[m.jitter] for m in voting])
    jitter = _geometric_mean(jitters, share)[0] if np.all(jitters > 0) else 0.0
    kernel = kernels[0]
    if not all(kernel.same_as(other) for other in kernels):
        kernel = make_kernel(kernel.name, means["variance"][0], means["length-scale"])
    constant = constants[0] if np.all(constants == constants[0]) else share @ constants
    return Prior(kernel, float(mean_noise[0]), float(constant), float(jitter))


def _geometric_mean(values: Array, share: Array) -> Array:
    """Return the weighted geometric mean (p,) of rows (J, p); where all are equal it is that, to the last bit."""
    mean = np.exp(share @ np.log(values))
    return np.asarray(np.where(np.all(values == values[0], axis=0), values[0], mean))


def _far(name: str, values: Array, mean: Array, called: Sequence[str]) -> list[str]:
    """Return which models differ beyond reason from the mean, each with the remedy."""
    return [
        f"{called[row]}: has {name}{f' {column}' if values.shape[1] > 1 else ''} {values[row, column]:.3g}, more"
        f" than a factor of {np.exp(LARGEST_LOG_RATIO):.1f} from the mean {mean[column]:.3g} of all models; agree on"
        " kernel parameters and noise, and fit again with these fixed"
        for row, column in np.argwhere(np.abs(np.log(values / mean)) > LARGEST_LOG_RATIO).tolist()
    ]


def bayes_product(models: Sequence[SparseGP], inputs: Array, prior: Prior, weights: Array) -> Product:
    """Return the process at `inputs` (M, d) whose factors are those of all models, under one prior.

    In the whitened basis at `inputs`, Lam = I + sum_j w_j C_j and h = sum_j w_j (I + C_j) V_j m_j give S = Lam^-1 and
    m = S h. The cost is O(J M^2 M_j + M^3).

    Parameters
    ----------
    models
        The sites' processes, of one input dimension and one standardisation.
    inputs
        The fused inducing inputs, standardised.
    prior
        The prior of the fused process.
    weights
        How many times each site's data count (J,).

    """
    first = models[0]
    factor = prior_factor(prior.kernel, inputs, prior.jitter)
    precision, linear = np.eye(len(inputs)), np.zeros(len(inputs))
    clipped = 0
    for model, weight in zip(models, weights, strict=True):
        if weight == 0:
            continue
        site = _factor(model, prior)
        clipped += site.clipped
        move, whole = transfer(prior.kernel, inputs, factor, model.inducing_inputs, site.prior_factor, prior.jitter)
        half = _root_of_precision(site, move, whole)
        moved = move @ site.mean
        precision += weight * (half.T @ half)
        linear += weight * (moved + half.T @ (half @ moved))
    root = cholesky(precision, lower=True)
    unit = lower_solve(root, np.eye(len(inputs)))
    known = [model.n_observations for model, weight in zip(models, weights, strict=True) if weight > 0]
    fused = SparseGP.whitened(
        inputs,
        cho_solve((root, True), linear),
        unit.T @ unit,
        prior.kernel,
        noise=prior.noise,
        constant=prior.constant,
        jitter=prior.jitter,
        n_observations=sum(known) if min(known) > 0 else 0.0,
        shift=first.shift,
        scale=first.scale,
    )
    return Product(fused, clipped)


def _factor(model: SparseGP, prior: Prior) -> _Factor:
    """Return a site's posterior under the fused prior, at its own inducing inputs."""
    values, vectors = eigh(model.whitened_covariance)
    clipped = int(np.count_nonzero(values > 1.0 + _WIDER))
    values = np.clip(values, _LEAST, 1.0)
    same = model.kernel.same_as(prior.kernel) and model.jitter == prior.jitter
    if same and model.constant == prior.constant:
        return _Factor(model.whitened_mean, vectors, values, model.factor, clipped)
    precision = (vectors * ((1.0 - values) / values)) @ vectors.T
    offset = lower_solve(model.factor, np.full(model.n_inducing, prior.constant - model.constant))
    linear = vectors @ (vectors.T @ model.whitened_mean / values) - precision @ offset
    factor = model.factor
    if not same:  # from the basis whitened by the site's prior to the one whitened by the fused prior
        factor = prior_factor(prior.kernel, model.inducing_inputs, prior.jitter)
        change = lower_solve(model.factor, factor).T
        precision, linear = change @ precision @ change.T, change @ linear
        excess, vectors = eigh(precision)
        values = 1.0 / (1.0 + np.maximum(excess, 0.0))
    return _Factor(vectors @ (values * (vectors.T @ linear)), vectors, values, factor, clipped)


def _root_of_precision(site: _Factor, move: Array, whole: bool) -> Array:
    """Return H (M_j, M) with H^T H = C, what the site's data say at the fused inputs beyond the prior."""
    root = np.sqrt(1.0 - site.values)
    spread = (move @ site.vectors) * root
    if whole:
        return spread.T / np.sqrt(site.values)[:, None]
    lost = np.eye(len(site.values)) - move.T @ move
    inner = np.diag(site.values) + (site.vectors * root).T @ lost @ (site.vectors * root)
    eigenvalues, vectors = eigh(inner)
    kept = np.maximum(eigenvalues, site.values.min())  # what is lost only adds to them, but for rounding
    return (vectors / np.sqrt(kept)).T @ spread.T
