"""Forward and backward messages of hidden Markov chains in logarithms.

Slower than the scaled messages of ``forward_backward``, and right however far apart the weights are;
``forward_backward`` turns to them when weights are so small that scaled messages could underflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError

CHUNK_ENTRIES = 1 << 18
"""Entries of pair marginals at a time, 2 MiB of them, so that they stay in the cache. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class StepMarginals:
    """Marginals of the states of a chain.

    Parameters
    ----------
    responsibilities : Array of shape (n, K)
        Probability of every state at every step.
    transitions : Array of shape (K, K)
        Expected number of transitions.
    log_densities : Array of shape (n,)
        log p(x_t | x_1 .. x_{t-1}), in nats.
    """

    responsibilities: Array
    transitions: Array
    log_densities: Array


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


def messages_in_logs(log_start: Array, log_transition: Array, log_evidence: Array, lengths: Labels) -> StepMarginals:
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
    has_successor = np.ones(len(joint), dtype=bool)
    has_successor[np.cumsum(lengths) - 1] = False  # nothing follows the last step of a sequence
    predecessors, future = np.flatnonzero(has_successor), log_evidence + backward
    transitions = np.zeros_like(log_transition)
    for rows in np.array_split(predecessors, 1 + len(predecessors) * log_transition.size // CHUNK_ENTRIES):
        # (chunk, K, K): log xi_t(k, l) up to a constant of each t
        pairs = filtered[rows, :, None] + log_transition + future[rows + 1][:, None, :]
        pairs = np.exp(pairs - pairs.max(axis=(1, 2), keepdims=True))
        flat = pairs.reshape(len(rows), log_transition.size)
        transitions += ((1.0 / flat.sum(axis=1)) @ flat).reshape(log_transition.shape)
    return StepMarginals(np.exp(joint), transitions, densities)


def forward_in_logs(
    log_start: Array, log_transition: Array, log_evidence: Array, steps: list[Labels]
) -> tuple[Array, Array]:
    """Return log p(z_t | x_1 .. x_t) (n, K) and log p(x_t | x_1 .. x_{t-1}) (n,).

    Raises
    ------
    InputError
        When a step has probability zero.
    """
    filtered, densities = np.empty_like(log_evidence), np.empty(len(log_evidence))
    current = np.broadcast_to(log_start, (len(steps[0]), len(log_start)))
    for number, rows in enumerate(steps):
        if number > 0:
            current = _log_sum(current[: len(rows), :, None] + log_transition, 1)
        current = current + log_evidence[rows]
        densities[rows] = total = _log_sum(current, 1)
        if not total.min() > -np.inf:
            raise InputError(
                "",
                f"row {int(rows[total.argmin()])} has probability zero in this model after those before it",
                code="E-NUMBER",
            )
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
