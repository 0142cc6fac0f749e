"""Draw figure 5 of Claici et al. 2020 from ``table2.json``: ``python experiments/bnn/figures.py``.

Beside this file, ``entropies.svg``: by digit, the mean predictive entropy minus the model's mean on MNIST, of MNIST
test images and of digits rendered in fonts, means over seeds. Sites are those of all seeds together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
PANELS = {"entropy_by_digit": "MNIST test images", "outside_by_digit": "digits in fonts"}
MODELS = {
    "KL-fusion, n/J": ("C0", "-", "o"),
    "KL-fusion, 1": ("C1", "-", "s"),
    "ensemble": ("0.15", ":", "v"),
    "all data pooled": ("0.15", "--", "^"),
}
"""Colour, line and mark."""


def main() -> None:
    """Write the figure."""
    mpl.rcParams.update({"svg.hashsalt": "consilience", "font.size": 9})
    seeds = list(json.loads((HERE / "table2.json").read_text())["adjusted"].values())
    draw(seeds).savefig(HERE / "entropies.svg", metadata={"Date": None})


def draw(seeds: list[dict[str, Any]]) -> plt.Figure:
    """Draw centred entropies by digit: every site in grey, models of all sites on top."""
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    digits = np.arange(10)
    for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
        sites = [site[key] for one in seeds for site in one["sites"]]
        for number, values in enumerate(sites):
            label = None if number else f"sites of {len(seeds)} seeds"
            axis.plot(digits, values, color="0.8", linewidth=0.8, zorder=1, label=label)
        axis.plot(digits, np.mean(sites, axis=0), color="0.55", linewidth=2, zorder=2, label="sites, mean")
        for name, (colour, line, mark) in MODELS.items():
            values = np.mean([one["models"][name][key] for one in seeds], axis=0)
            axis.plot(digits, values, color=colour, linestyle=line, marker=mark, markersize=3.5, label=name, zorder=3)
        axis.axhline(0.0, color="0.3", linewidth=0.6)
        axis.set(title=title, xlabel="digit", xticks=digits)
    axes[0].set_ylabel("entropy minus its mean on MNIST, nats")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, ncols=6)
    return figure


if __name__ == "__main__":
    main()
