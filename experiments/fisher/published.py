"""Self-supervised Fisher merging as in the published code of Recasens et al. (2023): its sums, and its descent.

The code keeps, of every network, the mean g over observations of the gradient of one sampled logit (not of its log
probability) beside the sum of the squares of these gradients, which is on another scale; information is not shrunk. It
then takes steps of one rate from random parameters, with one set of masks, each drawn by itself, for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from array_api_compat import array_namespace
from torch import Tensor, nn

import consilience as cs
from consilience.core.details import Status
from consilience.core.progress import Progress
from consilience.networks.fisher.likelihoods import sample_labels
from consilience.networks.landscape.evaluation import evaluation_mode
from consilience.networks.methods.fisher.informed import MergedParameters
from consilience.networks.methods.fisher.masked_objective import Mask, MaskedObjective
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.methods.fisher.self_supervised import low_rank_gaussians, refuse_unbounded, stochastic_descent
from consilience.networks.network import to_numpy

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
    with evaluation_mode(network):
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
class PublishedDescent(cs.methods.SelfSupervisedFisher):
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
