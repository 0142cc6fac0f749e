"""How often a network errs on its site's own observations, by class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from consilience.checks import Labels
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Statistic, output_tensor


class ErrorCounts(Statistic):
    """Observations of every class that the network takes for another."""

    def __init__(self, n_groups: int) -> None:
        """Start without observations."""
        self._wrong = np.zeros((2, n_groups))  # of one output as log odds, and as a probability
        self._has_outputs = True
        self._has_log_odds = False

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Count the errors of a batch."""
        del batch
        outputs = output_tensor(answer)
        if outputs is None or len(outputs) != len(groups):
            self._has_outputs = False
        if outputs is None or not self._has_outputs:
            return
        outputs = outputs.reshape(len(groups), -1)
        if outputs.shape[1] == 1 and bool(((outputs < 0) | (outputs > 1)).any()):
            self._has_log_odds = True
        for row, classes in zip(self._wrong, _taken(outputs), strict=True):
            row += np.bincount(groups[classes.cpu().numpy() != groups], minlength=len(row))

    def share_wrong(self, outputs: Tensor, labels: Labels) -> float:
        """Return the share of labels (n,) for which outputs are of another class, read as those that were counted."""
        taken = _taken(outputs.reshape(len(labels), -1))[0 if self._has_log_odds else 1]
        return float(np.mean(taken.cpu().numpy() != labels))

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the share of errors in the described classes, to three digits."""
        labels = sorted({*described.class_moments, *described.class_tokens})
        if not self._has_outputs or not labels:
            return described
        wrong = self._wrong[0 if self._has_log_odds else 1, labels].sum()
        return replace(described, own_error=float(f"{wrong / leaving.counts[labels].sum():.3g}"))


def _taken(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes (n,) that outputs (n, k) stand for; one output is log odds, or a probability."""
    if outputs.shape[1] > 1:
        return (outputs.argmax(dim=1),) * 2
    return (outputs[:, 0] > 0.0).long(), (outputs[:, 0] > 0.5).long()
