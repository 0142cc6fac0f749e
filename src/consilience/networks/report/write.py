"""The report of a fusion of networks, from the fusion itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from consilience.drawing.words import short_names
from consilience.errors import InputError
from consilience.matching.result import Matching
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.match_quality import GroupQuality
from consilience.networks.network import Network, total_size
from consilience.networks.report.content import Known, NetworkContent, Site, apart_of, findings_and_told
from consilience.networks.report.couplings import couplings_of
from consilience.networks.report.layers import layers_of
from consilience.networks.report.page import write_network_content
from consilience.networks.report.quality import Group
from consilience.networks.symmetry.transport import Transport

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

Shown = TypeVar("Shown")


class FusedInput(Protocol):
    """One of the networks that went in, as ``consilience.networks.fusion`` has it."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def network(self) -> Network:
        """Its arrays."""

    @property
    def weight(self) -> float:
        """How much it counted."""

    @property
    def sha256(self) -> str | None:
        """Digest of its file."""

    @property
    def information(self) -> FisherInformation | None:
        """What is known of its parameters."""


class FusedNetworks(Protocol):
    """What the report reads of a fusion, as ``consilience.networks.fusion`` has it."""

    @property
    def network(self) -> Network:
        """The fused arrays."""

    @property
    def matching(self) -> Mapping[str, Matching]:
        """Who is who, by group."""

    @property
    def transports(self) -> tuple[Mapping[str, Transport], ...]:
        """Where the units of every model went."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """How it came to be."""

    @property
    def inputs(self) -> Sequence[FusedInput]:
        """What went in."""

    @property
    def quality(self) -> Mapping[str, GroupQuality]:
        """How well the units of each group match."""

    @property
    def needs_repair(self) -> bool:
        """Whether its statistics are wrong."""

    @property
    def keeps_models(self) -> bool:
        """Whether the fused model is all models side by side."""


def write_network_page(
    path: Path,
    fusion: FusedNetworks,
    *,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Write the report to `path`, whole or not at all: one HTML file without scripts that fetches nothing.

    Parameters
    ----------
    path
        Where to.
    fusion
        What ``fuse`` gave for networks.
    barriers
        By name, such as "as they are" and "aligned": drawn on common axes.
    planes
        By name.
    scores
        By model, in the order to show: its numbers by name, such as ``{"model 0": {"accuracy": 0.98}}``.

    Raises
    ------
    InputError
        When the path cannot be written, or barriers, planes or scores are something else.
    """
    write_network_content(path, network_content_of(fusion, barriers, planes, scores))


def network_content_of(
    fusion: FusedNetworks,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> NetworkContent:
    """Return what the report shows of a fusion; parameters as for `write_network_page`."""
    made = fusion.provenance
    names = short_names([one.name for one in fusion.inputs])
    weights = [float(one.weight) for one in fusion.inputs]
    findings, told = findings_and_told(
        made["result"], fusion.network.symmetry, fusion.needs_repair, fusion.keeps_models
    )
    networks = [one.network for one in fusion.inputs]
    matched = bool(fusion.matching) and not fusion.keeps_models
    return NetworkContent(
        method=made["method"],
        options=tuple(sorted(made["options"].items())),
        seed=made["seed"],
        versions=tuple(sorted(made["versions"].items())),
        sites=tuple(
            Site(
                name,
                one.name,
                _units(one.network),
                total_size(one.network.arrays),
                weight,
                one.sha256,
                _known(one.information),
            )
            for one, name, weight in zip(fusion.inputs, names, weights, strict=True)
        ),
        groups=_groups(fusion, networks) if matched else (),
        parameters=total_size(fusion.network.arrays),
        findings=findings,
        told=told,
        apart=apart_of(weights),
        side_by_side=fusion.keeps_models,
        layers=layers_of(networks, np.array(weights), fusion.transports) if matched else (),
        couplings=couplings_of(fusion.matching, names) if matched else (),
        barriers=_barriers(barriers),
        planes=_planes(planes),
        scores=_scores(scores),
    )


def _known(information: FisherInformation | None) -> Known | None:
    if information is None:
        return None
    return Known(information.kind, information.rank, information.observations, information.prior_precision)


def _units(network: Network) -> int:
    return sum(network.units[name] for name, group in network.symmetry.by_name.items() if group.parent is None)


def _groups(fusion: FusedNetworks, networks: Sequence[Network]) -> tuple[Group, ...]:
    found = []
    for name, one in fusion.quality.items():
        units = tuple(network.units[name] for network in networks)
        parent = fusion.network.symmetry.by_name[name].parent
        found.append(Group(name, units, one.units, one.shared, one.distance, one.before, parent))
    return tuple(found)


def _barriers(given: Mapping[str, Barrier] | None) -> dict[str, Barrier]:
    if not given:
        return {}
    from consilience.networks.landscape.barrier import Barrier  # here, since it needs torch

    return _of(given, Barrier, "barriers", "barriers by name, as consilience.barrier returns them")


def _planes(given: Mapping[str, Plane] | None) -> dict[str, Plane]:
    if not given:
        return {}
    from consilience.networks.landscape.plane import Plane  # here, since it needs torch

    return _of(given, Plane, "planes", "planes by name, as consilience.plane returns them")


def _of(given: Mapping[str, Shown], kind: type[Shown], what: str, expected: str) -> dict[str, Shown]:
    if not isinstance(given, Mapping):
        raise InputError(f"{what}: expected {expected}, found {type(given).__name__}; write {{'aligned': ...}}")
    if wrong := [name for name, one in given.items() if not isinstance(one, kind)]:
        raise InputError(f"{what}: expected {expected}, found {type(given[wrong[0]]).__name__} under {wrong[0]!r}")
    return {str(name): one for name, one in given.items()}


def _scores(given: Mapping[str, Mapping[str, float]] | None) -> dict[str, dict[str, float]]:
    if not given:
        return {}
    expected = "scores: expected numbers by name for every model, such as {'fused': {'accuracy': 0.98}}"
    if not isinstance(given, Mapping):
        raise InputError(f"{expected}, found {type(given).__name__}")
    found: dict[str, dict[str, float]] = {}
    for model, own in given.items():
        if not isinstance(own, Mapping):
            raise InputError(f"{expected}, found {type(own).__name__} under {model!r}")
        try:
            found[str(model)] = {str(name): float(value) for name, value in own.items()}
        except (TypeError, ValueError) as error:
            raise InputError(f"{expected}; under {model!r}: {error}") from error
    return found
