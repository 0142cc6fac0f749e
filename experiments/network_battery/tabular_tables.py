"""The results of ``tabular.py --write`` as a Markdown table, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent


def tabular_table() -> str:
    """Return, for both halves and both kinds of descriptions, gains over the best site and what was said of harm."""
    rows = json.loads((HERE / "tabular.json").read_text())["summary"]
    lines = [
        "| cells | descriptions | over the best site, points | not worse than it (95 %) | within a point of the best "
        "candidate | ensemble over the best site | harmless True, of them wrong |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        half, variant = name.split(", ")
        lines.append(
            f"| {half}, {row['cells']} | {variant} | {row['gain']:+.1f} ± {1.96 * row['gain error']:.1f} "
            f"| {row['not worse']:.0%} | {row['within a point']:.0%} | {row['ensemble']:+.1f} "
            f"| {row['harmless']}, {row['harmless wrong']} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"network-battery-tabular": tabular_table}
