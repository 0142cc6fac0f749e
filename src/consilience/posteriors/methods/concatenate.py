"""Concatenation baseline: every component of every model is kept, so nothing is lost and nothing is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.core.progress import Progress
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.method import Assignment, Method


@dataclass(frozen=True)
class Concatenate(Method):
    """Keep all components side by side: the largest sensible model, and a strong control.

    Parameters
    ----------
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        Without effect on components that are not matched, but for weights of sites other than one.
    """

    name: ClassVar[str] = "concatenate"
    summary: ClassVar[str] = "keep every component of every model (a baseline: no sharing, largest model)"
    needs: ClassVar[str] = "posteriors of one exponential family"
    gives: ClassVar[str] = "a posterior of the same family with the sum of the sizes"
    paper: ClassVar[str] = "-"
    matches: ClassVar[bool] = False
    robust: ClassVar[None] = None  # type: ignore[misc]  # no option here, as the two below
    trim: ClassVar[float] = 0.2  # type: ignore[misc]
    minority: ClassVar[Literal["auto"]] = "auto"  # type: ignore[misc]

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Give every component a label of its own."""
        del rng, progress
        return Assignment(np.arange(len(ensemble.natural)))
