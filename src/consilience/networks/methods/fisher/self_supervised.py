"""Self-supervised Fisher merging (SSF): parameters whose masked entries every site's posterior predicts best.

The objective (7) of Recasens et al. (2023) is a quadratic for fixed masks (``masked_objective``). It is minimised by
conjugate gradients; the published way, stochastic gradient descent with masks drawn anew in every step, is an option,
with its last iterates averaged. With all parameters masked the result is the diagonal merge. With fewer it uses
correlations between parameters, but its minimum is in general neither the diagonal nor the full merge. Taking out K - 1
priors may leave an objective without a minimum, which is an error.

**Stochastic gradient descent with momentum, with iterate averaging**: the published solver of self-supervised Fisher.

    v = momentum v + gradient,    theta = theta - rate v,

on an objective whose masks may be drawn anew in every step. Masks make the iterates stochastic, so the last ones may be
averaged. Steps that diverge are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import Array, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress, silent
from consilience.errors import InputError, OptionError, Problem
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.methods.fisher.informed import FisherMethod, MergedParameters, Prior
from consilience.networks.methods.fisher.masked_objective import LowRankGaussian, Mask, MaskedObjective, draw_masks
from consilience.networks.methods.fisher.merging import RIDGE
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.methods.fisher.precision import PosteriorProduct, conjugate_gradients
from consilience.networks.network import to_numpy

AVERAGED_FRACTION = 0.2
"""Fraction of the steps of stochastic descent, the last ones, whose iterates are averaged; the published code takes the
last iterate. Chosen by hand; nobody has measured other values."""

POWER_ITERATIONS = 20
"""Power iterations for the largest curvature. Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True)
class SelfSupervisedFisher(FisherMethod):
    """Merge networks so that every site's posterior predicts masked parameters well from the rest.

    Parameters
    ----------
    prior, prior_precision, shrinkage, normalize, aligned, restarts
        As in FisherMerging. Default prior: removed, or kept where the sites' priors differ.
    tolerance : float
        Bound on the residual of the equations, relative to the right-hand side ("exact" only; "sgd" ends where steps
        get shorter than 1e-6). Default: 1e-8.
    max_iterations : int
        Steps of conjugate gradients at most. Default: 1000.
    mask_rate : float
        Fraction of the parameters (of the window, where there is one) that is masked; 1 gives the diagonal merge.
        Default: 0.2, the smallest rate in the paper's tables.
    masks : int
        Number of masks: altogether for the exact solver, in every step for the stochastic one. Default: 20, as in the
        published code.
    window : int, optional
        Number of parameters, drawn anew for each mask, in which it is drawn and on which it is conditioned: bounds the
        cost and biases the result. Default: all parameters.
    solver : {"exact", "sgd"}
        "exact": conjugate gradients for fixed masks. "sgd": gradient descent with momentum and fresh masks. Default:
        "exact".
    steps : int
        Steps of "sgd" at most. Default: 5000, as published.
    learning_rate : float, optional
        Of "sgd". Default: one over the largest curvature of the first masks.
    momentum : float
        Of "sgd". Default: 0.9, as published.
    start : {"merged", "random"}
        Where "sgd" starts: the diagonal merge, or random parameters of the merged ones' size. Default: "merged".

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
    solver: Literal["exact", "sgd"] = "exact"
    steps: int = 5000
    learning_rate: float | None = None
    momentum: float = 0.9
    start: Literal["merged", "random"] = "merged"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        rate = self.mask_rate
        yield "mask_rate", is_number(rate) and 0 < rate <= 1, "a number above 0, at most 1"
        yield "masks", is_count(self.masks), "a positive integer"
        yield "window", self.window is None or is_count(self.window), "a positive integer or None"
        yield "solver", self.solver in ("exact", "sgd"), "'exact' or 'sgd'"
        yield "steps", is_count(self.steps), "a positive integer"
        speed = self.learning_rate
        yield "learning_rate", speed is None or (is_number(speed) and speed > 0), "a positive number or None"
        yield "momentum", is_number(self.momentum) and self.momentum < 1, "a number from 0, below 1"
        yield "start", self.start in ("merged", "random"), "'merged' or 'random'"

    def default_prior(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return the default treatment of priors: removed."""
        return "removed"

    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""
        product, details = self.posterior_product(sites)
        start, gaussians = product.diagonal_merge(), low_rank_gaussians(product, details)
        size = sites.layout.size
        window = None if self.window is None or self.window >= size else self.window
        masked = max(1, round(self.mask_rate * (size if window is None else window)))  # m
        details |= {"masked": masked, "window": window}

        def draw(generator: np.random.Generator) -> list[Mask]:
            return draw_masks(size, self.masks, masked, window, generator)

        mask_rng, start_rng, probe_rng = rng.spawn(3)
        first, objective = to_numpy(start), MaskedObjective(gaussians, draw(mask_rng), product.excess)
        # Fresh masks may make up for one another, so their descent is not refused here; it says where it diverges.
        if self.solver == "exact":
            refuse_unbounded(objective, probe_rng)
        if self.solver == "sgd":
            merged = self._descend(objective, lambda: draw(mask_rng), first, start_rng, progress, details)
        else:
            merged = self._solve(objective, first, progress, details)
        xp = array_namespace(start)
        return MergedParameters(
            xp.asarray(merged.vector, device=start.device), merged.objective, merged.history, merged.status, details
        )

    def _solve(
        self, objective: MaskedObjective, start: Array, progress: Progress, details: NetworkDetails
    ) -> MergedParameters:
        """Return the minimum for fixed masks, by conjugate gradients from `start` (P,)."""
        start_value, gradient = objective.value_and_gradient(start)
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
        theta = start + solution.x  # conjugate gradients solve for the step from the diagonal merge
        return MergedParameters(theta, objective.value(theta), start_value + solution.history, status)

    def _descend(
        self,
        objective: MaskedObjective,
        draw: Callable[[], list[Mask]],
        start: Array,
        rng: np.random.Generator,
        progress: Progress,
        details: NetworkDetails,
    ) -> MergedParameters:
        """Return the end of stochastic gradient descent from `start` (P,), with fresh masks."""
        if self.start == "random":
            start = rng.normal(0.0, start.std(), len(start))

        def objectives() -> MaskedObjective:
            return replace(objective, masks=draw())

        rate = self.learning_rate
        if rate is None:
            rate = 1.0 / _largest_curvature(objective, rng)
        theta, history, has_settled = stochastic_descent(
            objectives, start, rate, self.momentum, self.steps, AVERAGED_FRACTION, progress
        )
        details |= {"learning_rate": rate}
        status = Status.CONVERGED if has_settled else Status.UNSOLVED
        return MergedParameters(theta, objective.value(theta), history, status)


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


def _largest_curvature(objective: MaskedObjective, rng: np.random.Generator) -> float:
    """Return the largest eigenvalue of L's Hessian, by power iteration."""
    vector = rng.normal(size=len(objective.sites[0].mean))
    eigenvalue = 1.0
    for _ in range(POWER_ITERATIONS):
        vector = objective.times(vector / np.linalg.norm(vector))  # (P,)
        eigenvalue = float(np.linalg.norm(vector))
    return eigenvalue


DIVERGENCE_FACTOR = 1e6
"""An objective beyond this multiple of 1 + |its first value| has diverged. Chosen by hand; nobody has
measured other values."""

MIN_RELATIVE_STEP = 1e-6
"""A step shorter than this fraction of the iterate's length ends the descent. Chosen by hand; nobody has measured other
values."""

MAX_LATE_DECREASE = 0.01
"""The descent has settled if the objective fell in its last tenth by no more than this fraction of its whole range.
Chosen by hand; nobody has measured other values."""


def stochastic_descent(
    objectives: Callable[[], MaskedObjective],
    start: Array,
    rate: float,
    momentum: float,
    steps: int,
    averaged: float,
    progress: Progress,
) -> tuple[Array, Array, bool]:
    """Return the end of a descent (P,), the objective of every step with its own masks, and whether it has settled.

    The objective may rise from one step to the next, because masks differ and because momentum overshoots. Of the last
    fraction `averaged` of the steps iterates are averaged; 0 takes the last. Steps that diverge are an `OptionError`.
    """
    theta, velocity, iterate_sum, n_summed = start.copy(), np.zeros_like(start), np.zeros_like(start), 0
    history: list[float] = []
    for step in range(steps):
        value, gradient = objectives().value_and_gradient(theta)
        history.append(value)
        velocity = momentum * velocity + gradient
        change = rate * velocity
        theta = theta - change
        if not np.isfinite(value) or abs(value) > DIVERGENCE_FACTOR * (1.0 + abs(history[0])):
            raise OptionError("learning_rate", f"steps of rate {rate:.3g} diverge after {step + 1}", "give a lower one")
        # Averages over steps cancel the noise of fresh masks; the first steps, far from the minimum, are left out.
        if step >= steps * (1.0 - averaged):
            iterate_sum, n_summed = iterate_sum + theta, n_summed + 1
        progress(step + 1, steps)
        if np.linalg.norm(change) < MIN_RELATIVE_STEP * np.linalg.norm(theta):
            break
    return (iterate_sum / n_summed if n_summed else theta), np.array(history), _has_settled(history, steps)


def _has_settled(history: list[float], steps: int) -> bool:
    """Return whether the objective fell little in the last tenth of its steps, compared with the tenth before."""
    if len(history) < steps:  # it ended early, where steps got short
        return True
    # Means over tenths, since single values differ with their masks.
    tenth = max(1, steps // 10)
    before, last = np.mean(history[-2 * tenth : -tenth] or history[:1]), np.mean(history[-tenth:])
    return bool(before - last <= MAX_LATE_DECREASE * (max(history) - min(history)))
