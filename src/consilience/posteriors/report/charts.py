"""Line and dot charts: the objective over steps, the criterion over numbers of components, entropies of components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.core.findings import PathPoint
from consilience.drawing.axes import HALF_WIDTH, Axes, from_zero
from consilience.drawing.svg import colour_class, element, integer_ticks, line, text, tick_label, ticks
from consilience.drawing.words import format_count, format_fixed, format_number
from consilience.posteriors.report.members import ComponentSummary

MAX_DOTS = 600
"""With more local components than these, boxes and ranges stand for dots. Bounds the size of the page; by hand."""

_MAX_ROWS = 60
"""Components beyond these get no row. Bounds the size of the page; chosen by hand."""

_STEP = 24.0
"""Height of a row. Chosen by eye."""


def descent_curve(history: Sequence[float]) -> Markup:
    """Return the objective against the step."""
    alt = (
        f"The objective against the step. It went from {format_number(history[0])} to {format_number(history[-1])} in "
        + (f"{format_count(len(history), 'step')}.")
    )
    return _curve(list(range(1, len(history) + 1)), history, "step", "objective", alt, chosen_index=None)


def path_curve(points: Sequence[PathPoint], chosen_number: int, measure: str) -> Markup:
    """Return the criterion, or the cost, against the number of components, with the chosen number marked."""
    xs, ys = [point.n_components for point in points], [point.value for point in points]
    chosen_index = next((i for i, x in enumerate(xs) if x == chosen_number), None)
    ends = f"from {format_number(ys[0])} at {xs[0]} to {format_number(ys[-1])} at {xs[-1]}"
    alt = f"The {measure} against the number of components, {ends}; "
    alt += f"{chosen_number} was chosen" + (
        "." if chosen_index is None else f", where it is {format_number(ys[chosen_index])}."
    )
    return _curve(xs, ys, "number of components", measure, alt, chosen_index=chosen_index)


def _curve(
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


def entropy_chart(components: Sequence[ComponentSummary]) -> Markup:
    """Return, for each fused component, its entropy as a diamond and those of the local ones behind it as dots.

    Components without an entropy have no row. With more than `MAX_DOTS` local ones, a line from the least to the
    largest and a box between the quartiles stand for the dots of each row.
    """
    drawn = [component for component in components if component.entropy is not None][:_MAX_ROWS]
    values = np.array(
        [v for component in drawn for v in (component.entropy, *component.local_entropies)], dtype=np.float64
    )
    rows = [number + 0.5 for number in range(len(drawn))]
    value_range = (float(values.min()), float(values.max()))
    axes = Axes.over(value_range, (float(len(drawn)), 0.0), _STEP * len(drawn), margins=(64.0, 12.0), inset=(12.0, 0.0))
    parts = axes.names("entropy in nats; left is surer", "component") + axes.x_ticks(7)
    parts += axes.rows(rows, [str(component.number) for component in drawn])
    draws_dots = sum(len(component.local_entropies) for component in drawn) <= MAX_DOTS
    n_surer = 0
    for row, component in zip(rows, drawn, strict=True):
        local_entropies, colour = np.array(component.local_entropies), colour_class(component.number)
        if draws_dots:
            parts += axes.dots(((value, row) for value in local_entropies.tolist()), 4, f"dot {colour}")
        elif local_entropies.size:
            y, quantiles = axes.y(row), np.quantile(local_entropies, [0.0, 0.25, 0.75, 1.0]).tolist()
            low, first, third, high = map(axes.x, quantiles)
            parts.append(line(low, y, high, y, f"range {colour}"))
            parts.append(element("rect", x=first, y=y - 5, width=third - first, height=10, kind=f"box {colour}"))
        entropy = component.entropy
        assert entropy is not None  # noqa: S101  (narrows the type; rows without one are left out)
        parts.append(axes.diamond((entropy, row), 7.5, f"diamond {colour}"))
        n_surer += bool(local_entropies.size) and entropy < float(np.median(local_entropies))
    n_compared = sum(bool(component.local_entropies) for component in drawn)
    alt = f"Entropies of {format_count(len(drawn), 'fused component')} and of the local components behind them, "
    alt += f"from {format_fixed(float(values.min()), 1)} to {format_fixed(float(values.max()), 1)} nats. "
    alt += f"{n_surer} of {n_compared} fused components are surer than the median of their local ones."
    return axes.drawing(parts, alt)
