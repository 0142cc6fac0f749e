"""What an evaluation of networks found, as values and as words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from consilience.evaluation.paired import PairedDifference
from consilience.evaluation.result import Score, better_of, difference_to_json, finite_json, score_lines, verdict_of

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
        Accuracy (percent) and mean cross-entropy (nats) of both networks.
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
        return better_of(self.difference, larger_is_better=True)

    @property
    def verdict(self) -> str:
        """One sentence: which network is more often right here, and by how much."""
        return verdict_of(self.difference, "percentage points of accuracy", "rows", larger_is_better=True)

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
