"""The damping of a merge by Kronecker factors, chosen on what sites describe: no damping is best everywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import cast

import numpy as np

from consilience.core.progress import Progress, silent
from consilience.core.verdict import Verdict
from consilience.errors import InputError, UnsupportedError, reason_of
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.verdict import DESCRIBE, verdict_of
from consilience.networks.choice.workshop import Workshop
from consilience.networks.descriptions.description import Description
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fuse_aligned import fuse_aligned
from consilience.networks.fusion import NetworkFusion
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.auto import Auto
from consilience.networks.methods.fisher.kronecker import DAMPINGS, DEFAULT_DAMPING, KFAC
from consilience.networks.symmetry.transport import Transport


def described_information(descriptions: Sequence[Description | None]) -> tuple[FisherInformation, ...] | None:
    """Return the Kronecker factors that all sites describe; None where one describes none."""
    information = tuple(
        FisherInformation(
            {},
            layers=description.layers,
            observations=description.n_observations,
            likelihood=description.layer_likelihood,
            name=description.name,
        )
        for description in descriptions
        if description is not None and description.layers
    )
    return information if len(information) == len(descriptions) else None


@dataclass(frozen=True)
class _MatchedOnce(KFAC):
    """K-FAC merging whose copies of other dampings find the units matched by the first of them."""

    _found: list[tuple[tuple[Mapping[str, Transport], ...], NetworkDetails]] = field(default_factory=list, kw_only=True)

    def _align_units(
        self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress
    ) -> tuple[tuple[Mapping[str, Transport], ...], NetworkDetails]:
        if not self._found:
            self._found.append(super()._align_units(ensemble, rng, progress))
        return self._found[0]


def fuse_with_chosen_damping(workshop: Workshop) -> NetworkFusion:
    """Return the merge of networks at the damping that is best on what the sites describe; see ``KFAC.damping``."""
    models, sites, rng = workshop.models, workshop.sites, workshop.rng
    method = cast(KFAC, workshop.method)
    options = {option.name: getattr(method, option.name) for option in fields(method)}
    matched_once = _MatchedOnce(**options)

    def merged(damping: float) -> NetworkFusion:
        fusion, _ = fuse_aligned(
            models, replace(matched_once, damping=damping), sites.weights, workshop.arguments, rng, workshop.progress,
            workshop.information,
        )  # fmt: skip
        return fusion

    # First, so that units are matched by the streams that they have when a damping is given by name; what is drawn
    # below has others.
    by_default = merged(DEFAULT_DAMPING)
    workshop_rng, input_rng, candidate_rng = rng.spawn(3)

    if models.template is None:
        return _not_compared(by_default, "The networks came without a module")
    from consilience.networks.choice.compare import CandidateComparison  # here, since it needs torch

    workshop = replace(workshop, method=Auto(), rng=workshop_rng, progress=silent)
    try:
        inputs = workshop.choice_inputs(Auto().n_inputs, input_rng)
        if inputs is None:
            return _not_compared(by_default, "Not every site described its inputs")
        candidates = []
        for damping in DAMPINGS:
            fusion = by_default if damping == DEFAULT_DAMPING else merged(damping)
            candidates.append(Candidate(f"kfac({damping:g})", Effort.KRONECKER, fusion.model, fusion))
        choice = CandidateComparison(workshop, inputs, candidate_rng, time.monotonic()).compare(candidates)
    except (InputError, UnsupportedError) as error:
        return _not_compared(by_default, f"Dampings cannot be compared ({reason_of(error)})")
    return _judged(choice.taken.base, verdict_of(choice, workshop.ordered), DAMPINGS[choice.chosen])


def _not_compared(fusion: NetworkFusion, reason: str) -> NetworkFusion:
    """Return the merge at the default damping, with a verdict on why no others were compared with it."""
    taken = f"{DEFAULT_DAMPING:g}, the best fixed one over 26 federated settings"
    unknown = "Whether it is no worse than the best site is not known."
    text = f"{reason}, so dampings were not compared; taken: {taken}. {unknown}"
    verdict = Verdict(code="no_inputs", text=text, remedy=DESCRIBE)
    return _judged(fusion, verdict, DEFAULT_DAMPING)


def _judged(fusion: NetworkFusion, verdict: Verdict, damping: float) -> NetworkFusion:
    """Return a merge with the verdict on its damping."""
    details: NetworkDetails = {**fusion.details, "damping": damping, "verdict": verdict.to_json()}
    return replace(fusion, details=details, judgement=verdict)
