"""The results of the experiments with recurrent networks as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from wasserstein.recurrent.cells import CELLS, KINDS, data_and_cell, title_of
from wasserstein.tables import drop, spread

HERE = Path(__file__).parent
ORDER = tuple(f"{data}_{cell}" for data in ("mnist", "ag_news", "dbpedia", "sst2") for cell in ("rnn", "lstm"))
PUBLISHED = {
    "base": (96.68, 98.99, 88.68, 92.38, 97.12, 98.62, 87.32, 90.31),
    "average": (28.54, 31.92, 40.77, 74.01, 30.95, 50.93, 73.91, 74.25),
    "OT": (36.78, 68.33, 53.05, 86.19, 37.91, 77.95, 78.92, 82.13),
    "FedMA": (34.16, 66.98, 55.78, 86.30, 42.16, 81.81, 79.17, 82.53),
    "WB": (29.41, 67.66, 55.63, 86.25, 42.52, 82.57, 79.57, 82.87),
    "GWB": (81.39, 93.27, 61.01, 87.96, 55.15, 87.50, 82.60, 84.04),
}
"""Table 2 of the paper on WB fusion, in the order of `ORDER`."""
METHODS = (
    *("average", "OT", "FedMA", "WB", "GWB", "Re-Basin", "consensus without refit", "consensus"),
    *("consensus, refit on training inputs", "ensemble"),
)
VARIANTS = (
    "GWB",
    "GWB without signs",
    "GWB without what is sent",
    "GWB, mirror",
    "GWB, equation (43)",
    "Re-Basin",
    "consensus without refit",
    "consensus",
)


@cache
def _kinds(name: str) -> dict[str, Any]:
    found = json.loads((HERE / f"{name}.json").read_text())["kinds"]
    return {kind: found[kind] for kind in KINDS if kind in found}


def _seeds(found: Mapping[str, Any]) -> str:
    count = len(found["seeds"])
    return f"{count} seeds" if count > 1 else "1 seed"


def _published(name: str, kind: str) -> float | None:
    return PUBLISHED[name][ORDER.index(kind)] if name in PUBLISHED and kind in ORDER else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _drop(found: Mapping[str, Any], name: str) -> str:
    """Return the drop of a method, and over how many seeds where these are not all."""
    if name not in found["methods"]:
        return ""
    row = found["methods"][name]
    return f"{drop(row)}{_fewer(found, row)}"


def _fewer(found: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    count = len(row["accuracy"])
    return "" if count == len(found["seeds"]) else f" ({count})"


def accuracy_table(cell: str) -> str:
    """Return accuracies of one kind of cell, all data sets, beside the paper's where it has them."""
    kinds = {kind: found for kind, found in _kinds("recurrent").items() if kind.endswith(f"_{cell}")}
    beside = any(kind in ORDER for kind in kinds)
    heads = [f"{data_and_cell(kind)[0]} ({_seeds(found)})" for kind, found in kinds.items()]
    lines = [
        f"| method | {' | '.join(f'{head} | published' if beside else head for head in heads)} |",
        f"| --- |{' ---: |' * (len(kinds) * (1 + beside))}",
    ]
    for name in ("base", *METHODS):
        cells = []
        for kind, found in kinds.items():
            rows = found["methods"]
            values = rows["average"]["base"] if name == "base" else rows[name]["accuracy"] if name in rows else []
            cells.append(spread(values) if values else "")
            cells += [_shown(_published(name, kind))] if beside else []
        label = "base networks, mean" if name == "base" else f"**{name}**" if name == "consensus" else name
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drops_table() -> str:
    """Return how much is lost from the base networks, beside what the paper's GWB loses."""
    lines = [
        "| networks (seeds) | published GWB | GWB, equation (43) | GWB | consensus | ensemble |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, found in _kinds("recurrent").items():
        base, fused = _published("base", kind), _published("GWB", kind)
        published = None if base is None or fused is None else base - fused
        names = ("GWB, equation (43)", "GWB", "consensus", "ensemble")
        cells = [_drop(found, name) for name in names]
        lines.append(f"| {title_of(kind)} ({len(found['seeds'])}) | {_shown(published)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_kind(head: str, names: tuple[str, ...], value: Callable[[Mapping[str, Any]], float]) -> list[str]:
    """Return the lines of a table of methods by networks."""
    lines = [f"| {head} | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for kind, found in _kinds("recurrent").items():
        rows = found["methods"]
        cells = [f"{value(rows[name]):.2f}{_fewer(found, rows[name])}" if name in rows else "" for name in names]
        lines.append(f"| {title_of(kind)} ({len(found['seeds'])}) | {' | '.join(cells)} |")
    return lines


def variants_table() -> str:
    """Return mean drops of GWB, of what it is without one thing, and of the other methods; and their seconds."""
    lines = _by_kind("networks (seeds)", VARIANTS, lambda row: mean(row["base"]) - mean(row["accuracy"]))
    all_rows = [found["methods"] for found in _kinds("recurrent").values()]
    seconds = [[second for rows in all_rows if name in rows for second in rows[name]["seconds"]] for name in VARIANTS]
    cells = [f"{median(values):.1f}" if values else "" for values in seconds]
    return "\n".join([*lines, f"| *seconds, median* | {' | '.join(cells)} |"]) + "\n"


def validation_table() -> str:
    """Return mean drops on validation samples, by which the recommended method was chosen."""
    names = ("GWB", "consensus without refit", "consensus")

    def lost(row: Mapping[str, Any]) -> float:
        return mean(row["validation"]["base"]) - mean(row["validation"]["accuracy"])

    return "\n".join(_by_kind("networks (seeds)", names, lost)) + "\n"


def barriers_table() -> str:
    """Return heights over the line before and after alignment: test loss in nats, test error in points."""
    kinds = _kinds("planes_recurrent")
    names = list(next(iter(kinds.values()))["barriers"])
    lines = [
        f"| networks (seeds) | {' | '.join(f'{name}: loss | error' for name in names)} |",
        f"| --- |{' ---: |' * (2 * len(names))}",
    ]
    for kind, found in kinds.items():
        cells = [
            spread(found["barriers"][name][f"{value}, over the line"]) for name in names for value in ("loss", "error")
        ]
        lines.append(f"| {title_of(kind)} ({len(found['seeds'])}) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = {
    **{f"recurrent-{cell}": partial(accuracy_table, cell) for cell in CELLS},
    "recurrent-drops": drops_table,
    "recurrent-variants": variants_table,
    "recurrent-validation": validation_table,
    "recurrent-barriers": barriers_table,
}
