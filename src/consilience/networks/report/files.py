"""What the report shows of a fused network, from its file and, where they are given, the files of its sites.

The file says how it was made, not who became whom: distances after matching and couplings are known to the fusion only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from consilience.core.provenance import file_digest
from consilience.drawing.words import natural_key, short_names
from consilience.errors import FileFormatError, InputError
from consilience.files.document import validated
from consilience.networks.files import NetworkFile, read_network
from consilience.networks.match_quality import match_quality
from consilience.networks.network import Network, identity_transports, total_size
from consilience.networks.report.content import Known, NetworkContent, Site, apart_of, findings_and_told
from consilience.networks.report.layers import Layer, layers_of
from consilience.networks.report.quality import Group

_Count = Annotated[int, Field(ge=0, lt=10**15)]


class _Known(BaseModel):
    """What was known of a network's parameters."""

    model_config = ConfigDict(extra="ignore", strict=True)
    kind: Literal["diagonal", "factors"]
    rank: _Count
    observations: Annotated[float, Field(ge=0, le=1e300)] | None = None
    prior_precision: Annotated[float, Field(ge=0, le=1e300)] | None = None


class _Input(BaseModel):
    """One of the models that a fused network was made from."""

    model_config = ConfigDict(extra="ignore", strict=True)
    name: str
    weight: Annotated[float, Field(ge=0, le=1e300)]
    units: dict[str, _Count] = Field(default_factory=dict)
    sha256: str | None = None
    fisher: _Known | None = None


class _Provenance(BaseModel):
    """As much of a provenance as the report reads; what is inside ``result`` is free-form."""

    model_config = ConfigDict(extra="ignore", strict=True)
    method: str
    options: dict[str, Any]
    seed: int | None
    inputs: Annotated[list[_Input], Field(min_length=1)]
    result: dict[str, Any]
    versions: dict[str, str]


def network_content_of_files(
    fused: Path, sites: Sequence[Path] = (), read: Callable[[Path], NetworkFile] = read_network
) -> NetworkContent:
    """Return what the report shows of a fused network file.

    Parameters
    ----------
    fused
        The file that a fusion was saved to.
    sites
        Files of networks that it was made from, in any order, not necessarily all; each is known by its SHA-256. With
        all of them the page also shows how far apart they are as they stand.
    read
        How each of these files is read.

    Raises
    ------
    FileFormatError
        For files that cannot be read, or a first one that no fusion wrote.
    InputError
        Listing the sites that the fused file was not made from.
    """
    file = read(fused)
    if file.provenance is None:
        raise FileFormatError(
            f"{fused}: does not say how it was made, so there is nothing to report; give a fused file"
        )
    made = validated(fused, _Provenance, file.provenance, "provenance", "give a file that a fusion was saved to")
    names = short_names([one.name for one in made.inputs])
    order = sorted(range(len(names)), key=lambda i: (natural_key(made.inputs[i].name), str(made.inputs[i].sha256)))
    inputs, names = [made.inputs[i] for i in order], [names[i] for i in order]
    known = _sites(fused, file, inputs, sites, read)
    weights = [one.weight for one in inputs]
    needs_repair = made.result.get("repaired") is None and any(key.endswith("running_var") for key in file.arrays)
    findings, told = findings_and_told(made.result, file.symmetry, needs_repair, side_by_side=False)
    distances, layers = _apart(known, weights)
    return NetworkContent(
        method=made.method,
        options=tuple(sorted(made.options.items())),
        seed=made.seed,
        versions=tuple(sorted(made.versions.items())),
        sites=tuple(
            Site(
                name,
                one.name,
                _movable(one.units, file),
                None if site is None else total_size(site.arrays),
                one.weight,
                one.sha256,
                None if one.fisher is None else Known(**one.fisher.model_dump()),
            )
            for one, name, site in zip(inputs, names, known, strict=True)
        ),
        groups=_groups(fused, file, inputs, distances),
        parameters=total_size(_own(file)),
        findings=findings,
        told=told,
        apart=apart_of(weights),
        from_file=True,
        layers=layers,
    )


def _sites(
    fused: Path,
    file: NetworkFile,
    inputs: Sequence[_Input],
    sites: Sequence[Path],
    read: Callable[[Path], NetworkFile],
) -> list[NetworkFile | Network | None]:
    """Return the network of every input whose file was given: with the symmetry, where the fused file has one."""
    place = {one.sha256: i for i, one in enumerate(inputs) if one.sha256 is not None}
    found: list[NetworkFile | Network | None] = [None] * len(inputs)
    given: dict[int, Path] = {}
    problems: list[str] = []
    for site in sites:
        try:
            digest = file_digest(site)
            if not place:
                problems.append(
                    f"{site}: {fused} was made from models in memory, so no file can be known to be one of them"
                )
            elif digest not in place:
                problems.append(
                    f"{site}: is not one of the files that {fused} was made from: none has SHA-256 {digest[:12]}…"
                )
            elif place[digest] in given:
                problems.append(f"{site}: is the same file as {given[place[digest]]}; leave one out")
            else:
                one = read(site)
                found[place[digest]] = one if file.symmetry is None else Network(one.arrays, file.symmetry, str(site))
                given[place[digest]] = site
        except InputError as error:
            problems += error.problems
        except OSError as error:
            problems.append(f"{site}: cannot be read: {error.strerror or error}")
    if problems:
        raise InputError(problems)
    return found


def _apart(
    known: Sequence[NetworkFile | Network | None], weights: Sequence[float]
) -> tuple[dict[str, float], tuple[Layer, ...]]:
    """Return how far apart the sites are with no unit moved, by group and layer; nothing if not all are known."""
    networks = [one for one in known if isinstance(one, Network)]
    total = sum(weights)
    if len(networks) < len(known) or not 0 < total < math.inf:
        return {}, ()
    if any(dict(one.units) != dict(networks[0].units) for one in networks):
        return {}, ()
    shares, still = np.array(weights) / total, [identity_transports(one.units) for one in networks]
    found = match_quality(networks, shares, still)
    layers = layers_of(networks, shares, still)
    return (
        {name: one.distance for name, one in found.items()},
        tuple(Layer(one.name, one.entries, None, one.before) for one in layers),
    )


def _groups(fused: Path, file: NetworkFile, inputs: Sequence[_Input], distances: dict[str, float]) -> tuple[Group, ...]:
    if file.symmetry is None:
        return ()
    network = Network(_own(file), file.symmetry, str(fused))
    return tuple(
        Group(
            name,
            tuple(one.units[name] for one in inputs if name in one.units),
            network.units[name],
            before=distances.get(name),
            parent=group.parent,
        )
        for name, group in file.symmetry.by_name.items()
    )


def _movable(units: dict[str, int], file: NetworkFile) -> int:
    """Return how many units can move, those inside the units of another group not counted again."""
    groups = {} if file.symmetry is None else file.symmetry.by_name
    return sum(count for name, count in units.items() if name not in groups or groups[name].parent is None)


def _own(file: NetworkFile) -> dict[str, Any]:
    """Return the arrays without other names of tied weights."""
    aliases = {} if file.symmetry is None else file.symmetry.aliases
    return {key: values for key, values in file.arrays.items() if key not in aliases or aliases[key] not in file.arrays}
