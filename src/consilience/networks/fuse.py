"""The pipeline for networks: describe and check, then match, average, rebuild and refit."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from consilience.checks import Array, as_weights
from consilience.core.inputs import NamedInput, in_order
from consilience.core.kind import Prepared, Request
from consilience.core.status import Status
from consilience.errors import InputError, OptionError
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fisher.inputs import gather_information, without_information
from consilience.networks.fuse_aligned import (
    NetworkArguments,
    fuse_aligned,
    network_provenance,
    split_arguments,
    target_units,
)
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.inputs import DescribedNetwork, describe_networks
from consilience.networks.method import NetworkEnsemble, NetworkMethod
from consilience.networks.methods import make_network_method
from consilience.networks.methods.baselines import NetworkEnsembleMethod
from consilience.networks.methods.fisher.merging import FisherMerging
from consilience.networks.repair_fusion import refit_fusion
from consilience.networks.shared_symmetry import Gathered, with_symmetry, without_symmetry


def prepare_networks(request: Request) -> Prepared:
    """Describe and check networks; see ``Kind.prepare``.

    The networks are put in an order by their contents before they are matched, so that the order in which they arrive
    changes nothing.
    """
    if request.n_observations is not None:
        raise OptionError("n_observations: for statistical models; networks are weighed by weights=")
    arguments, options = split_arguments(request.options)
    networks, information_files = without_information(request.inputs)
    is_informed = arguments.fishers is not None or bool(information_files)
    # Where nobody says which, networks that come with Fisher information are merged by it.
    wanted = FisherMerging.name if request.method is None and is_informed else request.method
    method = make_network_method(wanted, options)
    try:
        return _prepared(request, arguments, method, networks, information_files)
    except (InputError, OptionError) as error:
        return Prepared.failed(error)


def _prepared(
    request: Request,
    arguments: NetworkArguments,
    method: NetworkMethod,
    networks: Sequence[NamedInput],
    information_files: Sequence[NamedInput],
) -> Prepared:
    if information_files and not networks:
        raise InputError(
            [f"{one.label}: is Fisher information of a network; give the networks too" for one in information_files]
        )
    described = describe_networks(networks, mapped=request.only_check)
    information = None
    if method.wants_information:
        information = gather_information(described, arguments.fishers, information_files)
    weights = as_weights(in_order(request.weights, [one.name for one in networks], "weights"), len(described))
    shares = weights / weights.sum()
    if method.keeps_models:
        return Prepared((), partial(_side_by_side, described, method, shares, request.seed))
    proving, fusing, fitting = request.rng.spawn(3)
    gathered = _with_symmetry(described, information, method, arguments, proving)
    if request.only_check:
        return Prepared.checked(_refusals(gathered, method, arguments, shares, information))

    def fuse() -> NetworkFusion:
        fusion, order = fuse_aligned(
            gathered, method, shares, arguments, fusing, request.progress, NetworkFusion, information=information
        )
        if method.refits and gathered.template is not None:
            fusion = refit_fusion(fusion, order, arguments.example, arguments.inputs, fitting)
        return replace(fusion, provenance=network_provenance(fusion, method, request.seed))

    return Prepared((), fuse)


def _refusals(
    gathered: Gathered,
    method: NetworkMethod,
    arguments: NetworkArguments,
    shares: Array,
    information: tuple[FisherInformation, ...] | None,
) -> list[str]:
    """Return why the method refuses these networks, a line each."""
    units = target_units(gathered, method, arguments)
    activations = () if arguments.inputs is not None else None
    ensemble = NetworkEnsemble(gathered.networks, shares, units, arguments.reference or 0, activations)
    return method.reasons(replace(ensemble, information=information))


def _with_symmetry(
    described: Sequence[DescribedNetwork],
    information: Sequence[FisherInformation] | None,
    method: NetworkMethod,
    arguments: NetworkArguments,
    rng: np.random.Generator,
) -> Gathered:
    """Return the networks with their symmetry; of no units where the method goes without and nobody states one."""
    is_unknown = arguments.symmetry is None and arguments.example is None
    is_unknown = is_unknown and all(one.symmetry is None for one in described)
    if method.optional_symmetry and is_unknown:
        return without_symmetry(described, arguments.module, [one.aliases for one in information or ()])
    return with_symmetry(described, arguments.symmetry, arguments.example, arguments.module, rng)


def _side_by_side(
    described: Sequence[DescribedNetwork], method: NetworkMethod, weights: Array, seed: int | None
) -> NetworkFusion:
    """Return all modules side by side, which need not be of one architecture."""
    if lacking := [one.label for one in described if one.module is None]:
        raise InputError(f"{', '.join(lacking)}: an ensemble asks modules, and these are none; load them into modules")
    if not isinstance(method, NetworkEnsembleMethod):
        raise InputError(f"method {method.name!r} keeps all models, but is no ensemble")
    kept = [one.network() for one in described]
    fusion = NetworkFusion(
        network=kept[0],
        matching={},
        transports=tuple({} for _ in described),
        objective=math.nan,
        history=np.zeros(0),
        status=Status.CONVERGED,
        details={},
        provenance={},
        inputs=tuple(
            NetworkInput(one.name, network, float(weight), one.digest)
            for one, network, weight in zip(described, kept, weights, strict=True)
        ),
        _rebuild=lambda _: _ensemble([one.module for one in described], weights, method.mean),
        keeps_models=True,
    )
    return replace(fusion, provenance=network_provenance(fusion, method, seed))


def _ensemble(modules: Sequence[Any], weights: Array, mean: Literal["probabilities", "logits"]) -> Any:
    from consilience.networks.ensemble import ModuleEnsemble  # here, since it needs torch

    return ModuleEnsemble(copy.deepcopy(list(modules)), weights, mean).eval()
