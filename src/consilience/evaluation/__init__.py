"""Evaluation before adoption: a fused model against a site's own, on the site's data, at the site."""

from __future__ import annotations

from consilience.evaluation.compare import evaluate
from consilience.evaluation.network_result import ClassScore, NetworkEvaluation
from consilience.evaluation.paired import PairedDifference, paired_difference
from consilience.evaluation.predictive import predictive_scores
from consilience.evaluation.predictive_result import ClassEntropy, OutsideScores, PredictiveScores, ReliabilityBin
from consilience.evaluation.result import Evaluation, Score

__all__ = [
    "ClassEntropy",
    "ClassScore",
    "Evaluation",
    "NetworkEvaluation",
    "OutsideScores",
    "PairedDifference",
    "PredictiveScores",
    "ReliabilityBin",
    "Score",
    "evaluate",
    "paired_difference",
    "predictive_scores",
]
