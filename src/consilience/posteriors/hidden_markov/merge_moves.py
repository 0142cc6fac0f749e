"""Merge and delete moves of the sticky HDP-HMM: fewer states where the evidence bound rises.

Empty states are deleted, and pairs of states that explain one thing are merged. A merged state has the sum of both
states' statistics, counts and weights. Pairs are tried in the order of what merging does to the evidence of the rows
alone,

    A(eta_a + eta_b - prior) - A(eta_a) - A(eta_b) + A(prior),

with A the log normaliser; a pair is merged when the evidence bound of the merged model, with its own best q(z), is
higher.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from consilience.checks import Array, Labels
from consilience.posteriors.hidden_markov.forward_backward import ChainMarginals
from consilience.posteriors.hidden_markov.sticky_transitions import TransitionCounts, sticks_from_weights
from consilience.posteriors.hidden_markov.variational_steps import (
    GlobalFactors,
    HMMProblem,
    local_step,
    with_refitted_sticks,
)

MAX_PAIRS_TRIED = 10
"""Pairs, the most likely first, that are tried before merging ends. Chosen by hand; not compared with others."""

MIN_EXPECTED_ROWS = 1.0
"""Expected rows below which a state counts as empty. Chosen by hand: less than one row of data."""

MIN_WEIGHT = 1e-12
"""Least weight E[beta] from which sticks are refitted, so that none is zero. A bound, chosen by hand."""

Solution = tuple[GlobalFactors, ChainMarginals, float]
"""Factors, the q(z) that is best given them, and the evidence bound of both."""


def simplify(
    problem: HMMProblem, factors: GlobalFactors, marginals: ChainMarginals, bound: float, *, merge: bool
) -> Solution:
    """Return a solution with fewer states and a higher bound, or the very same when no move raises it.

    Parameters
    ----------
    problem : HMMProblem
        Data and priors.
    factors : GlobalFactors
        The factors to simplify.
    marginals, bound
        Their local step.
    merge : bool
        Whether pairs are merged, or only empty states deleted.
    """
    best = factors, marginals, bound
    occupied = np.flatnonzero(marginals.responsibilities.sum(axis=0) >= MIN_EXPECTED_ROWS)
    if 0 < len(occupied) < len(factors.natural):
        best = _first_improvement(problem, best, [restrict_states(problem, factors, occupied)])
    while merge and len(best[0].natural) > 1:
        pairs = _likely_pairs(problem, best[0])
        improved = _first_improvement(problem, best, (merge_states(problem, best[0], *pair) for pair in pairs))
        if improved is best:
            break
        best = improved
    return best


def _first_improvement(problem: HMMProblem, best: Solution, candidates: Iterable[GlobalFactors]) -> Solution:
    """Return the first of `candidates` with a higher bound, after its local step, or else `best`."""
    for factors in candidates:
        marginals, bound = local_step(problem, factors)
        if bound > best[2]:
            return factors, marginals, bound
    return best


def restrict_states(problem: HMMProblem, factors: GlobalFactors, occupied: Labels) -> GlobalFactors:
    """Return `factors` with only the states `occupied`; the weight of the others goes to the remainder."""
    weights = factors.sticks.weights[occupied]
    return _by_visits(problem, factors.natural[occupied], factors.counts.take(occupied), weights)


def merge_states(problem: HMMProblem, factors: GlobalFactors, first: int, second: int) -> GlobalFactors:
    """Return `factors` with the second state merged into the first."""
    size = len(factors.natural)
    survivors = np.delete(np.arange(size), second)
    merge_matrix = np.eye(size)[survivors]  # (K - 1, K): row g adds up the states that become state g
    merge_matrix[np.flatnonzero(survivors == first)[0], second] = 1.0
    natural = problem.prior + merge_matrix @ (factors.natural - problem.prior)
    counts = TransitionCounts(
        merge_matrix @ factors.counts.transitions @ merge_matrix.T, merge_matrix @ factors.counts.starts
    )
    return _by_visits(problem, natural, counts, merge_matrix @ factors.sticks.weights[:-1])


def _by_visits(problem: HMMProblem, natural: Array, counts: TransitionCounts, weights: Array) -> GlobalFactors:
    """Return factors with states from the most to the least visited, and sticks refitted from these weights (K,)."""
    # Stick-breaking expects decreasing weights, so states stand in the order of visits.
    order = np.argsort(-(counts.transitions.sum(axis=0) + counts.starts), kind="stable")
    normalised = np.maximum(np.append(weights[order], 1.0 - weights.sum()), MIN_WEIGHT)
    sticks = sticks_from_weights(normalised / normalised.sum(), len(order) + 1.0 + problem.transition_prior.gamma)
    return with_refitted_sticks(problem, natural[order], counts.take(order), sticks)


def _likely_pairs(problem: HMMProblem, factors: GlobalFactors) -> list[tuple[int, int]]:
    """Return the pairs whose merging costs the evidence of the rows least, best first."""
    family, natural = problem.family, factors.natural
    first, second = np.triu_indices(len(natural), 1)
    single = family.log_normalizer(natural)
    # What a merge adds to the evidence of the rows, less the constant A(prior); the largest is the likeliest merge.
    gain = family.log_normalizer(natural[first] + natural[second] - problem.prior) - single[first] - single[second]
    best = np.argsort(-gain, kind="stable")[:MAX_PAIRS_TRIED]
    return list(zip(first[best].tolist(), second[best].tolist(), strict=True))
