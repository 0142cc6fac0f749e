"""Averaging baseline: component k of every model is averaged with component k of the others, without matching.

What federated averaging does in one round; it shows the damage of label switching.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.method import Assignment, Method


@dataclass(frozen=True)
class Average(Method):
    """Average components index by index, without matching: what federated averaging does in one round.

    Parameters
    ----------
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        ``"auto"`` and ``"barycenter"`` average natural parameters, as federated averaging does; ``"product"``
        multiplies posteriors with the prior removed, ``"hierarchical"`` discounts them by how much they differ.
    """

    name: ClassVar[str] = "average"
    summary: ClassVar[str] = "average component k of every model with component k of the others (a baseline)"
    needs: ClassVar[str] = "posteriors of one exponential family with equal numbers of components"
    gives: ClassVar[str] = "a posterior of the same family and size"
    paper: ClassVar[str] = "-"
    relabels: ClassVar[bool] = False

    @property
    def own_average(self) -> str:
        """What is averaged in federated averaging."""
        return super().own_average or "federated averaging takes the mean of parameters"

    @property
    def needs_equal_sizes(self) -> bool:
        """Whether all models must have as many components, which they must."""
        return True

    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Also refuse models of different sizes."""
        reasons = super().refuse(ensemble)
        if len(set(ensemble.sizes.tolist())) > 1:
            text = f"average needs models of equal size, found {ensemble.sizes.tolist()} components"
            reasons.append(Problem("", text, "use method 'kl', which matches them"))
        return reasons

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Label every component with its index."""
        return Assignment(np.arange(len(ensemble.natural)) - ensemble.offsets[ensemble.owner])
