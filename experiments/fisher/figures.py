"""Draw what the experiments of Fisher merging measured: ``python experiments/fisher/figures.py``.

Three figures beside this file: ``linear.svg`` (figure 1 of Recasens et al.), ``pinwheel.svg`` (figure 2) and
``convnets.svg`` (paired differences in test loss from the Fisher diagonal, with 95 % intervals).
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
LABELS = {"removed": "exact posteriors", "ignored": "Fisher information alone"}
LEVELS = {"isotropic": ":", "Fisher diagonal": "--", "Fisher diagonal with prior": (0, (5, 1, 1, 1)), "SSF 20%": "-"}
SHOWN = ("isotropic", "Fisher diagonal with prior", "low rank", "SSF")
NORMALISED = ("Fisher diagonal, normalised", "Fisher diagonal with prior, normalised")
NORMALISED_FACTORS = ("low rank, normalised", "SSF, normalised")


def main() -> None:
    """Write the figures of what has been measured."""
    mpl.rcParams.update({"svg.hashsalt": "consilience", "font.size": 9})
    for name, draw in (("linear", draw_linear), ("pinwheel", draw_pinwheel), ("convnets", draw_convnets)):
        figure = draw(json.loads((HERE / f"{name}.json").read_text()))
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})


def draw_linear(found: dict[str, Any]) -> plt.Figure:
    """Draw objective and error of stochastic SSF on linear regressions by step."""
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.9), layout="constrained")
    parts = found["curves"]
    for prior, label in LABELS.items():
        curve = parts["overlapping"][prior]
        axes[0].plot(curve["objective at"], curve["objective"], label=label)
    axes[0].set(xscale="log", yscale="symlog", xlabel="step", ylabel="objective", title="overlapping: objective (7)")
    axes[0].set_ylim(bottom=-1.0)
    for axis, (part, curves) in zip(axes[1:], parts.items(), strict=True):
        for prior, label in LABELS.items():
            axis.plot(curves[prior]["steps"], curves[prior]["error"], marker="o", markersize=3, label=label)
        for name, style in (("Fisher diagonal", "--"), ("low rank", ":")):
            first = found["parts"][part][name]["loss"][0]
            if first > 1e-12:
                axis.axhline(first, color="0.4", linestyle=style, linewidth=1, label=name)
        axis.set(xscale="log", yscale="log", xlabel="steps", title=f"{part}: error")
    axes[1].set_ylabel("mean squared error of the weights")
    axes[1].legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def draw_pinwheel(found: dict[str, Any]) -> plt.Figure:
    """Draw test losses of stochastic SSF by steps, beside those of merges without steps."""
    figure, axis = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    curve = found["curve"]
    methods = found["tables"][str(curve["networks"])]["methods"]
    for number, losses in enumerate(curve["loss"]):
        label = None if number else "SSF 20%, stochastic"
        axis.plot(curve["steps"], losses, color="C0", marker="o", markersize=3, label=label)
    for name, style in LEVELS.items():
        level = mean(methods[name]["loss"][: len(curve["seeds"])])
        label = "SSF 20%, exact" if name == "SSF 20%" else name
        axis.axhline(level, color="0.3", linestyle=style, linewidth=1, label=label)
    axis.set(xscale="log", yscale="log", xlabel="steps", ylabel="test loss, nats")
    axis.set_title(f"pinwheel, {curve['networks']} networks, seeds {curve['seeds'][0]} and {curve['seeds'][-1]}")
    axis.legend(frameon=False, fontsize=8)
    return figure


def draw_convnets(found: dict[str, Any]) -> plt.Figure:
    """Draw paired differences from the Fisher diagonal, all settings and sets of images."""
    parts = found["parts"]
    figure, axes = plt.subplots(1, len(parts), figsize=(9.6, 2.9), layout="constrained", sharey=True)
    names = [*SHOWN, *NORMALISED, *NORMALISED_FACTORS]
    for axis, (title, part) in zip(axes, parts.items(), strict=True):
        for place, name in enumerate(names):
            if name in part["methods"]:
                row = part["methods"][name]["loss difference"]
                axis.plot([row["low"], row["high"]], [place, place], color="C0")
                axis.plot(row["mean"], place, "o", color="C0", markersize=4)
        axis.axvline(0.0, color="0.5", linewidth=0.8)
        axis.locator_params(axis="x", nbins=3)
        axis.set_title(title.replace("fashion_mnist", "Fashion-MNIST").replace("mnist", "MNIST").replace("-", "\n", 1))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.supxlabel("test loss beyond the Fisher diagonal's, nats", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
