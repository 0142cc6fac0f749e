"""The tables of docs/evidence/draws.md, from the results of ``run.py``."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent

METHODS = (
    "a second full run",
    "auto",
    "gaussian_product",
    "gaussian_product, prior divided out",
    "consensus_mc",
    "consensus_mc, prior divided out",
    "semiparametric",
    "nonparametric",
    "wasp",
    "hierarchical",
    "density, 1 request",
    "density, 2 requests",
    "density, 3 requests",
    "sampleAvg",
    "consensusMCindep",
    "consensusMCcov",
    "semiparamDPE",
    "draws of all sites, mixed",
)
"""Rows, in this order: ours, those of parallelMCMCcombine, and no combination."""


def _cell(results: list[dict[str, Any]], method: str) -> str:
    """Return means over seeds of the distance of means and the Wasserstein distance, and the range of widths."""
    found = [one["methods"].get(method) for one in results]
    rows = [one for one in found if one is not None and "refused" not in one]
    n_refused = sum(one is not None and "refused" in one for one in found)
    if not rows:
        return "refused" if n_refused else "–"
    low, high = min(row["widths"][0] for row in rows), max(row["widths"][1] for row in rows)
    means, distances = (mean(row[name] for row in rows) for name in ("mean", "wasserstein"))
    text = f"{means:.2f}, {low:.2f}–{high:.2f}, **{distances:.2f}**"
    return text + (f" ({n_refused} of {len(found)} refused)" if n_refused else "")


def table(half: str) -> str:
    """Return a table of one half of the targets."""
    results = [one for one in json.loads((HERE / "results.json").read_text()).values() if one["half"] == half]
    targets = list(dict.fromkeys(one["target"] for one in results))
    of_seed = {seed: {one["target"] for one in results if one["seed"] == seed} for seed in range(100)}
    seeds = [seed for seed, found in of_seed.items() if len(found) == len(targets)]  # with all targets
    results = [one for one in results if one["seed"] in seeds]
    names = {"eight_schools": "eight schools", "signs": "two modes"}
    lines = [
        f"| means, widths, **Wasserstein**; {len(seeds)} seeds"
        f" | {' | '.join(names.get(one, one) for one in targets)} |",
        "| --- |" + " --- |" * len(targets),
    ]
    for method in METHODS:
        cells = [_cell([one for one in results if one["target"] == target], method) for target in targets]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def third_moments_table() -> str:
    """Return predicted and measured shifts of means by target, means over seeds."""
    cells: dict[str, dict[str, float]] = json.loads((HERE / "third_moments.json").read_text())
    targets = sorted({key.rpartition(" ")[0] for key in cells})
    lines = [f"| the product's means | {' | '.join(one.replace('_', ' ') for one in targets)} |"]
    lines.append("| --- |" + " ---: |" * len(targets))
    for label, field in (("predicted", "predicted"), ("its standard error", "error"), ("measured", "measured")):
        of_targets = [[cell[field] for key, cell in cells.items() if key.rpartition(" ")[0] == one] for one in targets]
        lines.append(f"| {label} | {' | '.join(f'{mean(values):.2f}' for values in of_targets)} |")
    return "\n".join(lines) + "\n"


TABLES = {
    "draws-tuning": lambda: table("tuning"),
    "draws-reported": lambda: table("reported"),
    "draws-third-moments": third_moments_table,
}
