"""Content of the report of fused networks, as plain values: inputs, groups, layers, proof, barriers, planes, scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from consilience.checks import Json
from consilience.core.findings import Findings, VerdictSummary, findings_of
from consilience.networks.method import NetworkMethod
from consilience.networks.methods import NETWORK_METHODS
from consilience.networks.report.couplings import Coupling
from consilience.networks.report.layers import LayerSummary
from consilience.networks.report.quality import GroupSummary
from consilience.networks.symmetry.symmetry import Symmetry

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

_RESULT_SHOWN_APART = ("units", "notes", "proved", "refit", "repaired", "starts", "groups", "distances")
"""Keys of a result that the page shows in places of their own."""

_MAX_HISTORY_STEPS = 2_000
"""Steps of a history beyond these are not drawn. Bounds the size of the page; chosen by hand."""


@dataclass(frozen=True)
class InformationSummary:
    """The Fisher information that came with a network, in numbers.

    Parameters
    ----------
    kind : str
        "diagonal" or "factors".
    rank : int
        Number of factors; 0 for a diagonal.
    observations : float or None, optional
        How many it is summed over; None where the file does not say.
    prior_precision : float or None, optional
        Precision of the prior of training; None where the file does not say.
    """

    kind: str
    rank: int
    observations: float | None = None
    prior_precision: float | None = None


@dataclass(frozen=True)
class InputNetworkSummary:
    """One of the networks that went in, in numbers.

    Parameters
    ----------
    name, full_name : str
        What it is called here, and in full.
    units : int
        Number of its units that can move.
    parameters : int or None
        Number of its entries; None where its arrays are not known.
    weight : float
        Its weight in the average.
    sha256 : str or None
        Digest of its file, if it was one.
    fisher : InformationSummary or None, optional
        The Fisher information that it came with, if the method weighed by it.
    """

    name: str
    full_name: str
    units: int
    parameters: int | None
    weight: float
    sha256: str | None
    fisher: InformationSummary | None = None


@dataclass(frozen=True)
class NetworkFindings:
    """Findings of a fusion of networks: proof of the symmetry, fitted layers, repair, starts, facts by group.

    Parameters
    ----------
    is_proved : bool or None
        Whether the symmetry is proved; None for networks that need none, side by side or with units as they are.
    trials : int or None
        Random changes of every group in that proof.
    deviation : float or None
        The largest relative difference of outputs that these made.
    notes : tuple of str
        What the tracer could not look through, so that its units never move.
    refit : str or None
        Outcome of fitting layers anew; None where nobody asked for it.
    repaired : str or None
        How statistics were repaired; None if they were not.
    needs_repair : bool
        Whether the network has statistics that averaging left wrong.
    starts : tuple of float
        Objective of every start.
    group_facts : tuple of (group, ((name, value), ...))
        Facts of one value each, by group.
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
    """Everything the report shows of a fusion of networks; parts that are not known are empty.

    Parameters
    ----------
    method : str
        Name of the method.
    options, versions : tuple of (name, value)
        Options of the method, and versions of libraries, by name.
    seed : int or None
        Seed of the fusion; None where it was given a generator.
    sites : tuple of InputNetworkSummary
        The networks that went in.
    groups : tuple of GroupSummary
        Groups of units that move together.
    parameters : int
        Number of entries of the fused network.
    findings : Findings
        Status, objective and details of the method.
    network_findings : NetworkFindings
        Proof, fitted layers, repair, starts and facts by group.
    verdict : VerdictSummary or None, optional
        The verdict on a choice among candidates; None where there was none.
    unrelated_distance : float or None, optional
        Distance from their average, as a share of the mean square, of models that have nothing in common.
    side_by_side : bool, optional
        Whether the fused model is all models together.
    is_from_file : bool, optional
        Whether this was read from files, which do not hold the matching.
    layers : tuple of LayerSummary, optional
        Distances of the models by layer.
    couplings : tuple of Coupling, optional
        The matching of every group of every model.
    barriers, planes, scores : mapping, optional
        By name, what was given with the fusion.
    """

    noun: ClassVar[str] = "network"
    parameter_note: ClassVar[str] = ""
    notes_heading: ClassVar[str] = "What never moves"
    notes_text: ClassVar[str] = "The tracer could not look through these, so the units they concern keep their numbers:"
    methods: ClassVar[tuple[type[NetworkMethod], ...]] = NETWORK_METHODS
    distance_definition: ClassVar[str] = (
        "The weighted mean squared distance of the models from their average, over all arrays that touch the group, as "
        "a share of their mean square"
    )

    method: str
    options: tuple[tuple[str, Any], ...]
    seed: int | None
    versions: tuple[tuple[str, str], ...]
    sites: tuple[InputNetworkSummary, ...]
    groups: tuple[GroupSummary, ...]
    parameters: int
    findings: Findings
    network_findings: NetworkFindings
    verdict: VerdictSummary | None = None
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
    def beside(self) -> str:
        """The last line's text on the numbers that the page shows in addition to parameters."""
        return " and the numbers given with them" if self.scores or self.barriers or self.planes else ""

    @property
    def has_distances(self) -> bool:
        """Whether the distance of the models is known in any group."""
        return any(group.after is not None or group.before is not None for group in self.groups)

    @property
    def shown_history(self) -> tuple[float, ...]:
        """The first steps of the history, as many as are drawn."""
        return self.findings.history[:_MAX_HISTORY_STEPS]


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
