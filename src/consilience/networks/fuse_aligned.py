"""Fusing gathered networks by a method for networks, of plain and of Bayesian ones alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from consilience.checks import Array, is_count
from consilience.core.progress import Progress
from consilience.core.provenance import make_provenance
from consilience.errors import OptionError
from consilience.matching.result import Matching
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.inputs import canonical_order
from consilience.networks.method import NetworkEnsemble, NetworkMethod, check_widths
from consilience.networks.shared_symmetry import Gathered
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Spread, Transport
from consilience.networks.torch_modules import is_module

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class NetworkArguments:
    """What ``fuse`` takes for networks beside a method's options; see there."""

    example: Any = None
    inputs: Any = None
    symmetry: Symmetry | str | Path | None = None
    module: nn.Module | Callable[[], nn.Module] | None = None
    target: nn.Module | None = None
    target_widths: Mapping[str, int] | None = None
    reference: int | None = None
    fishers: Sequence[Any] | None = None


ARGUMENTS = tuple(one.name for one in fields(NetworkArguments))
"""Their names."""


def split_arguments(options: Mapping[str, Any]) -> tuple[NetworkArguments, dict[str, Any]]:
    """Return the arguments for networks, and the method's options."""
    given = {key: value for key, value in options.items() if key in ARGUMENTS}
    return NetworkArguments(**given), {key: value for key, value in options.items() if key not in ARGUMENTS}


_Kind = TypeVar("_Kind", bound=NetworkFusion)


def fuse_aligned(
    gathered: Gathered,
    method: NetworkMethod,
    shares: Array,
    arguments: NetworkArguments,
    rng: np.random.Generator,
    progress: Progress,
    kind: type[_Kind],
    information: Sequence[FisherInformation] | None = None,
    priors: Sequence[Mapping[str, float] | None] | None = None,
) -> tuple[_Kind, list[int]]:
    """Return the fusion of networks, without provenance, and their order by content, in which they were fused.

    Parameters
    ----------
    gathered
        The networks.
    method
        How.
    shares
        What each counts (J,), summing to 1.
    arguments
        What else was asked for.
    rng, progress
        As for any method.
    kind
        Of the fusion.
    information, priors
        Of each network, for methods that weigh by it.
    """
    given = gathered.given
    order = canonical_order(given)
    base = order[0] if arguments.reference is None else arguments.reference
    asks_inputs = method.wants_activations and arguments.inputs is not None
    ensemble = NetworkEnsemble(
        tuple(gathered.networks[i] for i in order),
        shares[order],
        target_units(gathered, method, arguments),
        order.index(base),
        _activations(gathered, order, arguments.inputs) if asks_inputs else None,
        tuple(order),
        information=None if information is None else tuple(information[i] for i in order),
        priors=None if priors is None else tuple(priors[i] for i in order),
    )
    outcome = method.fuse(ensemble, rng, progress)
    found = outcome.alignment
    back = [order.index(i) for i in range(len(given))]
    transports = tuple(found.transports[i] for i in back)
    gathered = replace(gathered, template=arguments.target if arguments.target is not None else gathered.template)
    fusion = kind(
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
    return fusion, order


def target_units(gathered: Gathered, method: NetworkMethod, arguments: NetworkArguments) -> dict[str, int]:
    """Return how wide the fused network is: as a module, as arguments, or as the method has it."""
    count = len(gathered.networks)
    if arguments.reference is not None and not _is_index(arguments.reference, count):
        raise OptionError(f"reference: expected the number of a model, 0 to {count - 1}, found {arguments.reference!r}")
    if arguments.target is not None and arguments.target_widths is not None:
        raise OptionError("target, target_widths: give one of them")
    if arguments.target is not None:
        if not is_module(arguments.target):
            raise OptionError(f"target: expected a torch module, found {type(arguments.target).__name__}")
        return gathered.symmetry.units(gathered.shapes(arguments.target), "target")
    default = method.default_units(gathered.networks, arguments.reference)
    return check_widths(gathered.symmetry, default, arguments.target_widths)


def _activations(gathered: Gathered, order: Sequence[int], inputs: Any) -> tuple[Mapping[str, Array], ...]:
    """Return what the units of every model give on the same inputs."""
    from consilience.networks.activations import activations, batches_of

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


def network_provenance(fusion: NetworkFusion, method: NetworkMethod, seed: int | None) -> dict[str, Any]:
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


def _is_index(value: object, count: int) -> bool:
    """Return whether a value is the number of one of `count` models."""
    return value == 0 or (is_count(value) and int(str(value)) < count)
