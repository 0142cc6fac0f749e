"""Pipeline of Bayesian network fusion: describe and check, then match, average and rebuild.

Bayesian networks become Gaussian networks (`bayesian.shared_symmetry`), which the pipeline of plain networks fuses
(`networks.fuse_aligned`). An ensemble keeps all networks and takes neither symmetry nor matching.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from consilience.bayesian.ensemble import BayesianEnsemble
from consilience.bayesian.fusion import BayesianFusion
from consilience.bayesian.methods import make_bayesian_method
from consilience.bayesian.shared_symmetry import BayesianNetworksWithSymmetry, describe_bayesian_networks
from consilience.checks import Array, as_weights
from consilience.core.inputs import in_order
from consilience.core.kind import Prepared, Request
from consilience.core.status import Status
from consilience.errors import InputError, OptionError
from consilience.networks.fuse import ensemble_class_counts
from consilience.networks.fuse_aligned import (
    NetworkArguments,
    fuse_aligned,
    network_provenance,
    split_arguments,
    target_units,
)
from consilience.networks.fusion import NetworkInput
from consilience.networks.method import NetworkEnsemble, NetworkMethod


def prepare_bayesian(request: Request) -> Prepared:
    """Describe and check Bayesian networks; see ``Kind.prepare``."""
    if request.n_observations is not None:
        raise OptionError("n_observations", "for statistical models; Bayesian networks are weighed by weights=")
    arguments, options = split_arguments(request.options)
    method = make_bayesian_method(request.method, options)
    try:
        return _prepare(request, arguments, method)
    except (InputError, OptionError) as error:
        return Prepared.failed(error)


def _prepare(request: Request, arguments: NetworkArguments, method: NetworkMethod) -> Prepared:
    """Return described networks with what fuses them, or the reasons why the method refuses them."""
    for option in ("fishers", "descriptions", "inputs"):
        if getattr(arguments, option) is not None:
            raise OptionError(option, "of no use for Bayesian networks, whose variances say what is known")
    names = [named.name for named in request.inputs]
    arguments = arguments.with_reference_number(names)
    proof_rng, fusion_rng = request.rng.spawn(2)
    models = describe_bayesian_networks(
        request.inputs,
        arguments.symmetry,
        arguments.example,
        arguments.module,
        proof_rng,
        is_optional=method.optional_symmetry or method.keeps_models,
    )
    named_weights = in_order(request.weights, names, "weights")
    sizes = [bnn.n_observations for bnn in models.bnns if bnn.n_observations is not None]
    # Networks are weighed by their observations where all say them.
    by_size = named_weights is None and len(sizes) == len(models.bnns)
    weights = as_weights(sizes if by_size else named_weights, len(models.inputs))
    weights = weights / weights.sum()  # (J,)
    priors = tuple(bnn.prior for bnn in models.bnns)
    class_counts = None
    if method.keeps_models:
        class_counts = ensemble_class_counts(method, len(models.inputs), None if named_weights is None else weights)
    if request.only_check:
        if method.keeps_models:
            return Prepared.checked(())
        units = target_units(models, method, arguments)
        ensemble = NetworkEnsemble(models.networks, weights, units, arguments.reference_number or 0, priors=priors)
        return Prepared.checked(method.reasons(ensemble))

    def fuse() -> BayesianFusion:
        if method.keeps_models:
            fusion = _keep_all(models, weights, class_counts)
        else:
            fusion, _ = fuse_aligned(
                models, method, weights, arguments, fusion_rng, request.progress, BayesianFusion, priors=priors
            )
            # Unlike plain networks, a fused Bayesian network is rebuilt as one also where nobody gave a module.
            if models.template is None and arguments.target is None:
                fusion = replace(fusion, _rebuild=models.module)
        return replace(fusion, provenance=network_provenance(fusion, method, request.seed))

    return Prepared((), fuse)


def _keep_all(models: BayesianNetworksWithSymmetry, weights: Array, class_counts: Array | None) -> BayesianFusion:
    """Return the ensemble of all networks as a fusion; `weights` (J,) sum to 1, counts of classes are (J, C)."""
    members = models.bnns
    if without_module := [bnn.name for bnn in members if bnn.module is None]:
        raise InputError(", ".join(without_module), "an ensemble asks modules", "give module=, one of the architecture")
    return BayesianFusion(
        network=models.networks[0],
        matching={},
        transports=tuple({} for _ in members),
        objective=math.nan,
        history=np.zeros(0),
        status=Status.CONVERGED,
        details={},
        provenance={},
        inputs=tuple(
            NetworkInput(described.name, network, float(weight), described.digest)
            for described, network, weight in zip(models.inputs, models.networks, weights, strict=True)
        ),
        _rebuild=lambda _: BayesianEnsemble(members, weights, class_counts),
        keeps_models=True,
    )
