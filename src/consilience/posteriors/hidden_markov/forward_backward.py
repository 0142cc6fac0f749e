"""Forward-backward, filtering and Viterbi paths of hidden Markov chains with given weights.

With start weights a, transition weights A and the evidence b_t of every state,

    p(z, x) = a_{z_1} b_1(z_1) prod_{t > 1} A_{z_{t-1} z_t} b_t(z_t).

Weights need not be normalised: variational inference takes exponentials of expected logarithms.

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
from consilience.errors import InputError

LOG_SMALLEST_WEIGHT = -345.0
"""Logarithm of the weight, relative to the largest, to which smaller ones are raised: 1e-150.

About the root of the smallest normal float64, 2e-308, so that a product of two weights does not underflow.
"""

NEGLIGIBLE_PROBABILITY = 1e-14
"""Probability of raised weights up to which scaled messages are exact: some 50 units in the last place of 1."""

MAX_STATES_CUT = 48
"""States up to which sequences are cut into pieces.

Up to here the products of matrices took less time than the longer loop over time that they save. The measurement is not
recorded; another value changes time and rounding only.
"""

_Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ChainMarginals:
    """Posterior marginals of the hidden states, given all data."""

    responsibilities: Array  # probability of every state at every step (n, K)
    transitions: Array  # expected number of transitions, summed over all steps (K, K)
    starts: Array  # expected number of sequences that start in each state (K,)
    log_densities: Array  # log p(x_t | x_1 .. x_{t-1}), in nats (n,); they add up to the logarithm of the normaliser

    @property
    def log_likelihood(self) -> float:
        """The logarithm of the normaliser of all sequences, in nats."""
        return float(self.log_densities.sum())


def forward_backward(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> ChainMarginals:
    """Return the marginals of the chain, or raise for a step of probability zero, which only weights of zero can make.

    Start (K,) and transitions (K, K), from rows to columns, are logarithms of weights; the evidence (n, K) is that of
    every state at every row, log p(x_t | z_t), or its expectation. Lengths are those of the sequences, which follow
    each other in the evidence; positive, with sum n.

    Examples
    --------
    >>> half = np.log(np.full((2, 2), 0.5))
    >>> marginals = forward_backward(half[0], half, np.log([[0.9, 0.1], [0.2, 0.8]]), np.array([2]))
    >>> marginals.responsibilities.round(3).tolist(), marginals.transitions.round(3).tolist()
    ([[0.9, 0.1], [0.2, 0.8]], [[0.18, 0.72], [0.02, 0.08]])
    """
    chain = _Chain(log_start, log_transition, log_evidence, lengths)
    if chain.is_possible:
        marginals = _smooth_scaled(chain)
        raised = marginals.transitions[chain.is_raised].sum() + marginals.starts[chain.is_raised_start].sum()
        if raised <= NEGLIGIBLE_PROBABILITY:
            marginals.transitions[chain.is_raised] = 0.0
            return marginals
    return messages_in_logs(log_start, log_transition, log_evidence, lengths)


def log_densities(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> Array:
    """Return log p(x_t | x_1 .. x_{t-1}) of every step (n,); arguments as of ``forward_backward``.

    Examples
    --------
    >>> half = np.log(np.full((2, 2), 0.5))
    >>> log_densities(half[0], half, np.log([[0.9, 0.1], [0.2, 0.2]]), np.array([2])).round(3).tolist()
    [-0.693, -1.609]
    """
    chain = _Chain(log_start, log_transition, log_evidence, lengths)
    if not chain.is_possible or chain.is_raised.any() or chain.is_raised_start.any():
        return forward_in_logs(log_start, log_transition, log_evidence, rows_by_step(lengths))[1]
    return np.log(_forward(chain, _products(chain))[1]) + chain.shift


def viterbi(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> Labels:
    """Return the states (n,) of the most probable path; arguments as of ``forward_backward``.

    Examples
    --------
    >>> stay = np.log([[0.9, 0.1], [0.1, 0.9]])
    >>> viterbi(np.log([0.5, 0.5]), stay, np.log([[0.8, 0.2], [0.4, 0.6], [0.8, 0.2]]), np.array([3])).tolist()
    [0, 0, 0]
    """
    steps = rows_by_step(lengths)
    best_previous = np.zeros(log_evidence.shape, dtype=np.int64)  # (n, K): the best state one step earlier
    best_scores = log_start + log_evidence[steps[0]]
    for rows in steps[1:]:
        # (sequences that are so long, K before, K now)
        path_scores = best_scores[: len(rows), :, None] + log_transition
        best_previous[rows] = path_scores.argmax(axis=1)
        best_scores[: len(rows)] = path_scores.max(axis=1) + log_evidence[rows]
    states = np.zeros(len(log_evidence), dtype=np.int64)
    last_states = best_scores.argmax(axis=1)  # of every sequence, going back in time
    for rows in reversed(steps):
        states[rows] = last_states[: len(rows)]
        last_states[: len(rows)] = best_previous[rows, last_states[: len(rows)]]
    return states


@dataclass(frozen=True, eq=False)
class _Chain:
    """The weights of a chain in scaled form, and the S pieces, longest first, into which its sequences are cut."""

    log_start: Array
    log_transition: Array
    log_evidence: Array
    lengths: Labels

    @property
    def is_possible(self) -> bool:
        """Whether every row can come from some state."""
        return bool(self.log_evidence.max(axis=1).min() > -np.inf)

    @cached_property
    def is_raised_start(self) -> _Flags:
        """Which start weights are raised (K,)."""
        return self.log_start - self.log_start.max() < LOG_SMALLEST_WEIGHT

    @cached_property
    def is_raised(self) -> _Flags:
        """Which transition weights are raised (K, K)."""
        return self.log_transition - self.log_transition.max() < LOG_SMALLEST_WEIGHT

    @cached_property
    def start(self) -> Array:
        """Start weights, the largest one (K,)."""
        return np.exp(np.maximum(self.log_start - self.log_start.max(), LOG_SMALLEST_WEIGHT))

    @cached_property
    def transition(self) -> Array:
        """Transition weights, the largest one (K, K)."""
        return np.exp(np.maximum(self.log_transition - self.log_transition.max(), LOG_SMALLEST_WEIGHT))

    @cached_property
    def evidence(self) -> Array:
        """Evidence, the largest of every row one (n, K)."""
        return np.exp(self.log_evidence - self.log_evidence.max(axis=1, keepdims=True))

    @cached_property
    def shift(self) -> Array:
        """What scaling took off log p(x_t | x_1 .. x_{t-1}) (n,)."""
        shift = self.log_evidence.max(axis=1) + self.log_transition.max()
        shift[np.cumsum(self.lengths) - self.lengths] += self.log_start.max() - self.log_transition.max()
        return shift

    @cached_property
    def pieces(self) -> tuple[Labels, Labels, Labels]:
        """Size, number in its sequence (0, 1, ...) and sequence of every piece (S,), longest first."""
        piece_length, sequence, piece_number = self._pieces_in_time_order
        size = np.minimum(piece_length, self.lengths[sequence] - piece_length * piece_number)
        order = np.argsort(-size, kind="stable")  # longest first: those with a t-th step are the first ones
        return size[order], piece_number[order], sequence[order]

    @cached_property
    def _pieces_in_time_order(self) -> tuple[int, Labels, Labels]:
        """Length of pieces, and the sequence of every piece and its number in it (S,), in the order of time."""
        longest = int(self.lengths.max())
        piece_length = int(np.ceil(np.sqrt(longest))) if len(self.log_start) <= MAX_STATES_CUT else longest
        count = -(-self.lengths // piece_length)  # pieces of each sequence, rounded up
        sequence = np.repeat(np.arange(len(self.lengths)), count)
        return piece_length, sequence, np.arange(len(sequence)) - np.repeat(np.cumsum(count) - count, count)

    @cached_property
    def steps(self) -> list[Labels]:
        """Rows of the first, second, ... steps of all pieces that are so long."""
        size, piece_number, sequence = self.pieces
        first_step = (np.cumsum(self.lengths) - self.lengths)[sequence] + self._pieces_in_time_order[0] * piece_number
        # How many pieces have a t-th step (size descends, so its negative can be searched).
        n_running = np.searchsorted(-size, -np.arange(int(size[0])), side="left")
        return [first_step[:count] + step for step, count in enumerate(n_running.tolist())]

    @cached_property
    def levels(self) -> list[tuple[Labels, Labels]]:
        """For the second, third, ... pieces of sequences: their indices, and those of the pieces that they follow."""
        _, piece_number, sequence = self.pieces
        order = np.lexsort((sequence, piece_number))
        ends = np.searchsorted(piece_number[order], np.arange(int(piece_number.max()) + 2))
        by_piece_number = [order[a:b] for a, b in pairwise(ends)]
        pairs = pairwise(by_piece_number)
        return [(later, earlier[np.searchsorted(sequence[earlier], sequence[later])]) for earlier, later in pairs]


def _products(chain: _Chain) -> tuple[Array, Array]:
    """Return diag(b_1) A diag(b_2) .. A diag(b_n) of every piece: rows of sum 1 (S, K, K), and logs of sums (S, K)."""
    first_rows, size = chain.steps[0], len(chain.log_start)
    product = np.zeros((len(first_rows), size, size))
    product[:, np.arange(size), np.arange(size)] = 1.0
    scale = chain.log_evidence[first_rows] - chain.log_evidence[first_rows].max(axis=1, keepdims=True)
    if not chain.levels:
        return product, scale  # no piece follows another, so products are not used
    # Rows are scaled to sum one at every step; totals[t] (S, K) are what they were divided by.
    ones, totals = np.ones(size), np.ones((len(chain.steps), *scale.shape))
    for number, rows in enumerate(chain.steps[1:]):
        # (pieces, K, K) times (K, K) times a diagonal
        unscaled = (product[: len(rows)].reshape(-1, size) @ chain.transition).reshape(-1, size, size)
        unscaled *= chain.evidence[rows][:, None, :]
        total = totals[number, : len(rows)] = unscaled @ ones
        np.divide(unscaled, total[:, :, None], out=product[: len(rows)])
    return product, scale + np.log(totals).sum(axis=0)


def _forward(chain: _Chain, products: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return p(z_t | x_1 .. x_t) (n, K) and the normaliser of every step (n,)."""
    product, scale = products
    entering = np.tile(chain.start, (len(scale), 1))  # (S, K): predicted before the first step of each piece
    for later, earlier in chain.levels:
        # Rows of a product have sum one; what a piece weighs a first state with is its message times the row's scale.
        log_weights = np.log(entering[earlier]) + scale[earlier]
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        leaving = (weights[:, None, :] @ product[earlier])[:, 0, :]
        entering[later] = (leaving / leaving.sum(axis=1, keepdims=True)) @ chain.transition
    filtered, normalisers = np.empty_like(chain.evidence), np.empty(len(chain.evidence))
    predicted = entering  # (pieces that still run, K), up to its scale
    for rows in chain.steps:
        current = predicted[: len(rows)] * chain.evidence[rows]
        normalisers[rows] = total = current.sum(axis=1)
        filtered[rows] = current = current / total[:, None]
        predicted = current @ chain.transition
    return filtered, normalisers


def _backward(chain: _Chain, products: tuple[Array, Array]) -> Array:
    """Return p(x_{t+1} .. | z_t) (n, K), each row of maximum one."""
    product, scale = products
    current = np.ones_like(scale)  # (S, K): at the ends of pieces first, then moving to their beginnings
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


def _smooth_scaled(chain: _Chain) -> ChainMarginals:
    """Return marginals from scaled messages, raised weights included."""
    products = _products(chain)
    (filtered, normalisers), backward = _forward(chain, products), _backward(chain, products)
    joint = filtered * backward  # (n, K), proportional to the marginals
    overlap = joint.sum(axis=1)
    # Expected transitions: xi_t(k, l) = filtered_t(k) A(k, l) b_{t+1}(l) backward_{t+1}(l) / normaliser, summed over t.
    future = chain.evidence * backward / (normalisers * overlap)[:, None]
    steps = np.delete(np.arange(len(joint)), np.cumsum(chain.lengths) - 1)  # nothing follows the last of a sequence
    transitions = chain.transition * (filtered[steps].T @ future[steps + 1])
    responsibilities = joint / overlap[:, None]
    starts = responsibilities[np.cumsum(chain.lengths) - chain.lengths].sum(axis=0)
    return ChainMarginals(responsibilities, transitions, starts, np.log(normalisers) + chain.shift)


CHUNK_ENTRIES = 1 << 18
"""Entries of pair marginals at a time, 2 MiB of them, so that they stay in the cache. Chosen by hand."""


def rows_by_step(lengths: Labels) -> list[Labels]:
    """Return the rows of the first, second, ... steps of all sequences that are so long, the longest sequence first.

    Examples
    --------
    >>> [rows.tolist() for rows in rows_by_step(np.array([1, 3]))]
    [[1, 0], [2], [3]]
    """
    order = np.argsort(-lengths, kind="stable")
    first_step, descending = (np.cumsum(lengths) - lengths)[order], lengths[order]
    n_running = np.searchsorted(-descending, -np.arange(int(descending[0])), side="left")
    return [first_step[:count] + step for step, count in enumerate(n_running.tolist())]


def messages_in_logs(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> ChainMarginals:
    """Return the marginals of the chain; parameters as in ``forward_backward``."""
    steps = rows_by_step(lengths)
    filtered, densities = forward_in_logs(log_start, log_transition, log_evidence, steps)
    backward = np.zeros_like(log_evidence)  # (n, K): log p(x_{t+1} .. | z_t) up to a constant of each row
    for rows, later in zip(steps[-2::-1], steps[:0:-1], strict=True):
        future = log_evidence[later] + backward[later]
        message = _log_sum(log_transition + future[:, None, :], 2)
        backward[rows[: len(later)]] = message - message.max(axis=1, keepdims=True)
    joint = filtered + backward  # (n, K)
    joint -= _log_sum(joint, 1)[:, None]
    future = log_evidence + backward
    predecessors = np.delete(np.arange(len(joint)), np.cumsum(lengths) - 1)  # nothing follows the last of a sequence
    transitions = np.zeros_like(log_transition)
    for rows in np.array_split(predecessors, 1 + len(predecessors) * log_transition.size // CHUNK_ENTRIES):
        # (chunk, K, K): log xi_t(k, l) up to a constant of each t
        pairs = filtered[rows, :, None] + log_transition + future[rows + 1][:, None, :]
        pairs = np.exp(pairs - pairs.max(axis=(1, 2), keepdims=True))
        flat = pairs.reshape(len(rows), log_transition.size)
        transitions += ((1.0 / flat.sum(axis=1)) @ flat).reshape(log_transition.shape)
    responsibilities = np.exp(joint)
    starts = responsibilities[np.cumsum(lengths) - lengths].sum(axis=0)
    return ChainMarginals(responsibilities, transitions, starts, densities)


def forward_in_logs(
    log_start: Array, log_transition: Array, log_evidence: Array, steps: list[Labels]
) -> tuple[Array, Array]:
    """Return log p(z_t | x_1 .. x_t) (n, K) and log p(x_t | x_1 .. x_{t-1}) (n,); raise for probability zero."""
    filtered, densities = np.empty_like(log_evidence), np.empty(len(log_evidence))
    current = np.broadcast_to(log_start, (len(steps[0]), len(log_start)))
    for number, rows in enumerate(steps):
        if number > 0:
            current = _log_sum(current[: len(rows), :, None] + log_transition, 1)
        current = current + log_evidence[rows]
        densities[rows] = total = _log_sum(current, 1)
        if not total.min() > -np.inf:
            text = f"row {int(rows[total.argmin()])} has probability zero in this model after those before it"
            raise InputError("", text, code="E-NUMBER")
        filtered[rows] = current = current - total[:, None]
    return filtered, densities


def _log_sum(values: Array, axis: int) -> Array:
    """Return log sum exp over an axis; minus infinity where all are."""
    largest = values.max(axis=axis, keepdims=True)
    largest[largest == -np.inf] = 0.0  # so that -inf less it is -inf, not NaN
    values = values - largest
    np.exp(values, out=values)
    with np.errstate(divide="ignore"):
        result: Array = np.log(values.sum(axis=axis)) + largest.squeeze(axis)
    return result
