"""Content of the report of hidden Markov models: transition probabilities, decoded states, agreement with labels.

With n_kl the expected number of transitions from state k to state l that all sites together count,

    share of k -> l = n_kl / sum_l n_kl,      dwell of k = sum_l n_kl / sum_{l != k} n_kl    (expected steps in k).

True labels are matched to states one to one so that most steps agree (linear assignment of the contingency table);
labels beyond the number of states, or that meet no free state, have none. Rand indices and adjusted mutual information
are those of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from consilience.checks import Array, Labels
from consilience.drawing.words import natural_key
from consilience.matching.assignment import assign_block
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.illustration import DecodedSequence, has_states

MAX_DRAWN_STEPS = 700
"""Steps that can be told apart in a drawing, which is about as wide; chosen by hand. A longer sequence is cut into so
many bins, each of which shows the state that it has most."""


@dataclass(frozen=True)
class StateSummary:
    """One state of the fused chain."""

    number: int
    n_transitions: float  # expected, out of it, those to itself included
    start_share: float | None  # of sequences; None where no start was counted
    transition_shares: tuple[float, ...]  # by the state that they lead to (G,); empty where there was none
    dwell: float | None  # expected steps once entered; None where it was never left


@dataclass(frozen=True)
class LabelAgreement:
    """Agreement of decoded states with true labels."""

    name: str  # of the sequence
    steps: int
    matched_share: float  # of steps whose state is the partner of their label
    rand: float  # index over pairs of steps
    adjusted_rand: float
    adjusted_mutual_information: float  # for chance, normalised by the mean of the entropies


@dataclass(frozen=True)
class Timeline:
    """One sequence: runs (first step, step after the last, state), and those of true labels where these are given."""

    name: str
    steps: int
    states: tuple[tuple[int, int, int], ...]
    truth: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ChainContent:
    """What is shown of a hidden Markov model."""

    states: tuple[StateSummary, ...]
    timelines: tuple[Timeline, ...]  # of every sequence that was given
    # Names of true labels, and the state whose colour each has: the best overlap one to one, -1 for no state.
    label_partners: tuple[tuple[str, int], ...]
    agreements: tuple[LabelAgreement, ...]  # of every sequence with true labels
    overall_agreement: LabelAgreement | None  # of all of these together


def chain_of(fused: Posterior, sequences: Sequence[DecodedSequence] = ()) -> ChainContent | None:
    """Return what is shown of a hidden Markov model and of `sequences`; None for other models."""
    if not has_states(fused):
        return None
    # A difference of counts may round to just below zero. (G, G), from row to column, and (G,)
    counts = [np.maximum(fused.attached[name].values, 0.0) for name in ("transition_counts", "start_counts")]
    labels_of = {sequence.name: sequence.truth for sequence in sequences if sequence.truth is not None}
    names = sorted(set(chain(*labels_of.values())), key=natural_key)
    truths = {name: _positions(labels, names) for name, labels in labels_of.items()}
    # One partner of each label for all sequences together, so that a colour means the same in all of them.
    states = [sequence.states for sequence in sequences if sequence.name in truths]
    together, truth = (np.concatenate([np.zeros(0, dtype=np.int64), *parts]) for parts in (states, truths.values()))
    partners = _best_partners(_contingency_table(together, truth, fused.n_components, len(names)))
    return ChainContent(
        states=tuple(_state(state, *counts) for state in range(fused.n_components)),
        timelines=tuple(
            Timeline(one.name, len(one.states), runs(one.states), runs(truths[one.name]) if one.truth else ())
            for one in sequences
        ),
        label_partners=tuple(zip(names, partners.tolist(), strict=True)),
        agreements=tuple(_label_agreement(n, s, truths[n], partners) for n, s in zip(truths, states, strict=True)),
        overall_agreement=_label_agreement("all", together, truth, partners) if truths else None,
    )


def _positions(labels: Sequence[str], names: Sequence[str]) -> Labels:
    """Return the positions of labels (T,) among their names."""
    position_of = {name: position for position, name in enumerate(names)}
    return np.array([position_of[label] for label in labels], dtype=np.int64)


def _state(number: int, transition_counts: Array, start_counts: Array) -> StateSummary:
    """Return the summary of one state, given counts of transitions (G, G) and of starts (G,)."""
    n_transitions, n_starts = float(transition_counts[number].sum()), float(start_counts.sum())
    n_departures = n_transitions - float(transition_counts[number, number])
    return StateSummary(
        number=number,
        n_transitions=n_transitions,
        start_share=float(start_counts[number]) / n_starts if n_starts > 0 else None,
        transition_shares=tuple((transition_counts[number] / n_transitions).tolist()) if n_transitions > 0 else (),
        dwell=n_transitions / n_departures if n_departures > 0 else None,
    )


def runs(labels: Labels, max_runs: int = MAX_DRAWN_STEPS) -> tuple[tuple[int, int, int], ...]:
    """Return runs (first step, step after the last, label) of equal labels (T,), which count from 0.

    A sequence of more than `max_runs` steps is cut into so many bins, each with the label that it has most.

    Examples
    --------
    >>> runs(np.array([2, 2, 0, 2]))
    ((0, 2, 2), (2, 3, 0), (3, 4, 2))
    >>> runs(np.array([2, 2, 0, 2]), 2)
    ((0, 2, 2), (2, 4, 0))
    """
    # Edges (bins + 1,) of bins: one bin per step unless there are too many.
    edges = np.unique(np.linspace(0, len(labels), min(len(labels), max_runs) + 1).round().astype(np.int64))
    drawn_labels = labels  # (bins,)
    if len(edges) <= len(labels):
        bin_of_step = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        drawn_labels = _contingency_table(bin_of_step, labels, len(edges) - 1, int(labels.max()) + 1).argmax(axis=1)
    # A run starts where the label differs from the one before; the first is made to differ.
    run_starts = np.flatnonzero(np.diff(drawn_labels, prepend=drawn_labels[0] - 1))
    run_ends = np.append(run_starts[1:], len(drawn_labels))
    ends = zip(run_starts.tolist(), run_ends.tolist(), strict=True)
    return tuple((int(edges[a]), int(edges[b]), int(drawn_labels[a])) for a, b in ends)


def _contingency_table(row_labels: Labels, column_labels: Labels, rows: int, columns: int) -> Array:
    """Return how many steps have each pair of labels: a contingency table (rows, columns) of labels (T,) and (T,)."""
    counts = np.bincount(row_labels * columns + column_labels, minlength=rows * columns)
    return counts.reshape(rows, columns).astype(np.float64)


def _best_partners(table: Array) -> Labels:
    """Return for every column the row of greatest overlap, one to one; -1 where no row is left or nothing overlaps."""
    columns = table.shape[1]
    if not columns:
        return np.zeros(0, dtype=np.int64)
    # A column of zeros for every label lets a label also stay without a state.
    costs = np.hstack([-table.T, np.zeros((columns, columns))])  # (labels, states + labels)
    partner = assign_block(costs)
    return np.where(costs[np.arange(columns), partner] < 0, partner, -1)


def _label_agreement(name: str, states: Labels, truth: Labels, state_of_label: Labels) -> LabelAgreement:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, rand_score

    return LabelAgreement(
        name=name,
        steps=len(states),
        matched_share=float(np.mean(state_of_label[truth] == states)),
        rand=float(rand_score(truth, states)),
        adjusted_rand=float(adjusted_rand_score(truth, states)),
        adjusted_mutual_information=float(adjusted_mutual_info_score(truth, states)),
    )
