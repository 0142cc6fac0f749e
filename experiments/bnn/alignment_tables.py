"""The results on aligning posteriors as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).parent / "results" / "alignment.json"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bnn_alignment.json"
PATHS = ("wasserstein", "natural", "mixture")
SCORES = {"loss": 4, "error": 2, "expected_loss": 4}
"""What is told of a barrier, with how many digits."""


def _parts() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())["parts"]


def _spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation over pairs."""
    shown = f"{mean(values):.{digits}f}"
    return f"{shown} ± {stdev(values):.{digits}f}" if len(values) > 1 else shown


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]


def barriers_table() -> str:
    """Return barriers along the geodesic before and after alignment, and the error of the draws."""
    lines = _head(
        "networks (pairs)", "accuracy, %", "alignment", "loss, nats", "of the draws", "error, points", "E[loss]"
    )
    for name, part in _parts().items():
        pairs = list(part["pairs"].values())
        accuracy = _spread([one["test"]["accuracy"] for pair in pairs for one in pair["networks"]], 2)
        for metric, said in (("none", "as they are"), ("w2", "w2")):
            own = [pair[f"main | {metric} | wasserstein"]["height"] for pair in pairs]
            draws = [pair.get(f"repeated | {metric} | wasserstein") for pair in pairs]
            errors = [one["height error"]["loss"] for one in draws if one is not None]
            cells = {score: _spread([one[score] for one in own], digits) for score, digits in SCORES.items()}
            error = f"{max(errors):.4f}" if errors else ""
            lines.append(
                f"| {name} ({len(pairs)}) | {accuracy} | {said} | {cells['loss']} | {error} | {cells['error']} "
                f"| {cells['expected_loss']} |"
            )
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    """Return barriers of the loss by metric of the alignment and path."""
    lines = _head("networks (pairs)", "metric", *PATHS, "seconds", "W2², means and deviations")
    for name, part in _parts().items():
        pairs = list(part["pairs"].values())
        for metric in ("none", "means", "w2", "kl", "kl_reverse", "hellinger"):
            found = [pair for pair in pairs if all(f"others | {metric} | {path}" in pair for path in PATHS)]
            if not found:
                continue
            cells = [
                _spread([one[f"others | {metric} | {path}"]["height"]["loss"] for one in found], 4) for path in PATHS
            ]
            said = [one[f"alignment | {metric}"] for one in found]
            seconds = f"{mean(one['seconds'] for one in said):.0f}" if metric != "none" else ""
            apart = _spread([one["distances"]["w2"] for one in said], 1)
            lines.append(f"| {name} ({len(found)}) | {metric} | {' | '.join(cells)} | {seconds} | {apart} |")
    return "\n".join(lines) + "\n"


def mirrored_table() -> str:
    """Return the divergences of two mirrored Gaussians, in place and exchanged."""
    found = json.loads(RESULTS.read_text())["figure A1"]["divergences"]
    rows = [f"| {metric} | {ways['in place']:.4g} | {ways['exchanged']:.4g} |" for metric, ways in found.items()]
    return "\n".join([*_head("divergence", "units in place", "exchanged"), *rows]) + "\n"


def time_table() -> str:
    """Return times of aligning posteriors over those of matching means, by width."""
    results = json.loads(BENCHMARK.read_text())["widths"]["results"]
    lines = _head("width", "matching, over that of means", "fusing, over fusing means", "seconds of fusing")
    for width in sorted({one["width"] for one in results}):
        own = [one for one in results if one["width"] == width]
        ratios = [", ".join(f"{one['ratio'][kind]:.1f}" for one in own) for kind in ("matching", "fusing")]
        seconds = mean(one["seconds"]["fusing"]["w2"] for one in own)
        lines.append(f"| {width:,} | {ratios[0]} | {ratios[1]} | {seconds:.2f} |")
    return "\n".join(lines) + "\n"


TABLES = {
    "posterior-barriers": barriers_table,
    "posterior-metrics": metrics_table,
    "posterior-mirrored": mirrored_table,
    "posterior-time": time_table,
}
