"""Draw planes and barriers that ``connectivity.py`` measured: ``python experiments/wasserstein/figures.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from connectivity import KINDS, METHODS
from matplotlib import pyplot as plt
from training import CACHE

from consilience.landscape import Barrier, Plane

HERE = Path(__file__).parent
TITLES = {"mlp_net": "MLPNet", "mlp_512": "MLP, 3 × 512", "vgg11": "VGG11, ¼ width", "resnet20": "ResNet20, ½ width"}


def main() -> None:
    """Write ``planes.svg`` and ``barriers.svg`` beside this file, of what has been measured."""
    mpl.rcParams.update({"svg.hashsalt": "consilience", "font.size": 9})
    kinds = [kind for kind in KINDS if (CACHE / "fused" / f"plane-{kind}.safetensors").exists()]
    figure, axes = plt.subplots(1, len(kinds), figsize=(3.9 * len(kinds), 3.6), layout="constrained", squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        draw_plane(axis, Plane.load(CACHE / "fused" / f"plane-{kind}.safetensors"))
        axis.set_title(TITLES[kind])
    figure.savefig(HERE / "planes.svg", metadata={"Date": None})
    figure, axes = plt.subplots(1, len(kinds), figsize=(3.6 * len(kinds), 2.8), layout="constrained", squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for name in ("as they are", *METHODS):
            file = CACHE / "fused" / f"barrier-{kind}-0-{name.replace(' ', '-')}.safetensors"
            found = Barrier.load(file)
            axis.plot(found.t, found.values["loss"], label=name)
        axis.set(title=TITLES[kind], xlabel="share of base 2", ylim=(0, None))
    axes[0][0].set_ylabel("test loss, nats")
    axes[0][0].legend(frameon=False)
    figure.savefig(HERE / "barriers.svg", metadata={"Date": None})


def draw_plane(axis: plt.Axes, found: Plane) -> None:
    """Draw test error over a plane, in levels, with the networks on it."""
    error = found.values["error"]
    levels = np.geomspace(max(error.min(), 0.5), error.max(), 12)
    filled = axis.contourf(found.alphas * found.dx, found.betas * found.dy, error, levels, cmap="viridis", extend="min")
    plt.colorbar(filled, ax=axis, format="%.2g", label="test error, %")
    for one in found.markers:
        x, y = one.alpha * found.dx, one.beta * found.dy
        axis.plot(x, y, "o", color="white", markeredgecolor="black", markersize=5)
        name = one.name.replace(", ", ",\n")
        axis.annotate(name, (x, y), textcoords="offset points", xytext=(0, 6), ha="center", color="white", fontsize=8)
    axis.set(xticks=[], yticks=[])


if __name__ == "__main__":
    main()
