"""Everything the report shows of a fusion of networks, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from consilience.networks.method import NetworkMethod
from consilience.networks.methods import NETWORK_METHODS
from consilience.networks.report.couplings import Coupling
from consilience.networks.report.layers import LayerSummary
from consilience.networks.report.quality import GroupSummary
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.posteriors.report.details import Findings, findings_of

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

_RESULT_SHOWN_APART = ("units", "notes", "proved", "refit", "repaired", "starts", "groups", "distances")
_MAX_HISTORY_STEPS = 2_000  # steps of a history that a figure can show


@dataclass(frozen=True)
class FisherSummary:
    """What is known of a network's parameters: Fisher information.

    Parameters
    ----------
    kind, rank
        "diagonal" or "factors", and how many.
    observations
        How many it stands for; None where nobody said.
    prior_precision
        Of the prior; None where nobody said.
    """

    kind: str
    rank: int
    observations: float | None = None
    prior_precision: float | None = None


@dataclass(frozen=True)
class NetworkSummary:
    """One of the networks that went in.

    Parameters
    ----------
    name, full_name
        What it is called here, and in full.
    units
        All its units that can move.
    parameters
        Number of its entries; None where its arrays are not known.
    weight
        How much it counted.
    sha256
        Digest of its file, if it was one.
    known
        The Fisher information that it came with, if the method weighed by it.
    """

    name: str
    full_name: str
    units: int
    parameters: int | None
    weight: float
    sha256: str | None
    fisher: FisherSummary | None = None


@dataclass(frozen=True)
class NetworkFindings:
    """What a fusion says of itself beside its numbers.

    Parameters
    ----------
    proved
        Whether the symmetry is proved; None for networks that need none, side by side or with units as they are.
    trials, deviation
        Random changes of every group in that proof, and the largest relative difference of outputs they made.
    notes
        What the tracer could not look through, so that its units never move.
    refit
        What became of fitting layers anew; None where that was no question.
    repaired
        How statistics were repaired; None if they were not.
    needs_repair
        Whether the network has statistics that averaging left wrong.
    starts
        Objective of every start.
    by_group
        Single facts by group: (group, ((name, value), ...)).
    """

    is_proved: bool | None
    trials: int | None
    deviation: float | None
    notes: tuple[str, ...]
    refit: str | None
    repaired: str | None
    needs_repair: bool
    starts: tuple[float, ...]
    group_facts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]

    @property
    def refit_refused(self) -> bool:
        """Whether layers were to be fitted anew, but were not."""
        return self.refit is not None and self.refit.startswith("not done")

    @property
    def fact_names(self) -> tuple[str, ...]:
        """Names of all facts by group."""
        return tuple(dict.fromkeys(name for _, facts in self.group_facts for name, _ in facts))


@dataclass(frozen=True)
class NetworkContent:
    """Everything the report shows; parts that nothing is known of are empty.

    Parameters
    ----------
    parameters
        Number of entries of the fused network.
    side_by_side
        Whether the fused model is all models together.
    apart
        Distance from their average, as a share of the mean square, of models that have nothing in common.
    from_file
        Whether this was read from files, which do not hold who is who.
    """

    noun: ClassVar[str] = "network"
    parameter_note: ClassVar[str] = ""
    methods: ClassVar[tuple[type[NetworkMethod], ...]] = NETWORK_METHODS
    distance_definition: ClassVar[str] = (
        "The weighted mean squared distance of the models from their average, over all arrays that touch the group, as "
        "a share of their mean square"
    )

    method: str
    options: tuple[tuple[str, Any], ...]
    seed: int | None
    versions: tuple[tuple[str, str], ...]
    sites: tuple[NetworkSummary, ...]
    groups: tuple[GroupSummary, ...]
    parameters: int
    findings: Findings
    network_findings: NetworkFindings
    unrelated_distance: float | None = None
    side_by_side: bool = False
    is_from_file: bool = False
    layers: tuple[LayerSummary, ...] = ()
    couplings: tuple[Coupling, ...] = ()
    barriers: Mapping[str, Barrier] = field(default_factory=dict)
    planes: Mapping[str, Plane] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

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
    def has_distances(self) -> bool:
        """Whether the distance of the models is known in any group."""
        return any(group.after is not None or group.before is not None for group in self.groups)

    @property
    def shown_history(self) -> tuple[float, ...]:
        """As much of the history as is drawn."""
        return self.findings.history[:_MAX_HISTORY_STEPS]


def findings_of_networks(
    result: Mapping[str, Any], symmetry: Symmetry | None, needs_repair: bool, side_by_side: bool
) -> tuple[Findings, NetworkFindings]:
    """Return what a method found, from the ``result`` of a provenance, which may come from a file of somebody else.

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
    """Return 1 - sum a_i^2 for weights that sum to 1; None for weights that no fusion has."""
    total = sum(weights)
    return 1.0 - sum((weight / total) ** 2 for weight in weights) if total > 0 and min(weights) >= 0 else None
