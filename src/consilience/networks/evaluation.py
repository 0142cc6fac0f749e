"""What an evaluation of networks found, as values and as words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.paired import PairedDifference, paired_difference
from consilience.errors import InputError
from consilience.posteriors.evaluation import (
    Score,
    better_model,
    difference_to_json,
    finite_json,
    score_lines,
    verdict_sentence,
)

FEW_ROWS = 50
"""Fewer rows than this give an interval that is easily too narrow."""

_HELD_OUT = "use data that neither network was trained on; scores on a network's own training data favour that network"

_MANY = 20
"""Classes up to which each has a line."""


@dataclass(frozen=True)
class ClassScore:
    """How often each network is right on the rows of one class.

    Parameters
    ----------
    label
        Number of the class.
    rows
        How many of the rows are of it.
    fused, own
        Accuracy of each network on these, in percent.
    """

    label: int
    rows: int
    fused: float
    own: float


@dataclass(frozen=True, eq=False)
class NetworkEvaluation:
    """How a fused network and a site's own compare on the site's labeled data.

    Parameters
    ----------
    scores
        Accuracy (percent) and mean cross-entropy (nats) of both networks; of Bayesian ones also the mean predictive
        entropy (nats) and the expected calibration error.
    difference
        Fused minus own accuracy, paired by row, in percentage points.
    loss_difference
        The same of the cross-entropy, in nats.
    classes
        Accuracies by class, of the classes that the data have.
    notes
        What to keep in mind when reading the numbers.
    """

    scores: tuple[Score, ...]
    difference: PairedDifference
    loss_difference: PairedDifference
    classes: tuple[ClassScore, ...]
    notes: tuple[str, ...]

    @property
    def better(self) -> str | None:
        """``"fused"`` or ``"own"``, by the sign of the interval of `difference`; None when it does not tell."""
        return better_model(self.difference, larger_is_better=True)

    @property
    def verdict(self) -> str:
        """One sentence: which network is more often right here, and by how much."""
        return verdict_sentence(self.difference, "percentage points of accuracy", "rows", larger_is_better=True)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; what is infinite or not a number is None."""
        document: dict[str, Any] = finite_json(
            {
                "verdict": self.verdict,
                "better": self.better,
                "scores": [asdict(score) for score in self.scores],
                "difference": difference_to_json(self.difference),
                "loss_difference": difference_to_json(self.loss_difference),
                "classes": [asdict(one) for one in self.classes],
                "observations": "rows",
                "notes": list(self.notes),
            }
        )
        return document

    def __str__(self) -> str:
        low, high = self.loss_difference.interval
        lines = [self.verdict, "", *score_lines(self.scores)]
        lines += ["", f"cross-entropy, fused minus own: {self.loss_difference.mean:.4g} nats, {low:.4g} to {high:.4g}"]
        if len(self.classes) <= _MANY:
            lines += ["accuracy by class, %:", f"{'class':>7}  {'rows':>7}  {'your own':>8}  {'fused':>8}"]
            lines += [f"{one.label:7}  {one.rows:7}  {one.own:8.2f}  {one.fused:8.2f}" for one in self.classes]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def compared(fused: Array, own: Array, labels: Labels) -> NetworkEvaluation:
    """Return how two networks compare whose log probabilities (N, C) of inputs with these labels (N,) are these.

    Raises
    ------
    InputError
        When they have different classes.
    """
    outputs = [fused, own]
    if outputs[0].shape != outputs[1].shape:
        sizes = [one.shape[1] for one in outputs]
        raise InputError(f"your own model: has {sizes[1]} classes, expected {sizes[0]} as the fused model")
    right = [100.0 * (one.argmax(axis=1) == labels) for one in outputs]
    losses = [-one[np.arange(len(labels)), labels] for one in outputs]
    ones = np.ones(len(labels))
    classes = np.unique(labels)
    notes = [_HELD_OUT]
    if 1 < len(ones) < FEW_ROWS:
        notes.append(f"only {len(ones)} rows: the interval is rough")
    return NetworkEvaluation(
        scores=(
            Score("accuracy", "%", True, float(right[0].mean()), float(right[1].mean())),
            Score("cross-entropy", "nats", False, float(losses[0].mean()), float(losses[1].mean())),
        ),
        difference=paired_difference(right[0], right[1], ones),
        loss_difference=paired_difference(losses[0], losses[1], ones),
        classes=tuple(
            ClassScore(int(k), int(np.sum(known)), float(right[0][known].mean()), float(right[1][known].mean()))
            for k in classes
            for known in [labels == k]
        ),
        notes=tuple(notes),
    )
