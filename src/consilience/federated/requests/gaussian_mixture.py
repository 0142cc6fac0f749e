"""Expectation maximisation of a Gaussian mixture from sums: the E-step at the sites, the M-step at the server.

With responsibilities r_ik of component k for row x_i, and the published centre c_k of every component,

    N_k = sum_i r_ik,   s_k = sum_i r_ik (x_i - c_k),   S_k = sum_i r_ik (x_i - c_k)(x_i - c_k)^T,
    H = - sum_ik r_ik log r_ik

are all that a site says. Sums over sites are those of the pooled rows, and the M-step is a function of them. Two
estimates, by the model that went in:

- *variational* (a mixture with conjugate priors): q(theta_k) is the prior times exp(N_k, s_k, S_k), a Normal-Wishart or
  Normal-Gamma, and the weights are Beta sticks or a Dirichlet. The objective is the evidence lower bound

      F = sum_k N_k E[log pi_k] + sum_ik r_ik E[log N(x_i | theta_k)] + H - KL(q(theta, pi) || prior).

- *likelihood* (a mixture fitted by maximum likelihood): weights N_k / N and covariances (S + Psi) / N_k, the maximum of
  the log likelihood less sum_k tr(Psi Sigma_k^-1) / 2. Psi is a `RIDGE` of one observation and keeps the likelihood
  bounded where a component loses its rows.

F is a function of the responsibilities of every site and of the parameters, and each step maximises it in one of these.
So it does not fall where only some sites renew theirs and the sums of the others are carried on: incremental EM (Neal
and Hinton, 1998, "A view of the EM algorithm that justifies incremental, sparse, and other variants", section 3).

A component that has fewer rows of a site than its least count is *withheld* there: no sum of it leaves, and for these
rows its density stays the one that the first request published. F then is the bound for that density, with what it
takes of the rows inside H, a number. A site whose withheld components change may find a lower F than with its last
sums; `em` then keeps those.

A tied covariance is one precision matrix that all components share: with the prior of every component, q of it is the
Wishart with K W_0^-1 + sum_k S_k and K nu_0 + N, whose mean is the one that scikit-learn's update has. Every
component carries one K-th of it (docs/adr/0002).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma, entr, logsumexp

from consilience.checks import Array, Labels, symmetric_part
from consilience.errors import InputError
from consilience.families import Dirichlet
from consilience.families.linalg import cholesky, log_determinant
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    attached_origin,
    family_of,
    maximum_likelihood_covariances,
    posterior_and_prior,
    to_natural,
)

RIDGE = 1e-3
"""Psi of the likelihood estimate, in observations with the variance of the whole mixture. Chosen by hand: a thousandth
of a row changes no component that has some, and bounds the likelihood of one that has none to spare."""

_ROWS_AT_ONCE = 2**14
"""Rows of an E-step whose responsibilities are in memory at once. Chosen by hand: 16 MB for 128 components."""

_PRESENT = 0.5
"""Rows of a site that a withheld component must have to be named as withheld: fewer are the tails of others."""

_LOG_TWO_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class MixtureState:
    """A Gaussian mixture between two steps: what a request publishes."""

    covariance_type: str  # {"full", "tied", "diag", "spherical"}, shape of the covariances, as scikit-learn calls them
    estimate: str  # {"variational", "likelihood"}, what the parameters are an estimate of; see the module
    # {"dirichlet_process", "dirichlet_distribution", "none"}: Prior of the weights; "none" for the likelihood.
    weight_prior: str
    concentration: float  # its concentration; 0 for the likelihood
    components: ConjugateParameters  # posteriors of the K components; a tied covariance is the mean of their copies
    counts: Array  # (K,), observations behind each component
    prior: ConjugateParameters  # the one prior, as one component; for the likelihood kappa is 0 and the spread is Psi

    @property
    def n_components(self) -> int:
        """Number K of components."""
        return len(self.counts)

    @property
    def dim(self) -> int:
        """Number D of columns."""
        return int(self.components.mean.shape[1])

    @property
    def is_likelihood(self) -> bool:
        """Whether the estimate is that of the penalised likelihood."""
        return self.estimate == "likelihood"

    @property
    def is_tied(self) -> bool:
        """Whether all components share one covariance."""
        return self.covariance_type == "tied"


@dataclass(frozen=True, eq=False)
class MixtureSums:
    """What leaves a site: sums over rows, weighted by responsibilities; see the module."""

    counts: Array  # (K,), n_k
    first: Array  # (K, D), s_k
    second: Array  # (K, D, D), (K, D) or (K,), s_k, its diagonal, or the mean of its diagonal, by covariance type
    entropy: float  # H, in nats

    def __add__(self, other: MixtureSums) -> MixtureSums:
        """Return the sums of the rows of both, about the same centres."""
        return MixtureSums(
            self.counts + other.counts,
            self.first + other.first,
            self.second + other.second,
            self.entropy + other.entropy,
        )

    def about(self, centres: Array, new_centres: Array) -> MixtureSums:
        """Return the same sums about other centres (K, D)."""
        shift = centres - new_centres  # d: x - c' = (x - c) + d
        first = self.first + self.counts[:, None] * shift
        # S' = S + s d^T + d s^T + N d d^T, which is S + s d^T + d s'^T
        cross = outer(self.first, shift, self.second.ndim) + outer(shift, first, self.second.ndim)
        return replace(self, first=first, second=self.second + cross)


def outer(left: Array, right: Array, ndim: int) -> Array:
    """Return left right^T (K, D, D), its diagonal (K, D) or the mean of that (K,), as second moments of `ndim` axes."""
    if ndim == 3:
        products: Array = left[:, :, None] * right[:, None, :]
        return products
    return left * right if ndim == 2 else (left * right).mean(axis=1)


@dataclass(frozen=True, eq=False)
class MixtureExpectations:
    """What an E-step needs of a state: E[log N(x | theta_k)] = (offset_k - |R_k (x - m_k)|^2) / 2, and E[log pi_k]."""

    log_weights: Array  # (K,), E[log pi_k]; minus infinity for a component that no site has
    mean: Array  # (K, D), m_k
    # (K, D, D), (K, D) or (K,): R_k, with R^T R = E[Lambda_k]; triangular, diagonal, or a multiple of the identity.
    root: Array
    offset: Array  # (K,), E[log|Lambda_k|] - D log 2 pi - D / kappa_k

    def log_joint(self, rows: Array) -> Array:
        """Return E[log pi_k] + E[log N(x_i | theta_k)] of rows (n, D): (n, K)."""
        joint = np.empty((len(rows), len(self.mean)))
        for k, root in enumerate(self.root):  # a product of matrices for each component
            whitened = (rows - self.mean[k]) @ root.T if root.ndim == 2 else (rows - self.mean[k]) * root
            joint[:, k] = np.einsum("nd,nd->n", whitened, whitened)
        result: Array = self.log_weights + 0.5 * (self.offset - joint)
        return result

    def free_energy(self, sums: MixtureSums) -> float:
        """Return a site's part of F: sum_k N_k E[log pi_k] + sum_ik r_ik E[log N(x_i | theta_k)] + H.

        The site's sums are about `mean`.
        """
        present = sums.counts > 0.0  # 0 log 0 = 0
        weights = sums.counts[present] @ self.log_weights[present]
        root, second = self.root[present], sums.second[present]
        if second.ndim == 3:
            distance = np.einsum("kij,kjl,kil->", root, second, root)  # sum_k tr(R_k S_k R_k^T)
        elif second.ndim == 2:
            distance = np.sum(root**2 * second)
        else:
            distance = self.mean.shape[1] * np.sum(root**2 * second)
        return float(weights + 0.5 * (sums.counts[present] @ self.offset[present] - distance) + sums.entropy)


def expectations(state: MixtureState) -> MixtureExpectations:
    """Return what the E-step needs of a state.

    Raises InputError where a covariance is not positive definite.
    """
    mean, kappa = state.components.mean, state.components.kappa
    dim, n_components = state.dim, state.n_components
    if state.is_likelihood:
        with np.errstate(divide="ignore"):
            log_weights = np.log(state.counts / state.counts.sum())
        covariance = maximum_likelihood_covariances(state.components, state.covariance_type)
        if state.is_tied:  # as the adapter has it: the mean over observations
            covariance = np.einsum("k,kij->ij", state.counts / state.counts.sum(), covariance)[None]
        excess, location = np.zeros(len(covariance)), np.zeros(n_components)
    else:
        log_weights = _expected_log_weights(state)
        spread, dof = _spread_and_dof(state.components, state.is_tied, n_components)
        covariance = _divided(spread, dof)
        excess, location = _log_det_excess(dof, state.covariance_type, dim), dim / kappa
    root, log_det = _roots(covariance, dim)
    offset = log_det + excess - dim * _LOG_TWO_PI - location
    return MixtureExpectations(log_weights, mean, np.broadcast_to(root, (n_components, *root.shape[1:])), offset)


def _spread_and_dof(parameters: ConjugateParameters, is_tied: bool, n_components: int) -> tuple[Array, Array]:
    """Return spreads and degrees of freedom of components; of a tied covariance those of the one that all share."""
    if not is_tied:
        return parameters.spread, parameters.dof
    return n_components * parameters.spread.mean(axis=0)[None], n_components * parameters.dof.mean(axis=0)[None]


def _divided(spread: Array, divisors: Array) -> Array:
    """Return spreads (K, ...) divided by a number for each (K,)."""
    result: Array = spread / divisors.reshape(-1, *[1] * (spread.ndim - 1))
    return result


def _roots(covariance: Array, dim: int) -> tuple[Array, Array]:
    """Return R with R^T R = C^-1, and -log|C| (K,), of covariances (K, D, D), (K, D) or (K,)."""
    if covariance.ndim == 3:
        factor = cholesky(covariance, "covariance")
        return np.asarray(np.linalg.inv(factor), dtype=np.float64), -log_determinant(factor)
    if not np.all(covariance > 0.0):
        raise InputError("", "a component has a variance that is not positive", code="E-NUMBER")
    log_det = -np.log(covariance).sum(axis=1) if covariance.ndim == 2 else -dim * np.log(covariance)
    return 1.0 / np.sqrt(covariance), log_det


def _log_det_excess(dof: Array, covariance_type: str, dim: int) -> Array:
    """Return E[log|Lambda|] - log|E[Lambda]| (K,) of precisions with nu degrees of freedom, negative by Jensen.

    sum_d psi((nu - d) / 2) - log(nu / 2) of a Wishart; of Gammas with shape a = nu / 2, or D nu / 2 where one precision
    serves D columns, D (psi(a) - log a).
    """
    if covariance_type in ("full", "tied"):
        shifts = 0.5 * np.arange(dim)
        result: Array = (digamma(0.5 * dof[:, None] - shifts) - np.log(0.5 * dof)[:, None]).sum(axis=1)
        return result
    shape = 0.5 * dof * (dim if covariance_type == "spherical" else 1.0)
    excess: Array = dim * (digamma(shape) - np.log(shape))
    return excess


def _sticks(state: MixtureState) -> tuple[Array, Array]:
    """Return parameters of the Beta posteriors of sticks: a_k = 1 + N_k and b_k = gamma + sum_{l > k} N_l."""
    later = np.append(np.cumsum(state.counts[::-1])[-2::-1], 0.0)
    return 1.0 + state.counts, state.concentration + later


def _expected_log_weights(state: MixtureState) -> Array:
    """Return E[log pi_k] (K,) under the posterior of the weights."""
    if state.weight_prior == "dirichlet_distribution":
        concentrations = state.concentration + state.counts
        result: Array = digamma(concentrations) - digamma(concentrations.sum())
        return result
    a, b = _sticks(state)
    broken = digamma(b) - digamma(a + b)  # E[log(1 - v_k)]
    return digamma(a) - digamma(a + b) + np.append(0.0, np.cumsum(broken)[:-1])


def mean_weights(state: MixtureState) -> Array:
    """Return the mean weights (K,) of the components of a variational state, scaled to sum to one."""
    if state.weight_prior == "dirichlet_distribution":
        weights = state.concentration + state.counts
    else:
        a, b = _sticks(state)
        weights = a / (a + b) * np.append(1.0, np.cumprod(b / (a + b))[:-1])
    result: Array = weights / weights.sum()
    return result


def divergence_from_prior(state: MixtureState) -> float:
    """Return KL(q || prior) of all parameters; for the likelihood the penalty sum_k tr(Psi Sigma_k^-1) / 2."""
    dim, n_components = state.dim, state.n_components
    if state.is_likelihood:
        root = expectations(state).root
        # A shared covariance is penalised once, and a component without rows not at all.
        root = root[:1] if state.is_tied else root[state.counts > 0.0]
        psi = state.prior.spread[0]
        if root.ndim == 3:
            return float(0.5 * np.einsum("kij,jl,kil->", root, psi, root))
        return float(0.5 * np.sum(root**2 * psi) * (dim if root.ndim == 1 else 1.0))
    components, prior = state.components, state.prior
    if state.weight_prior == "dirichlet_distribution":
        weights = Dirichlet(n_components)
        posterior_of_weights = weights.to_natural(concentration=(state.concentration + state.counts)[None])
        start = weights.to_natural(concentration=np.full((1, n_components), state.concentration))
    else:
        weights, sticks = Dirichlet(2), np.stack(_sticks(state), axis=1)
        posterior_of_weights = weights.to_natural(concentration=sticks)
        start = weights.to_natural(concentration=np.tile([1.0, state.concentration], (n_components, 1)))
    divergence = float(weights.kl_pairs(posterior_of_weights, start).sum())
    family = family_of(state.covariance_type, dim)
    if not state.is_tied:
        about = attached_origin(components, state.counts)
        natural, prior_row = posterior_and_prior(family, components, prior, about)
        return divergence + float(family.kl_pairs(natural, np.repeat(prior_row[None], n_components, axis=0)).sum())
    # One precision: its Wisharts (with one mean, the family's divergence is theirs), then the means given it.
    spread, dof = _spread_and_dof(components, True, n_components)
    origin, one = np.zeros((1, dim)), np.ones(1)
    posterior = to_natural(family, ConjugateParameters(origin, one, dof, spread))
    start = to_natural(family, ConjugateParameters(origin, one, n_components * prior.dof, n_components * prior.spread))
    divergence += float(family.kl_pairs(posterior, start).sum())
    ratio = prior.kappa / components.kappa  # kappa_0 / kappa_k
    whitened = (components.mean - prior.mean) @ expectations(state).root[0].T
    divergence += float(0.5 * dim * np.sum(ratio - 1.0 - np.log(ratio)))
    return divergence + float(0.5 * prior.kappa[0] * np.sum(whitened**2))


@dataclass(frozen=True, eq=False)
class EStep:
    """A site's E-step."""

    sums: MixtureSums  # sums about the means of the published components
    # Components that some of the site's rows are nearest to, but fewer than `min_count`: their sums are zero.
    withheld: Labels


def e_step(state: MixtureState, start: MixtureState, rows: Array, min_count: float) -> EStep:
    """Return the sums of a site's rows under a published state.

    A component with fewer effective rows of the site than `min_count` is *withheld*: its density for these rows is the
    one that the first request published, which nothing that the site says can change, so no sum of it has to leave.
    What it takes of the rows, no other component takes. With the same components withheld in every round this is the
    E-step of a mixture some of whose components are known, and F rises as it does for others.

    `start` is the state of the first request, `rows` are (n, D).
    """
    current, first = expectations(state), expectations(start)
    withheld = ~np.isfinite(current.log_weights)  # nobody has these
    while True:
        published = _partly(first, current, withheld)
        counts = np.sum([weights.sum(axis=0) for _, weights, _ in _blocks(published, rows)], axis=0)
        small = ~withheld & (counts < min_count)
        if not small.any():
            break
        withheld |= small
    sums = _weighted_sums(published, current.mean, rows, withheld, state.components.spread.ndim)
    return EStep(sums, np.flatnonzero(withheld & (counts >= _PRESENT)))


def _partly(first: MixtureExpectations, current: MixtureExpectations, withheld: Labels) -> MixtureExpectations:
    """Return the expectations of a state, but for withheld components those of the first one."""

    def chosen(old: Array, new: Array) -> Array:
        return np.where(withheld.reshape(-1, *[1] * (new.ndim - 1)), old, new)

    return MixtureExpectations(
        chosen(first.log_weights, current.log_weights),
        chosen(first.mean, current.mean),
        chosen(first.root, current.root),
        chosen(first.offset, current.offset),
    )


def _blocks(expected: MixtureExpectations, rows: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield rows, some at a time, with their responsibilities and the logarithms of these before they are scaled."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE]
        joint = expected.log_joint(block)
        yield block, np.exp(joint - logsumexp(joint, axis=1, keepdims=True)), joint


def _weighted_sums(
    expected: MixtureExpectations, centres: Array, rows: Array, withheld: Labels, ndim: int
) -> MixtureSums:
    """Return the sums of rows about centres, with second moments of `ndim` axes; those of withheld components are zero.

    What withheld components add to F, sum_ik r_ik E[log pi_k N(x_i | theta_k)], is constant for the server: it is added
    to the entropy.
    """
    n_components, dim = centres.shape
    counts, first = np.zeros(n_components), np.zeros((n_components, dim))
    second, entropy = np.zeros((n_components, *[dim] * (ndim - 1))), 0.0
    for block, responsibilities, joint in _blocks(expected, rows):
        entropy += float(entr(responsibilities).sum())
        known = withheld & np.isfinite(expected.log_weights)
        entropy += float(np.sum(responsibilities[:, known] * joint[:, known]))
        for k in np.flatnonzero(~withheld):
            counts[k] += responsibilities[:, k].sum()
            centred = block - centres[k]
            weighted = responsibilities[:, k, None] * centred
            first[k] += weighted.sum(axis=0)
            if ndim == 3:
                second[k] += weighted.T @ centred
            elif ndim == 2:
                second[k] += (weighted * centred).sum(axis=0)
            else:
                second[k] += (weighted * centred).sum() / dim
    return MixtureSums(counts, first, symmetric_part(second) if ndim == 3 else second, entropy)


def m_step(state: MixtureState, sums: MixtureSums) -> MixtureState:
    """Return the state that maximises F given the sums of all sites about the means of `state`."""
    prior, old = state.prior, state.components
    n_components, ndim = state.n_components, sums.second.ndim
    kappa = prior.kappa + sums.counts
    present = kappa > 0.0  # with a proper prior all of them
    divisor = np.where(present, kappa, 1.0)
    offset = prior.mean - old.mean  # of the prior mean from each centre, (K, D)
    shift = (prior.kappa[:, None] * offset + sums.first) / divisor[:, None]
    pull = _scaled(prior.kappa, outer(offset, offset, ndim))  # kappa_0 (m_0 - c)(m_0 - c)^T
    scatter = sums.second + pull - _scaled(kappa, outer(shift, shift, ndim))
    if state.is_likelihood:
        spread = prior.spread + scatter
        if state.is_tied:
            shared = (prior.spread[0] + scatter[present].sum(axis=0)) / sums.counts.sum()
            spread = _scaled(kappa, np.broadcast_to(shared, scatter.shape))
        # A component that no site has keeps its parameters, and has no weight.
        spread = np.where(present.reshape(-1, *[1] * (ndim - 1)), spread, old.spread)
        kappa = np.where(present, kappa, old.kappa)
        dof = np.where(present, prior.dof + sums.counts, old.dof)
    elif state.is_tied:
        shared = prior.spread[0] + scatter.sum(axis=0) / n_components  # one K-th of the whole
        spread = np.broadcast_to(shared, scatter.shape)
        dof = np.broadcast_to(prior.dof + sums.counts.sum() / n_components, (n_components,))
    else:
        spread, dof = prior.spread + scatter, prior.dof + sums.counts
    return replace(state, components=ConjugateParameters(old.mean + shift, kappa, dof, spread), counts=sums.counts)


def _scaled(factors: Array, matrices: Array) -> Array:
    """Return matrices (K, ...) times a factor for each (K,) or one for all (1,)."""
    result: Array = factors.reshape(-1, *[1] * (matrices.ndim - 1)) * matrices
    return result
