"""Candidates of a fusion of networks that sites choose among: the fused one, and the best others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from consilience.core.site_losses import SITE
from consilience.core.verdict import FUSED
from consilience.errors import InputError, UnsupportedError
from consilience.networks.fusion import NetworkFusion
from consilience.networks.repair_fusion import replace_module

MAX_CANDIDATES = 6
"""Fused networks that are sent to sites at most: the best by their score on synthetic inputs. Chosen by hand, for what
has to be sent."""


def candidate_names(fusion: NetworkFusion) -> list[tuple[str, bool]]:
    """Return the names of the candidates, at most `MAX_CANDIDATES`, each with whether it is the fused network itself.

    That comes first; where a site's own network was taken it is none. Raises UnsupportedError where there is none.
    """
    if fusion.keeps_models:
        text = "this fusion keeps all networks side by side"
        raise UnsupportedError("held_out", text, "fuse by a method that makes one")
    chosen = str(fusion.details.get("chosen", FUSED))
    scores = fusion.verdict.candidates
    others = [name for name in fusion.candidates if not name.startswith(SITE) and name != chosen]
    others.sort(key=lambda name: scores.get(name, math.inf))
    first = [] if chosen.startswith(SITE) else [(chosen, True)]
    names = [*first, *((name, False) for name in others[: MAX_CANDIDATES - len(first)])]
    if not names:
        raise UnsupportedError("held_out", "this fusion has no fused network that sites could be asked of")
    return names


def candidates_of(fusion: NetworkFusion) -> dict[str, Any]:
    """Return the candidates by name, as modules."""
    names = candidate_names(fusion)
    return {name: fusion.module_of(fusion.network) if is_own else fusion.candidates[name] for name, is_own in names}


def with_candidate(fusion: NetworkFusion, name: str) -> NetworkFusion:
    """Return the fusion with another network: a candidate of it, or with "site:" the own one of a site."""
    if name == str(fusion.details.get("chosen", FUSED)):
        return replace(fusion, judgement=None)
    if name.startswith(SITE):
        own = {local.name: local.as_sent for local in fusion.inputs}
        if (network := own.get(name.removeprefix(SITE))) is None:
            raise InputError(name, "is no network of this fusion", code="E-ROUND")
        taken = replace(
            fusion, network=network, objective=math.nan, repaired="not needed: it is a site's own", judgement=None
        )
    else:
        # What was done to the network that is replaced was not done to this one.
        before = replace(fusion, repaired=None)
        taken = replace_module(before, fusion.candidates[name], f"{name}, chosen at the sites")
    result = {**taken.provenance.get("result", {}), "chosen": name, "repaired": taken.repaired}
    provenance = {**taken.provenance, "result": result}
    return replace(taken, details={**taken.details, "chosen": name}, provenance=provenance, judgement=None)
