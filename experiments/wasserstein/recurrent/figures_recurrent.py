"""Draw what ``connectivity_recurrent.py`` measured: ``experiments/wasserstein/recurrent/figures_recurrent.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from connectivity import curve_file
from figures import draw_barriers, draw_plane
from recurrent.cells import DATA, KINDS, PUBLISHED_KINDS, title_of
from recurrent.connectivity_recurrent import METHODS, plane_file

from consilience.networks.landscape.plane import Plane

HERE = Path(__file__).parent
ACROSS = len(DATA)


def main() -> None:
    """Write ``planes_recurrent.svg`` and ``barriers_recurrent.svg`` beside this file, of what has been measured."""
    mpl.rcParams.update({"svg.hashsalt": "consilience", "font.size": 9})
    kinds = [kind for kind in PUBLISHED_KINDS if plane_file(kind).exists()]
    figure, axes = _grid(len(kinds), 3.9, 3.6)
    for axis, kind in zip(axes, kinds, strict=False):
        draw_plane(axis, Plane.load(plane_file(kind)), below=("base 1", "consensus"))
        axis.set_title(title_of(kind))
    figure.savefig(HERE / "planes_recurrent.svg", metadata={"Date": None})
    kinds = [kind for kind in KINDS if curve_file(f"{kind}-0", "consensus").exists()]
    figure, axes = _grid(len(kinds), 3.4, 2.6)
    for axis, kind in zip(axes, kinds, strict=False):
        draw_barriers(axis, f"{kind}-0", METHODS)
        axis.set(title=title_of(kind), xlabel="share of base 2", ylim=(0, None))
    axes[0].legend(frameon=False)
    for axis in axes[::ACROSS]:
        axis.set_ylabel("test loss, nats")
    figure.savefig(HERE / "barriers_recurrent.svg", metadata={"Date": None})


def _grid(count: int, width: float, height: float) -> tuple[plt.Figure, list[plt.Axes]]:
    """Return a figure of rows of four, of which those that are not needed are hidden."""
    rows = -(-count // ACROSS)
    figure, axes = plt.subplots(
        rows, ACROSS, figsize=(width * ACROSS, height * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat)


if __name__ == "__main__":
    main()
