"""The results of ``kronecker.py --write`` as a Markdown table, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {
    "best site": "best site",
    "average": "`average`, by n",
    "diagonal": '`fisher`, `"diagonal"`',
    "kfac 0.1": "`kfac`, `damping=0.1`",
    "kfac": "`kfac`, chosen without labels",
    "best damping": "`kfac`, best damping by test labels",
    "fedfisher 0.001": "`fedfisher`",
    "fedfisher 0.01": "`fedfisher`, `learning_rate=0.01`",
    "fedlpa": "`fedlpa`",
    "regmean": "`regmean`",
    "default without layers": "default, layers not described",
    "default": "default",
    "ensemble": "ensemble",
}
"""Rows of the table by their names in the results."""


def merging_table() -> str:
    """Return mean and standard deviation of accuracies over seeds, a column for each architecture and skew."""
    columns = json.loads((HERE / "kronecker.json").read_text())["summary"]
    seeds = [next(iter(rows.values()))["seeds"] for rows in columns.values()]
    heads = [f"{name} ({count} seed{'s' * (count > 1)})" for name, count in zip(columns, seeds, strict=True)]
    lines = [f"| accuracy, % | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(columns)]
    for name, shown in ROWS.items():
        cells = []
        for rows in columns.values():
            found = rows[name]
            spread = "" if found["sd"] is None else f" ± {found['sd']:.1f}"
            cells.append(f"{found['mean']:.1f}{spread}")
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"kronecker-merging": merging_table}
