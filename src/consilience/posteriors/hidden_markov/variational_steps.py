"""Coordinate ascent steps of variational inference for the sticky HDP-HMM (Hughes, Stephenson, Sudderth 2015).

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

from consilience.checks import Array, Labels
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.forward_backward import ChainMarginals, forward_backward
from consilience.posteriors.hidden_markov.sticky_transitions import (
    Sticks,
    StickyPrior,
    TransitionCounts,
    dirichlet_parameters,
    expected_logs,
    fit_sticks,
    sticks_bound,
)

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
