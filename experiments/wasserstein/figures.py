"""Draw planes and barriers that ``connectivity.py`` measured: ``python experiments/wasserstein/figures.py``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from connectivity import KINDS, METHODS, curve_file
from matplotlib import pyplot as plt
from training import CACHE

from consilience.networks.landscape.barrier import Barrier
from consilience.networks.landscape.plane import Plane

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
        draw_barriers(axis, f"{kind}-0", METHODS)
        axis.set(title=TITLES[kind], xlabel="share of base 2", ylim=(0, None))
    axes[0][0].set_ylabel("test loss, nats")
    axes[0][0].legend(frameon=False)
    figure.savefig(HERE / "barriers.svg", metadata={"Date": None})


def draw_barriers(axis: plt.Axes, name_of_files: str, alignments: Iterable[str]) -> None:
    """Draw the test loss along the line between two networks, as they are and aligned in several ways."""
    *_, last = names = ("as they are", *alignments)
    for name in names:
        found = Barrier.load(curve_file(name_of_files, name))
        # the last one dashed, since methods that find the same alignment have the same curve
        axis.plot(found.t, found.values["loss"], "--" if name == last else "-", label=name)


def draw_plane(axis: plt.Axes, found: Plane, below: Collection[str] = ()) -> None:
    """Draw test error over a plane, in levels, with the networks on it, named above or else below."""
    error = found.values["error"]
    levels = np.geomspace(max(error.min(), 0.5), error.max(), 12)
    filled = axis.contourf(found.alphas * found.dx, found.betas * found.dy, error, levels, cmap="viridis", extend="min")
    plt.colorbar(filled, ax=axis, format="%.2g", label="test error, %")
    for one in found.markers:
        x, y = one.alpha * found.dx, one.beta * found.dy
        axis.plot(x, y, "o", color="white", markeredgecolor="black", markersize=5)
        name = one.name.replace(", ", ",\n")
        told = {"xytext": (0, -6), "va": "top"} if one.name in below else {"xytext": (0, 6)}
        axis.annotate(name, (x, y), textcoords="offset points", ha="center", color="white", fontsize=8, **told)
    axis.set(xticks=[], yticks=[])


if __name__ == "__main__":
    main()
