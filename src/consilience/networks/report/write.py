"""The report of a fusion of networks, from the fusion itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from consilience.core.findings import verdict_of
from consilience.drawing.words import short_names
from consilience.errors import InputError, Problem
from consilience.matching.result import Matching
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.match_quality import GroupQuality
from consilience.networks.network import Network, total_size
from consilience.networks.report.content import (
    InformationSummary,
    InputNetworkSummary,
    NetworkContent,
    findings_of_networks,
    unrelated_distance_of,
)
from consilience.networks.report.couplings import couplings_of
from consilience.networks.report.layers import layers_of
from consilience.networks.report.page import write_network_content
from consilience.networks.report.quality import GroupSummary
from consilience.networks.symmetry.transport import Transport

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

Comparison = TypeVar("Comparison")


class ShownInput(Protocol):
    """Protocol of an input of a fusion: what the report reads of that of ``consilience.networks.fusion``."""

    @property
    def name(self) -> str:
        """Name of the network."""

    @property
    def network(self) -> Network:
        """Its arrays."""

    @property
    def weight(self) -> float:
        """Its weight in the average."""

    @property
    def sha256(self) -> str | None:
        """Digest of its file."""

    @property
    def information(self) -> FisherInformation | None:
        """Fisher information of its parameters, if the method weighed by it."""


class FusedNetworks(Protocol):
    """Protocol of a fusion of networks: what the report reads of that of ``consilience.networks.fusion``."""

    @property
    def network(self) -> Network:
        """The fused arrays."""

    @property
    def matching(self) -> Mapping[str, Matching]:
        """Fused unit of every unit of every model, by group."""

    @property
    def transports(self) -> tuple[Mapping[str, Transport], ...]:
        """Where the units of every model went."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Method, options, seed, result and versions."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The provenance with the verdict."""

    @property
    def inputs(self) -> Sequence[ShownInput]:
        """The networks that went in."""

    @property
    def quality(self) -> Mapping[str, GroupQuality]:
        """How well the units of each group match."""

    @property
    def needs_repair(self) -> bool:
        """Whether it has statistics of batch normalisation that averaging left wrong."""

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
    path : Path
        The file to write.
    fusion : FusedNetworks
        What ``fuse`` gave for networks.
    barriers : mapping of str to Barrier, optional
        By name, such as "as they are" and "aligned": drawn on common axes. Default: none.
    planes : mapping of str to Plane, optional
        By name. Default: none.
    scores : mapping of str to mapping of str to float, optional
        By model, in the order to show: its numbers by name, such as ``{"model 0": {"accuracy": 0.98}}``.
        Default: none.

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
    provenance = fusion.record
    names = short_names([fused_input.name for fused_input in fusion.inputs])
    weights = [float(fused_input.weight) for fused_input in fusion.inputs]
    findings, network_findings = findings_of_networks(
        provenance["result"], fusion.network.symmetry, fusion.needs_repair, fusion.keeps_models
    )
    networks = [fused_input.network for fused_input in fusion.inputs]
    has_matching = bool(fusion.matching) and not fusion.keeps_models
    return NetworkContent(
        method=provenance["method"],
        options=tuple(sorted(provenance["options"].items())),
        seed=provenance["seed"],
        versions=tuple(sorted(provenance["versions"].items())),
        sites=tuple(
            InputNetworkSummary(
                name,
                fused_input.name,
                _n_movable_units(fused_input.network),
                total_size(fused_input.network.arrays),
                weight,
                fused_input.sha256,
                _fisher_summary(fused_input.information),
            )
            for fused_input, name, weight in zip(fusion.inputs, names, weights, strict=True)
        ),
        groups=_groups(fusion, networks) if has_matching else (),
        parameters=total_size(fusion.network.arrays),
        findings=findings,
        network_findings=network_findings,
        verdict=verdict_of(provenance["verdict"]),
        unrelated_distance=unrelated_distance_of(weights),
        side_by_side=fusion.keeps_models,
        layers=layers_of(networks, np.array(weights), fusion.transports) if has_matching else (),
        couplings=couplings_of(fusion.matching, names) if has_matching else (),
        barriers=_barriers(barriers),
        planes=_planes(planes),
        scores=_scores(scores),
    )


def _fisher_summary(information: FisherInformation | None) -> InformationSummary | None:
    if information is None:
        return None
    return InformationSummary(information.kind, information.rank, information.observations, information.prior_precision)


def _n_movable_units(network: Network) -> int:
    return sum(network.units[name] for name, group in network.symmetry.by_name.items() if group.parent is None)


def _groups(fusion: FusedNetworks, networks: Sequence[Network]) -> tuple[GroupSummary, ...]:
    groups = []
    for name, quality in fusion.quality.items():
        units = tuple(network.units[name] for network in networks)
        parent = fusion.network.symmetry.by_name[name].parent
        groups.append(
            GroupSummary(name, units, quality.units, quality.shared, quality.distance, quality.before, parent)
        )
    return tuple(groups)


def _barriers(barriers: Mapping[str, Barrier] | None) -> dict[str, Barrier]:
    if not barriers:
        return {}
    from consilience.networks.landscape.barrier import Barrier  # here, since it needs torch

    return _check_comparisons(barriers, Barrier, "barriers", "barriers by name, as consilience.barrier returns them")


def _planes(planes: Mapping[str, Plane] | None) -> dict[str, Plane]:
    if not planes:
        return {}
    from consilience.networks.landscape.plane import Plane  # here, since it needs torch

    return _check_comparisons(planes, Plane, "planes", "planes by name, as consilience.plane returns them")


def _check_comparisons(
    comparisons: Mapping[str, Comparison], kind: type[Comparison], argument: str, expected: str
) -> dict[str, Comparison]:
    if not isinstance(comparisons, Mapping):
        raise InputError(
            argument, f"expected {expected}, found {type(comparisons).__name__}", "write {'aligned': ...}", "E-NUMBER"
        )
    if wrong_names := [name for name, comparison in comparisons.items() if not isinstance(comparison, kind)]:
        name = wrong_names[0]
        raise InputError(
            argument, f"expected {expected}, found {type(comparisons[name]).__name__} under {name!r}", code="E-NUMBER"
        )
    return {str(name): comparison for name, comparison in comparisons.items()}


def _scores(scores: Mapping[str, Mapping[str, float]] | None) -> dict[str, dict[str, float]]:
    if not scores:
        return {}
    expected = Problem(
        "scores", "expected numbers by name for every model, such as {'fused': {'accuracy': 0.98}}", code="E-TYPE"
    )
    if not isinstance(scores, Mapping):
        raise InputError("", f"{expected}, found {type(scores).__name__}", code="E-TYPE")
    scores_by_model: dict[str, dict[str, float]] = {}
    for model, model_scores in scores.items():
        if not isinstance(model_scores, Mapping):
            raise InputError("", f"{expected}, found {type(model_scores).__name__} under {model!r}", code="E-TYPE")
        try:
            scores_by_model[str(model)] = {str(name): float(value) for name, value in model_scores.items()}
        except (TypeError, ValueError) as error:
            raise InputError(f"{expected}; under {model!r}: {error}") from error
    return scores_by_model
