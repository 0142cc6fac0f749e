"""Comparison of fused draws with a site's own: scores, and the paired difference of the first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from consilience.core.paired import PairedDifference
from consilience.drawing.display import Displayed
from consilience.drawing.frames import Tabular
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
class DrawsEvaluation(Displayed, Tabular):
    """How fused draws and a site's own compare with reference draws, or on held-out rows.

    Parameters
    ----------
    scores : tuple of Score
        The scores of both; `difference` is about the first.
    difference : PairedDifference
        Fused minus own, paired by parameter or row, in the unit of the first score.
    paired_by : str
        What differences are paired by, in the plural.
    notes : tuple of str
        Limits of the comparison, a sentence each.
    """

    scores: tuple[Score, ...]
    difference: PairedDifference
    paired_by: str
    notes: tuple[str, ...]

    def _headline(self) -> str:
        return f"fused draws and a site's own, by {self.difference.n_observations:,} {self.paired_by}"

    def _facts(self) -> dict[str, object | None]:
        return {"": self.verdict, **score_facts(self.scores)}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each score of both."""
        return score_columns(self.scores)

    def summary(self) -> str:
        """Return the comparison as text: the verdict, the scores of both, and its limits."""
        return str(self)

    @property
    def better(self) -> str | None:
        """``"fused"`` or ``"own"``, by the sign of the interval of `difference`; None when it does not tell."""
        return better_model(self.difference, bool(self.scores[0].larger_is_better))

    @property
    def verdict(self) -> str:
        """One sentence: which draws are better here, and by how much."""
        first = self.scores[0]
        return verdict_sentence(self.difference, first.unit, self.paired_by, bool(first.larger_is_better))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; what is infinite or not a number is None."""
        document: dict[str, Any] = finite_json(
            {
                "verdict": self.verdict,
                "better": self.better,
                "scores": [asdict(score) for score in self.scores],
                "difference": difference_to_json(self.difference),
                "paired_by": self.paired_by,
                "notes": list(self.notes),
            }
        )
        return document

    def __str__(self) -> str:
        return "\n".join([self.verdict, "", *score_lines(self.scores), *(f"note: {note}" for note in self.notes)])
