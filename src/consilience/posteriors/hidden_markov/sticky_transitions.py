"""Transitions of a sticky hierarchical Dirichlet process: variational posterior and evidence bound of the sticks.

With u_k ~ Beta(1, gamma) and beta_k = u_k prod_{l<k} (1 - u_l), a state's row of transition probabilities is
pi_k ~ Dirichlet(eta beta + kappa e_k), and the first state of a sequence has pi_0 ~ Dirichlet(start beta). All states
beyond the K that are used share one remainder column, K + 1. The variational family is q(u_k) = Beta(a_k, b_k) with
a_k = rho_k omega_k and b_k = (1 - rho_k) omega_k, and q(pi_k) = Dirichlet(theta_k). Given the expected numbers of
transitions M the optimal theta is M + eta E[beta] + kappa I, and the rest of the evidence bound is a function of
(rho, omega) alone, which ``fit_sticks`` maximises by L-BFGS; where no step raises it, it returns where it started.

One term has no closed form, the logarithm of the Dirichlet's constant,

    c_k = log Gamma(eta + kappa) - sum_l log Gamma(eta beta_l + kappa [l = k]).

By log Gamma(x) = log Gamma(1 + x) - log x it is

    c_k = log(eta beta_k + kappa) + sum_{l != k} log(eta beta_l) - log(eta + kappa) + R_k,
    R_k = log Gamma(1 + eta + kappa) - sum_l log Gamma(1 + eta beta_l + kappa [l = k]),

and both parts have bounds whose expectations are known. Since x -> log(eta e^x + kappa) and log Gamma are convex, by
Jensen's inequality, and by chords of log Gamma(1 + kappa + eta beta_k) and of the other log Gamma(1 + eta beta_l),

    E log(eta beta_k + kappa) >= log(eta exp(E log beta_k) + kappa),
    R_k >= (1 - beta_k) (log Gamma(1 + eta + kappa) - log Gamma(1 + kappa) - log Gamma(1 + eta)) >= 0.

For kappa = 0 the first is exact and the second zero: the bound of Hughes, Stephenson, Sudderth (2015), "Scalable
adaptation of state complexity for nonparametric hidden Markov models". For kappa > 0 they take R_k >= 0 and the chord
of the logarithm, which is minus infinity in the limit of kappa = 0; here that limit is the plain bound.

Coordinate ascent steps of variational inference for the sticky HDP-HMM (Hughes, Stephenson, Sudderth 2015).

The family is q(z) q(states) q(transitions) q(sticks), all conjugate but the sticks. The local step sets q(z) to its
optimum given the other factors, the global step these to theirs given q(z). The evidence bound is known after each
local step, when q(z) is the posterior of a chain of weights exp E[log pi] and evidence exp E[log p(x | state)]:

    bound = log of the chain's normaliser - KL(q(states) || p) - KL(q(transitions), q(sticks) || p).

No step can lower it: every one of them maximises it, or is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, digamma, expit, gammaln, zeta

from consilience.checks import Array, Labels
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.forward_backward import ChainMarginals, forward_backward

MAX_LOGIT_RHO = 25.0
"""Bound of |logit rho|. No posterior comes near it; it keeps trial steps finite."""

LOG_OMEGA_RANGE = (-7.0, 30.0)
"""Bounds of log omega. No posterior comes near them; they keep trial steps finite."""

MIN_WEIGHT = 1e-250
"""Least E[beta], since log Gamma of zero is infinite. A bound of trial steps, which no posterior comes near."""

MAX_STEPS = 1000
"""Steps of L-BFGS where nobody says otherwise. A bound that is not reached: they end at a flat gradient before."""


@dataclass(frozen=True)
class StickyPrior:
    """Hyper-parameters of the transitions; the defaults are those of Claici et al. 2020, appendix C."""

    gamma: float = 5.0  # concentration of the weights beta: the larger, the more states
    eta: float = 0.5  # concentration of each row of transition probabilities around beta ("transition concentration")
    kappa: float = 10.0  # that of each row on staying, in addition; 0 gives the plain hierarchical Dirichlet process
    start: float = 5.0  # concentration of the probabilities of first states around beta


@dataclass(frozen=True, eq=False)
class Sticks:
    """Beta factors of the stick-breaking fractions, q(u_k) = Beta(rho_k omega_k, (1 - rho_k) omega_k)."""

    rho: Array  # means E[u_k] (K,)
    omega: Array  # their concentrations (K,)

    @property
    def weights(self) -> Array:
        """E[beta] (K + 1,), the remainder last; they sum to one."""
        remaining = np.append(1.0, np.cumprod(1.0 - self.rho))
        return np.maximum(np.append(self.rho, 1.0) * remaining, MIN_WEIGHT)

    @property
    def mean_logs(self) -> tuple[Array, Array]:
        """E[log u_k] and E[log(1 - u_k)] (K,)."""
        total = digamma(self.omega)
        return digamma(self.rho * self.omega) - total, digamma((1.0 - self.rho) * self.omega) - total


@dataclass(frozen=True, eq=False)
class TransitionCounts:
    """Expected numbers of transitions and of first states."""

    transitions: Array  # from rows to columns (K, K)
    starts: Array  # sequences that start in each state (K,)

    def take(self, order: Labels) -> TransitionCounts:
        """Return the counts with the states in another order, or of only some states."""
        return TransitionCounts(self.transitions[np.ix_(order, order)], self.starts[order])


def sticks_from_weights(weights: Array, omega: float) -> Sticks:
    """Return sticks with these E[beta] (K + 1,), all positive, and the same omega everywhere.

    Examples
    --------
    >>> sticks_from_weights(np.array([0.5, 0.25, 0.25]), 10.0).rho
    array([0.5, 0.5])
    """
    remaining = np.cumsum(weights[::-1])[::-1]  # (K + 1,): weight of states k and later
    return Sticks(weights[:-1] / remaining[:-1], np.full(len(weights) - 1, omega))


def uniform_sticks(n_states: int, prior: StickyPrior) -> Sticks:
    """Return sticks that give all states and the remainder the same weight."""
    return sticks_from_weights(np.full(n_states + 1, 1.0 / (n_states + 1)), n_states + 1.0 + prior.gamma)


def dirichlet_parameters(counts: TransitionCounts, weights: Array, prior: StickyPrior) -> tuple[Array, Array]:
    """Return the Dirichlet parameters of first states (K + 1,) and of transitions (K, K + 1), given E[beta]."""
    size = len(counts.starts)  # K
    start = prior.start * weights
    transition = np.tile(prior.eta * weights, (size, 1))
    start[:size] += counts.starts
    transition[:, :size] += counts.transitions + prior.kappa * np.eye(size)
    return start, transition


def expected_logs(concentrations: Array) -> Array:
    """Return E[log pi] of Dirichlets, the remainder left out: (K + 1,) to (K,), or (n, K + 1) to (n, K)."""
    return np.asarray(digamma(concentrations[..., :-1]) - digamma(concentrations.sum(axis=-1, keepdims=True)))


def sticks_bound(sticks: Sticks, counts: TransitionCounts, prior: StickyPrior) -> float:
    """Return the terms of the evidence bound that depend on the sticks and the counts, theta at its best.

    These are the bounds of all E[c_k], less the constants of all q(pi_k), less KL(q(u) || p(u)). For theta that belongs
    to the same counts, adding -sum M E[log pi] - sum N_1 E[log pi_0] gives minus the Kullback-Leibler divergence of the
    transitions from their prior.
    """
    return _bound_and_gradient(sticks, counts, prior)[0]


def fit_sticks(counts: TransitionCounts, prior: StickyPrior, start: Sticks, steps: int = MAX_STEPS) -> Sticks:
    """Return sticks that raise ``sticks_bound`` by so many steps of L-BFGS from `start`, or that where no step does."""
    size = len(start.rho)

    def negative(vector: Array) -> tuple[float, Array]:
        """Minus the bound and its slope at (logit rho, log omega)."""
        sticks = Sticks(expit(vector[:size]), np.exp(vector[size:]))
        value, by_rho, by_omega = _bound_and_gradient(sticks, counts, prior)
        slope = np.concatenate([by_rho * sticks.rho * (1.0 - sticks.rho), by_omega * sticks.omega])
        return -value, -slope

    vector = np.concatenate([np.log(start.rho) - np.log1p(-start.rho), np.log(start.omega)])
    box = [(-MAX_LOGIT_RHO, MAX_LOGIT_RHO)] * size + [LOG_OMEGA_RANGE] * size
    options = {"maxiter": steps, "ftol": 1e-12, "gtol": 1e-8}
    optimum = minimize(negative, vector, jac=True, method="L-BFGS-B", bounds=box, options=options)
    fitted = Sticks(expit(optimum.x[:size]), np.exp(optimum.x[size:]))
    return fitted if -optimum.fun > sticks_bound(start, counts, prior) else start


def _bound_and_gradient(sticks: Sticks, counts: TransitionCounts, prior: StickyPrior) -> tuple[float, Array, Array]:
    """Return ``sticks_bound`` and its slopes along rho (K,) and omega (K,)."""
    rho, omega, weights = sticks.rho, sticks.omega, sticks.weights
    size = len(rho)
    a, b = rho * omega, (1.0 - rho) * omega
    log_u, log_rest = sticks.mean_logs
    log_beta = np.append(log_u, 0.0) + np.append(0.0, np.cumsum(log_rest))  # E log beta (K + 1,)
    # Bounds of the constants: log beta_l stands in all rows but that of l itself, where kappa is added.
    log_jump = np.log(prior.eta) + log_beta[:size]
    log_diagonal = np.logaddexp(log_jump, np.log(prior.kappa) if prior.kappa > 0.0 else -np.inf)
    own_slopes = np.exp(log_jump - log_diagonal)  # (K,): slopes of log_diagonal along log_beta
    value = (size - 1.0) * log_beta[:size].sum() + size * log_beta[size] + log_diagonal.sum() + log_beta.sum()
    value += size * (size * np.log(prior.eta) - np.log(prior.eta + prior.kappa)) + size * np.log(prior.start)
    chord = gammaln(1.0 + prior.eta + prior.kappa) - gammaln(1.0 + prior.kappa) - gammaln(1.0 + prior.eta)
    value += chord * (size - weights[:size].sum())
    slope = np.append(size + own_slopes, size + 1.0)
    # The constants of q(pi).
    start, transition = dirichlet_parameters(counts, weights, prior)
    value += gammaln(start).sum() - gammaln(start.sum()) + gammaln(transition).sum()
    value -= gammaln(transition.sum(axis=1)).sum()
    # Slopes along E[beta] (K + 1,), through the Dirichlet parameters.
    by_weight = prior.start * digamma(start) + prior.eta * digamma(transition).sum(axis=0)
    # Minus the divergence of q(u) from Beta(1, gamma).
    value += size * np.log(prior.gamma) + (prior.gamma - 1.0) * log_rest.sum()
    value += (betaln(a, b) - (a - 1.0) * log_u - (b - 1.0) * log_rest).sum()
    # Slopes along a and b. For q(u) = Beta(a, b), d E[log u] / da = psi_1(a) - psi_1(a + b), and d E[log u] / db =
    # -psi_1(a + b); psi_1 is the Hurwitz zeta function at 2. Along a and b: what multiplies E log u and E log(1 - u),
    # less what q(u) has of it.
    later_slopes = np.cumsum(slope[::-1])[::-1][1:]  # sum of slopes beyond k
    excess_u, excess_rest = slope[:size] - a + 1.0, later_slopes + prior.gamma - b
    trigamma_total, trigamma_a, trigamma_b = zeta(2.0, [omega, a, b])
    curve = trigamma_total * (excess_u + excess_rest)
    by_a, by_b = excess_u * trigamma_a - curve, excess_rest * trigamma_b - curve
    by_weight[:size] -= chord
    weighted = by_weight * weights
    later_weighted = np.cumsum(weighted[::-1])[::-1][1:]
    # a = rho omega and b = (1 - rho) omega; raising rho_k takes weight from all later states.
    by_rho = omega * (by_a - by_b) + weighted[:size] / rho - later_weighted / (1.0 - rho)
    return float(value), by_rho, rho * by_a + (1.0 - rho) * by_b


def canonical_sticks(counts: TransitionCounts, prior: StickyPrior) -> tuple[Sticks, Labels]:
    """Return the sticks of highest bound given these counts, and the order of states that they are for.

    States are taken from the most to the least visited, as stick-breaking has them, so that the result does not depend
    on the order in which they are given.
    """
    visits = counts.transitions.sum(axis=0) + counts.starts
    order = np.lexsort((counts.starts, np.diagonal(counts.transitions), visits))[::-1]
    return fit_sticks(counts.take(order), prior, uniform_sticks(len(visits), prior)), order


MAX_STICK_STEPS = 5
"""Steps of L-BFGS on the sticks in a pass; the next pass goes on from there. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class HMMProblem:
    """Sequences of data, and the priors of a sticky HDP-HMM."""

    family: NormalWishart  # of the states' posteriors
    prior: Array  # natural parameters of their prior (P,)
    transition_prior: StickyPrior
    rows: Array  # the data (n, D)
    lengths: Labels  # of the sequences that follow each other in `rows`

    @cached_property
    def statistics(self) -> Array:
        """What every row adds to the natural parameters of its state (n, P)."""
        # A row x adds (x, -1/2, -x x^T / 2, 1/2) to the natural parameters of a Normal-Wishart distribution.
        half_column = np.full((len(self.rows), 1), 0.5)
        squares = (self.rows[:, :, None] * self.rows[:, None, :]).reshape(len(self.rows), -1)
        return np.concatenate([self.rows, -half_column, -0.5 * squares, half_column], axis=1)

    @cached_property
    def prior_constant(self) -> float:
        """Log normaliser A(prior)."""
        return float(self.family.log_normalizer(self.prior[None])[0])


@dataclass(frozen=True, eq=False)
class GlobalFactors:
    """All factors of the variational posterior but q(z)."""

    natural: Array  # natural parameters of the states (K, P)
    counts: TransitionCounts  # expected counts behind the Dirichlet factors of start and transitions
    sticks: Sticks  # Beta factors of the stick-breaking weights


def local_step(problem: HMMProblem, factors: GlobalFactors) -> tuple[ChainMarginals, float]:
    """Return the optimal q(z) as marginals of the chain, and the evidence bound in nats."""
    family = problem.family
    means = family.mean_parameters(factors.natural)
    # E[log p(x_t | state k)] (n, K): sufficient statistics times mean parameters, as conjugacy has it
    evidence = problem.statistics @ means.T - 0.5 * family.dim * np.log(2.0 * np.pi)
    concentrations = dirichlet_parameters(factors.counts, factors.sticks.weights, problem.transition_prior)
    start, transition = map(expected_logs, concentrations)
    marginals = forward_backward(start, transition, evidence, problem.lengths)
    # sum_k KL(q(state k) || p) = sum_k <eta_k - prior, mean_k> - A(eta_k) + A(prior)
    state_terms = np.sum((factors.natural - problem.prior) * means) - family.log_normalizer(factors.natural).sum()
    state_terms += len(means) * problem.prior_constant
    # KL(q(transitions), q(sticks) || p), up to its bounds: see ``sticks_bound``
    transition_terms = np.sum(factors.counts.transitions * transition) + np.sum(factors.counts.starts * start)
    transition_terms -= sticks_bound(factors.sticks, factors.counts, problem.transition_prior)
    return marginals, marginals.log_likelihood - float(state_terms + transition_terms)


def global_step(problem: HMMProblem, marginals: ChainMarginals, sticks: Sticks) -> GlobalFactors:
    """Return the other factors: states and transitions at their optimum, sticks no worse than before."""
    natural = problem.prior + marginals.responsibilities.T @ problem.statistics
    return with_refitted_sticks(problem, natural, TransitionCounts(marginals.transitions, marginals.starts), sticks)


def with_refitted_sticks(
    problem: HMMProblem, natural: Array, counts: TransitionCounts, sticks: Sticks
) -> GlobalFactors:
    """Return factors whose sticks were fitted to the counts by a few steps from `sticks`."""
    return GlobalFactors(natural, counts, fit_sticks(counts, problem.transition_prior, sticks, MAX_STICK_STEPS))
