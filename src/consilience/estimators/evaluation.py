"""Comparison of a fused estimator with a site's own: scores, and the paired difference of the first."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.checks import Array
from consilience.core.evaluation import Comparison, Score
from consilience.core.paired import PairedDifference
from consilience.core.scores import ScoreKind
from consilience.drawing.words import format_count

RowScore = tuple[str, str, bool, Array, ScoreKind]
"""Name of a score, its unit, whether larger is better, its value of every row (n,), and what it is."""


@dataclass(frozen=True, eq=False, repr=False)
class EstimatorEvaluation(Comparison):
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
