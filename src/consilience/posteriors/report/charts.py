"""Line and dot charts: the objective over steps, the criterion over numbers of components, entropies of components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.drawing.svg import (
    WIDTH,
    Scale,
    colour_class,
    drawing,
    element,
    integer_ticks,
    line,
    text,
    tick_label,
    ticks,
)
from consilience.drawing.words import format_count, format_fixed, format_number
from consilience.posteriors.report.details import PathPoint
from consilience.posteriors.report.members import ComponentSummary

_HALF_WIDTH = 390.0
"""Width of a chart of which two stand side by side: half of `WIDTH`."""

_MAX_DOTS = 600
"""With more local components than these, boxes and ranges stand for dots. Bounds the size of the page; by hand."""

_MAX_ROWS = 60
"""Components beyond these get no row. Bounds the size of the page; chosen by hand."""


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
    height, right_margin, top_margin, bottom_margin = 270.0, 10.0, 30.0, 46.0
    low, high = min(ys), _ceiling(ys)
    if high > 0 and 0 <= low < 0.35 * high:  # near enough to zero that leaving it out would exaggerate
        low = 0.0
    y = Scale(low, high, height - bottom_margin, top_margin + 6)  # y of the drawing points down
    marks = ticks(y.low, y.high) if high > low else [low]
    labels = [tick_label(mark, marks) for mark in marks]
    left_margin = max(62.0, 12.0 + 7.5 * max(map(len, labels)))
    x = Scale(xs[0], xs[-1], left_margin + 10, _HALF_WIDTH - right_margin - 10)
    parts = [text(0, 14, y_name, "axis")]
    for mark, label in zip(marks, labels, strict=True):
        parts.append(line(left_margin, y(mark), _HALF_WIDTH - right_margin, y(mark), "grid"))
        parts.append(text(left_margin - 8, y(mark) + 4, label, "tick", "end"))
    x_marks = integer_ticks(xs[0], xs[-1], 6)
    parts += [text(x(mark), height - bottom_margin + 20, f"{mark:,}", "tick", "middle") for mark in x_marks]
    parts.append(text(_HALF_WIDTH - right_margin, height - 6, x_name, "axis", "end"))
    if chosen_index is not None:
        parts.append(line(x(xs[chosen_index]), top_margin, x(xs[chosen_index]), height - bottom_margin, "chosen"))
        side = "start" if x(xs[chosen_index]) < 0.6 * _HALF_WIDTH else "end"
        shift = 8 if side == "start" else -8
        parts.append(text(x(xs[chosen_index]) + shift, top_margin + 10, f"chosen: {xs[chosen_index]}", "note", side))
    points = [(x(a), y(min(b, high)), b > high) for a, b in zip(xs, ys, strict=True)]
    parts.append(element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points), kind="curve"))
    # Values above the ceiling are drawn at it, as triangles that point up.
    if len(xs) <= 80:
        parts += [element("circle", cx=a, cy=b, r=3, kind="point") for a, b, above in points if not above]
        parts += [
            element("path", d=f"M{a - 5:.1f} {b + 4:.1f}h10l-5 -9z", kind="above") for a, b, above in points if above
        ]
    if chosen_index is not None:
        parts.append(element("circle", cx=x(xs[chosen_index]), cy=y(ys[chosen_index]), r=6.5, kind="point pick"))
    return drawing(parts, height, alt, _HALF_WIDTH)


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

    Components without an entropy have no row. With more than `_MAX_DOTS` local ones, a line from the least to the
    largest and a box between the quartiles stand for the dots of each row.
    """
    drawn = [component for component in components if component.entropy is not None][:_MAX_ROWS]
    values = np.array(
        [v for component in drawn for v in (component.entropy, *component.local_entropies)], dtype=np.float64
    )
    step, left, top, bottom = 24.0, 64.0, 30.0, 44.0
    height = top + step * len(drawn) + bottom
    x = Scale(float(values.min()), float(values.max()), left + 12, WIDTH - 24)
    marks = ticks(x.low, x.high, 7)
    axis_y = height - bottom
    parts = [line(x(mark), top - 6, x(mark), axis_y, "grid") for mark in marks]
    parts += [text(x(mark), axis_y + 18, tick_label(mark, marks), "tick", "middle") for mark in marks]
    parts += [
        text(0, 14, "component", "axis"),
        text(WIDTH - 24, height - 6, "entropy in nats; left is surer", "axis", "end"),
    ]
    draws_dots = sum(len(component.local_entropies) for component in drawn) <= _MAX_DOTS
    n_surer = 0
    for row, component in enumerate(drawn):
        y, local_entropies = top + step * (row + 0.5), np.array(component.local_entropies)
        parts.append(text(left - 22, y + 4, str(component.number), "tick", "end"))
        parts.append(line(left, y, WIDTH - 12, y, "row"))
        if draws_dots:
            parts += [
                element("circle", cx=x(v), cy=y, r=4, kind=f"dot {colour_class(component.number)}")
                for v in local_entropies.tolist()
            ]
        elif local_entropies.size:
            low, first, third, high = (x(float(v)) for v in np.quantile(local_entropies, [0.0, 0.25, 0.75, 1.0]))
            parts.append(line(low, y, high, y, f"range {colour_class(component.number)}"))
            parts.append(
                element(
                    "rect",
                    x=first,
                    y=y - 5,
                    width=third - first,
                    height=10,
                    kind=f"box {colour_class(component.number)}",
                )
            )
        entropy = component.entropy
        assert entropy is not None  # noqa: S101  (narrows the type; rows without one are left out)
        parts.append(element("path", d=_diamond(x(entropy), y), kind=f"diamond {colour_class(component.number)}"))
        n_surer += bool(local_entropies.size) and entropy < float(np.median(local_entropies))
    n_compared = sum(bool(component.local_entropies) for component in drawn)
    alt = f"Entropies of {format_count(len(drawn), 'fused component')} and of the local components behind them, "
    alt += f"from {format_fixed(float(values.min()), 1)} to {format_fixed(float(values.max()), 1)} nats. "
    alt += f"{n_surer} of {n_compared} fused components are surer than the median of their local ones."
    return drawing(parts, height, alt)


def _diamond(x: float, y: float, size: float = 7.5) -> str:
    """Return the path of a diamond around (x, y), `size` from its middle to each corner."""
    return f"M{x - size:.1f} {y:.1f} {x:.1f} {y - size:.1f} {x + size:.1f} {y:.1f} {x:.1f} {y + size:.1f}Z"
