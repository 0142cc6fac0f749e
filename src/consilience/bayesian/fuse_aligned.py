"""Fusion of Bayesian networks of one symmetry by a method, without provenance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from consilience.bayesian.fusion import BayesianFusion
from consilience.bayesian.shared_symmetry import BayesianNetworksWithSymmetry
from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.networks.fuse_aligned import NetworkArguments, fuse_aligned
from consilience.networks.method import NetworkMethod


def fuse_aligned_bayesian(
    models: BayesianNetworksWithSymmetry,
    method: NetworkMethod,
    weights: Array,
    arguments: NetworkArguments,
    rng: np.random.Generator,
    progress: Progress,
) -> BayesianFusion:
    """Return the fusion of Bayesian networks by a method; the parameters are those of ``networks.fuse_aligned``."""
    priors = tuple(bnn.prior for bnn in models.bnns)
    fusion, _ = fuse_aligned(models, method, weights, arguments, rng, progress, BayesianFusion, priors=priors)
    # Unlike plain networks, a fused Bayesian network is rebuilt as one also where nobody gave a module.
    is_rebuilt = models.template is not None or arguments.target is not None
    return fusion if is_rebuilt else replace(fusion, _rebuild=models.module)
