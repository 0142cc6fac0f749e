"""Content of the report of fused Bayesian networks, as plain values.

A Bayesian network of L weights with means m and variances v is a network of 2 L parameters (m, sqrt(v)), on which the
squared Wasserstein-2 distance of diagonal Gaussians is the Euclidean one:

    W_2^2( N(m, v), N(m', v') ) = |m - m'|^2 + |sqrt(v) - sqrt(v')|^2.

So the tables of `networks.report` serve, their parameters counted once for each mean and deviation together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.findings import numbers_by_name
from consilience.networks.gaussian.gaussian_arrays import is_deviation
from consilience.networks.gaussian.methods import BAYESIAN_METHODS
from consilience.networks.gaussian.predictive import PredictiveScores
from consilience.networks.method import NetworkMethod
from consilience.networks.network import Network
from consilience.networks.report.content import NetworkContent, ShownNetworks
from consilience.networks.report.quality import LayerSummary, layers_of
from consilience.networks.symmetry.transport import Transport

MAX_SHARE_COLUMNS = 10
"""Columns of a table of how many sites have a unit; those of more sites are in the last. Chosen by eye."""

_METRIC_NAMES = {
    "w2": "squared Wasserstein-2 distance",
    "means": "squared distance of means",
    "kl": "KL divergence from the reference, nats",
    "kl_reverse": "KL divergence of the reference, nats",
    "hellinger": "minus the logarithm of the affinity, nats",
}


@dataclass(frozen=True)
class UnitSharing:
    """Numbers of fused units of a group by how many of the sites have them."""

    group: str  # name of the group
    units: int  # number of its fused units
    by_sites: tuple[int, ...]  # (J,), numbers of fused units that 1, 2, ..., J of the sites have

    @property
    def by_all(self) -> bool:
        """Whether every site has every fused unit."""
        return self.units == self.by_sites[-1]

    @property
    def columns(self) -> tuple[int, ...]:
        """The same with those of many sites taken together."""
        if len(self.by_sites) <= MAX_SHARE_COLUMNS:
            return self.by_sites
        return (*self.by_sites[: MAX_SHARE_COLUMNS - 1], sum(self.by_sites[MAX_SHARE_COLUMNS - 1 :]))


@dataclass(frozen=True)
class ReferenceDistances:
    """Distances of the posteriors from the reference's."""

    metric: str  # what is measured, in words
    # (name, float, float): Distance in every parameter, before and after alignment.
    rows: tuple[tuple[str, float, float], ...]

    @property
    def totals(self) -> tuple[float, float]:
        """The sums over all parameters."""
        return sum(row[1] for row in self.rows), sum(row[2] for row in self.rows)


@dataclass(frozen=True)
class BayesianContent(NetworkContent):
    """Everything the report shows of a fusion of Bayesian networks, in addition to what `NetworkContent` has."""

    noun: ClassVar[str] = "Bayesian network"
    parameter_note: ClassVar[str] = ", each with a mean and a variance"
    methods: ClassVar[tuple[type[NetworkMethod], ...]] = BAYESIAN_METHODS
    notes_heading: ClassVar[str] = "Notes on what moves"
    notes_text: ClassVar[str] = ""
    distance_definition: ClassVar[str] = (
        "The weighted squared Wasserstein-2 distance of the posteriors from their barycenter, over means and standard "
        "deviations of all arrays that touch the group, as a share of their mean square"
    )

    sharing: tuple[UnitSharing, ...] = ()  # by group, how many sites have a unit
    gaussian_layers: tuple[tuple[LayerSummary, LayerSummary], ...] = ()  # of means, and of deviations
    # Distances before and after alignment, where the method aligns posteriors.
    distances: ReferenceDistances | None = None
    # Scores of predictive probabilities by model.
    predictions: Mapping[str, PredictiveScores] = field(default_factory=dict)

    @property
    def all_shared(self) -> bool:
        """Whether every site has every fused unit."""
        return all(sharing.by_all for sharing in self.sharing)

    @property
    def beside(self) -> str:
        """The last line's text on the numbers that the page shows in addition to parameters."""
        return super().beside or (" and the numbers given with them" if self.predictions else "")

    @property
    def inputs(self) -> int | None:
        """Number of inputs that the predictions are of; None where these differ."""
        return _common_count({scores.observations for scores in self.predictions.values()})

    @property
    def inputs_outside(self) -> int | None:
        """The same of inputs from outside the training distribution."""
        return _common_count(
            {scores.outside.observations for scores in self.predictions.values() if scores.outside is not None}
        )

    @property
    def outside(self) -> dict[str, PredictiveScores]:
        """Scores of the models that have predictions of inputs from outside the training distribution."""
        return {name: scores for name, scores in self.predictions.items() if scores.outside is not None}


def _common_count(counts: set[int]) -> int | None:
    return counts.pop() if len(counts) == 1 else None


def bayesian_content(content: NetworkContent, shown: ShownNetworks, **added_parts: Any) -> BayesianContent:
    """Return the content of a page about Bayesian networks, from that about their Gaussian networks.

    In `content` every weight is two parameters; `shown` is what it was made of, `added_parts` are further fields of
    `BayesianContent`.
    """
    result: Mapping[str, Any] = shown.record["result"]
    matched = shown.matched
    layers: tuple[tuple[LayerSummary, LayerSummary], ...] = ()
    if matched is None:
        units = {group.name: group.fused for group in content.groups}
        sharing = () if shown.keeps_models else sharing_of_result(result, units, len(content.sites))
    else:
        sharing = sharing_of(matched.transports)
        if all(group.by_all for group in sharing):
            layers = gaussian_layers_of(*shown.fused_networks, matched.transports)
    parts = {group.name: getattr(content, group.name) for group in fields(content)}
    by_name = {group.group: group for group in sharing}
    parts["groups"] = tuple(
        # A unit that a site lacks is no unit of mean and deviation zero, so distances would say nothing.
        replace(group, before=None, after=None) if group.name in by_name and not by_name[group.name].by_all else group
        for group in content.groups
    )
    parts["parameters"] = content.parameters // 2  # a mean and a deviation for every weight, and nothing else
    parts["sites"] = tuple(
        replace(group, parameters=None if group.parameters is None else group.parameters // 2)
        for group in content.sites
    )
    added_parts |= {"sharing": sharing, "gaussian_layers": layers, "distances": distances_of(result)}
    return BayesianContent(**{**parts, "layers": (), **added_parts})


def distances_of(result: Mapping[str, Any]) -> ReferenceDistances | None:
    """Return the distances that a method found, or None where it found none of the expected form."""
    distances = result.get("distances")
    if not isinstance(distances, Mapping):
        return None
    before, after = (dict(numbers_by_name(distances.get(when))) for when in ("before", "after"))
    if not before or set(before) != set(after):
        return None
    metric = str(result.get("metric"))
    order = [str(name) for name in distances["before"]]
    return ReferenceDistances(
        _METRIC_NAMES.get(metric, metric), tuple((name, before[name], after[name]) for name in order)
    )


def sharing_of(transports: Sequence[Mapping[str, Transport]]) -> tuple[UnitSharing, ...]:
    """Return how many sites have the units of every group, from the transports (J,) of the models."""
    sharing = []
    for group, first_transport in transports[0].items():
        n_owners = np.sum([np.asarray(transport[group].owned) > 0 for transport in transports], axis=0)
        counts = np.bincount(n_owners, minlength=len(transports) + 1)[1:].tolist()
        sharing.append(UnitSharing(group, first_transport.width, tuple(counts)))
    return tuple(sharing)


def sharing_of_result(result: Mapping[str, Any], units: Mapping[str, int], sites: int) -> tuple[UnitSharing, ...]:
    """Return how many sites have the units of every group as a provenance has it, where that adds up to `units`."""
    groups = result.get("groups")
    sharing = []
    for group, facts in groups.items() if isinstance(groups, Mapping) else ():
        counts = facts.get("shared") if isinstance(facts, Mapping) else None
        are_counts = isinstance(counts, list) and all(isinstance(count, int) and count >= 0 for count in counts)
        if counts is not None and are_counts and len(counts) == sites and sum(counts) == units.get(group):
            sharing.append(UnitSharing(str(group), sum(counts), tuple(counts)))
    return tuple(sharing)


def gaussian_layers_of(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> tuple[tuple[LayerSummary, LayerSummary], ...]:
    """Return how far apart means, and deviations, of every layer are."""
    means, deviations = (
        layers_of([_means_or_deviations(network, is_deviations) for network in networks], weights, transports)
        for is_deviations in (False, True)
    )
    return tuple(zip(means, deviations, strict=True))


def _means_or_deviations(network: Network, deviations: bool) -> Network:
    """Return a Gaussian network's means alone, or its deviations alone."""
    symmetry = network.symmetry
    layouts = {name: layout for name, layout in symmetry.layouts.items() if is_deviation(name) == deviations}
    aliases = {alias: name for alias, name in symmetry.aliases.items() if name in layouts}
    arrays = {name: network.arrays[name] for name in layouts}
    return Network(arrays, replace(symmetry, layouts=layouts, aliases=aliases, proof=None), network.name)
