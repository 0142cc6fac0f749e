"""Candidates of a fusion of networks that sites choose among: the fused one, and the best others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from consilience.core.verdict import FUSED
from consilience.errors import InputError, UnsupportedError
from consilience.networks.fusion import NetworkFusion
from consilience.networks.repair_fusion import replace_module

MAX_CANDIDATES = 6
"""Fused networks that are sent to sites at most: the best by their score on synthetic inputs. Chosen by hand, for what
has to be sent."""
SITE = "site:"
"""What names of candidates begin with that are the own networks of sites."""


def candidates_of(fusion: NetworkFusion) -> dict[str, Any]:
    """Return fused networks by name as modules, the one of the fusion first, at most `MAX_CANDIDATES`."""
    if fusion.keeps_models:
        raise UnsupportedError(
            "held_out", "this fusion keeps all networks side by side", "fuse by a method that makes one"
        )
    chosen = str(fusion.details.get("chosen", FUSED))
    scores = fusion.verdict.candidates
    others = [name for name in fusion.candidates if not name.startswith(SITE) and name != chosen]
    others.sort(key=lambda name: scores.get(name, math.inf))
    is_fused = not chosen.startswith(SITE)
    names = others[: MAX_CANDIDATES - is_fused]
    if not is_fused and not names:
        raise UnsupportedError("this fusion has no fused network that sites could be asked of")
    first = {chosen: fusion.module_of(fusion.network)} if is_fused else {}
    return first | {name: fusion.candidates[name] for name in names}


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
        taken = replace(replace_module(fusion, fusion.candidates[name], f"{name}, chosen at the sites"), judgement=None)
    return replace(taken, details={**taken.details, "chosen": name})
