"""Comparison of fused draws with a site's own: scores, and the paired difference of the first."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.checks import Json
from consilience.core.evaluation import Comparison, Score
from consilience.core.paired import PairedDifference


@dataclass(frozen=True, eq=False, repr=False)
class DrawsEvaluation(Comparison):
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

    @property
    def _pairs(self) -> str:
        return self.paired_by

    def _headline(self) -> str:
        return f"fused draws and a site's own, by {self.difference.n_observations:,} {self.paired_by}"

    def _more_json(self) -> dict[str, Json]:
        return {"paired_by": self.paired_by}
