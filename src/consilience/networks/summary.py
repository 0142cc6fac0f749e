"""What the command says of a fusion of networks: widths, how well layers match, what is still to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.drawing.words import format_count, printable
from consilience.networks.fusion import NetworkFusion

MAX_GROUPS = 8
"""Groups that have a line; more are format_count."""

_STATISTICS = (
    "its statistics of batch normalisation are averages, which fit no network: measure them again with "
    "consilience.repair, given unlabeled inputs or moments from the sites"
)


def network_summary(
    fusion: NetworkFusion,
    what: str = "networks",
    more: Sequence[str] = (),
    comparable: Callable[[str], bool] = lambda _group: True,
) -> str:
    """Return what came of fusing networks: widths, how well layers match, what is still to do.

    Parameters
    ----------
    fusion
        The fusion.
    what
        What the models are called.
    more
        Lines after the objective.
    comparable
        Whether the distances within a group mean something.
    """
    method = fusion.provenance["method"]
    groups = fusion.groups
    outer = [name for name, group in fusion.network.symmetry.by_name.items() if group.parent is None]
    before = [sum(one.network.units[name] for name in outer) for one in fusion.inputs]
    units = str(before[0]) if len(set(before)) == 1 else f"{min(before)} to {max(before)}"
    lines = [f"{len(fusion.inputs)} {what}, units as they are numbered (method {method})"]
    if groups:
        lines = [
            f"{len(fusion.inputs)} {what} with {units} units each in {format_count(len(groups), 'group')}"
            f" -> {sum(groups[name] for name in outer)} units (method {method})"
        ]
        lines += _quality_table(fusion, comparable)
    if fusion.history.size:
        lines.append(f"objective {fusion.objective:.6g} after {fusion.history.size} steps: {fusion.status.value}")
    lines += more
    if fusion.details["proved"]:
        lines.append("symmetry: proved")
    if "aligned" in fusion.details:
        lines.append(_merging(fusion.details))
    lines += [f"note: {printable(note)}" for note in fusion.details["notes"][:MAX_GROUPS]]
    lines += _repairs(fusion)
    return "\n".join(lines)


_TOLD = {"structure": "", "prior": "prior ", "shrinkage": "shrinkage ", "masked": "parameters in a mask: "}


def _merging(details: Mapping[str, Any]) -> str:
    """Return how networks were merged by what is known of their parameters."""
    said = [f"{word}{details[key]}" for key, word in _TOLD.items() if key in details]
    return ", ".join(["merged with units aligned" if details["aligned"] else "merged as they are", *said])


def _quality_table(fusion: NetworkFusion, comparable: Callable[[str], bool]) -> list[str]:
    """Return a line for each of the first groups: units before and after, how many are shared, distance."""
    rows = [("group", "units", "fused", "shared", "distance")]
    for name in list(fusion.groups)[:MAX_GROUPS]:
        quality = fusion.quality[name]
        own = [one.network.units[name] for one in fusion.inputs]
        spread = f"{own[0]}" if len(set(own)) == 1 else f"{min(own)}-{max(own)}"
        before = "" if quality.before is None else f"{quality.before:.3f} -> "
        distance = f"{before}{quality.distance:.3f}" if comparable(name) else ""
        rows.append((printable(name), spread, str(quality.units), str(quality.shared), distance))
    shown = 5 if any(row[4] for row in rows[1:]) else 4
    widths = [max(len(row[column]) for row in rows) for column in range(shown)]
    lines = [
        f"  {row[0]:{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:shown], widths[1:], strict=True))
        for row in rows
    ]
    more = len(fusion.groups) - MAX_GROUPS
    return [*lines, f"  and {more} more groups"] if more > 0 else lines


def _repairs(fusion: NetworkFusion) -> list[str]:
    """Return whether layers were fitted, and what should still be done."""
    details: Mapping[str, Any] = fusion.details
    lines = [f"refit: {printable(str(details['refit']))}"] if "refit" in details else []
    if fusion.repaired is not None and fusion.repaired != details.get("refit"):
        lines.append(f"repaired: {printable(fusion.repaired)}")
    if fusion.needs_repair:
        lines.append(f"warning: {_STATISTICS}")
    return lines
