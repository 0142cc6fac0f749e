"""Steps of variational inference for the sticky HDP-HMM: what q(z) is given the rest, and what the rest is given q(z).

The family is q(z) q(states) q(transitions) q(sticks), all conjugate but the sticks. The evidence bound is known after
each local step, when q(z) is the posterior of a chain of weights exp E[log pi] and evidence exp E[log p(x | state)]:

    bound = log of the chain's normaliser - KL(q(states) || p) - KL(q(transitions), q(sticks) || p).

No step can lower it: every one of them maximises it, or is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.forward_backward import Smoothed, forward_backward
from consilience.posteriors.hidden_markov.sticky_transitions import (
    Counts,
    Sticks,
    StickyPrior,
    dirichlets,
    expected_logs,
    fit_sticks,
    sticks_bound,
)

_STICK_STEPS = 5


@dataclass(frozen=True, eq=False)
class Problem:
    """Data and priors.

    Parameters
    ----------
    family
        Family of the states' posteriors.
    prior
        Their prior (P,).
    transitions
        Hyper-parameters of the transitions.
    rows
        Data (n, D).
    lengths
        Lengths of the sequences that follow each other in `rows`.
    """

    family: NormalWishart
    prior: Array
    transitions: StickyPrior
    rows: Array
    lengths: Labels

    @cached_property
    def statistics(self) -> Array:
        """What every row adds to the natural parameters of the state that it belongs to (n, P)."""
        half = np.full((len(self.rows), 1), 0.5)
        squares = (self.rows[:, :, None] * self.rows[:, None, :]).reshape(len(self.rows), -1)
        return np.concatenate([self.rows, -half, -0.5 * squares, half], axis=1)

    @cached_property
    def prior_constant(self) -> float:
        """Log normaliser of the prior."""
        return float(self.family.log_normalizer(self.prior[None])[0])


@dataclass(frozen=True, eq=False)
class Beliefs:
    """q of everything but z: states (K, P), transitions by the counts behind them, sticks."""

    natural: Array
    counts: Counts
    sticks: Sticks


def local_step(problem: Problem, beliefs: Beliefs) -> tuple[Smoothed, float]:
    """Return q(z) at its best, and the evidence bound."""
    family = problem.family
    means = family.mean_parameters(beliefs.natural)
    evidence = problem.statistics @ means.T - 0.5 * family.dim * np.log(2.0 * np.pi)
    parameters = dirichlets(beliefs.counts, beliefs.sticks.weights, problem.transitions)
    start, transition = map(expected_logs, parameters)
    smoothed = forward_backward(start, transition, evidence, problem.lengths)
    states = np.sum((beliefs.natural - problem.prior) * means) - family.log_normalizer(beliefs.natural).sum()
    states += len(means) * problem.prior_constant
    others = np.sum(beliefs.counts.transitions * transition) + np.sum(beliefs.counts.starts * start)
    others -= sticks_bound(beliefs.sticks, beliefs.counts, problem.transitions)
    return smoothed, smoothed.log_likelihood - float(states + others)


def global_step(problem: Problem, smoothed: Smoothed, sticks: Sticks) -> Beliefs:
    """Return q of everything but z: states and transitions at their best, sticks no worse than before."""
    natural = problem.prior + smoothed.responsibilities.T @ problem.statistics
    return refreshed(problem, natural, Counts(smoothed.transitions, smoothed.starts), sticks)


def refreshed(problem: Problem, natural: Array, counts: Counts, sticks: Sticks) -> Beliefs:
    """Return beliefs with sticks that some steps from `sticks` have made fit the counts."""
    return Beliefs(natural, counts, fit_sticks(counts, problem.transitions, sticks, _STICK_STEPS))
