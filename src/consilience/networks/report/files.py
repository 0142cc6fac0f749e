"""Content of the report of fused networks, read from files: the fused one and those of its sites, where given.

A fused file has the provenance, not the matching: distances after matching and couplings are known to the fusion only.
Its provenance is validated before anything of it is shown, since it may come from somebody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from consilience.checks import AnyArray
from consilience.core.findings import verdict_of
from consilience.core.provenance import read_inputs_of
from consilience.drawing.words import natural_key, short_names
from consilience.errors import FileFormatError
from consilience.files.document import validate_document
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.files import NetworkFile, read_weights
from consilience.networks.match_quality import match_quality
from consilience.networks.network import Network, identity_transports, total_size
from consilience.networks.report.content import (
    InformationSummary,
    InputNetworkSummary,
    NetworkContent,
    findings_of_networks,
    unrelated_distance_of,
)
from consilience.networks.report.layers import LayerSummary, layers_of
from consilience.networks.report.quality import GroupSummary

_Count = Annotated[int, Field(ge=0, lt=10**15)]
"""A whole number far beyond any network, and far below what a page could not print. Chosen by hand."""


class _FisherRecord(BaseModel):
    """The Fisher information that a network came with."""

    model_config = ConfigDict(extra="ignore", strict=True)
    kind: Literal["diagonal", "factors"]
    rank: _Count
    observations: Annotated[float, Field(ge=0, le=1e300)] | None = None
    prior_precision: Annotated[float, Field(ge=0, le=1e300)] | None = None


class _InputRecord(BaseModel):
    """One of the models that a fused network was made from."""

    model_config = ConfigDict(extra="ignore", strict=True)
    name: str
    weight: Annotated[float, Field(ge=0, le=1e300)]
    units: dict[str, _Count] = Field(default_factory=dict)
    sha256: str | None = None
    fisher: _FisherRecord | None = None


class _Provenance(BaseModel):
    """As much of a provenance as the report reads; what is inside ``result`` is free-form."""

    model_config = ConfigDict(extra="ignore", strict=True)
    method: str
    options: dict[str, Any]
    seed: int | None
    inputs: Annotated[list[_InputRecord], Field(min_length=1)]
    result: dict[str, Any]
    versions: dict[str, str]
    verdict: dict[str, Any] | None = None


def network_content_of_files(
    fused: Path | SafetensorsFile,
    sites: Sequence[Path | SafetensorsFile] = (),
    read: Callable[[SafetensorsFile], NetworkFile] = read_weights,
) -> NetworkContent:
    """Return what the report shows of a fused network file.

    Parameters
    ----------
    fused : Path or SafetensorsFile
        The file that a fusion was saved to.
    sites : sequence of Path or SafetensorsFile, optional
        Files of networks that it was made from, in any order, not necessarily all; each is known by its SHA-256. With
        all of them the page also shows how far apart they are as they stand. Default: none.
    read : callable, optional
        Function that reads one of these files. Default: `read_weights`.

    Raises
    ------
    FileFormatError
        For files that cannot be read, or a first one that no fusion wrote.
    InputError
        Listing the sites that the fused file was not made from.
    """
    fused = as_file(fused)
    file = read(fused)
    if file.provenance is None:
        raise FileFormatError(fused, "does not say how it was made, so there is nothing to report", "give a fused file")
    provenance = validate_document(
        fused.label, _Provenance, file.provenance, "provenance", "give a file that a fusion was saved to"
    )
    names = short_names([record.name for record in provenance.inputs])
    site_order = sorted(
        range(len(names)),
        key=lambda position: (natural_key(provenance.inputs[position].name), str(provenance.inputs[position].sha256)),
    )
    inputs, names = (
        [provenance.inputs[position] for position in site_order],
        [names[position] for position in site_order],
    )
    site_networks = _read_sites(fused, file, inputs, [as_file(site) for site in sites], read)
    weights = [record.weight for record in inputs]
    needs_repair = provenance.result.get("repaired") is None and any(key.endswith("running_var") for key in file.arrays)
    findings, network_findings = findings_of_networks(
        provenance.result, file.symmetry, needs_repair, side_by_side=False
    )
    distances, layers = _distances_unmoved(site_networks, weights)
    return NetworkContent(
        method=provenance.method,
        options=tuple(sorted(provenance.options.items())),
        seed=provenance.seed,
        versions=tuple(sorted(provenance.versions.items())),
        sites=tuple(
            InputNetworkSummary(
                name,
                record.name,
                _n_movable_units(record.units, file),
                None if network is None else total_size(network.arrays),
                record.weight,
                record.sha256,
                None if record.fisher is None else InformationSummary(**record.fisher.model_dump()),
            )
            for record, name, network in zip(inputs, names, site_networks, strict=True)
        ),
        groups=_groups(fused, file, inputs, distances),
        parameters=total_size(_own_arrays(file)),
        findings=findings,
        network_findings=network_findings,
        verdict=verdict_of(provenance.verdict),
        unrelated_distance=unrelated_distance_of(weights),
        is_from_file=True,
        layers=layers,
    )


def _read_sites(
    fused: SafetensorsFile,
    file: NetworkFile,
    inputs: Sequence[_InputRecord],
    sites: Sequence[SafetensorsFile],
    read: Callable[[SafetensorsFile], NetworkFile],
) -> list[NetworkFile | Network | None]:
    """Return the network of every input whose file was given: with the symmetry, where the fused file has one."""
    digests = [record.sha256 for record in inputs]
    contents = read_inputs_of(fused, digests, sites, lambda site: (read(site), str(site)))
    symmetry = file.symmetry
    if symmetry is None:
        return [None if content is None else content[0] for content in contents]
    return [None if content is None else Network(content[0].arrays, symmetry, name=content[1]) for content in contents]


def _distances_unmoved(
    site_networks: Sequence[NetworkFile | Network | None], weights: Sequence[float]
) -> tuple[dict[str, float], tuple[LayerSummary, ...]]:
    """Return how far apart the sites are with no unit moved, by group and layer; nothing if not all are known.

    Networks of different widths have no such distance either.
    """
    networks = [network for network in site_networks if isinstance(network, Network)]
    total_weight = sum(weights)
    if len(networks) < len(site_networks) or not 0 < total_weight < math.inf:
        return {}, ()
    if any(dict(network.units) != dict(networks[0].units) for network in networks):
        return {}, ()
    shares, identities = np.array(weights) / total_weight, [identity_transports(network.units) for network in networks]
    quality = match_quality(networks, shares, identities)
    layers = layers_of(networks, shares, identities)
    return (
        {name: network.distance for name, network in quality.items()},
        tuple(LayerSummary(network.name, network.entries, None, network.before) for network in layers),
    )


def _groups(
    fused: SafetensorsFile, file: NetworkFile, inputs: Sequence[_InputRecord], distances: dict[str, float]
) -> tuple[GroupSummary, ...]:
    if file.symmetry is None:
        return ()
    network = Network(_own_arrays(file), file.symmetry, str(fused))
    return tuple(
        GroupSummary(
            name,
            tuple(record.units[name] for record in inputs if name in record.units),
            network.units[name],
            before=distances.get(name),
            parent=group.parent,
        )
        for name, group in file.symmetry.by_name.items()
    )


def _n_movable_units(units: dict[str, int], file: NetworkFile) -> int:
    """Return how many units can move; those inside the units of another group are not counted again."""
    groups = {} if file.symmetry is None else file.symmetry.by_name
    return sum(count for name, count in units.items() if name not in groups or groups[name].parent is None)


def _own_arrays(file: NetworkFile) -> dict[str, AnyArray]:
    """Return the arrays without other names of tied weights."""
    aliases = {} if file.symmetry is None else file.symmetry.aliases
    return {key: values for key, values in file.arrays.items() if key not in aliases or aliases[key] not in file.arrays}
