"""The pipeline for Bayesian networks: describe and check, then match, average and rebuild."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from consilience.bayesian.ensemble import BayesianEnsemble
from consilience.bayesian.fusion import BayesianFusion
from consilience.bayesian.methods import make_bayesian_method
from consilience.bayesian.shared_symmetry import GatheredBayesian, gather_bayesian
from consilience.checks import Array, as_weights
from consilience.core.inputs import in_order
from consilience.core.kind import Prepared, Request
from consilience.core.status import Status
from consilience.errors import InputError, OptionError
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
        raise OptionError("n_observations: for statistical models; Bayesian networks are weighed by weights=")
    arguments, options = split_arguments(request.options)
    method = make_bayesian_method(request.method, options)
    try:
        return _prepared(request, arguments, method)
    except (InputError, OptionError) as error:
        return Prepared.failed(error)


def _prepared(request: Request, arguments: NetworkArguments, method: NetworkMethod) -> Prepared:
    for option in ("fishers", "inputs"):
        if getattr(arguments, option) is not None:
            raise OptionError(f"{option}: of no use for Bayesian networks, whose variances say what is known")
    proving, fusing = request.rng.spawn(2)
    without = method.optional_symmetry or method.keeps_models
    gathered = gather_bayesian(
        request.inputs, arguments.symmetry, arguments.example, arguments.module, proving, without=without
    )
    weights = in_order(request.weights, [one.name for one in request.inputs], "weights")
    shares = as_weights(weights, len(gathered.given))
    shares = shares / shares.sum()
    priors = tuple(one.prior for one in gathered.bayesian)
    if request.only_check:
        if method.keeps_models:
            return Prepared.checked(())
        units = target_units(gathered, method, arguments)
        ensemble = NetworkEnsemble(gathered.networks, shares, units, arguments.reference or 0, priors=priors)
        return Prepared.checked(method.reasons(ensemble))

    def fuse() -> BayesianFusion:
        if method.keeps_models:
            fusion = _side_by_side(gathered, shares)
        else:
            fusion, _ = fuse_aligned(
                gathered, method, shares, arguments, fusing, request.progress, BayesianFusion, priors=priors
            )
            # A fused Bayesian network is one also without a module, where none was asked for.
            if gathered.template is None and arguments.target is None:
                fusion = replace(fusion, _rebuild=gathered.module)
        return replace(fusion, provenance=network_provenance(fusion, method, request.seed))

    return Prepared((), fuse)


def _side_by_side(gathered: GatheredBayesian, shares: Array) -> BayesianFusion:
    """Return all networks side by side."""
    members = gathered.bayesian
    if lacking := [one.name for one in members if one.module is None]:
        raise InputError(f"{', '.join(lacking)}: an ensemble asks modules; give module=, one of the architecture")
    return BayesianFusion(
        network=gathered.networks[0],
        matching={},
        transports=tuple({} for _ in members),
        objective=math.nan,
        history=np.zeros(0),
        status=Status.CONVERGED,
        details={},
        provenance={},
        inputs=tuple(
            NetworkInput(one.name, network, float(share), one.digest)
            for one, network, share in zip(gathered.given, gathered.networks, shares, strict=True)
        ),
        _rebuild=lambda _: BayesianEnsemble(members, shares),
        keeps_models=True,
    )
