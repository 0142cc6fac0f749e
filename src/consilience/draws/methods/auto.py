"""The default for draws: by their shape, a product of Gaussians, averages of draws, or a product of densities."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from consilience.core.progress import Progress
from consilience.draws.details import CombinationDetails
from consilience.draws.diagnostics import GAUSSIAN_SKEWNESS
from consilience.draws.methods.base import CombinedDraws, DrawsMethod
from consilience.draws.methods.density_product import LOW_ACCEPTANCE, DensityProduct
from consilience.draws.methods.gaussian import ConsensusMonteCarlo, GaussianProduct
from consilience.draws.subposteriors import Subposteriors

MAX_DENSITY_COORDINATES = 4
"""Coordinates up to which a product of densities is tried. Of 2,000 to 4,000 draws of a site, at three coordinates 3 to
5 % of the proposals are accepted, and 1 to 2.5 % at six (docs/evidence/draws.md): more would be tried in vain."""


@dataclass(frozen=True)
class DrawsAuto(DrawsMethod):
    """Choose by shape.

    Where subposteriors are skewed, or their third moments put a mean of the product off, and there are few coordinates,
    kernel estimates of their densities are multiplied, if enough of the proposals are accepted. Else the Gaussian
    product where no coordinate of any site is skewed, and consensus Monte Carlo where one is. These two tie on Gaussian
    subposteriors, where the first has no Monte Carlo error; averages of draws keep some of their skewness.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "by shape: the Gaussian product, consensus Monte Carlo, or a product of densities"
    needs: ClassVar[str] = "draws of the same parameters, and what of the prior they hold"
    gives: ClassVar[str] = "what the chosen method gives"
    paper: ClassVar[str] = "scott2016"

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return what the chosen method gives."""
        shared = {option.name: getattr(self, option.name) for option in fields(DrawsMethod)}
        largest = float(np.max(np.abs(stack.skewness)))
        details: CombinationDetails = {"largest_skewness": float(f"{largest:.6g}")}
        if stack.n_coordinates <= MAX_DENSITY_COORDINATES and stack.is_skewed:
            combined = DensityProduct(**shared, parametric=False).combine(stack, rng.spawn(1)[0], progress)
            if combined.details["acceptance_rate"] >= LOW_ACCEPTANCE:
                chosen = f"{DensityProduct.name}, `parametric=False`"
                return CombinedDraws(combined.draws, {**details, **combined.details, "chosen": chosen})
        method = (GaussianProduct if largest < GAUSSIAN_SKEWNESS else ConsensusMonteCarlo)(**shared)
        combined = method.combine(stack, rng, progress)
        return CombinedDraws(combined.draws, {**combined.details, "chosen": method.name, **details}, combined.notes)
