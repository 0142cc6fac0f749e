"""The results of ``run.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
AVERAGES = ("barycenter", "product", "hierarchical")
SCORES = ("plug-in", "predictive")


def _results(part: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / "results.json").read_text())[part]
    return rows


def _share(covered: int, intervals: int) -> str:
    return f"{covered / intervals:.2f}" if intervals else "–"


def _bold(name: str) -> str:
    return f"**{name}**" if name == "hierarchical" else name


def formulas_table() -> str:
    """Return coverage by number of sites and deviation, for both shapes, and half widths of the first."""
    found = {(row["shape"], row["sites"], row["deviation"]): row for row in _results("formulas")}
    lines = [
        f"| sites | deviation between them | {' | '.join(map(_bold, AVERAGES))} | half width, product "
        "| half width, hierarchical |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for shape, sites, deviation in found:
        if shape != "first":
            continue
        pair = [found[name, sites, deviation] for name in ("first", "second")]
        shares = (
            " / ".join(_share(row[average]["covered"], row[average]["intervals"]) for row in pair)
            for average in AVERAGES
        )
        widths = (f"{pair[0][average]['half_width']:.3f}" for average in AVERAGES[1:])
        lines.append(f"| {sites} | {deviation:g} | {' | '.join(shares)} | {' | '.join(widths)} |")
    return "\n".join(lines) + "\n"


def pipeline_table() -> str:
    """Return coverage through fits and matching, two dimensions / five."""
    found = {(row["separation"], row["sites"], row["deviation"], row["dim"]): row for row in _results("pipeline")}
    lines = [
        f"| components | sites | deviation | {' | '.join(map(_bold, AVERAGES))} | half width, product "
        "| half width, hierarchical | number found |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for separation, sites, deviation, dim in found:
        if dim != 2:
            continue
        pair = [found[separation, sites, deviation, dimension] for dimension in (2, 5)]
        shares = (
            " / ".join(_share(row[average]["covered"], row[average]["intervals"]) for row in pair)
            for average in AVERAGES
        )
        widths = (" / ".join(f"{row[average]['half_width']:.2f}" for row in pair) for average in AVERAGES[1:])
        numbers = " / ".join(f"{row['components']:.1f}" for row in pair)
        lines.append(
            f"| {separation} | {sites} | {deviation:g} | {' | '.join(shares)} | {' | '.join(widths)} | {numbers} |"
        )
    return "\n".join(lines) + "\n"


def marks_table() -> str:
    """Return coverage of the hierarchical average's intervals by whether they are marked as optimistic."""
    rows = _results("pipeline")
    lines = ["| interval is | intervals | covered |", "| --- | ---: | ---: |"]
    for key, text in (("unmarked", "not marked"), ("marked", "marked optimistic")):
        covered, intervals = (sum(row["hierarchical"][key][index] for row in rows) for index in (0, 1))
        lines.append(f"| {text} | {intervals:,} | {_share(covered, intervals)} |")
    return "\n".join(lines) + "\n"


def predictions_table() -> str:
    """Return the share of the way from the best site to the pooled fit, plug-in / predictive, and its length."""
    rows = _results("predictions")
    lines = [
        f"| data | skew | {' | '.join(map(_bold, AVERAGES))} | best site | pooled |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for data, skew in dict.fromkeys((row["data"], row["skew"]) for row in rows):
        chosen = [row for row in rows if (row["data"], row["skew"]) == (data, skew)]
        best = {score: mean(max(row[name][score] for name in row if name.startswith("site ")) for row in chosen)
                for score in SCORES}  # fmt: skip
        pooled = {score: mean(row["pooled"][score] for row in chosen) for score in SCORES}
        shares = (
            " / ".join(
                f"{(mean(row[average][score] for row in chosen) - best[score]) / (pooled[score] - best[score]):.2f}"
                for score in SCORES
            )
            for average in AVERAGES
        )
        ends = (" / ".join(f"{end[score]:.2f}" for score in SCORES) for end in (best, pooled))
        lines.append(f"| {data} | {skew} | {' | '.join(shares)} | {' | '.join(ends)} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "average-formulas": formulas_table,
    "average-pipeline": pipeline_table,
    "average-marks": marks_table,
    "average-predictions": predictions_table,
}
