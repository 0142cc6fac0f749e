"""The results of ``small_sites.py --write`` as a Markdown table, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent


def small_sites_table() -> str:
    """Return, for regressions and classifiers, what is gained over the best site by either least number of rows."""
    rows = json.loads((HERE / "small_sites.json").read_text())["summary"]
    lines = [
        "| cells | descriptions say | best / mean site | default | ensemble | worse than the best site (95 %) | better "
        "| nothing compared | harmless True, of them wrong |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        kind, variant = name.split(", ")
        lines.append(
            f"| {kind}, {row['cells']} | {variant} | {100 * row['best site']:.1f} / {100 * row['mean site']:.1f} "
            f"| {100 * row['score']:.1f} | {100 * row['ensemble']:.1f} | {row['worse']} | {row['better']} "
            f"| {row['nothing compared']} | {row['harmless']}, {row['harmless wrong']} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"network-battery-small-sites": small_sites_table}
