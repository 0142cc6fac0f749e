"""Comparison of a fused estimator with a site's own: scores, and the paired difference of the first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from consilience.core.paired import PairedDifference
from consilience.drawing.display import Displayed
from consilience.drawing.frames import Tabular
from consilience.drawing.words import format_count
from consilience.posteriors.evaluation import (
    Score,
    better_model,
    difference_to_json,
    finite_json,
    score_columns,
    score_facts,
    score_lines,
    verdict_sentence,
)


@dataclass(frozen=True, eq=False, repr=False)
class EstimatorEvaluation(Displayed, Tabular):
    """How a fused estimator and a site's own compare on the site's rows.

    Parameters
    ----------
    scores : tuple of Score
        The scores of both; `difference` is about the first.
    difference : PairedDifference
        Fused minus own, paired by row, in the unit of the first score.
    notes : tuple of str
        Limits of the comparison, a sentence each.
    """

    scores: tuple[Score, ...]
    difference: PairedDifference
    notes: tuple[str, ...]

    def _headline(self) -> str:
        return f"fused estimator and a site's own on {format_count(self.difference.n_observations, 'row')}"

    def _facts(self) -> dict[str, object | None]:
        return {"": self.verdict, **score_facts(self.scores)}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each score of both models."""
        return score_columns(self.scores)

    def summary(self) -> str:
        """Return the comparison as text: the verdict, both estimators' scores, and its limits."""
        return str(self)

    @property
    def better(self) -> str | None:
        """``"fused"`` or ``"own"``, by the sign of the interval of `difference`; None when it does not tell."""
        return better_model(self.difference, bool(self.scores[0].larger_is_better))

    @property
    def verdict(self) -> str:
        """One sentence: which estimator is better here, and by how much."""
        first = self.scores[0]
        return verdict_sentence(self.difference, first.unit, "rows", bool(first.larger_is_better))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; what is infinite or not a number is None."""
        document: dict[str, Any] = finite_json(
            {
                "verdict": self.verdict,
                "better": self.better,
                "scores": [asdict(score) for score in self.scores],
                "difference": difference_to_json(self.difference),
                "notes": list(self.notes),
            }
        )
        return document

    def __str__(self) -> str:
        return "\n".join([self.verdict, "", *score_lines(self.scores), *(f"note: {note}" for note in self.notes)])
