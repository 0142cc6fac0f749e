"""What the command says of a fusion of Bayesian networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.bayesian.fusion import BayesianFusion
from consilience.drawing.words import format_count, printable
from consilience.networks.summary import MAX_GROUPS, network_summary


def bayesian_summary(fusion: BayesianFusion) -> str:
    """Return what came of fusing Bayesian networks, with how many sites have the fused units."""

    def is_comparable(group: str) -> bool:
        """Return whether all sites have all units: the deviation of a unit that a site lacks is not zero."""
        return all(bool(moves[group].owned.all()) for moves in fusion.transports)

    return network_summary(fusion, "Bayesian networks", _sharing(fusion), is_comparable)


def _sharing(fusion: BayesianFusion) -> list[str]:
    """Return how many sites have the fused units, and how far posteriors came together."""
    found: Mapping[str, Any] = fusion.details
    lines = []
    for group, facts in list(found.get("groups", {}).items())[:MAX_GROUPS]:
        counts = [f"{count} of {format_count(n, 'site')}" for n, count in enumerate(facts["shared"], 1) if count]
        lines.append(f"group {printable(group)}: {', '.join(counts[:MAX_GROUPS])}")
    if "distance_after" in found:
        before, after = found["distance_before"], found["distance_after"]
        lines.append(f"distance of posteriors ({found['metric']}): {before:.6g} -> {after:.6g}")
    return lines
