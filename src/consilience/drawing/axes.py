"""Axes: the scales, grid, ticks, names and legend of a chart, and the shapes that stand on them in values.

Every chart of the reports is drawn on `Axes`; what it shows on them is its own, but for `curve`, values over whole
numbers such as an objective over its steps. A chart of rows has the rows' numbers on its y axis, the first at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

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
from consilience.drawing.words import format_count, format_number, shorten

HALF_WIDTH = 390.0
"""Width of a chart of which two stand side by side: half of `WIDTH`."""

_TOP, _BOTTOM, _LEGEND_STEP = 30.0, 46.0, 20.0
"""Room above the plot for the name of the y axis, below it for ticks and name of the x axis, and for each line of a
legend. Chosen by eye."""

_ZERO_SHARE = 0.35
"""A range of positive values that starts below this share of its end starts at zero. Chosen by eye."""

Points = Iterable[tuple[float, float]]


@dataclass(frozen=True)
class Axes:
    """Two axes in a drawing."""

    x: Scale  # coordinates of values
    y: Scale
    left: float  # edges of the plot within the drawing
    right: float
    top: float
    bottom: float
    width: float  # of the drawing

    @classmethod
    def over(
        cls,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        height: float,
        width: float = WIDTH,
        margins: tuple[float, float] = (62.0, 14.0),
        inset: tuple[float, float] = (0.0, 0.0),
    ) -> Axes:
        """Return the axes over ranges of values, in a plot of this height in a drawing of this width.

        Ranges are the values at the left and right, and at the lower and upper end; of rows, the larger is the lower.
        Margins are room left of the plot, for the ticks of the y axis, and right of it; insets room within the plot,
        left and right of the x values, and above the y values.
        """
        left, right, bottom = margins[0], width - margins[1], _TOP + height
        x = Scale(*x_range, left + inset[0], right - inset[0])
        ends = sorted(zip(y_range, (bottom, _TOP + inset[1]), strict=True), key=itemgetter(0))
        (low, low_end), (high, high_end) = ends
        return cls(x, Scale(low, high, low_end, high_end), left, right, _TOP, bottom, width)

    def names(self, x_name: str, y_name: str) -> list[Markup]:
        """Return the names of both axes, that of y above the plot."""
        return [text(0, 14, y_name, "axis"), text(self.right, self.bottom + 40, x_name, "axis", "end")]

    def x_ticks(self, n_ticks: int = 5, *, grid: bool = True) -> list[Markup]:
        """Return the ticks of the x axis, with grid lines or without."""
        marks = ticks(*self.x.ends, n_ticks)
        parts = [line(self.x(mark), self.top, self.x(mark), self.bottom, "grid") for mark in marks if grid]
        return parts + self.x_labels(marks, [tick_label(mark, marks) for mark in marks])

    def x_labels(self, values: Iterable[float], labels: Iterable[str]) -> list[Markup]:
        """Return labels below the plot at some values."""
        pairs = zip(values, labels, strict=True)
        return [text(self.x(value), self.bottom + 20, label, "tick", "middle") for value, label in pairs]

    def y_ticks(self, n_ticks: int = 5, *, grid: bool = True) -> list[Markup]:
        """Return the ticks of the y axis, with grid lines or without."""
        marks = ticks(*self.y.ends, n_ticks)
        parts = [line(self.left, self.y(mark), self.right, self.y(mark), "grid") for mark in marks if grid]
        return parts + self.y_labels(marks, [tick_label(mark, marks) for mark in marks])

    def y_labels(self, values: Iterable[float], labels: Iterable[str], kind: str = "tick") -> list[Markup]:
        """Return labels left of the plot at some values."""
        pairs = zip(values, labels, strict=True)
        return [text(self.left - 8, self.y(value) + 4, label, kind, "end") for value, label in pairs]

    def rows(self, values: Sequence[float], labels: Sequence[str]) -> list[Markup]:
        """Return dotted lines at some values of y, with their labels."""
        lines = [line(self.left, self.y(value), self.right, self.y(value), "row") for value in values]
        return lines + self.y_labels(values, labels)

    def upright(self, value: float, kind: str = "chosen") -> Markup:
        """Return a line over the whole height at a value of x."""
        return line(self.x(value), self.top, self.x(value), self.bottom, kind)

    def path(self, points: Points) -> str:
        """Return points as the attribute of a polyline or polygon."""
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)

    def curve(self, points: Points, kind: str) -> Markup:
        """Return a line through points."""
        return element("polyline", points=self.path(points), kind=kind)

    def dots(self, points: Points, radius: float, kind: str | None = None) -> list[Markup]:
        """Return a circle for every point."""
        return [element("circle", cx=self.x(a), cy=self.y(b), r=radius, kind=kind) for a, b in points]

    def diamond(self, point: tuple[float, float], size: float, kind: str) -> Markup:
        """Return a diamond, `size` from its middle to each corner."""
        x, y = self.x(point[0]), self.y(point[1])
        path = f"M{x - size:.1f} {y:.1f} {x:.1f} {y - size:.1f} {x + size:.1f} {y:.1f} {x:.1f} {y + size:.1f}Z"
        return element("path", d=path, kind=kind)

    def clip(self, shapes: Iterable[Markup], name: str) -> list[Markup]:
        """Return shapes cut off at the edges of the plot; `name` is the clip's, one for each in a page."""
        edges = {"x": self.left, "y": self.top, "width": self.right - self.left, "height": self.bottom - self.top}
        path = element("clipPath", element("rect", **edges), id=name)
        return [element("defs", path), element("g", Markup("").join(shapes), clip_path=f"url(#{name})")]

    def legend(self, names: Iterable[str]) -> list[Markup]:
        """Return a legend of lines below the plot, each of the kind that `line_kind` gives."""
        parts = []
        for index, name in enumerate(names):
            y = self.bottom + _BOTTOM + _LEGEND_STEP * index + 8
            parts.append(line(self.left, y, self.left + 34, y, line_kind(index)))
            parts.append(text(self.left + 42, y + 4, shorten(name, 42), "tick"))
        return parts

    def drawing(self, parts: Sequence[Markup], alt: str, n_legend: int = 0) -> Markup:
        """Return the drawing of these parts, with room for `n_legend` lines of a legend."""
        below = _LEGEND_STEP * n_legend + 6 if n_legend else 0.0
        return drawing(parts, self.bottom + _BOTTOM + below, alt, self.width)


def line_kind(index: int) -> str:
    """Return the CSS classes of one of several lines: its colour and its dashes."""
    return f"line {colour_class(index)} d{index % 4}"


def from_zero(low: float, high: float) -> tuple[float, float]:
    """Return a range of values, from zero where it starts so near that leaving zero out would exaggerate.

    Examples
    --------
    >>> from_zero(1.0, 10.0), from_zero(9.0, 10.0)
    ((0.0, 10.0), (9.0, 10.0))
    """
    return (0.0, high) if high > 0 and 0 <= low < _ZERO_SHARE * high else (low, high)


def descent_curve(history: Sequence[float]) -> Markup:
    """Return the objective against the step."""
    ends = f"from {format_number(history[0])} to {format_number(history[-1])}"
    alt = f"The objective against the step. It went {ends} in {format_count(len(history), 'step')}."
    return curve(list(range(1, len(history) + 1)), history, "step", "objective", alt, chosen_index=None)


def left_margin(y_range: tuple[float, float], least: float) -> float:
    """Return the room that the labels of a y axis take."""
    marks = ticks(*y_range)
    return max(least, 12.0 + 7.5 * max((len(tick_label(mark, marks)) for mark in marks), default=0))


def curve(
    xs: Sequence[int], ys: Sequence[float], x_name: str, y_name: str, alt: str, chosen_index: int | None
) -> Markup:
    """Return one curve of `ys` (n,) over whole numbers `xs` (n,), with the point `chosen_index` marked."""
    ceiling = _ceiling(ys)
    y_range = from_zero(min(ys), ceiling)
    left = left_margin(y_range, 62.0)
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
