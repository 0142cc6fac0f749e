"""Inference in a hidden Markov chain whose weights are given: smoothing, filtering and the most probable path.

Weights need not be normalised: variational inference takes expected logarithms. With start weights a, transition
weights A and the evidence b_t of every state, p(z, x) = a_{z_1} b_1(z_1) prod_t A_{z_{t-1} z_t} b_t(z_t).

A sequence is cut into pieces of about the root of its length, and all pieces of all sequences are worked on at once:
first the product of matrices of every piece, then the messages that enter and leave the pieces, then the messages
inside them. So the loop over time is as long as one piece. Messages are scaled to sum or maximum one at every step.
With all weights above 1e-150 of the largest nothing underflows that matters: what a step predicts is at least that
share everywhere, whatever the evidence was, and what falls below 1e-308 of it is far below its rounding. Smaller
weights are raised to that size first. When the marginals then say that such a weight is used with probability m, they
are wrong by no more than m, since raising makes its paths more probable and leaves the odds of all others as they are;
where m is not below rounding, everything is done again with logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.posteriors.hidden_markov.log_messages import Messages, forward_in_logs, messages_in_logs, steps_of

_LOG_SMALLEST = -345.0  # log 1e-150
_NEGLIGIBLE = 1e-14
_Flags = NDArray[np.bool_]
_CUT_UP_TO = 48  # states up to which the products of matrices take less time than the longer loop that they save


@dataclass(frozen=True, eq=False)
class Smoothed:
    """What all data say of every hidden state.

    Parameters
    ----------
    responsibilities
        Probability of every state at every step (n, K).
    transitions
        Expected number of transitions, summed over all steps (K, K).
    starts
        Expected number of sequences that start in each state (K,).
    log_densities
        log p(x_t | x_1 .. x_{t-1}) of every step (n,), in nats; they add up to the logarithm of the normaliser.
    """

    responsibilities: Array
    transitions: Array
    starts: Array
    log_densities: Array

    @property
    def log_likelihood(self) -> float:
        """The logarithm of the normaliser of all sequences."""
        return float(self.log_densities.sum())


def forward_backward(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> Smoothed:
    """Return the marginals of the chain.

    Parameters
    ----------
    log_start
        Logarithms of start weights (K,).
    log_transition
        Logarithms of transition weights (K, K), from rows to columns.
    log_evidence
        log p(x_t | z_t = k), or what stands for it (n, K).
    lengths
        Lengths of the sequences, which follow each other in `log_evidence`; positive, with sum n.

    Raises
    ------
    InputError
        When a step has probability zero, which only weights of exactly zero can make.

    Examples
    --------
    >>> half = np.log(np.full((2, 2), 0.5))
    >>> found = forward_backward(half[0], half, np.log([[0.9, 0.1], [0.2, 0.8]]), np.array([2]))
    >>> found.responsibilities.round(3).tolist(), found.transitions.round(3).tolist()
    ([[0.9, 0.1], [0.2, 0.8]], [[0.18, 0.72], [0.02, 0.08]])
    """
    chain = _Chain(log_start, log_transition, log_evidence, lengths)
    first = np.cumsum(lengths) - lengths
    if chain.possible:
        found = _both_ways(chain)
        starts = found.responsibilities[first].sum(axis=0)
        if found.transitions[chain.raised].sum() + starts[chain.raised_start].sum() <= _NEGLIGIBLE:
            found.transitions[chain.raised] = 0.0
            return Smoothed(found.responsibilities, found.transitions, starts, found.log_densities)
    found = messages_in_logs(log_start, log_transition, log_evidence, lengths)
    starts = found.responsibilities[first].sum(axis=0)
    return Smoothed(found.responsibilities, found.transitions, starts, found.log_densities)


def log_densities(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> Array:
    """Return log p(x_t | x_1 .. x_{t-1}) of every step (n,); arguments as of ``forward_backward``.

    Examples
    --------
    >>> half = np.log(np.full((2, 2), 0.5))
    >>> log_densities(half[0], half, np.log([[0.9, 0.1], [0.2, 0.2]]), np.array([2])).round(3).tolist()
    [-0.693, -1.609]
    """
    chain = _Chain(log_start, log_transition, log_evidence, lengths)
    if not chain.possible or chain.raised.any() or chain.raised_start.any():
        return forward_in_logs(log_start, log_transition, log_evidence, steps_of(lengths))[1]
    return np.log(_forward(chain, _products(chain))[1]) + chain.shift


def viterbi(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> Labels:
    """Return the states (n,) of the most probable path; arguments as of ``forward_backward``.

    Examples
    --------
    >>> stay = np.log([[0.9, 0.1], [0.1, 0.9]])
    >>> viterbi(np.log([0.5, 0.5]), stay, np.log([[0.8, 0.2], [0.4, 0.6], [0.8, 0.2]]), np.array([3])).tolist()
    [0, 0, 0]
    """
    steps = steps_of(lengths)
    before = np.zeros(log_evidence.shape, dtype=np.int64)  # the best state one step earlier
    best = log_start + log_evidence[steps[0]]
    for rows in steps[1:]:
        ways = best[: len(rows), :, None] + log_transition
        before[rows] = ways.argmax(axis=1)
        best[: len(rows)] = ways.max(axis=1) + log_evidence[rows]
    states = np.zeros(len(log_evidence), dtype=np.int64)
    current = best.argmax(axis=1)
    for rows in reversed(steps):
        states[rows] = current[: len(rows)]
        current[: len(rows)] = before[rows, current[: len(rows)]]
    return states


@dataclass(frozen=True, eq=False)
class _Chain:
    """The weights in scaled form, and the pieces (S of them, longest first) that the sequences are cut into."""

    log_start: Array
    log_transition: Array
    log_evidence: Array
    lengths: Labels

    @property
    def possible(self) -> bool:
        """Whether every row can come from some state."""
        return bool(self.log_evidence.max(axis=1).min() > -np.inf)

    @cached_property
    def raised_start(self) -> _Flags:
        return self.log_start - self.log_start.max() < _LOG_SMALLEST

    @cached_property
    def raised(self) -> _Flags:
        return self.log_transition - self.log_transition.max() < _LOG_SMALLEST

    @cached_property
    def start(self) -> Array:
        return np.exp(np.maximum(self.log_start - self.log_start.max(), _LOG_SMALLEST))

    @cached_property
    def transition(self) -> Array:
        return np.exp(np.maximum(self.log_transition - self.log_transition.max(), _LOG_SMALLEST))

    @cached_property
    def evidence(self) -> Array:
        return np.exp(self.log_evidence - self.log_evidence.max(axis=1, keepdims=True))

    @cached_property
    def shift(self) -> Array:
        """What scaling took from log p(x_t | x_1 .. x_{t-1}) (n,)."""
        shift = self.log_evidence.max(axis=1) + self.log_transition.max()
        shift[np.cumsum(self.lengths) - self.lengths] += self.log_start.max() - self.log_transition.max()
        return shift

    @cached_property
    def pieces(self) -> tuple[Labels, Labels, Labels]:
        """Size, place in its sequence (0, 1, ...) and number of the sequence, of every piece (S,)."""
        cut, sequence, place = self._cuts
        size = np.minimum(cut, self.lengths[sequence] - cut * place)
        order = np.argsort(-size, kind="stable")
        return size[order], place[order], sequence[order]

    @cached_property
    def _cuts(self) -> tuple[int, Labels, Labels]:
        longest = int(self.lengths.max())
        cut = int(np.ceil(np.sqrt(longest))) if len(self.log_start) <= _CUT_UP_TO else longest
        count = -(-self.lengths // cut)
        sequence = np.repeat(np.arange(len(self.lengths)), count)
        return cut, sequence, np.arange(len(sequence)) - np.repeat(np.cumsum(count) - count, count)

    @cached_property
    def steps(self) -> list[Labels]:
        """Rows of the first, second, ... steps of all pieces that are so long."""
        size, place, sequence = self.pieces
        begin = (np.cumsum(self.lengths) - self.lengths)[sequence] + self._cuts[0] * place
        running = np.searchsorted(-size, -np.arange(int(size[0])), side="left")
        return [begin[:count] + step for step, count in enumerate(running.tolist())]

    @cached_property
    def levels(self) -> list[tuple[Labels, Labels]]:
        """For the second, third, ... pieces of sequences: which pieces these are, and which ones they follow."""
        _, place, sequence = self.pieces
        order = np.lexsort((sequence, place))
        ends = np.searchsorted(place[order], np.arange(int(place.max()) + 2))
        by_place = [order[a:b] for a, b in pairwise(ends)]
        return [
            (later, earlier[np.searchsorted(sequence[earlier], sequence[later])])
            for earlier, later in pairwise(by_place)
        ]


def _products(chain: _Chain) -> tuple[Array, Array]:
    """Return diag(b_1) A diag(b_2) .. A diag(b_n) of every piece: rows of sum 1 (S, K, K), and logs of sums (S, K)."""
    first, size = chain.steps[0], len(chain.log_start)
    product = np.zeros((len(first), size, size))
    product[:, np.arange(size), np.arange(size)] = 1.0
    scale = chain.log_evidence[first] - chain.log_evidence[first].max(axis=1, keepdims=True)
    if not chain.levels:
        return product, scale  # no piece follows another, so that nobody asks
    ones, totals = np.ones(size), np.ones((len(chain.steps), *scale.shape))
    for number, rows in enumerate(chain.steps[1:]):
        some = (product[: len(rows)].reshape(-1, size) @ chain.transition).reshape(-1, size, size)
        some *= chain.evidence[rows][:, None, :]
        total = totals[number, : len(rows)] = some @ ones
        np.divide(some, total[:, :, None], out=product[: len(rows)])
    return product, scale + np.log(totals).sum(axis=0)


def _forward(chain: _Chain, products: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return p(z_t | x_1 .. x_t) (n, K) and the normaliser of every step (n,)."""
    product, scale = products
    entering = np.tile(chain.start, (len(scale), 1))
    for later, earlier in chain.levels:
        log_weights = np.log(entering[earlier]) + scale[earlier]
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        leaving = (weights[:, None, :] @ product[earlier])[:, 0, :]
        entering[later] = (leaving / leaving.sum(axis=1, keepdims=True)) @ chain.transition
    filtered, normalisers = np.empty_like(chain.evidence), np.empty(len(chain.evidence))
    predicted = entering
    for rows in chain.steps:
        current = predicted[: len(rows)] * chain.evidence[rows]
        normalisers[rows] = total = current.sum(axis=1)
        filtered[rows] = current = current / total[:, None]
        predicted = current @ chain.transition
    return filtered, normalisers


def _backward(chain: _Chain, products: tuple[Array, Array]) -> Array:
    """Return p(x_{t+1} .. | z_t) (n, K), each row of maximum one."""
    product, scale = products
    current = np.ones_like(scale)  # at the ends of pieces first, then moving to their beginnings
    for later, earlier in reversed(chain.levels):
        weights = np.exp(scale[later] - scale[later].max(axis=1, keepdims=True))
        message = (weights * (product[later] @ current[later][:, :, None])[:, :, 0]) @ chain.transition.T
        current[earlier] = message / message.max(axis=1, keepdims=True)
    backward = np.empty_like(chain.evidence)
    later = chain.steps[-1]
    backward[later] = current[: len(later)]
    for rows in chain.steps[-2::-1]:
        message = (chain.evidence[later] * current[: len(later)]) @ chain.transition.T
        current[: len(later)] = message / message.max(axis=1, keepdims=True)
        backward[rows] = current[: len(rows)]
        later = rows
    return backward


def _both_ways(chain: _Chain) -> Messages:
    products = _products(chain)
    (filtered, normalisers), backward = _forward(chain, products), _backward(chain, products)
    joint = filtered * backward
    overlap = joint.sum(axis=1)
    ahead = chain.evidence * backward / (normalisers * overlap)[:, None]
    inside = np.ones(len(joint), dtype=bool)
    inside[np.cumsum(chain.lengths) - 1] = False  # nothing follows the last step of a sequence
    steps = np.flatnonzero(inside)
    transitions = chain.transition * (filtered[steps].T @ ahead[steps + 1])
    return Messages(joint / overlap[:, None], transitions, np.log(normalisers) + chain.shift)
