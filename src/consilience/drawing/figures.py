"""Matplotlib figures of the demonstrations: scores of models, and the matching of their components."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from consilience.checks import Array, Labels
from consilience.files.atomic import write_atomically

_FUSED, _LOCAL, _GREY = "#b2182b", "#2166ac", "#8a8a8a"
"""Colours of fused models, of local ones and of those trained on pooled data."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all, without the date that would change its bytes."""
    with write_atomically(path) as partial:
        FigureCanvasAgg(figure)
        figure.savefig(partial, format="png", dpi=130, metadata={"Software": None})


def comparison_figure(
    names: Sequence[str],
    scores: Sequence[tuple[str, Array]],
    matching: Labels,
    owner: Labels,
    labels: Sequence[str],
    label_meaning: str,
) -> Figure:
    """Return a figure of two comparisons and the matching behind them.

    Parameters
    ----------
    names : sequence of str
        Models to compare, one row each; a fused model is known by a leading ``fused``, others by ``pooled`` in them.
    scores : sequence of (str, ndarray of shape (n_rows, n_repetitions))
        For each panel its title and values.
    matching : ndarray of shape (L,)
        Fused component of each local one, -1 for none.
    owner : ndarray of shape (L,)
        Site of each local component.
    labels : sequence of str, of length L
        Short label of each local component, written into its cell.
    label_meaning : str
        What the labels are.
    """
    figure = Figure(figsize=(13.0, 4.6), layout="constrained")
    axes = figure.subplots(1, len(scores) + 1, width_ratios=[1.0] * len(scores) + [1.3])
    rows = np.arange(len(names))
    colours = [_FUSED if name.startswith("fused") else _GREY if "pooled" in name else _LOCAL for name in names]
    for axis, (title, values) in zip(axes, scores, strict=False):
        mean, deviation = values.mean(axis=1), values.std(axis=1, ddof=1 if values.shape[1] > 1 else 0)
        axis.errorbar(mean, rows, xerr=deviation, fmt="none", ecolor="#555555", elinewidth=1, capsize=2)
        axis.scatter(mean, rows, c=colours, s=36, zorder=3)
        axis.set_yticks(rows, names if axis is axes[0] else [""] * len(names))
        axis.invert_yaxis()
        axis.set_title(title, fontsize=10)
        axis.grid(axis="x", color="#dddddd")
        axis.set_axisbelow(True)
    _draw_matching(axes[-1], matching, owner, labels)
    axes[-1].set_xlabel(f"fused component\n(in the cells: {label_meaning})")
    return figure


def _draw_matching(axis: object, matching: Labels, owner: Labels, labels: Sequence[str]) -> None:
    """Draw sites (rows) against fused components (columns), with the label of each local component in its cell."""
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)  # noqa: S101  (narrows the type)
    n_fused, n_sites = int(matching.max()) + 1, int(owner.max()) + 1
    axis.set_xlim(-0.5, n_fused - 0.5)
    axis.set_ylim(n_sites - 0.5, -0.5)
    for column in range(n_fused):
        members = np.flatnonzero(matching == column)
        is_shared = len(np.unique(owner[members])) > 1
        for member in members:
            axis.text(
                column,
                owner[member],
                labels[int(member)],
                ha="center",
                va="center",
                fontsize=8,
                color="white",
                bbox={"boxstyle": "round,pad=0.3", "facecolor": _FUSED if is_shared else _LOCAL, "edgecolor": "none"},
            )
    axis.set_xticks(range(n_fused), [str(column) for column in range(n_fused)])
    axis.set_yticks(range(n_sites), [f"site {site + 1}" for site in range(n_sites)])
    axis.set_title("Who is who: red components were found at several sites", fontsize=10)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
