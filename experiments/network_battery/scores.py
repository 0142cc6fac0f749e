"""Scores of models on the test rows of a cell, and paired differences; test labels serve here and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
from network_battery.training import Cell
from scipy.special import log_softmax

from consilience.core.scores import paired_difference


def row_scores(cell: Cell, answers: np.ndarray) -> np.ndarray:
    """Return the score (n,) of answers (n, C) on every test row, whose mean is the accuracy, or R^2 of a regression.

    A row of a regression scores 1 - (prediction - target)^2 / variance of the targets.
    """
    y = cell.data.test[1]
    if cell.data.n_classes is None:
        return 1.0 - ((answers - y) ** 2).mean(axis=1) / y.var()
    return (answers.argmax(axis=1) == y).astype(float)


def log_likelihood(cell: Cell, answers: np.ndarray) -> float | None:
    """Return the mean log probability of the true class under logits (n, C), in nats; None for a regression."""
    if cell.data.n_classes is None:
        return None
    y = cell.data.test[1]
    return float(log_softmax(answers, axis=1)[np.arange(len(y)), y].mean())


def site_accuracies(cell: Cell) -> list[float]:
    """Return the accuracy of every site's network on the population of all sites."""
    return [float(row_scores(cell, answers).mean()) for answers in cell.answers]


def best_site(cell: Cell) -> int:
    """Return the number of the site of highest accuracy."""
    return int(np.argmax(site_accuracies(cell)))


def scores(cell: Cell, answers: np.ndarray) -> dict[str, Any]:
    """Return accuracy, log likelihood, and the paired difference from the best site with its 95 % interval."""
    own = row_scores(cell, answers)
    best = row_scores(cell, cell.answers[best_site(cell)])
    difference = paired_difference(own, best, np.ones(len(own)))
    return {
        "accuracy": float(own.mean()),
        "log_likelihood": log_likelihood(cell, answers),
        "over_best_site": {"mean": difference.mean, "low": difference.interval[0], "high": difference.interval[1]},
    }


def is_harm(result: dict[str, Any]) -> bool:
    """Return whether a model is worse than the best site beyond its 95 % interval."""
    return bool(result["over_best_site"]["high"] < 0)
