"""The paper's figures 2, 3 and 4, drawn from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

STYLES = {
    "largest site": {"color": "0.6", "linestyle": ":", "label": "largest site alone"},
    "k-means": {"color": "tab:brown", "marker": "v", "label": "k-means, told the number"},
    "Dirichlet process": {"color": "tab:purple", "marker": "^", "label": "Dirichlet process"},
    "paper": {"color": "tab:orange", "marker": "s", "label": "KL-fusion, paper's λ"},
    "SPAHM": {"color": "tab:red", "marker": "x", "label": "SPAHM"},
    "pooled": {"color": "tab:green", "marker": "D", "label": "all data pooled, told the number"},
    "auto": {"color": "tab:blue", "marker": "o", "linewidth": 3.0, "label": "fuse (default)"},
    "floor": {"color": "black", "linestyle": "--", "label": "told the matching"},
}
COLUMNS = (("separation", "noise", "separation s (σ = 0.5)"), ("noise", "separation", "noise σ (s = 0.5)"))
ROWS = (("hausdorff", "Hausdorff distance"), ("error", "error of the number"))
FIXED = 0.5
DISTANCES = (0.2, 0.5, 1.0, 2.0, 5.0)
ALIKE = {"svg.hashsalt": "consilience", "svg.fonttype": "none", "font.size": 8.0}  # same numbers, same bytes


def curve(
    points: list[dict[str, Any]], arm: str, moving: str, fixed: str, name: str, score: str
) -> list[tuple[float, float]]:
    """Return (x, mean score) of a method along one figure, in the order of x."""
    found = []
    for one in points:
        if one["kind"] == "figures" and one["arm"] == arm and one[fixed] == FIXED:
            value = one["summary"]["all"][name].get(score)
            if value is not None:
                found.append((one[moving], value["mean"]))
    return sorted(found)


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Write the figure: scores in rows, what moves and what sites hold in columns."""
    arms = list(dict.fromkeys(one["arm"] for one in points))
    with mpl.rc_context(ALIKE):
        figure = Figure(figsize=(10.0, 5.2), layout="constrained")
        axes = figure.subplots(2, 2 * len(arms), sharey="row", sharex="col", squeeze=False)
        for column, (arm, moving, fixed, label) in enumerate((arm, *one) for one in COLUMNS for arm in arms):
            axes[0, column].set_title(f"sites hold {arm}")
            axes[1, column].set_xlabel(label)
            for row, (score, _) in enumerate(ROWS):
                axis = axes[row, column]
                axis.set_xscale("log")
                axis.set_yscale("log" if score == "hausdorff" else "linear")
                ticks = sorted({one[moving] for one in points if one["kind"] == "figures" and one[fixed] == FIXED})
                axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
                axis.minorticks_off()
                axis.grid(alpha=0.3)
                for name, style in STYLES.items():
                    line = curve(points, arm, moving, fixed, name, score)
                    # the pooled fit, k-means and the floor are told the number: their error says nothing
                    if line and (score == "hausdorff" or name not in ("floor", "pooled", "k-means")):
                        axis.plot(*zip(*line, strict=True), **{"markersize": 4, "linewidth": 1.2, **style})
        for row, (_, label) in enumerate(ROWS):
            axes[row, 0].set_ylabel(label)
        axes[0, 0].set_yticks(DISTANCES, [f"{tick:g}" for tick in DISTANCES])
        lines, labels = axes[0, 0].get_legend_handles_labels()
        bottom, texts = axes[1, 0].get_legend_handles_labels()
        others = [(line, text) for line, text in zip(bottom, texts, strict=True) if text not in labels]
        shown = [*zip(lines, labels, strict=True), *others]
        figure.legend(*zip(*shown, strict=True), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, metadata={"Date": None})


def draw_topics(columns: dict[str, dict[str, list[Any]]], path: Path) -> None:
    """Write log likelihood a held-out token of every method, a dot for each seed, and the time of fusing."""
    names = sorted(columns, key=lambda name: sum(columns[name]["log_likelihood"]))
    with mpl.rc_context(ALIKE):
        figure = Figure(figsize=(8.0, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for row, name in enumerate(names):
            found = columns[name]
            left.plot(found["log_likelihood"], [row] * len(found["log_likelihood"]), "o", color="tab:blue", alpha=0.6)
            if found["seconds"][0] is not None:
                right.plot(found["seconds"], [row] * len(found["seconds"]), "o", color="tab:orange", alpha=0.6)
        left.set_yticks(range(len(names)), names)
        left.set_xlabel("log likelihood a held-out token, nats")
        right.set_xscale("log")
        right.set_xlabel("seconds of fusing (pooled models are not fused)")
        for axis in (left, right):
            axis.grid(alpha=0.3)
        figure.savefig(path, metadata={"Date": None})


def draw_topics_time(columns: dict[str, dict[str, list[Any]]], path: Path) -> None:
    """Write log likelihood a held-out token against the time of fusing; lines are models that are not fused."""
    fused = sorted((name for name in columns if columns[name]["seconds"][0] is not None), key=str.lower)
    with mpl.rc_context(ALIKE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axis = figure.subplots()
        for number, name in enumerate(fused):
            found = columns[name]
            axis.plot(found["seconds"], found["log_likelihood"], "o", color=f"C{number}", markersize=4, label=name)
        for name, line in zip((name for name in columns if name not in fused), ("--", ":", "-."), strict=False):
            level = columns[name]["log_likelihood"]
            axis.axhline(sum(level) / len(level), color="0.4", linestyle=line, linewidth=1.0, label=name)
        axis.set_xscale("log")
        axis.set_xlabel("seconds of fusing")
        axis.set_ylabel("log likelihood a held-out token, nats")
        axis.grid(alpha=0.3)
        figure.legend(loc="outside right center", frameon=False)
        figure.savefig(path, metadata={"Date": None})
