"""Baselines that keep all models, of which nothing is lost and nothing is shared: their components or predictions.

``Concatenate`` makes one model of all components, ``PredictionEnsemble`` averages the predictions of all models.
"""

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
        return Assignment(np.arange(len(ensemble.natural)))


@dataclass(frozen=True)
class PredictionEnsemble(Concatenate):
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
    keeps_models: ClassVar[bool] = True
