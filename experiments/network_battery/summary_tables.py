"""Summaries of ``small_sites.py`` and ``tabular.py`` as tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def summary_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the summary of results: rows by "cells, descriptions"."""
    summary: dict[str, dict[str, Any]] = json.loads((HERE / f"{name}.json").read_text())["summary"]
    return summary


def small_sites_table() -> str:
    """Return, for regressions and classifiers, what is gained over the best site by either least number of rows."""
    rows = summary_of("small_sites")
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


def tabular_table() -> str:
    """Return, for both halves and both kinds of descriptions, gains over the best site."""
    rows = summary_of("tabular")
    lines = [
        "| cells | descriptions | over the best site, points | not worse than it (95 %) | within a point of the best "
        "candidate | ensemble over the best site |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        half, variant = name.split(", ")
        lines.append(
            f"| {half}, {row['cells']} | {variant} | {row['gain']:+.1f} ± {1.96 * row['gain error']:.1f} "
            f"| {row['not worse']:.0%} | {row['within a point']:.0%} | {row['ensemble']:+.1f} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "network-battery-small-sites": small_sites_table,
    "network-battery-tabular": tabular_table,
}
