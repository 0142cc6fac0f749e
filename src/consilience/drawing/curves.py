"""Curves over whole numbers, such as an objective over its steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.drawing.axes import HALF_WIDTH, Axes, from_zero
from consilience.drawing.svg import element, integer_ticks, text, tick_label, ticks
from consilience.drawing.words import format_count, format_number


def descent_curve(history: Sequence[float]) -> Markup:
    """Return the objective against the step."""
    alt = (
        f"The objective against the step. It went from {format_number(history[0])} to {format_number(history[-1])} in "
        + (f"{format_count(len(history), 'step')}.")
    )
    return curve(list(range(1, len(history) + 1)), history, "step", "objective", alt, chosen_index=None)


def curve(
    xs: Sequence[int], ys: Sequence[float], x_name: str, y_name: str, alt: str, chosen_index: int | None
) -> Markup:
    """Return one curve of `ys` (n,) over whole numbers `xs` (n,), with the point `chosen_index` marked."""
    ceiling = _ceiling(ys)
    y_range = from_zero(min(ys), ceiling)
    marks = ticks(*y_range)
    left = max(62.0, 12.0 + 7.5 * max(len(tick_label(mark, marks)) for mark in marks))
    axes = Axes.over((xs[0], xs[-1]), y_range, 194.0, HALF_WIDTH, (left, 10.0), (10.0, 6.0))
    x_marks = integer_ticks(xs[0], xs[-1], 6)
    parts = axes.names(x_name, y_name) + axes.y_ticks() + axes.x_labels(x_marks, [f"{mark:,}" for mark in x_marks])
    if chosen_index is not None:
        chosen_x = axes.x(xs[chosen_index])
        parts.append(axes.upright(xs[chosen_index]))
        side, shift = ("start", 8) if chosen_x < 0.6 * HALF_WIDTH else ("end", -8)
        parts.append(text(chosen_x + shift, axes.top + 10, f"chosen: {xs[chosen_index]}", "note", side))
    points = [(x, min(y, ceiling)) for x, y in zip(xs, ys, strict=True)]
    parts.append(axes.curve(points, "curve"))
    # Values above the ceiling are drawn at it, as triangles that point up.
    if len(xs) <= 80:
        parts += axes.dots([point for point, y in zip(points, ys, strict=True) if y <= ceiling], 3, "point")
        above = [(axes.x(x), axes.y(ceiling)) for x, y in zip(xs, ys, strict=True) if y > ceiling]
        parts += [element("path", d=f"M{x - 5:.1f} {y + 4:.1f}h10l-5 -9z", kind="above") for x, y in above]
    if chosen_index is not None:
        parts += axes.dots([(xs[chosen_index], ys[chosen_index])], 6.5, "point pick")
    return axes.drawing(parts, alt)


def _ceiling(values: Sequence[float]) -> float:
    """Return the largest value worth drawing to scale: a few far above the others would flatten what was decided."""
    # With q the distance from the least value to the upper quartile, values above 4 q are cut off, but only where the
    # largest is above 8 q. Both chosen by eye.
    low, upper_quartile = min(values), float(np.quantile(values, 0.75))
    limit = low + 4.0 * (upper_quartile - low)
    largest_inside = max((value for value in values if value <= limit), default=max(values))
    return largest_inside if upper_quartile > low and max(values) > low + 8.0 * (upper_quartile - low) else max(values)
