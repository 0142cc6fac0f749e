"""Ensemble baseline: all models are kept, and their predictions are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.core.progress import Progress
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.method import Assignment, Method


@dataclass(frozen=True)
class PredictionEnsemble(Method):
    """Keep the models as they are and average their predictions: the reference that costs J times as much to ask.

    ``fusion.model`` is a ``ModelEnsemble``, weighted by the models' weights; ``fusion.posterior`` has all components
    side by side, as that of ``Concatenate``, and cannot stand for the models, so such a fusion is not saved.

    Parameters
    ----------
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        Without effect on the predictions; what it means for components that are not matched is that of ``Concatenate``.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "keep all models and average their predictions (a reference: J times the cost)"
    needs: ClassVar[str] = "models of one kind"
    gives: ClassVar[str] = "all models side by side, which predict together and are not saved"
    paper: ClassVar[str] = "-"
    keeps_models: ClassVar[bool] = True
    matches: ClassVar[bool] = False
    robust: ClassVar[None] = None  # type: ignore[misc]  # no option here, as the two below
    trim: ClassVar[float] = 0.2  # type: ignore[misc]
    minority: ClassVar[Literal["auto"]] = "auto"  # type: ignore[misc]

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Give every component a label of its own."""
        del rng, progress
        return Assignment(np.arange(len(ensemble.natural)))
