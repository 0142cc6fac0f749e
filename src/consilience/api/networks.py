"""Fusing networks: what ``fuse`` and ``check`` do with them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from consilience.api.landscape import refitted
from consilience.checks import Array, as_weights, is_count
from consilience.errors import InputError, OptionError
from consilience.io.provenance import make_provenance
from consilience.matching.result import Matching
from consilience.methods.base import Method, Progress, Status
from consilience.methods.fisher import FisherMerging
from consilience.methods.network_average import NetworkEnsembleMethod
from consilience.methods.network_method import NetworkEnsemble, NetworkMethod, check_widths
from consilience.methods.network_methods import make_network_method
from consilience.models.gathered import Gathered, with_symmetry, without_symmetry
from consilience.models.network_given import GivenNetwork, canonical_order, gather_networks
from consilience.models.network_information import gather_information, without_information
from consilience.models.torch_network import arrays_of_module, is_module
from consilience.networks.information import FisherInformation
from consilience.networks.symmetry import Symmetry
from consilience.networks.transport import Injection, Spread, Transport
from consilience.result.networks import NetworkFusion, NetworkInput

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class Arguments:
    """What ``fuse`` takes for networks beside a method's options; see there."""

    example: Any = None
    inputs: Any = None
    symmetry: Symmetry | str | Path | None = None
    module: nn.Module | Callable[[], nn.Module] | None = None
    target: nn.Module | None = None
    target_widths: Mapping[str, int] | None = None
    reference: int | None = None
    fishers: Sequence[Any] | None = None


ARGUMENTS = tuple(one.name for one in fields(Arguments))
"""Their names."""


def _split(options: Mapping[str, Any]) -> tuple[Arguments, dict[str, Any]]:
    """Return the arguments for networks, and the method's options."""
    told = {key: value for key, value in options.items() if key in ARGUMENTS}
    return Arguments(**told), {key: value for key, value in options.items() if key not in ARGUMENTS}


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
    told, options = _split(options)
    chosen = make_network_method(_wanted(models, method, told), options)
    given, information = _gathered(models, chosen, told)
    shares = as_weights(weights, len(given))
    shares = shares / shares.sum()
    if chosen.keeps_models:
        return _side_by_side(given, chosen, shares, seed)
    proving, fusing, fitting = rng.spawn(3)
    gathered = _with_symmetry(given, information, chosen, told, proving)
    order = canonical_order(given)
    base = order[0] if told.reference is None else told.reference
    units = _target_units(gathered, chosen, told)
    ensemble = NetworkEnsemble(
        tuple(gathered.networks[i] for i in order),
        shares[order],
        units,
        order.index(base),
        _activations(gathered, order, told.inputs) if chosen.wants_activations and told.inputs is not None else None,
        tuple(order),
        information=None if information is None else tuple(information[i] for i in order),
    )
    outcome = chosen.fuse(ensemble, fusing, progress)
    found = outcome.alignment
    back = [order.index(i) for i in range(len(given))]
    transports = tuple(found.transports[i] for i in back)
    gathered = replace(gathered, template=told.target if told.target is not None else gathered.template)
    fusion = NetworkFusion(
        network=outcome.network,
        matching={name: _matching(name, transports) for name in gathered.symmetry.by_name},
        transports=transports,
        objective=found.objective,
        history=found.history,
        status=found.status,
        details={
            **found.details,
            "proved": gathered.symmetry.proved,
            "notes": [*gathered.symmetry.notes, *found.details.get("notes", ())],
        },
        provenance={},
        inputs=tuple(
            NetworkInput(
                one.name,
                outcome.ensemble.networks[place],
                float(share),
                one.digest,
                None if information is None else information[i],
            )
            for i, (one, place, share) in enumerate(zip(given, back, shares, strict=True))
        ),
        _rebuild=None if gathered.template is None else gathered.module,
    )
    if chosen.refits and gathered.template is not None:
        fusion = refitted(fusion, order, told.example, told.inputs, fitting)
    return replace(fusion, provenance=_provenance(fusion, chosen, seed))


def check_networks(
    models: Sequence[Any],
    method: str | NetworkMethod | Method | None,
    weights: ArrayLike | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Return everything that would go wrong in fusing networks, a line each; see ``check``."""
    told, options = _split(options)
    chosen = make_network_method(_wanted(models, method, told), options)
    try:
        given, information = _gathered(models, chosen, told)
        shares = as_weights(weights, len(given))
        if chosen.keeps_models:
            return []
        gathered = _with_symmetry(given, information, chosen, told, np.random.default_rng(0))
        base = told.reference or 0
        units = _target_units(gathered, chosen, told)
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


def _target_units(gathered: Gathered, method: NetworkMethod, told: Arguments) -> dict[str, int]:
    """Return how wide the fused network is: as a module, as told, or as the method has it."""
    count = len(gathered.networks)
    if told.reference is not None and not _is_index(told.reference, count):
        raise OptionError(f"reference: expected the number of a model, 0 to {count - 1}, found {told.reference!r}")
    if told.target is not None and told.target_widths is not None:
        raise OptionError("target, target_widths: give one of them")
    if told.target is not None:
        if not is_module(told.target):
            raise OptionError(f"target: expected a torch module, found {type(told.target).__name__}")
        shapes = {key: tuple(values.shape) for key, values in arrays_of_module(told.target).items()}
        return gathered.symmetry.units(shapes, "target")
    return check_widths(gathered.symmetry, method.default_units(gathered.networks, told.reference), told.target_widths)


def _activations(gathered: Gathered, order: Sequence[int], inputs: Any) -> tuple[Mapping[str, Array], ...]:
    """Return what the units of every model give on the same inputs."""
    from consilience.models.network_activations import activations, batches_of

    batches = list(batches_of(inputs))
    return tuple(
        activations(gathered.given[i].module or gathered.module(gathered.networks[i]), gathered.symmetry, batches)
        for i in order
    )


def _matching(group: str, transports: Sequence[Mapping[str, Transport]]) -> Matching:
    """Return who is who in one group."""
    own = [moves[group] for moves in transports]
    labels = np.concatenate([one.labels for one in own])
    owner = np.repeat(np.arange(len(own)), [len(one.labels) for one in own])
    width = own[0].width
    signs = None
    if any(one.signs is not None for one in own):
        signs = np.concatenate([_signs(one) for one in own])
    if not any(isinstance(one, Spread) for one in own):
        return Matching(labels, owner, width, signs=signs)
    parts = [one.coupling.T if isinstance(one, Spread) else np.eye(width)[one.slots] / len(one.slots) for one in own]
    return Matching(labels, owner, width, np.concatenate(parts), signs=signs)


def _signs(one: Transport) -> Array:
    """Return the sign with which each unit goes where it mostly goes (k,)."""
    if one.signs is None:
        return np.ones(len(one.labels))
    return one.signs if isinstance(one, Injection) else np.sign(one.signs[one.labels, np.arange(len(one.labels))])


def _provenance(fusion: NetworkFusion, method: NetworkMethod, seed: int | None) -> dict[str, Any]:
    """Return the record that the fused file carries."""
    inputs = []
    for one in fusion.inputs:
        record: dict[str, Any] = {"name": one.name, "units": dict(one.network.units), "weight": one.weight}
        if one.sha256 is not None:
            record["sha256"] = one.sha256
        if one.information is not None:
            record["fisher"] = one.information.record()
        inputs.append(record)
    inputs.sort(key=lambda record: (str(record.get("sha256", "")), str(record["name"])))
    result = {
        "units": fusion.groups,
        "status": fusion.status.name.lower(),
        "objective": fusion.objective if math.isfinite(fusion.objective) else None,
        "history": [float(f"{value:.12g}") for value in fusion.history.tolist()],
        "repaired": fusion.repaired,
        **fusion.details,
    }
    return make_provenance(method.name, asdict(method), seed, inputs, result)


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
    return replace(fusion, provenance=_provenance(fusion, method, seed))


def _ensemble(modules: Sequence[Any], weights: Array, mean: Literal["probabilities", "logits"]) -> Any:
    from consilience.models.module_ensemble import ModuleEnsemble  # here, since it needs torch

    return ModuleEnsemble(copy.deepcopy(list(modules)), weights, mean).eval()


def _is_index(value: object, count: int) -> bool:
    """Return whether a value is the number of one of `count` models."""
    return value == 0 or (is_count(value) and int(str(value)) < count)
