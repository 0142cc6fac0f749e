"""The lines that the command prints of fused draws."""

from __future__ import annotations

from consilience.drawing.words import format_number
from consilience.draws.fusion import DrawsFusion

MAX_PARAMETERS = 20
"""Parameters that are printed; more are counted. Chosen by hand."""


def summary(fusion: DrawsFusion) -> str:
    """Return what the command says of a fusion: the verdict, in short and in full, and each parameter."""
    draws = fusion.draws
    entries = draws.entries().reshape(draws.n_draws, -1)
    lines = [fusion.in_short, str(fusion.verdict)]
    if fusion.verdict.remedy:
        lines.append(f"to do: {fusion.verdict.remedy}")
    for place, name in enumerate(draws.names[:MAX_PARAMETERS]):
        column = entries[:, place]
        lines.append(f"{name:24} {format_number(float(column.mean()))} ± {format_number(float(column.std()))}")
    if len(draws.names) > MAX_PARAMETERS:
        lines.append(f"and {len(draws.names) - MAX_PARAMETERS} more parameters")
    return "\n".join(lines)
