"""The verdict on a method that the caller named: its network against every site's own on synthetic inputs.

Nothing is chosen, and no byte of the network depends on it. Without moments by class, or counts of tokens by class, at
every site no error is known, and the fusion keeps the verdict that it has.
"""

from __future__ import annotations

import time
from dataclasses import replace

from consilience.core.details import Status
from consilience.core.progress import silent
from consilience.errors import InputError, UnsupportedError
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.excess_errors import N_OF_SITE
from consilience.networks.choice.verdict import verdict_of
from consilience.networks.choice.workshop import Workshop
from consilience.networks.fusion import NetworkFusion
from consilience.networks.methods.auto import Auto


def with_verdict(fusion: NetworkFusion, workshop: Workshop) -> NetworkFusion:
    """Return a fusion with its verdict by errors on labelled synthetic inputs, where every site describes its classes.

    A fusion with averaged statistics of batch normalisation is still to be repaired, and is not judged; nor is a
    robust method of one's own choice, which trusts no description.
    """
    method, described = workshop.method, workshop.sites.described
    if workshop.models.template is None or described is None or method.is_robust or fusion.has_averaged_statistics:
        return fusion
    if not all(of_site.class_moments or of_site.class_tokens for of_site in described):
        return fusion
    from consilience.networks.choice.compare import CandidateComparison  # here, since it needs torch
    from consilience.networks.choice.inputs import choice_inputs

    workshop = replace(workshop, information=None, method=Auto(), progress=silent)
    draw_rng, compare_rng = workshop.rng.spawn(2)
    try:
        inputs = choice_inputs(workshop.ordered, workshop.modules, None, None, N_OF_SITE, draw_rng, silent)
        if inputs is None or inputs.held.labels is None:
            return fusion
        candidates = [
            Candidate(f"site:{name}", Effort.SITE, module, fusion, sites=(number,))
            for number, (name, module) in enumerate(zip(workshop.ordered.names, workshop.modules, strict=True))
        ]
        candidates.append(Candidate(method.name, Effort.MATCHED, fusion.model, fusion))
        comparison = CandidateComparison(workshop, inputs, compare_rng, time.monotonic())
        choice = replace(comparison.compare(candidates, lambda _: len(candidates) - 1), is_named=True)
    except (InputError, UnsupportedError):  # networks that do not answer one row for each input, say
        return fusion
    verdict = verdict_of(choice, workshop.ordered)
    if fusion.status is not Status.CONVERGED:
        ending = fusion.status.value.partition("; ")[0]
        remedies = "; ".join(filter(None, [verdict.remedy, fusion.status.remedy]))
        verdict = replace(verdict, text=f"{verdict.text} {ending[0].upper()}{ending[1:]}.", remedy=remedies or None)
    return replace(fusion, judgement=verdict)
