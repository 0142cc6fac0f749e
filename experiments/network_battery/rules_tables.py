"""The results of ``rules.py --write`` as a Markdown table, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent


def rules_table() -> str:
    """Return, for every rule, gains over the best site and what was said of harm."""
    rows = json.loads((HERE / "rules.json").read_text())["summary"]
    lines = [
        "| cells | rule | over the best site, points | worse than it (95 %) | better "
        "| within a point of the best candidate | harmless True, of them wrong |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        half, rule = name.split(", ")
        lines.append(
            f"| {half}, {row['cells']} | {rule} | {100 * row['gain']:+.1f} | {row['worse']} | {row['better']} "
            f"| {row['within']:.0%} | {row['harmless']}, {row['harmless wrong']} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"network-battery-rules": rules_table}
