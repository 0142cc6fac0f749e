"""Summary of a fusion of Bayesian networks for the command line: units by number of sites, divergences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.drawing.words import format_count, printable
from consilience.networks.summary import MAX_GROUPS, network_summary

if TYPE_CHECKING:
    from consilience.bayesian.fusion import BayesianFusion


def bayesian_summary(fusion: BayesianFusion) -> str:
    """Return the summary of a fusion, with the number of sites that have each fused unit."""

    def is_comparable(group: str) -> bool:
        """Return whether all sites have all units: distances to a unit that a site lacks would mean nothing."""
        return all(bool(moves[group].owned.all()) for moves in fusion.transports)

    return network_summary(fusion, "Bayesian networks", _sharing(fusion), is_comparable)


def _sharing(fusion: BayesianFusion) -> list[str]:
    """Return lines on the number of sites per fused unit, and on the divergences before and after alignment."""
    details = fusion.details
    lines = []
    for group, facts in list(details.get("groups", {}).items())[:MAX_GROUPS]:
        counts = [f"{count} of {format_count(n, 'site')}" for n, count in enumerate(facts["shared"], 1) if count]
        lines.append(f"group {printable(group)}: {', '.join(counts[:MAX_GROUPS])}")
    if "distance_after" in details:
        before, after = details["distance_before"], details["distance_after"]
        lines.append(f"distance of posteriors ({details['metric']}): {before:.6g} -> {after:.6g}")
    return lines
