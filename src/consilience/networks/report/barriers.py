"""Figures of loss barriers: values of the networks on straight lines between two, all lines on common axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array
from consilience.drawing.svg import Scale, colour_class, drawing, element, line, text, tick_label, ticks
from consilience.drawing.words import format_number, shorten

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier

MAX_LINES = 10
"""Lines beyond these are not drawn: report.css has ten colours."""

_WIDTH, _PLOT, _LEFT, _RIGHT, _TOP, _BOTTOM = 390.0, 200.0, 62.0, 14.0, 30.0, 46.0
"""Width of the drawing, height of its plot, and margins around that. Chosen by eye."""


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
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high > 0 and 0 <= low < 0.35 * high:  # near enough to zero that leaving it out would exaggerate
        low = 0.0
    axis_y = _TOP + _PLOT
    x, y = Scale(0.0, 1.0, _LEFT, _WIDTH - _RIGHT), Scale(low, high, axis_y, _TOP + 4)
    y_marks = ticks(y.low, y.high)
    x_marks = ticks(0.0, 1.0)
    parts = [text(0, 14, shorten(quantity, 40), "axis"), text(_WIDTH - _RIGHT, axis_y + 38, "t", "axis", "end")]
    parts += [line(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), "grid") for mark in y_marks]
    parts += [text(_LEFT - 8, y(mark) + 4, tick_label(mark, y_marks), "tick", "end") for mark in y_marks]
    parts += [text(x(mark), axis_y + 20, tick_label(mark, x_marks), "tick", "middle") for mark in x_marks]
    for index, (name, (t, values)) in enumerate(curves.items()):
        colour = f"{colour_class(index)} d{index % 4}"
        parts += [
            element("polyline", points=points, kind=f"line {colour}") for points in _finite_pieces(t, values, x, y)
        ]
        legend_y = axis_y + _BOTTOM + 20.0 * index + 8
        parts.append(line(_LEFT, legend_y, _LEFT + 34, legend_y, f"line {colour}"))
        parts.append(text(_LEFT + 42, legend_y + 4, shorten(name, 42), "tick"))
    return drawing(parts, axis_y + _BOTTOM + 20.0 * len(curves) + 6, _description(curves, quantity), _WIDTH)


def _finite_pieces(t: Array, values: Array, x: Scale, y: Scale) -> list[str]:
    """Return the points of every stretch of finite values, so that a line has a gap where a network has none."""
    is_finite = np.isfinite(values)
    piece_starts = np.flatnonzero(np.diff(is_finite.astype(np.int8)) != 0) + 1
    return [
        " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(t[indices].tolist(), values[indices].tolist(), strict=True))
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
