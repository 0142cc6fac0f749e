"""What the command says of a fusion of estimators."""

from __future__ import annotations

from typing import Any

from consilience.core.inspection import MAX_LISTED
from consilience.drawing.words import printable


def summary(fusion: Any) -> str:
    """Return the verdict in short and in full, how many rows of how many sites were summed, and what was left out."""
    verdict, statistics = fusion.verdict, fusion.statistics
    to_do = [f"to do: {printable(verdict.remedy)}"] if verdict.remedy else []
    lines = [fusion.in_short, printable(verdict.text), *to_do]
    sites = len(fusion.provenance["inputs"])
    classes = "" if statistics.classes is None else f" of {len(statistics.classes)} classes"
    lines.append(f"{sites} sites with {statistics.n_observations:,.0f} rows{classes} -> {statistics.kind}")
    return "\n".join([*lines, *notes_of(fusion)])


def notes_of(fusion: Any) -> list[str]:
    """Return what should be known of single sites: classes that few know, what was left out and why, what differs."""
    details, statistics, lines = fusion.details, fusion.statistics, []
    known = details.get("classes", {})
    if statistics.classes is not None:
        for name in statistics.classes.names:
            holders = [site for site, counts in known.items() if name in counts]
            if 0 < len(holders) < len(known):
                listed = ", ".join(map(printable, holders[:MAX_LISTED])) + ", ..." * (len(holders) > MAX_LISTED)
                lines.append(f"class {printable(name)} is known to {len(holders)} of {len(known)} sites: {listed}")
    withheld = details.get("withheld")
    if withheld:
        lines += [
            f"{printable(one['model'])}: {printable(one['component'])} has fewer than {withheld['min_count']:g} rows,"
            " and was left out"
            for one in withheld["components"][:MAX_LISTED]
        ]
    lines += [f"sites differ: {printable(line)}" for line in details.get("hyper_parameters", [])]
    return lines
