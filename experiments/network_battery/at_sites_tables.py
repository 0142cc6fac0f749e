"""The results of ``at_sites.py --write`` as a Markdown table, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
ROWS = {
    "default": "default, synthetic inputs",
    "shared": "`choose`, sites' networks shared",
    "not shared": "`choose`, not shared",
    "head": "`head` alone",
    "head, shared": "`head,choose`, shared",
    "head, not shared": "`head,choose`, not shared",
}


def at_sites_table(half: str) -> str:
    """Return, of a half, points over the best site by which rows judge, and what was said of harm."""
    every: list[dict[str, Any]] = json.loads((HERE / "at_sites.json").read_text())["cells"]
    cells = [cell for cell in every if cell["half"] == half]
    lines = [
        "| choice by | settings | over the best site | worst | a point below | harmless said | of these below |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, shown in ROWS.items():
        judged = [cell for cell in cells if "accuracy" in cell.get(name, {})]
        if not judged:
            continue
        gains = [100 * (cell[name]["accuracy"] - max(cell["sites"])) for cell in judged]
        said = [gain for gain, cell in zip(gains, judged, strict=True) if cell[name].get("harmless")]
        below = sum(gain < -1 for gain in gains)
        told = f"{len(said)} | {sum(gain < -1 for gain in said)}" if "shared" in name else "- | -"
        lines.append(f"| {shown} | {len(gains)} | {mean(gains):+.2f} | {min(gains):+.2f} | {below} | {told} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    f"network-battery-at-sites-{half}": partial(at_sites_table, half) for half in ("report", "tune")
}
