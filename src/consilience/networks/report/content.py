"""Content of the report of fused networks, as plain values: inputs, groups, layers, proof, barriers, planes, scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from consilience.checks import AnyArray, Array, Json
from consilience.core.findings import Findings, VerdictSummary, findings_of, verdict_of
from consilience.drawing.words import natural_key, short_names
from consilience.files.document import validate_document
from consilience.networks.files import NetworkFile
from consilience.networks.method import NetworkMethod
from consilience.networks.methods import NETWORK_METHODS
from consilience.networks.network import Network, identity_transports, total_size
from consilience.networks.report.couplings import Coupling, couplings_of
from consilience.networks.report.quality import GroupSummary, LayerSummary, layers_of
from consilience.networks.summary import match_quality
from consilience.networks.symmetry.symmetry import Symmetry

if TYPE_CHECKING:
    from consilience.networks.fusion import NetworkFusion
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

_RESULT_SHOWN_APART = ("units", "notes", "proved", "refit", "repaired", "starts", "groups", "distances")
"""Keys of a result that the page shows in places of their own."""


@dataclass(frozen=True)
class InputNetworkSummary:
    """One of the networks that went in, in numbers."""

    # `name`, `full_name`: what it is called here, and in full.
    name: str
    full_name: str
    units: int  # number of its units that can move
    parameters: int | None  # number of its entries; None where its arrays are not known
    weight: float  # its weight in the average
    sha256: str | None  # digest of its file, if it was one
    fisher: FisherRecord | None = None  # the Fisher information that it came with, if the method weighed by it


@dataclass(frozen=True)
class NetworkFindings:
    """Findings of a fusion of networks: proof of the symmetry, fitted layers, repair, starts, facts by group."""

    # Whether the symmetry is proved; None for networks that need none, side by side or with units as they are.
    is_proved: bool | None
    trials: int | None  # random changes of every group in that proof
    deviation: float | None  # the largest relative difference of outputs that these made
    notes: tuple[str, ...]  # what the tracer could not look through, so that its units never move
    refit: str | None  # outcome of fitting layers anew; None where nobody asked for it
    repaired: str | None  # how statistics were repaired; None if they were not
    needs_repair: bool  # whether the network has statistics that averaging left wrong
    starts: tuple[float, ...]  # objective of every start
    group_facts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]  # facts of one value each, by group


@dataclass(frozen=True)
class NetworkContent:
    """Everything the report shows of a fusion of networks; parts that are not known are empty."""

    noun: ClassVar[str] = "network"
    parameter_note: ClassVar[str] = ""
    notes_heading: ClassVar[str] = "What never moves"
    notes_text: ClassVar[str] = "The tracer could not look through these, so the units they concern keep their numbers:"
    methods: ClassVar[tuple[type[NetworkMethod], ...]] = NETWORK_METHODS
    distance_definition: ClassVar[str] = (
        "The weighted mean squared distance of the models from their average, over all arrays that touch the group, as "
        "a share of their mean square"
    )

    method: str  # name of the method
    # `options`, `versions`: options of the method, and versions of libraries, by name.
    options: tuple[tuple[str, Any], ...]
    seed: int | None  # seed of the fusion; None where it was given a generator
    versions: tuple[tuple[str, str], ...]
    sites: tuple[InputNetworkSummary, ...]  # the networks that went in
    groups: tuple[GroupSummary, ...]  # groups of units that move together
    parameters: int  # number of entries of the fused network
    findings: Findings  # status, objective and details of the method
    network_findings: NetworkFindings  # proof, fitted layers, repair, starts and facts by group
    verdict: VerdictSummary | None = None  # the verdict on a choice among candidates; None where there was none
    # Distance from their average, as a share of the mean square, of models that have nothing in common.
    unrelated_distance: float | None = None
    side_by_side: bool = False  # whether the fused model is all models together
    is_from_file: bool = False  # whether this was read from files, which do not hold the matching
    layers: tuple[LayerSummary, ...] = ()  # distances of the models by layer
    couplings: tuple[Coupling, ...] = ()  # the matching of every group of every model
    # `barriers`, `planes`, `scores`: by name, what was given with the fusion.
    barriers: Mapping[str, Barrier] = field(default_factory=dict)
    planes: Mapping[str, Plane] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def single_site(self) -> str | None:
        """The site whose own network this is, where nothing was fused; None where networks were."""
        return None if self.verdict is None else self.verdict.stated.single_site

    @property
    def summary(self) -> str:
        """The method in a line; empty for one this library does not have."""
        return next((method.summary for method in self.methods if method.name == self.method), "")

    @property
    def units(self) -> int:
        """Units of the fused network that can move, each counted once."""
        return sum(group.fused for group in self.groups if group.parent is None)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all scores, in the order in which they come."""
        return tuple(dict.fromkeys(name for model_scores in self.scores.values() for name in model_scores))

    def digits(self, metric: str) -> int:
        """Return how many digits after the point a score is shown with, so that its column lines up."""
        magnitudes = (
            abs(model_scores[metric])
            for model_scores in self.scores.values()
            if metric in model_scores and math.isfinite(model_scores[metric])
        )
        largest = max(magnitudes, default=0.0)
        return 6 if largest < 0.01 else 4 if largest < 10 else 2

    @property
    def beside(self) -> str:
        """The last line's text on the numbers that the page shows in addition to parameters."""
        return " and the numbers given with them" if self.scores or self.barriers or self.planes else ""


_Count = Annotated[int, Field(ge=0, lt=10**15)]
"""A whole number far beyond any network, and far below what a page could not print. Chosen by hand."""


class FisherRecord(BaseModel):
    """The Fisher information that a network came with; what its file does not say is None."""

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
    fisher: FisherRecord | None = None


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


def provenance_of(label: str, record: Mapping[str, Any]) -> _Provenance:
    """Return a provenance, validated: it may come from somebody else.

    Raises FileFormatError for a record that no fusion wrote.
    """
    return validate_document(label, _Provenance, record, "provenance", "give a file that a fusion was saved to")


@dataclass(frozen=True, eq=False)
class ShownNetworks:
    """Fused networks as their page takes them, from a fusion or from files alike."""

    label: str  # name of the fused network in messages
    arrays: Mapping[str, AnyArray]  # its arrays
    symmetry: Symmetry | None  # which of their axes move together; None for a plain checkpoint
    record: Mapping[str, Any]  # its provenance with the verdict, any JSON object
    # The network of every input of the record, in its order; None where it is not known.
    sites: Sequence[Network | NetworkFile | None]
    needs_repair: bool  # whether it has statistics that averaging left wrong
    keeps_models: bool = False  # whether the fused model is all networks together
    # The fusion, whose matching no file holds. Default: None, as in files, or where nothing was matched.
    matched: NetworkFusion | None = None
    is_from_file: bool = False  # whether it was read from files

    @property
    def fused_networks(self) -> tuple[list[Network], Array]:
        """The networks that were matched, in the order of the fusion, and their weights of sum 1."""
        inputs = () if self.matched is None else self.matched.inputs
        return [one.network for one in inputs], np.array([float(one.weight) for one in inputs])


def content_of(
    shown: ShownNetworks,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> NetworkContent:
    """Return the content of the page of fused networks.

    Barriers, planes and scores are shown by name. Raises FileFormatError for a record that no fusion wrote.
    """
    provenance = provenance_of(shown.label, shown.record)
    places = sorted(
        range(len(provenance.inputs)),
        key=lambda place: (natural_key(provenance.inputs[place].name), str(provenance.inputs[place].sha256)),
    )
    inputs, sites = [provenance.inputs[place] for place in places], [shown.sites[place] for place in places]
    # Inputs stand in the natural order of their names, whatever that of the record.
    names, weights = short_names([record.name for record in inputs]), [record.weight for record in inputs]
    findings, network_findings = findings_of_networks(
        provenance.result, shown.symmetry, shown.needs_repair, shown.keeps_models
    )
    groups, layers = _groups_and_layers(shown, inputs, sites, weights)
    couplings: tuple[Coupling, ...] = ()
    if shown.matched is not None:
        couplings = couplings_of(shown.matched.matching, short_names([one.name for one in shown.matched.inputs]))
    return NetworkContent(
        method=provenance.method,
        options=tuple(sorted(provenance.options.items())),
        seed=provenance.seed,
        versions=tuple(sorted(provenance.versions.items())),
        sites=tuple(
            _summary(record, name, network, shown.symmetry)
            for record, name, network in zip(inputs, names, sites, strict=True)
        ),
        groups=groups,
        parameters=total_size(_own_arrays(shown)),
        findings=findings,
        network_findings=network_findings,
        verdict=verdict_of(provenance.verdict),
        unrelated_distance=unrelated_distance_of(weights),
        side_by_side=shown.keeps_models,
        is_from_file=shown.is_from_file,
        layers=layers,
        couplings=couplings,
        barriers=barriers or {},
        planes=planes or {},
        scores=scores or {},
    )


def _summary(
    record: _InputRecord, name: str, network: Network | NetworkFile | None, symmetry: Symmetry | None
) -> InputNetworkSummary:
    groups = {} if symmetry is None else symmetry.by_name
    # Units that can move; those inside the units of another group are not counted again.
    n_units = sum(n for group, n in record.units.items() if group not in groups or groups[group].parent is None)
    n_parameters = None if network is None else total_size(network.arrays)
    return InputNetworkSummary(name, record.name, n_units, n_parameters, record.weight, record.sha256, record.fisher)


def _groups_and_layers(
    shown: ShownNetworks,
    inputs: Sequence[_InputRecord],
    sites: Sequence[Network | NetworkFile | None],
    weights: Sequence[float],
) -> tuple[tuple[GroupSummary, ...], tuple[LayerSummary, ...]]:
    """Return the groups of units and the layers with their distances, as far as these are known."""
    matched, symmetry = shown.matched, shown.symmetry
    found: dict[str, tuple[int, int | None, float | None, float | None]]  # fused, shared, after, before
    if matched is not None:
        layers = layers_of(*shown.fused_networks, matched.transports)
        found = {name: (one.units, one.shared, one.distance, one.before) for name, one in matched.quality.items()}
    elif shown.keeps_models:
        return (), ()
    else:
        distances, layers = _distances_unmoved(sites, weights)
        units = {} if symmetry is None else Network(_own_arrays(shown), symmetry, shown.label).units
        found = {name: (n_fused, None, None, distances.get(name)) for name, n_fused in units.items()}
    groups = {} if symmetry is None else symmetry.by_name
    return (
        tuple(
            GroupSummary(
                name, tuple(record.units[name] for record in inputs if name in record.units), *numbers,
                groups[name].parent,
            )
            for name, numbers in found.items()
        ),
        layers,
    )  # fmt: skip


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


def _own_arrays(shown: ShownNetworks) -> dict[str, AnyArray]:
    """Return the arrays without other names of tied weights."""
    arrays, aliases = shown.arrays, {} if shown.symmetry is None else shown.symmetry.aliases
    return {key: values for key, values in arrays.items() if key not in aliases or aliases[key] not in arrays}


def findings_of_networks(
    result: Mapping[str, Json], symmetry: Symmetry | None, needs_repair: bool, side_by_side: bool
) -> tuple[Findings, NetworkFindings]:
    """Return the findings of a method, from the ``result`` of a provenance, which may come from somebody else's file.

    Whether the symmetry is proved is not taken from what the result says, but from the proof itself.
    """
    proof = None if symmetry is None or not symmetry.proved else symmetry.proof
    refit, repaired = (result.get(name) for name in ("refit", "repaired"))
    network_findings = NetworkFindings(
        is_proved=None if side_by_side or (symmetry is not None and not symmetry.all_groups) else proof is not None,
        trials=None if proof is None else proof.trials,
        deviation=None if proof is None else proof.deviation,
        notes=() if symmetry is None else symmetry.notes,
        refit=refit if isinstance(refit, str) else None,
        repaired=repaired if isinstance(repaired, str) else None,
        needs_repair=needs_repair and not side_by_side,
        starts=findings_of({"history": result.get("starts")}).history,
        group_facts=_scalar_facts(result.get("groups")),
    )
    return findings_of(
        {name: value for name, value in result.items() if name not in _RESULT_SHOWN_APART}
    ), network_findings


def _scalar_facts(values: object) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
    """Return the single facts of every group, or nothing where anything else is among them."""
    if not isinstance(values, Mapping) or not all(isinstance(facts, Mapping) for facts in values.values()):
        return ()
    group_facts = []
    for group, facts in values.items():
        scalars = [(str(name), value) for name, value in facts.items() if isinstance(value, str | int | float | None)]
        group_facts.append((str(group), tuple(scalars)))
    return tuple(group_facts) if any(facts for _, facts in group_facts) else ()


def unrelated_distance_of(weights: Sequence[float]) -> float | None:
    """Return 1 - sum_j a_j^2 for weights a_j, scaled to sum 1; None for weights that no fusion has.

    Models theta_j of independent entries of mean zero and one variance s^2 have the average theta = sum_j a_j theta_j,
    so E sum_j a_j |theta_j - theta|^2 / E sum_j a_j |theta_j|^2 = 1 - sum_j a_j^2.
    """
    total = sum(weights)
    return 1.0 - sum((weight / total) ** 2 for weight in weights) if total > 0 and min(weights) >= 0 else None
