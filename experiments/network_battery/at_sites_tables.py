"""The results of ``at_sites.py --write`` as a Markdown table, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
ROWS = {"default": "default, synthetic inputs", "shared": "sites' networks shared", "not shared": "not shared"}


def at_sites_table() -> str:
    """Return points over the best site by which rows judge, and what was said of harm."""
    cells: list[dict[str, Any]] = json.loads((HERE / "at_sites.json").read_text())["cells"]
    lines = [
        "| choice by | settings | over the best site | worst | a point below | harmless said | of these below |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, shown in ROWS.items():
        judged = [cell for cell in cells if "accuracy" in cell[name]]
        gains = [100 * (cell[name]["accuracy"] - max(cell["sites"])) for cell in judged]
        said = [gain for gain, cell in zip(gains, judged, strict=True) if cell[name].get("harmless")]
        harm = "-" if name == "default" else str(sum(gain < -1 for gain in said))
        n_said = "-" if name == "default" else str(len(said))
        below = sum(gain < -1 for gain in gains)
        lines.append(
            f"| {shown} | {len(gains)} | {mean(gains):+.2f} | {min(gains):+.2f} | {below} | {n_said} | {harm} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"network-battery-at-sites": at_sites_table}
