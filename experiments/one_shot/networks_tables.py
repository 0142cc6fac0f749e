"""The results of ``networks.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

RESULTS = Path(__file__).parent / "networks.json"
OF_DEFAULT = RESULTS.with_name("networks_default.json")
METHODS = {
    "best site": "best site",
    "average": "`average`",
    "rebasin": "`rebasin`",
    "ot": "`ot`",
    "wb": "`wb`",
    "fedma": "`fedma`",
    "fisher": "`fisher`",
    "kfac": "`kfac`",
    "fedfisher": "`fedfisher`",
    "fedlpa": "`fedlpa`",
    "distill": "`distill`",
    "default": "default",
    "class-weighted ensemble": "ensemble",
    "pooled": "pooled",
}
"""Columns by their names in the results."""


def _cells() -> dict[str, list[dict[str, Any]]]:
    """Return the cells of all seeds by the name of their row, in the order of the plan."""
    by_row: dict[str, list[dict[str, Any]]] = {}
    for cell in json.loads(RESULTS.read_text())["cells"].values():
        setting = cell["setting"]
        skew = setting["skew"] if setting["skew"] == "IID" else f"Dirichlet {setting['skew']}"
        by_row.setdefault(f"{setting['architecture']}, {setting['sites']} sites, {skew}", []).append(cell)
    return by_row


def _means(cells: Sequence[dict[str, Any]], what: str, form: str, factor: float = 1.0) -> list[str]:
    """Return the mean of a number over cells by method, as text; empty where a method has none."""
    found = []
    for name in METHODS:
        values = [cell[what][name] for cell in cells if name in cell[what]]
        found.append(format(factor * mean(values), form) if values else "")
    return found


def accuracy_table() -> str:
    """Return accuracies in percent, means over the seeds of a row."""
    lines = [f"| | seeds | {' | '.join(METHODS.values())} |", "| --- |" + " ---: |" * (1 + len(METHODS))]
    lines += [
        f"| {name} | {len(cells)} | {' | '.join(_means(cells, 'accuracy', '.1f'))} |"
        for name, cells in _cells().items()
    ]
    return "\n".join(lines) + "\n"


def cost_table() -> str:
    """Return kilobytes that a site sends and seconds at the server, means over the seeds of a row."""
    lines = [f"| kB / s | {' | '.join(METHODS.values())} |", "| --- |" + " ---: |" * len(METHODS)]
    for name, cells in _cells().items():
        columns = zip(_means(cells, "bytes", ",.0f", 1e-3), _means(cells, "seconds", ".1f"), strict=True)
        lines.append(f"| {name} | {' | '.join(' / '.join(filter(None, pair)) for pair in columns)} |")
    return "\n".join(lines) + "\n"


def default_table() -> str:
    """Return what the present default has, means over seeds, with what the default had when all methods were run."""
    now, before = (json.loads(path.read_text())["cells"] for path in (OF_DEFAULT, RESULTS))
    lines = [
        "| | seeds | best site | default before | default | over the best site | least |"
        " seconds over training one site |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows: dict[str, list[tuple[float, ...]]] = {}
    for name, was in ((name, cell["accuracy"]) for name, cell in before.items() if name in now):
        cell = now[name]
        setting, best = cell["setting"], max(cell["sites"])
        skew = setting["skew"] if setting["skew"] == "IID" else f"Dirichlet {setting['skew']}"
        ratio = cell["seconds"] / mean(cell["training_seconds"])
        row = (best, was["default"], cell["default"], cell["default"] - best, ratio, was["default"] - was["best site"])
        rows.setdefault(f"{setting['architecture']}, {setting['sites']} sites, {skew}", []).append(row)
    for what, of_seeds in rows.items():
        best, was, is_now, gain, ratio, _ = map(mean, zip(*of_seeds, strict=True))
        least = min(row[3] for row in of_seeds)
        lines.append(
            f"| {what} | {len(of_seeds)} | {best:.1f} | {was:.1f} | {is_now:.1f} | {gain:+.1f} | {least:+.1f} |"
            f" {ratio:.1f} |"
        )
    _, _, _, gains, ratios, earlier = zip(*(row for of_seeds in rows.values() for row in of_seeds), strict=True)
    lines.append(
        f"| mean (least) of {len(gains)} | | | {mean(earlier):+.1f} ({min(earlier):+.1f}) | | {mean(gains):+.1f} |"
        f" {min(gains):+.1f} | median {median(ratios):.1f}, worst {max(ratios):.1f} |"
    )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "one-shot-networks": accuracy_table,
    "one-shot-networks-costs": cost_table,
    "one-shot-networks-default": default_table,
}
