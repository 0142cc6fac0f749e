"""Self-supervised Fisher merging as in the published code of Recasens et al. (2023): its sums, and its descent.

The code keeps, of every network, the mean g over observations of the gradient of one sampled logit (not of its log
probability) beside the sum of the squares of these gradients, which is on another scale; information is not shrunk. It
then takes steps of one rate from random parameters, with one set of masks, each drawn by itself, for all of them.
`StochasticFisher` is the descent of the paper, with masks drawn anew in every step and its last iterates averaged:

    v = momentum v + gradient,    theta = theta - rate v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from array_api_compat import array_namespace
from torch import Tensor, nn

import consilience as cs
from consilience.checks import Array
from consilience.core.details import Status
from consilience.core.progress import Progress
from consilience.networks.fisher.likelihoods import sample_labels
from consilience.networks.methods.fisher.informed import MergedParameters
from consilience.networks.methods.fisher.masked_objective import Mask, MaskedObjective
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.methods.fisher.self_supervised import low_rank_gaussians, refuse_unbounded
from consilience.networks.network import to_numpy
from consilience.networks.torch_modules import evaluating

LEARNING_RATE = 0.01
"""Learning rate of the published code."""


def published_sums(network: nn.Module, x: Tensor, prior_precision: float, seed: int) -> cs.results.FisherInformation:
    """Return the mean gradient of a sampled logit as the only factor, and the sum of squares less that factor's.

    Parameters
    ----------
    network : Module
        The network.
    x : Tensor of shape (n, ...)
        Inputs.
    prior_precision : float
        Of the prior that it was trained with.
    seed : int
        Of the sampled classes.
    """
    known = cs.fisher(network, x, rng=seed, prior_precision=prior_precision)
    parameters = {name: values.detach() for name, values in network.named_parameters() if values.requires_grad}
    generator = torch.Generator().manual_seed(int(np.random.default_rng(seed).integers(2**63)))
    for values in parameters.values():  # drawn before the classes when the recorded numbers were made
        torch.randn(values.shape, generator=generator)
    with evaluating(network, keeps_gradients=True):
        classes = sample_labels(network(x).detach(), generator)  # (n, C), one-hot

        def logit(values: dict[str, Tensor], row: Tensor, sampled: Tensor) -> Tensor:
            return (torch.func.functional_call(network, values, (row[None],))[0] * sampled).sum()

        gradients = torch.func.vmap(torch.func.grad(logit), (None, 0, 0))(parameters, x, classes)  # (n, ...) each
    means = {name: values.double().mean(dim=0) for name, values in gradients.items()}
    residual = {
        name: (values.double().square().sum(dim=0) - means[name].square()).clamp(min=0).to(values.dtype)
        for name, values in gradients.items()
    }
    factors = {name: values[None].to(parameters[name].dtype) for name, values in means.items()}
    return replace(known, residual=residual, factors=factors, samples=1)


@dataclass(frozen=True)
class StochasticFisher(cs.methods.SelfSupervisedFisher):
    """Self-supervised Fisher merging by gradient descent with momentum and fresh masks in every step.

    Parameters
    ----------
    steps : int
        Steps at most; it ends where they get shorter than `MIN_RELATIVE_STEP`. Default: 5000, as published.
    learning_rate : float, optional
        Default: one over the largest curvature of the first masks.
    momentum : float
        Default: 0.9, as published.
    start : {"merged", "random"}
        The diagonal merge, or random parameters of the merged ones' size.
    """

    steps: int = 5000
    learning_rate: float | None = None
    momentum: float = 0.9
    start: Literal["merged", "random"] = "random"

    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""
        product, details = self.posterior_product(sites)
        merged, gaussians = product.diagonal_merge(), low_rank_gaussians(product, details)
        size, first = sites.layout.size, to_numpy(merged)
        mask_rng, start_rng, _ = rng.spawn(3)

        def objective() -> MaskedObjective:
            # Fresh masks may make up for one another, so an objective without a minimum is not refused.
            return MaskedObjective(gaussians, self._masks(size, mask_rng, details)[0], product.excess)

        fixed = objective()
        if self.start == "random":
            first = start_rng.normal(0.0, first.std(), size)
        rate = 1.0 / _largest_curvature(fixed, start_rng) if self.learning_rate is None else self.learning_rate
        theta, history, has_settled = stochastic_descent(
            objective, first, rate, self.momentum, self.steps, AVERAGED_FRACTION, progress
        )
        status = Status.CONVERGED if has_settled else Status.UNSOLVED
        vector = array_namespace(merged).asarray(theta, device=merged.device)
        return MergedParameters(vector, fixed.value(theta), history, status, {**details, "learning_rate": rate})


@dataclass(frozen=True)
class PublishedDescent(StochasticFisher):
    """Self-supervised Fisher merging by the descent of the published code, without a window; not shrunk."""

    def effective_shrinkage(self, sites: AlignedSites) -> float:
        """Return 0."""
        return 0.0

    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""
        product, details = self.posterior_product(sites)
        start, gaussians = product.diagonal_merge(), low_rank_gaussians(product, details)
        size, spread = sites.layout.size, to_numpy(start).std()
        mask_rng, start_rng, probe_rng = rng.spawn(3)
        masks = independent_masks(size, self.masks, max(1, round(self.mask_rate * size)), mask_rng)
        objective = MaskedObjective(gaussians, masks, product.excess)
        refuse_unbounded(objective, probe_rng)
        first = start_rng.normal(0.0, spread, size)
        theta, history, has_settled = stochastic_descent(
            lambda: objective, first, LEARNING_RATE, self.momentum, self.steps, 0.0, progress
        )
        status = Status.CONVERGED if has_settled else Status.UNSOLVED
        vector = array_namespace(start).asarray(theta, device=start.device)
        return MergedParameters(vector, objective.value(theta), history, status, details)


def independent_masks(size: int, masks: int, masked: int, rng: np.random.Generator) -> Sequence[Mask]:
    """Return masks of so many of `size` parameters, each drawn by itself."""
    return [Mask(np.sort(rng.choice(size, masked, replace=False))) for _ in range(masks)]


AVERAGED_FRACTION = 0.2
"""Fraction of the steps of stochastic descent, the last ones, whose iterates are averaged; the published code takes the
last iterate. Chosen by hand; nobody has measured other values."""

POWER_ITERATIONS = 20
"""Power iterations for the largest curvature. Chosen by hand; nobody has measured other values."""


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
            raise cs.errors.OptionError(
                "learning_rate", f"steps of rate {rate:.3g} diverge after {step + 1}", "give a lower one"
            )
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
