"""Moves between numbers of states in a sticky HDP-HMM: empty states go, and pairs that explain one thing are merged.

A merged state has the sum of both states' statistics, counts and weights. Which pairs are tried is told by what merging
does to the evidence of the rows alone,

    A(eta_a + eta_b - prior) - A(eta_a) - A(eta_b) + A(prior),

with A the log normaliser; whether a pair is merged, by the evidence bound of the merged model with its own best q(z).
"""

from __future__ import annotations

import numpy as np

from consilience.checks import Array, Labels
from consilience.learners.hdp_hmm_steps import Beliefs, Problem, bound_of, refreshed
from consilience.models.sticky_transitions import Counts, sticks_of

_TRIED = 10  # pairs tried before it is said that none is to be merged
_EMPTY = 1.0  # expected rows below which a state is empty
_SMALLEST_WEIGHT = 1e-12


def simplified(problem: Problem, beliefs: Beliefs, rows_in_state: Array, *, merge: bool) -> Beliefs:
    """Return `beliefs` with fewer states and a higher evidence bound, or the very same when no move raises it."""
    bound = bound_of(problem, beliefs)
    kept = np.flatnonzero(rows_in_state >= _EMPTY)
    if 0 < len(kept) < len(rows_in_state):
        fewer = only(problem, beliefs, kept)
        if (higher := bound_of(problem, fewer)) > bound:
            beliefs, bound = fewer, higher
    while merge and len(beliefs.natural) > 1:
        for pair in _likely_pairs(problem, beliefs):
            fewer = merged(problem, beliefs, *pair)
            if (higher := bound_of(problem, fewer)) > bound:
                beliefs, bound = fewer, higher
                break
        else:
            break
    return beliefs


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
