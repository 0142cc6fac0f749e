"""Draw what ``alignment.py`` measured: ``python experiments/bnn/alignment_figures.py`` writes ``alignment.svg``.

Above, the negative log likelihood of predictions along the way between two posteriors, as they are and aligned by
Wasserstein-2 distance, a line for each pair. Below, for the first pair of each kind, along the three paths after that
alignment, how far it is beyond the straight line between its ends.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from alignment import NAIVE, RESULTS
from matplotlib import pyplot as plt

from consilience.networks.gaussian.predictive_barrier import POSTERIOR_PATHS

HERE = Path(__file__).parent
TITLES = {
    "mlp-mnist-narrow": "MLP, MNIST",
    "mlp-mnist": "MLP, MNIST, towards the optimum",
    "mlp-mnist-cold": "MLP, MNIST, temperature 0.1",
    "mlp-cifar10-narrow": "MLP, CIFAR-10",
    "resnet20-cifar10": "ResNet20, CIFAR-10",
}
COLOURS = {"wasserstein": "C1", "natural": "C2", "mixture": "C3"}
LABELS = {NAIVE: "as they are", "w2": "aligned"}


def main() -> None:
    """Write the figure of what has been measured."""
    mpl.rcParams.update({"svg.hashsalt": "consilience", "font.size": 9})
    parts = {key: one for key, one in json.loads((RESULTS / "alignment.json").read_text())["parts"].items() if one}
    shown = [name for name in TITLES if name in parts]
    figure, axes = plt.subplots(2, len(shown), figsize=(3.3 * len(shown), 5.2), layout="constrained", squeeze=False)
    for (upper, lower), name in zip(axes.T, shown, strict=True):
        draw_lines(upper, parts[name]["pairs"])
        upper.set(title=TITLES[name], ylim=(0, None))
        draw_paths(lower, next(iter(parts[name]["pairs"].values())))
        lower.set(xlabel="t")
    axes[0][0].set_ylabel("test loss of predictions, nats")
    axes[1][0].set_ylabel("the same beyond the line of its ends")
    axes[0][0].legend(frameon=False, fontsize=8)
    axes[1][0].legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 0.1))
    figure.savefig(HERE / "alignment.svg", metadata={"Date": None})


def draw_lines(axis: plt.Axes, pairs: dict[str, Any]) -> None:
    """Draw the loss along the geodesic for every pair, before and after alignment."""
    for colour, (metric, label) in enumerate(LABELS.items()):
        lines = [pair[f"main | {metric} | wasserstein"] for pair in pairs.values()]
        for number, line in enumerate(lines):
            axis.plot(line["t"], line["curves"]["loss"], color=f"C{colour}", label=None if number else label)


def draw_paths(axis: plt.Axes, pair: dict[str, Any]) -> None:
    """Draw the excess of the loss along every path after alignment."""
    for path, style in zip(POSTERIOR_PATHS, ("-", "--", ":"), strict=True):
        line = pair[f"others | w2 | {path}"]
        t, loss = np.array(line["t"]), np.array(line["curves"]["loss"])
        axis.plot(t, loss - ((1.0 - t) * loss[0] + t * loss[-1]), style, color=COLOURS[path], label=path)
    axis.axhline(0.0, color="0.3", linewidth=0.6)


if __name__ == "__main__":
    main()
