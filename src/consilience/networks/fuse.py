"""Fusing networks: what ``fuse`` and ``check`` do with them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, as_weights
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.errors import InputError, OptionError
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fisher.inputs import gather_information, without_information
from consilience.networks.fuse_aligned import (
    Arguments,
    fuse_gathered,
    network_provenance,
    split_arguments,
    target_units,
)
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.inputs import GivenNetwork, gather_networks
from consilience.networks.method import NetworkEnsemble, NetworkMethod
from consilience.networks.methods import make_network_method
from consilience.networks.methods.baselines import NetworkEnsembleMethod
from consilience.networks.methods.fisher.merging import FisherMerging
from consilience.networks.repair_fusion import refit_fusion
from consilience.networks.shared_symmetry import Gathered, with_symmetry, without_symmetry
from consilience.posteriors.method import Method


def fuse_networks(
    models: Sequence[Any],
    method: str | NetworkMethod | Method | None,
    weights: ArrayLike | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
    options: Mapping[str, Any],
) -> NetworkFusion:
    """Fuse networks; see ``fuse`` for what it takes.

    The networks are put in an order by their contents first, so that the order in which they arrive changes nothing.
    """
    told, options = split_arguments(options)
    chosen = make_network_method(_wanted(models, method, told), options)
    given, information = _gathered(models, chosen, told)
    shares = as_weights(weights, len(given))
    shares = shares / shares.sum()
    if chosen.keeps_models:
        return _side_by_side(given, chosen, shares, seed)
    proving, fusing, fitting = rng.spawn(3)
    gathered = _with_symmetry(given, information, chosen, told, proving)
    fusion, order = fuse_gathered(
        gathered, chosen, shares, told, fusing, progress, NetworkFusion, information=information
    )
    if chosen.refits and gathered.template is not None:
        fusion = refit_fusion(fusion, order, told.example, told.inputs, fitting)
    return replace(fusion, provenance=network_provenance(fusion, chosen, seed))


def check_networks(
    models: Sequence[Any],
    method: str | NetworkMethod | Method | None,
    weights: ArrayLike | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Return everything that would go wrong in fusing networks, a line each; see ``check``."""
    told, options = split_arguments(options)
    chosen = make_network_method(_wanted(models, method, told), options)
    try:
        given, information = _gathered(models, chosen, told)
        shares = as_weights(weights, len(given))
        if chosen.keeps_models:
            return []
        gathered = _with_symmetry(given, information, chosen, told, np.random.default_rng(0))
        base = told.reference or 0
        units = target_units(gathered, chosen, told)
        activations = () if told.inputs is not None else None
        ensemble = NetworkEnsemble(gathered.networks, shares / shares.sum(), units, base, activations)
        return chosen.reasons(replace(ensemble, information=information))
    except InputError as error:
        return list(error.problems)
    except OptionError as error:
        return [str(error)]


def _wanted(models: Sequence[Any], method: Any, told: Arguments) -> Any:
    """Return the method: where nobody says which, Fisher merging of networks that come with Fisher information."""
    informed = told.fishers is not None or bool(without_information(models)[1])
    return FisherMerging.name if method is None and informed else method


def _gathered(
    models: Sequence[Any], method: NetworkMethod, told: Arguments
) -> tuple[list[GivenNetwork], tuple[FisherInformation, ...] | None]:
    """Return the networks, and what is known of them where the method wants it; files of it are no networks."""
    networks, files = without_information(models)
    if files and not networks:
        raise InputError([f"{path}: is Fisher information of a network; give the networks too" for path in files])
    given = gather_networks(networks)
    if not method.wants_information:
        return given, None
    return given, gather_information(given, told.fishers, files)


def _with_symmetry(
    given: Sequence[GivenNetwork],
    information: Sequence[FisherInformation] | None,
    method: NetworkMethod,
    told: Arguments,
    rng: np.random.Generator,
) -> Gathered:
    """Return the networks with their symmetry; of no units where the method goes without and nobody told."""
    unknown = told.symmetry is None and told.example is None and all(one.symmetry is None for one in given)
    if method.optional_symmetry and unknown:
        return without_symmetry(given, told.module, [one.aliases for one in information or ()])
    return with_symmetry(given, told.symmetry, told.example, told.module, rng)


def _side_by_side(
    given: Sequence[GivenNetwork], method: NetworkMethod, weights: Array, seed: int | None
) -> NetworkFusion:
    """Return all modules side by side, which need not be of one architecture."""
    if lacking := [one.name for one in given if one.module is None]:
        raise InputError(f"{', '.join(lacking)}: an ensemble asks modules, and these are none; load them into modules")
    if not isinstance(method, NetworkEnsembleMethod):
        raise InputError(f"method {method.name!r} keeps all models, but is no ensemble")
    kept = [one.network() for one in given]
    fusion = NetworkFusion(
        network=kept[0],
        matching={},
        transports=tuple({} for _ in given),
        objective=math.nan,
        history=np.zeros(0),
        status=Status.CONVERGED,
        details={},
        provenance={},
        inputs=tuple(
            NetworkInput(one.name, network, float(weight), one.digest)
            for one, network, weight in zip(given, kept, weights, strict=True)
        ),
        _rebuild=lambda _: _ensemble([one.module for one in given], weights, method.mean),
        keeps_models=True,
    )
    return replace(fusion, provenance=network_provenance(fusion, method, seed))


def _ensemble(modules: Sequence[Any], weights: Array, mean: Literal["probabilities", "logits"]) -> Any:
    from consilience.networks.ensemble import ModuleEnsemble  # here, since it needs torch

    return ModuleEnsemble(copy.deepcopy(list(modules)), weights, mean).eval()
