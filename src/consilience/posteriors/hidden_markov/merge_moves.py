"""Moves between numbers of states in a sticky HDP-HMM: empty states go, and pairs that explain one thing are merged.

A merged state has the sum of both states' statistics, counts and weights. Which pairs are tried is told by what merging
does to the evidence of the rows alone,

    A(eta_a + eta_b - prior) - A(eta_a) - A(eta_b) + A(prior),

with A the log normaliser; whether a pair is merged, by the evidence bound of the merged model with its own best q(z).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from consilience.checks import Array, Labels
from consilience.posteriors.hidden_markov.forward_backward import Smoothed
from consilience.posteriors.hidden_markov.sticky_transitions import Counts, sticks_of
from consilience.posteriors.hidden_markov.variational_steps import Beliefs, Problem, local_step, refreshed

_TRIED = 10  # pairs tried before it is said that none is to be merged
_EMPTY = 1.0  # expected rows below which a state is empty
_SMALLEST_WEIGHT = 1e-12

Solution = tuple[Beliefs, Smoothed, float]
"""Beliefs, the q(z) that is best given them, and the evidence bound of both."""


def simplified(problem: Problem, beliefs: Beliefs, smoothed: Smoothed, bound: float, *, merge: bool) -> Solution:
    """Return a solution with fewer states and a higher bound, or the very same when no move raises it.

    Parameters
    ----------
    problem
        Data and priors.
    beliefs
        What to simplify.
    smoothed, bound
        Its local step.
    merge
        Whether pairs are merged, or only empty states go.
    """
    best = beliefs, smoothed, bound
    kept = np.flatnonzero(smoothed.responsibilities.sum(axis=0) >= _EMPTY)
    if 0 < len(kept) < len(beliefs.natural):
        best = _better(problem, best, [only(problem, beliefs, kept)])
    while merge and len(best[0].natural) > 1:
        pairs = _likely_pairs(problem, best[0])
        found = _better(problem, best, (merged(problem, best[0], *pair) for pair in pairs))
        if found is best:
            break
        best = found
    return best


def _better(problem: Problem, best: Solution, others: Iterable[Beliefs]) -> Solution:
    """Return the first of `others` that has a higher bound, with its local step, or else `best`."""
    for beliefs in others:
        smoothed, bound = local_step(problem, beliefs)
        if bound > best[2]:
            return beliefs, smoothed, bound
    return best


def only(problem: Problem, beliefs: Beliefs, kept: Labels) -> Beliefs:
    """Return `beliefs` with only these states; the weight of the others goes to the remainder."""
    weights = beliefs.sticks.weights[kept]
    return _sorted(problem, beliefs.natural[kept], beliefs.counts.take(kept), weights)


def merged(problem: Problem, beliefs: Beliefs, first: int, second: int) -> Beliefs:
    """Return `beliefs` with the second state made part of the first."""
    size = len(beliefs.natural)
    target = np.delete(np.arange(size), second)
    onto = np.eye(size)[target]
    onto[np.flatnonzero(target == first)[0], second] = 1.0
    natural = problem.prior + onto @ (beliefs.natural - problem.prior)
    counts = Counts(onto @ beliefs.counts.transitions @ onto.T, onto @ beliefs.counts.starts)
    return _sorted(problem, natural, counts, onto @ beliefs.sticks.weights[:-1])


def _sorted(problem: Problem, natural: Array, counts: Counts, weights: Array) -> Beliefs:
    """Return beliefs with states from the most to the least visited, and sticks refitted from these weights (K,)."""
    order = np.argsort(-(counts.transitions.sum(axis=0) + counts.starts), kind="stable")
    whole = np.maximum(np.append(weights[order], 1.0 - weights.sum()), _SMALLEST_WEIGHT)
    sticks = sticks_of(whole / whole.sum(), len(order) + 1.0 + problem.transitions.gamma)
    return refreshed(problem, natural[order], counts.take(order), sticks)


def _likely_pairs(problem: Problem, beliefs: Beliefs) -> list[tuple[int, int]]:
    """Return the pairs whose merging costs the evidence of the rows least, best first."""
    family, natural = problem.family, beliefs.natural
    first, second = np.triu_indices(len(natural), 1)
    single = family.log_normalizer(natural)
    gain = family.log_normalizer(natural[first] + natural[second] - problem.prior) - single[first] - single[second]
    best = np.argsort(-gain, kind="stable")[:_TRIED]
    return list(zip(first[best].tolist(), second[best].tolist(), strict=True))
