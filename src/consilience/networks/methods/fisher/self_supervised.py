"""Self-supervised Fisher merging (SSF): parameters that every site's posterior predicts best from one another.

The objective (7) of Recasens et al. (2023) is a convex quadratic for fixed masks (see ``masked``), so that conjugate
gradients find its minimum; the published way, stochastic gradient descent with masks drawn anew in every step, is there
too, its last iterates averaged. With all parameters masked it is the diagonal merge; in between it uses how parameters
hang together, though neither of it nor of the full merge is it the minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import Array, is_count, is_number
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.errors import InputError
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.methods.fisher.base import InformedMethod, Merged, Prior
from consilience.networks.methods.fisher.conjugate_gradients import conjugate_gradients
from consilience.networks.methods.fisher.masked_objective import Mask, MaskedObjective, Site, draw_masks
from consilience.networks.methods.fisher.merging import RIDGE, diagonal_merge
from consilience.networks.methods.fisher.parameter_vectors import Sites
from consilience.networks.methods.fisher.precision import Posteriors
from consilience.networks.methods.fisher.ssf_descent import descend
from consilience.networks.network import to_numpy

_PUBLISHED_RATE = 0.01


@dataclass(frozen=True)
class SelfSupervisedFisher(InformedMethod):
    """Merge networks so that every site's posterior predicts masked parameters well from the rest.

    Parameters
    ----------
    prior, prior_precision, shrinkage, normalize, aligned, restarts
        As in FisherMerging; the prior is removed where nobody says, or kept where the sites' differ.
    tolerance
        Of the residual of the equations, as a share ("exact" only; "sgd" ends where steps get shorter than 1e-6).
    max_iterations
        Steps of conjugate gradients at most.
    mask_rate
        Part of the parameters (of the window, where there is one) that is masked; 1 gives the diagonal merge.
    masks
        Number of masks: altogether for the exact solver, in every step for the stochastic one.
    window
        Parameters, drawn anew for each mask, that it is drawn in and conditioned on: bounds the cost and biases the
        result. None for all.
    solver
        "exact": conjugate gradients for fixed masks. "sgd": gradient descent with momentum and fresh masks.
    steps, learning_rate, momentum
        Of "sgd". None takes as learning rate one over the largest curvature of the first masks.
    start
        Where "sgd" starts: the diagonal merge ("merged"), or "random" parameters of the merged ones' size.
    compat
        Everything as the published code does: its sums (``consilience.fisher(..., kind="factors", compat=True)``), one
        set of independent masks for all steps of "sgd", rate 0.01, a random start.

    References
    ----------
    Recasens, Torres, Berral, Hauberg, Moreno-Muñoz (2023), "Beyond parameter averaging in model aggregation", (6), (7).
    The exact solver and shrinkage are this library's.
    """

    name: ClassVar[str] = "ssf"
    summary: ClassVar[str] = "parameters that every site's posterior predicts best from one another (self-supervised)"
    needs: ClassVar[str] = "networks of the same widths, and of each what consilience.fisher(kind='factors') gives"
    gives: ClassVar[str] = "one network"
    paper: ClassVar[str] = "recasens2023"

    mask_rate: float = 0.2
    masks: int = 20
    window: int | None = None
    solver: Literal["exact", "sgd"] = "exact"
    steps: int = 5000
    learning_rate: float | None = None
    momentum: float = 0.9
    start: Literal["merged", "random"] = "merged"
    compat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.mask_rate
        self.require("mask_rate", is_number(rate) and 0 < rate <= 1, "a number above 0, at most 1")
        self.require("masks", is_count(self.masks), "a positive integer")
        self.require("window", self.window is None or is_count(self.window), "a positive integer or None")
        self.require("solver", self.solver in ("exact", "sgd"), "'exact' or 'sgd'")
        self.require("steps", is_count(self.steps), "a positive integer")
        speed = self.learning_rate
        self.require("learning_rate", speed is None or (is_number(speed) and speed > 0), "a positive number or None")
        self.require("momentum", is_number(self.momentum) and self.momentum < 1, "a number from 0, below 1")
        self.require("start", self.start in ("merged", "random"), "'merged' or 'random'")
        self.require("compat", isinstance(self.compat, bool), "true or false")

    def prior_of(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return that the prior is removed."""
        return "removed"

    def refuse_information(self, sites: Sequence[FisherInformation]) -> list[str]:
        """Return whose sums are not the published ones, where these are asked for, a line each."""
        return [
            f"{one.name}: compat=True needs the sums of the published code; compute them with "
            "consilience.fisher(..., kind='factors', compat=True)"
            for one in sites
            if self.compat and not one.compat
        ]

    def merge(self, sites: Sites, rng: np.random.Generator, progress: Progress) -> Merged:
        """Return the merged parameters."""
        posteriors, details = self.posteriors(sites)
        start, given = diagonal_merge(posteriors), _in_rows(posteriors, details)
        size = sites.flat.size
        window = None if self.window is None or self.window >= size else self.window
        masked = max(1, round(self.mask_rate * (size if window is None else window)))
        details |= {"masked": masked, "window": window}

        def draw(generator: np.random.Generator) -> list[Mask]:
            return draw_masks(size, self.masks, masked, window, generator, balanced=not self.compat)

        drawing, starting, probing = rng.spawn(3)
        first, fixed = to_numpy(start), MaskedObjective(given, draw(drawing), posteriors.excess)
        if self.solver == "exact" or self.compat:  # fresh masks may make up for one another; divergence tells
            _refuse_unbounded(fixed, probing)
        if self.solver == "sgd" or self.compat:
            merged = self._descended(fixed, lambda: draw(drawing), first, starting, progress, details)
        else:
            merged = self._solved(fixed, first, progress, details)
        xp = array_namespace(start)
        return Merged(
            xp.asarray(merged.vector, device=start.device), merged.objective, merged.history, merged.status, details
        )

    def _solved(self, objective: MaskedObjective, start: Array, progress: Progress, details: dict[str, Any]) -> Merged:
        """Return the minimum for fixed masks."""
        begin, gradient = objective.value_and_gradient(start)
        diagonal = objective.preconditioner
        if diagonal is None:
            raise InputError(_UNBOUNDED)
        found = conjugate_gradients(objective.times, -gradient, diagonal, self.tolerance, self.max_iterations, progress)
        if not found.definite and objective.excess > 0:  # without, it is rounding near the end
            raise InputError(_UNBOUNDED)
        details |= {"residual": found.residual}
        status = Status.CONVERGED if found.converged else Status.UNSOLVED
        theta = start + found.x
        return Merged(theta, objective.value(theta), begin + found.history, status)

    def _descended(
        self,
        fixed: MaskedObjective,
        draw: Callable[[], list[Mask]],
        start: Array,
        starting: np.random.Generator,
        progress: Progress,
        details: dict[str, Any],
    ) -> Merged:
        """Return what stochastic gradient descent gives, its masks fixed or drawn."""
        if self.start == "random" or self.compat:
            start = starting.normal(0.0, start.std(), len(start))

        def objectives() -> MaskedObjective:
            return fixed if self.compat else replace(fixed, masks=draw())

        rate = self.learning_rate
        if rate is None:
            rate = _PUBLISHED_RATE if self.compat else 1.0 / _largest_curvature(fixed, starting)
        averaged = 0.0 if self.compat else 0.2
        theta, history, settled = descend(objectives, start, rate, self.momentum, self.steps, averaged, progress)
        details |= {"learning_rate": rate}
        return Merged(theta, fixed.value(theta), history, Status.CONVERGED if settled else Status.UNSOLVED)


_UNBOUNDED = (
    "ssf: with K - 1 priors removed, the objective has no minimum for these masks (where sites know little, predicting "
    "few parameters holds less than the priors push); set prior='kept', a larger mask_rate or more masks, or shrinkage"
)

_PROBES = 50
"""Steps in which a direction without curvature would have shown."""


def _refuse_unbounded(objective: MaskedObjective, rng: np.random.Generator) -> None:
    """Raise where the objective has no minimum: conjugate gradients from a random right-hand side show it."""
    if objective.excess <= 0:
        return
    diagonal = objective.preconditioner
    if diagonal is not None:
        b = diagonal**0.5 * rng.normal(size=len(diagonal))
        if conjugate_gradients(objective.times, b, diagonal, 1e-6, _PROBES, lambda *_: None).definite:
            return
    raise InputError(_UNBOUNDED)


def _in_rows(posteriors: Posteriors, details: dict[str, Any]) -> list[Site]:
    """Return the sites' posteriors for masks, with a ridge where entries of the diagonal are zero beside the others."""
    found = []
    for mean, precision, count in zip(posteriors.means, posteriors.precisions, posteriors.counts, strict=True):
        own, ridge = to_numpy(precision.own), RIDGE * float(to_numpy(precision.diagonal).mean())
        if own.min() <= ridge:
            own = own + ridge
            details["ridge"] = max(ridge, details.get("ridge", 0.0))
        found.append(Site(to_numpy(mean), np.ascontiguousarray(to_numpy(precision.rows()).T), own, count))
    return found


def _largest_curvature(objective: MaskedObjective, rng: np.random.Generator, rounds: int = 20) -> float:
    """Return the largest eigenvalue of the matrix of second derivatives, by power iteration."""
    vector = rng.normal(size=len(objective.sites[0].mean))
    found = 1.0
    for _ in range(rounds):
        vector = objective.times(vector / np.linalg.norm(vector))
        found = float(np.linalg.norm(vector))
    return found
