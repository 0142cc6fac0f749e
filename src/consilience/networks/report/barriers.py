"""Figures of loss barriers: values of the networks on straight lines between two, all lines on common axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array
from consilience.drawing.axes import HALF_WIDTH, Axes, from_zero, line_kind
from consilience.drawing.words import format_number, shorten

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier

MAX_LINES = 10
"""Lines beyond these are not drawn: report.css has ten colours."""


def quantity_names(barriers: Mapping[str, Barrier]) -> list[str]:
    """Return the names of all values, in the order in which they come."""
    return list(dict.fromkeys(name for barrier in barriers.values() for name in barrier.values))


def barrier_curves(barriers: Mapping[str, Barrier], quantity: str) -> Markup:
    """Return the curves of one quantity along every line."""
    curves = {
        name: (barrier.t, barrier.values[quantity])
        for name, barrier in list(barriers.items())[:MAX_LINES]
        if quantity in barrier.values
    }
    finite = np.concatenate([values[np.isfinite(values)] for _, values in curves.values()])
    value_range = from_zero(float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    axes = Axes.over((0.0, 1.0), value_range, 200.0, HALF_WIDTH, inset=(0.0, 4.0))
    parts = axes.names("t", shorten(quantity, 40)) + axes.y_ticks() + axes.x_ticks(grid=False)
    for index, (t, values) in enumerate(curves.values()):
        parts += [axes.curve(points, line_kind(index)) for points in _finite_pieces(t, values)]
    return axes.drawing(parts + axes.legend(curves), _description(curves, quantity), len(curves))


def _finite_pieces(t: Array, values: Array) -> list[list[tuple[float, float]]]:
    """Return the points of every stretch of finite values, so that a line has a gap where a network has none."""
    is_finite = np.isfinite(values)
    piece_starts = np.flatnonzero(np.diff(is_finite.astype(np.int8)) != 0) + 1
    return [
        list(zip(t[indices].tolist(), values[indices].tolist(), strict=True))
        for indices in np.split(np.arange(len(t)), piece_starts)
        if is_finite[indices[0]]
    ]


def _description(curves: Mapping[str, tuple[Array, Array]], quantity: str) -> str:
    descriptions = []
    for name, (t, values) in curves.items():
        middle = float(np.interp(0.5, t, values))
        start, end = format_number(float(values[0])), format_number(float(values[-1]))
        ends = f"{start} at t = 0, {format_number(middle)} in the middle, {end} at 1"
        n_missing = int((~np.isfinite(values)).sum())
        descriptions.append(
            f"{shorten(name, 40)}: {ends}" + (f", not finite at {n_missing:,} places" if n_missing else "")
        )
    return f"{shorten(quantity, 40).capitalize()} on lines between networks. {'; '.join(descriptions)}."
