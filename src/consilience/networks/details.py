"""Details of fusions of networks, reported with the fused network as records of JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from consilience.core.details import Details, RobustDetails

_Strength = TypedDict("_Strength", {"lambda": float}, total=False)


class GroupDetails(_Strength, total=False):
    """How the units of one group were matched."""

    iterations: int  # of a barycenter
    steps: list[int]  # of each model's last descent
    annealed: list[float]  # costs while the temperature fell
    signs: bool  # whether units could change sign
    # `alpha`, `alpha_as_printed`, `alpha_as_published_code`: weight of recurrent weights beside inputs in fusion by
    # Gromov-Wasserstein: relative to both means, and in the conventions of equation (10) and of the published code.
    alpha: float | None
    alpha_as_printed: float
    alpha_as_published_code: float
    units: int  # of FedMA: global units
    settled: bool  # of FedMA: whether sweeps came to an end
    log_posterior: float  # of FedMA: of the matching
    # Of KL fusion of Bayesian networks, beside the price of a unit, `lambda`.
    spread: float  # standard deviation of divergences
    shared: list[int]  # how many units so many sites have


class Distances(TypedDict):
    """Divergences from the reference by parameter, ``before`` and ``after`` alignment."""

    before: dict[str, float]
    after: dict[str, float]


class Distillation(TypedDict):
    """How training on the sites' ensemble went: steps, the best one, what ended it, and the loss on held-out inputs."""

    steps: int
    best_step: int
    stopped_by: str
    held_out_loss: list[float]


class NetworkDetails(Details, total=False):
    """What a fusion of networks reports.

    Parameters
    ----------
    proved
        Whether the symmetry was proved.
    notes
        What should be known, a sentence each.
    robust
        The networks that ``robust=True`` left out.
    groups
        How units were matched, by group.
    starts
        Objective at the end of every descent of weight matching.
    not_matched_by
        Recurrent arrays that had no part in the matching.
    refit
        Which layers were fitted, or why none.
    classes, one_output, estimated_classes, left_out
        Of the default: the classes; what a single output is; widths of a network that does better; classes of each
        site as they were estimated; candidates that were left out and why.
    distillation
        How training on the sites' ensemble went.
    aligned, structure, prior, shrinkage, ridge, residual, masked, window, learning_rate, damping
        Of merging by Fisher information: whether units were aligned first, the options as they were resolved, and how
        the solution was found.
    layers
        Of merging by Kronecker factors: the layers that have them.
    metric, distance_before, distance_after, distances
        Of the alignment of posteriors: divergences from the reference.
    verdict
        Of the damping that was chosen: the verdict as a record.
    """

    proved: bool
    notes: list[str]
    robust: RobustDetails
    groups: dict[str, GroupDetails]
    starts: list[float]
    not_matched_by: list[str]
    refit: str
    classes: list[Any]
    one_output: Literal["logits", "probabilities"]
    estimated_classes: Mapping[str, Sequence[float]]
    left_out: list[str]
    distillation: Distillation
    aligned: bool
    structure: str
    prior: str
    shrinkage: float
    ridge: float
    residual: float
    masked: int
    window: int | None
    learning_rate: float
    damping: float
    layers: list[str]
    metric: str
    distance_before: float
    distance_after: float
    distances: Distances
    verdict: dict[str, Any]


def left_out_of(details: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the networks that ``robust=True`` left out."""
    records = details["robust"]["left_out"] if "robust" in details else []
    return frozenset(record["model"] for record in records)
