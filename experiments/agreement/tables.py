"""The results of ``run.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HALVES = ("tune", "report")


def _results() -> dict[str, Any]:
    results: dict[str, Any] = json.loads((HERE / "results.json").read_text())
    return results


def _cell(part: list[int]) -> str:
    count, total = part
    return f"{count} of {total} ({100 * count / total:.1f} %)" if total else "-"


def _rows(title: str, part: str) -> list[str]:
    """Return a table's rows of a part of the results: counts of each half, by what they are counts of."""
    results = _results()
    lines = [f"| {title} | on which numbers were set | on which none was |", "| --- | ---: | ---: |"]
    lines += [
        f"| {name} | {' | '.join(_cell(results[half][part][name]) for half in HALVES)} |"
        for name in results["tune"][part]
    ]
    return lines


def honest_table() -> str:
    """Return how often honest fusions were doubted, by how rows were split."""
    results = _results()
    sums = [[sum(part) for part in zip(*results[half]["honest"].values(), strict=True)] for half in HALVES]
    return "\n".join([*_rows("split", "honest"), f"| **all** | {' | '.join(map(_cell, sums))} |"]) + "\n"


def noticed_table() -> str:
    """Return how often a column in another unit at one site was noticed, by the unit."""
    return "\n".join(_rows("one column of one site", "noticed")) + "\n"


def extremes_table() -> str:
    """Return how often the sites of scalers by extremes were doubted, honest ones and those with a column too large."""
    parts = {half: _results()[f"{half} extremes"] for half in HALVES}
    honest = [[sum(part) for part in zip(*parts[half]["honest"].values(), strict=True)] for half in HALVES]
    lines = ["| sites | on which numbers were set | on which none was |", "| --- | ---: | ---: |"]
    lines.append(f"| honest | {' | '.join(map(_cell, honest))} |")
    lines += [
        f"| one column {fault} | {' | '.join(_cell(parts[half]['noticed'][fault]) for half in HALVES)} |"
        for fault in ("x 1000", "x 100", "x 18")
    ]
    return "\n".join(lines) + "\n"


TABLES = {"units-honest": honest_table, "units-noticed": noticed_table, "units-extremes": extremes_table}
