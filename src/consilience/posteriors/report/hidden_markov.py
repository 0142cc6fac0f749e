"""Hidden Markov models as plain values: how states follow each other, and the states behind sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.drawing.words import natural_key
from consilience.matching.assignment import assign_block
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.illustration import Decoded, has_states

_PLACES = 700
"""Steps that can be told apart in a drawing; of longer sequences, each place shows the state that it has most."""


@dataclass(frozen=True)
class State:
    """One state of the fused chain.

    Parameters
    ----------
    leaving
        Expected number of transitions out of it, itself included.
    start
        Share of sequences that start in it; None where no start was counted.
    onward
        Shares of these transitions by where they lead (G,); empty where there was none.
    dwell
        Steps that it is expected to last once entered; None where it was never left.
    """

    number: int
    leaving: float
    start: float | None
    onward: tuple[float, ...]
    dwell: float | None


@dataclass(frozen=True)
class Agreement:
    """How far decoded states are the true labels: indices of pairs, information, and steps under the best overlap."""

    name: str
    steps: int
    same: float
    rand: float
    adjusted_rand: float
    mutual_information: float


@dataclass(frozen=True)
class Timeline:
    """One sequence: runs (first step, step after the last, state), and those of true labels where they are known."""

    name: str
    steps: int
    states: tuple[tuple[int, int, int], ...]
    truth: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Chain:
    """What is shown of a hidden Markov model.

    Parameters
    ----------
    states
        Every state.
    timelines
        Every sequence that was given.
    truths
        Names of true labels, and the state whose colour each has: the best overlap one to one, -1 where none is left.
    agreements
        For every sequence with true labels.
    overall
        For all of these together.
    """

    states: tuple[State, ...]
    timelines: tuple[Timeline, ...]
    truths: tuple[tuple[str, int], ...]
    agreements: tuple[Agreement, ...]
    overall: Agreement | None


def chain_of(fused: Posterior, sequences: Sequence[Decoded] = ()) -> Chain | None:
    """Return what is shown of a hidden Markov model and of `sequences`; None for other models."""
    if not has_states(fused):
        return None
    counts = np.maximum(fused.attached["transition_counts"].values, 0.0)
    starts = np.maximum(fused.attached["start_counts"].values, 0.0)
    known = [one for one in sequences if one.truth is not None]
    names = sorted({label for one in known for label in one.truth or ()}, key=natural_key)
    number = {name: place for place, name in enumerate(names)}
    truths = {one.name: np.array([number[label] for label in one.truth or ()], dtype=np.int64) for one in known}
    tables = [_table(one.states, truths[one.name], fused.n_components, len(names)) for one in known]
    partner = _overlap(sum(tables, np.zeros((fused.n_components, len(names)))))
    overall = None
    if known:
        together = np.concatenate([one.states for one in known]), np.concatenate([truths[one.name] for one in known])
        overall = _agreement("all", *together, partner)
    return Chain(
        states=tuple(_state(state, counts, starts) for state in range(fused.n_components)),
        timelines=tuple(
            Timeline(one.name, len(one.states), runs(one.states), runs(truths[one.name]) if one.truth else ())
            for one in sequences
        ),
        truths=tuple(zip(names, partner.tolist(), strict=True)),
        agreements=tuple(_agreement(one.name, one.states, truths[one.name], partner) for one in known),
        overall=overall,
    )


def _state(number: int, counts: Array, starts: Array) -> State:
    leaving, begun = float(counts[number].sum()), float(starts.sum())
    away = leaving - float(counts[number, number])
    return State(
        number=number,
        leaving=leaving,
        start=float(starts[number]) / begun if begun > 0 else None,
        onward=tuple((counts[number] / leaving).tolist()) if leaving > 0 else (),
        dwell=leaving / away if away > 0 else None,
    )


def runs(labels: Labels, places: int = _PLACES) -> tuple[tuple[int, int, int], ...]:
    """Return runs (first step, step after the last, label) of equal labels, at most about as many as `places`.

    Examples
    --------
    >>> runs(np.array([2, 2, 0, 2]))
    ((0, 2, 2), (2, 3, 0), (3, 4, 2))
    >>> runs(np.array([2, 2, 0, 2]), 2)
    ((0, 2, 2), (2, 4, 0))
    """
    edges = np.unique(np.linspace(0, len(labels), min(len(labels), places) + 1).round().astype(np.int64))
    seen = labels
    if len(edges) <= len(labels):
        place = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        seen = _table(place, labels, len(edges) - 1, int(labels.max()) + 1).argmax(axis=1)
    first = np.flatnonzero(np.diff(seen, prepend=seen[0] - 1))
    ends = np.append(first[1:], len(seen))
    return tuple(
        (int(edges[a]), int(edges[b]), int(seen[a])) for a, b in zip(first.tolist(), ends.tolist(), strict=True)
    )


def _table(one: Labels, other: Labels, rows: int, columns: int) -> Array:
    """Return how often each of `one` meets each of `other` (rows, columns)."""
    return np.bincount(one * columns + other, minlength=rows * columns).reshape(rows, columns).astype(np.float64)


def _overlap(table: Array) -> Labels:
    """Return for every column the row it shares most with, one to one; -1 where no row is left or nothing is shared."""
    columns = table.shape[1]
    if not columns:
        return np.zeros(0, dtype=np.int64)
    costs = np.hstack([-table.T, np.zeros((columns, columns))])  # so that a column may also be left without a row
    row = assign_block(costs)
    return np.where(costs[np.arange(columns), row] < 0, row, -1)


def _agreement(name: str, states: Labels, truth: Labels, partner: Labels) -> Agreement:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, rand_score

    return Agreement(
        name=name,
        steps=len(states),
        same=float(np.mean(partner[truth] == states)),
        rand=float(rand_score(truth, states)),
        adjusted_rand=float(adjusted_rand_score(truth, states)),
        mutual_information=float(adjusted_mutual_info_score(truth, states)),
    )
