"""Comparison of a fused network with a site's own on labelled data.

Accuracy and cross-entropy of both networks, and their differences, paired by row, with a 95 % interval. Differences are
fused minus own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from consilience.checks import Array, Json, Labels
from consilience.core.evaluation import Comparison, Score, difference_to_json, score_lines, verdict_sentence
from consilience.core.paired import PairedDifference, paired_difference
from consilience.core.scores import ScoreKind
from consilience.drawing.words import format_count
from consilience.errors import InputError

FEW_ROWS = 50
"""Fewer rows than this give an interval that is easily too narrow. Chosen by hand; nobody has measured other values."""

_HELD_OUT = "use data that neither network was trained on; scores on a network's own training data favour that network"

MAX_LISTED_CLASSES = 20
"""Classes up to which each has a line in the text. Chosen by hand, to fit on a screen."""


@dataclass(frozen=True)
class ClassScore:
    """Accuracy of both networks on the rows of one class.

    Parameters
    ----------
    label : int
        Number of the class.
    rows : int
        Number of rows of this class.
    fused, own : float
        Accuracy of each network on these, in percent.
    """

    label: int
    rows: int
    fused: float
    own: float


@dataclass(frozen=True, eq=False, repr=False)
class NetworkEvaluation(Comparison):
    """How a fused network and a site's own compare on the site's labelled data.

    Parameters
    ----------
    scores : tuple of Score
        Accuracy (percent) and mean cross-entropy (nats) of both networks; of Bayesian ones also the mean predictive
        entropy (nats) and the expected calibration error.
    difference : PairedDifference
        Fused minus own accuracy, paired by row, in percentage points.
    loss_difference : PairedDifference
        Fused minus own cross-entropy, paired by row, in nats.
    classes : tuple of ClassScore
        Accuracies by class, of the classes that the data have.
    notes : tuple of str
        What to keep in mind when reading the numbers.
    """

    scores: tuple[Score, ...]
    difference: PairedDifference
    loss_difference: PairedDifference
    classes: tuple[ClassScore, ...]
    notes: tuple[str, ...]

    def _headline(self) -> str:
        return f"fused network and a site's own on {format_count(self.difference.n_observations, 'row')}"

    @property
    def verdict(self) -> str:
        """One sentence: which network is more often right here, and by how much."""
        return verdict_sentence(self.difference, "percentage points of accuracy", self._pairs, self.better)

    def _more_json(self) -> dict[str, Json]:
        return {
            "loss_difference": difference_to_json(self.loss_difference),
            "classes": [asdict(score) for score in self.classes],
            "observations": self._pairs,
        }

    def _lines(self) -> list[str]:
        low, high = self.loss_difference.interval
        lines = [
            *score_lines(self.scores),
            "",
            f"cross-entropy, fused minus own: {self.loss_difference.mean:.4g} nats, {low:.4g} to {high:.4g}",
        ]
        if len(self.classes) <= MAX_LISTED_CLASSES:
            lines += ["accuracy by class, %:", f"{'class':>7}  {'rows':>7}  {'your own':>8}  {'fused':>8}"]
            lines += [
                f"{score.label:7}  {score.rows:7}  {score.own:8.2f}  {score.fused:8.2f}" for score in self.classes
            ]
        return lines


def compare_networks(
    fused: Array, own: Array, labels: Labels, kind: ScoreKind = ScoreKind.PLUG_IN
) -> NetworkEvaluation:
    """Return how two networks compare by their log probabilities.

    Parameters
    ----------
    fused, own : array of shape (N, C)
        Log probabilities of the classes for each input, of the fused network and of the site's own.
    labels : ndarray of int, shape (N,)
        True classes.
    kind : ScoreKind, optional
        What the probabilities are. Default: those of one point estimate of the weights.

    Raises
    ------
    InputError
        When the networks have different numbers of classes.
    """
    log_probabilities = [fused, own]
    if fused.shape != own.shape:
        n_classes = [values.shape[1] for values in log_probabilities]
        raise InputError(
            "your own model", f"has {n_classes[1]} classes, expected {n_classes[0]} as the fused model", code="E-SHAPE"
        )
    correct = [100.0 * (values.argmax(axis=1) == labels) for values in log_probabilities]  # (N,) each, in percent
    losses = [-values[np.arange(len(labels)), labels] for values in log_probabilities]  # (N,) each, in nats
    ones = np.ones(len(labels))
    notes = [_HELD_OUT]
    if 1 < len(ones) < FEW_ROWS:
        notes.append(f"only {len(ones)} rows: the interval is rough")
    classes = []
    for label in np.unique(labels):
        in_class = labels == label
        accuracies = [float(values[in_class].mean()) for values in correct]
        classes.append(ClassScore(int(label), int(np.sum(in_class)), *accuracies))
    return NetworkEvaluation(
        scores=(
            Score("accuracy", "%", True, float(correct[0].mean()), float(correct[1].mean()), kind),
            Score("cross-entropy", "nats", False, float(losses[0].mean()), float(losses[1].mean()), kind),
        ),
        difference=paired_difference(correct[0], correct[1], ones),
        loss_difference=paired_difference(losses[0], losses[1], ones),
        classes=tuple(classes),
        notes=tuple(notes),
    )
