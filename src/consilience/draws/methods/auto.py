"""The default for draws: the Gaussian product where all subposteriors look Gaussian, else consensus Monte Carlo."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from consilience.core.progress import Progress
from consilience.draws.diagnostics import GAUSSIAN_SKEWNESS
from consilience.draws.methods.base import CombinedDraws, DrawsMethod
from consilience.draws.methods.gaussian import ConsensusMonteCarlo, GaussianProduct
from consilience.draws.subposteriors import Subposteriors


@dataclass(frozen=True)
class DrawsAuto(DrawsMethod):
    """Choose by shape: the Gaussian product where no coordinate of any site is skewed, else consensus Monte Carlo.

    The two tie on Gaussian subposteriors, where the first has no Monte Carlo error; averages of draws keep some
    of their skewness.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "the Gaussian product where all subposteriors look Gaussian, else consensus Monte Carlo"
    needs: ClassVar[str] = "draws of the same parameters, and what of the prior they hold"
    gives: ClassVar[str] = "what the chosen method gives"
    paper: ClassVar[str] = "scott2016"

    def chosen(self, stack: Subposteriors) -> DrawsMethod:
        """Return the method that these subposteriors take."""
        shared = {option.name: getattr(self, option.name) for option in fields(DrawsMethod)}
        is_gaussian = float(np.max(np.abs(stack.skewness))) < GAUSSIAN_SKEWNESS
        return (GaussianProduct if is_gaussian else ConsensusMonteCarlo)(**shared)

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return what the chosen method gives."""
        method = self.chosen(stack)
        combined = method.combine(stack, rng, progress)
        largest = float(f"{np.max(np.abs(stack.skewness)):.6g}")
        return CombinedDraws(
            combined.draws, {**combined.details, "chosen": method.name, "largest_skewness": largest}, combined.notes
        )
