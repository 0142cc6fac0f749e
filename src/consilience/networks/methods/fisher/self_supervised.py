"""Self-supervised Fisher merging (SSF): parameters whose masked entries every site's posterior predicts best.

The objective (7) of Recasens et al. (2023) is a quadratic for fixed masks (``masked_objective``). It is minimised by
conjugate gradients; the published way, stochastic gradient descent with masks drawn anew in every step, is in
experiments/fisher. With all parameters masked the result is the diagonal merge. With fewer it uses correlations between
parameters, but its minimum is in general neither the diagonal nor the full merge. Taking out K - 1 priors may leave an
objective without a minimum, which is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress, silent
from consilience.errors import InputError, Problem
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.methods.fisher.informed import FisherMethod, MergedParameters, Prior
from consilience.networks.methods.fisher.masked_objective import LowRankGaussian, Mask, MaskedObjective, draw_masks
from consilience.networks.methods.fisher.merging import RIDGE
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.methods.fisher.precision import PosteriorProduct, conjugate_gradients
from consilience.networks.network import to_numpy


@dataclass(frozen=True)
class SelfSupervisedFisher(FisherMethod):
    """Merge networks so that every site's posterior predicts masked parameters well from the rest.

    Parameters
    ----------
    prior, prior_precision, shrinkage, normalize, aligned, restarts
        As in FisherMerging. Default prior: removed, or kept where the sites' priors differ.
    tolerance : float
        Bound on the residual of the equations, relative to the right-hand side. Default: 1e-8.
    max_iterations : int
        Steps of conjugate gradients at most. Default: 1000.
    mask_rate : float
        Fraction of the parameters (of the window, where there is one) that is masked; 1 gives the diagonal merge.
        Default: 0.2, the smallest rate in the paper's tables.
    masks : int
        Number of masks. Default: 20, as in a step of the published code.
    window : int, optional
        Number of parameters, drawn anew for each mask, in which it is drawn and on which it is conditioned: bounds the
        cost and biases the result. Default: all parameters.

    References
    ----------
    Recasens, Torres, Berral, Hauberg, Moreno-Muñoz (2023), "Beyond parameter averaging in model aggregation", (6), (7).
    The exact solver and shrinkage are this library's.
    """

    name: ClassVar[str] = "ssf"
    summary: ClassVar[str] = "parameters that every site's posterior predicts best from one another (self-supervised)"
    needs: ClassVar[str] = "networks of the same widths, and of each what `consilience.fisher(kind='factors')` gives"
    gives: ClassVar[str] = "one network"
    paper: ClassVar[str] = "recasens2023"

    mask_rate: float = 0.2
    masks: int = 20
    window: int | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        rate = self.mask_rate
        yield "mask_rate", is_number(rate) and 0 < rate <= 1, "a number above 0, at most 1"
        yield "masks", is_count(self.masks), "a positive integer"
        yield "window", self.window is None or is_count(self.window), "a positive integer or None"

    def default_prior(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return the default treatment of priors: removed."""
        return "removed"

    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""
        product, details = self.posterior_product(sites)
        start, gaussians = product.diagonal_merge(), low_rank_gaussians(product, details)
        mask_rng, _, probe_rng = rng.spawn(3)
        masks, details = self._masks(sites.layout.size, mask_rng, details)
        objective = MaskedObjective(gaussians, masks, product.excess)
        refuse_unbounded(objective, probe_rng)
        theta = to_numpy(start)
        start_value, gradient = objective.value_and_gradient(theta)
        diagonal = objective.preconditioner
        if diagonal is None:
            raise InputError(_UNBOUNDED)
        solution = conjugate_gradients(
            objective.times, -gradient, diagonal, self.tolerance, self.max_iterations, progress
        )
        # Without surplus priors L is convex, and a direction without curvature is rounding near the end.
        if not solution.definite and objective.excess > 0:
            raise InputError(_UNBOUNDED)
        details |= {"residual": solution.residual}
        status = Status.CONVERGED if solution.converged else Status.UNSOLVED
        theta = theta + solution.x  # conjugate gradients solve for the step from the diagonal merge
        vector = array_namespace(start).asarray(theta, device=start.device)
        return MergedParameters(vector, objective.value(theta), start_value + solution.history, status, details)

    def _masks(self, size: int, rng: np.random.Generator, details: NetworkDetails) -> tuple[list[Mask], NetworkDetails]:
        """Return masks of so many parameters, and the details with what is masked."""
        window = None if self.window is None or self.window >= size else self.window
        masked = max(1, round(self.mask_rate * (size if window is None else window)))  # m
        return draw_masks(size, self.masks, masked, window, rng), {**details, "masked": masked, "window": window}


_UNBOUNDED = Problem(
    "ssf",
    "with K - 1 priors removed, the objective has no minimum for these masks (where sites know little, predicting "
    "few parameters holds less than the priors push)",
    "set `prior='kept'`, a larger mask_rate or more masks, or shrinkage",
)

PROBE_STEPS = 50
"""Steps of conjugate gradients in which a direction without curvature would show. Chosen by hand; nobody has measured
other values."""

PROBE_TOLERANCE = 1e-6
"""Residual at which such a probe ends before that. Chosen by hand."""


def refuse_unbounded(objective: MaskedObjective, rng: np.random.Generator) -> None:
    """Raise where the objective has no minimum, by conjugate gradients with a random right-hand side.

    They show a direction of negative curvature, if there is one, unless the right-hand side is orthogonal to it.
    """
    if objective.excess <= 0:  # a sum of squares
        return
    diagonal = objective.preconditioner
    if diagonal is not None:
        # Random in the preconditioner's coordinates, where all directions are equally likely.
        b = diagonal**0.5 * rng.normal(size=len(diagonal))
        if conjugate_gradients(objective.times, b, diagonal, PROBE_TOLERANCE, PROBE_STEPS, silent).definite:
            return
    raise InputError(_UNBOUNDED)


def low_rank_gaussians(product: PosteriorProduct, details: NetworkDetails) -> list[LowRankGaussian]:
    """Return the sites' posteriors as NumPy arrays, with a ridge where entries of the diagonal part are near zero.

    Without it P_MM could not be factorised; the largest ridge is added to the details.
    """
    gaussians = []
    for mean, precision, count in zip(product.means, product.precisions, product.counts, strict=True):
        diagonal_part, ridge = to_numpy(precision.diagonal_part), RIDGE * float(to_numpy(precision.diagonal).mean())
        if diagonal_part.min() <= ridge:
            diagonal_part = diagonal_part + ridge
            details["ridge"] = max(ridge, details.get("ridge", 0.0))
        rows = np.ascontiguousarray(to_numpy(precision.rows()).T)  # (P, r)
        gaussians.append(LowRankGaussian(to_numpy(mean), rows, diagonal_part, count))
    return gaussians
