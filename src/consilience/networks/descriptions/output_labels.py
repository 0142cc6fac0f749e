"""Labels of networks of several outputs: each output is described, and judged, by its own.

An output of several numbers whose labels are one for each observation tells classes apart: counts by class, and the
share that the network misses. Any other is of numbers: the squared error over their variance.

Classes of fewer than `min_count` observations are withheld. What is left of all observations would tell how many they
are, so that the least class that may be said is withheld with them while they are fewer than `min_count` together
(complementary suppression).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.networks.descriptions.description import Description, OutputLabels
from consilience.networks.descriptions.disclosure import Leaving, named
from consilience.networks.descriptions.observations import (
    Batch,
    LabelsOfOutputs,
    are_classes,
    numbers_of_classes,
    targets_of,
)
from consilience.networks.descriptions.statistic import Statistic
from consilience.networks.output_layout import OutputLayout


def labels_by_output(batch: Batch, layout: OutputLayout) -> tuple[Any, ...]:
    """Return the labels of every output, in the order of the outputs; raise InputError where they are not theirs."""
    labels = batch.labels
    if not isinstance(labels, LabelsOfOutputs) or len(labels.parts) != len(layout.widths):
        found = len(labels.parts) if isinstance(labels, LabelsOfOutputs) else "one"
        text = f"has labels of {found} output{'s' * (found != 'one')}, and the networks have {len(layout.widths)}"
        remedy = "give labels of each, as a mapping by their names or a tuple, or name the output that is meant"
        raise InputError(batch.name, text, remedy, "E-SHAPE")
    return labels.in_order(layout.names)


class OutputLabelStatistic(Statistic):
    """Counts of the classes of every output, and losses of the network in it."""

    def __init__(self, layout: OutputLayout, first: Batch) -> None:
        """Start without observations; the first batch tells which outputs classify."""
        self._layout = layout
        of_outputs = zip(labels_by_output(first, layout), layout.widths, strict=True)
        self._outputs = [
            _ClassSums(width) if width > 1 and are_classes(labels) else _NumberSums(width)
            for labels, width in of_outputs
        ]

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the labels of a batch, and what the network answers."""
        rows = self._layout.rows(answer).double().cpu().numpy()
        labels = labels_by_output(batch, self._layout)
        for output, columns, of_output in zip(self._outputs, self._layout.heads, labels, strict=True):
            output.add(of_output, rows[:, columns], batch.name)

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with what may leave of every output's labels."""
        names = self._layout.names or (None,) * len(self._outputs)
        stated = [
            output.stated(name, place, leaving)
            for place, (name, output) in enumerate(zip(names, self._outputs, strict=True))
        ]
        return replace(described, output_labels=tuple(stated))


class _ClassSums:
    """Counts of the classes of an output, and how many the network misses."""

    def __init__(self, width: int) -> None:
        self._classes = tuple(map(str, range(width)))
        self._counts, self._wrong = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)

    def add(self, labels: Any, rows: Array, name: str) -> None:
        """Add labels (n,) and the network's logits (n, C) for them; those without a class count for nothing."""
        numbers = numbers_of_classes(labels, self._classes, name)
        is_wrong = (numbers >= 0) & (rows.argmax(axis=1) != numbers)
        self._counts += np.bincount(numbers[numbers >= 0], minlength=len(self._counts))
        self._wrong += np.bincount(numbers[is_wrong], minlength=len(self._counts))

    def stated(self, name: str | None, place: int, leaving: Leaving) -> OutputLabels:
        """Return the counts and the error of the classes that may be said."""
        is_said = said_classes(self._counts, leaving.min_count)
        withheld = np.flatnonzero((self._counts > 0) & ~is_said)
        if len(withheld):
            listed = named([self._classes[number] for number in withheld])
            leaving.left_out.append(f"output {name or place}: counts of its classes {listed} are withheld")
        if not self._counts[is_said].any():
            return OutputLabels(name, len(self._classes), self._classes)
        error = float(f"{self._wrong[is_said].sum() / self._counts[is_said].sum():.3g}")
        counts = np.where(is_said, self._counts, 0).astype(np.float64)
        return OutputLabels(name, len(self._classes), self._classes, counts, error)


def said_classes(counts: Labels, min_count: float) -> Labels:
    """Return which classes' counts (C,) may be said: none below `min_count`, nor such as tell those by difference.

    Examples
    --------
    >>> said_classes(np.array([40, 3, 9, 30]), 5).tolist(), said_classes(np.array([40, 3, 4, 30]), 5).tolist()
    ([True, False, False, True], [True, False, False, True])
    """
    is_said: Labels = (counts == 0) | (counts >= min_count)
    while 0 < counts[~is_said].sum() < min_count and (is_said & (counts > 0)).any():
        least = np.where(is_said & (counts > 0), counts, np.iinfo(np.int64).max).argmin()
        is_said[least] = False
    return is_said


class _NumberSums:
    """Squared errors of the network in an output of numbers, and the variance of its targets."""

    def __init__(self, width: int) -> None:
        self._width, self._n, self._squared_error = width, 0, 0.0
        self._sum, self._squares = np.zeros(width), np.zeros(width)
        self._origin: Array | None = None  # near the targets, so that squares of them are small

    def add(self, labels: Any, rows: Array, name: str) -> None:
        """Add targets (n, width) and the network's numbers (n, width) for them."""
        targets = targets_of(labels, self._width, name)
        self._origin = targets[0] if self._origin is None else self._origin
        self._n += len(targets)
        self._squared_error += float(np.square(rows - targets).sum())
        self._sum += (targets - self._origin).sum(axis=0)
        self._squares += np.square(targets - self._origin).sum(axis=0)

    def stated(self, name: str | None, place: int, leaving: Leaving) -> OutputLabels:
        """Return the squared error over the variance, to three digits; without it where either is not known."""
        del place
        variance = float((self._squares / self._n - np.square(self._sum / self._n)).sum()) if self._n else 0.0
        if not leaving.is_described or not variance > 0:
            return OutputLabels(name, self._width)
        return OutputLabels(name, self._width, own_loss=float(f"{self._squared_error / self._n / variance:.3g}"))


def output_labels_note(batch: Batch, layout: OutputLayout) -> tuple[str, ...]:
    """Return that labels of a network of several outputs are not described, where they are none of each."""
    if batch.labels is None:
        return ("several outputs, and no labels of theirs",)
    if not isinstance(batch.labels, LabelsOfOutputs):
        n = len(layout.widths)
        return (f"labels of one output, which are not described: the network has {n}, give a mapping or a tuple",)
    return ()
