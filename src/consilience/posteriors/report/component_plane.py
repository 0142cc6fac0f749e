"""Ellipse plot of mixture components: fused ones thick, local ones thin in the colour of what they became.

The ellipse of a component with centre m and covariance S is { x : (x - m)^T S^-1 (x - m) = 2 log 2 }, which holds half
of a Gaussian in the plane; on a line it is the bar of the middle half, m +- 0.6745 s.
"""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from consilience.drawing.axes import Axes
from consilience.drawing.svg import WIDTH, Scale, colour_class, element, line, text
from consilience.drawing.words import format_count, format_number
from consilience.posteriors.report.planar_components import ComponentEllipse, ComponentPlane

_HALF_MASS_RADIUS = math.sqrt(2.0 * math.log(2.0))
"""Radius, in standard deviations, of the ellipse with half of a planar Gaussian: P(r < R) = 1 - exp(-R^2 / 2)."""

_HALF_MASS_RADIUS_1D = 0.6745
"""The same in one dimension: the 0.75 quantile of the standard normal, to four digits."""

_MARGINS = (54.0, 14.0)
"""Room left and right of the plot. Chosen by eye."""

_MAX_EQUAL_SCALE_RATIO = 3.0
"""Both features get one scale where the range of neither is this many times the other's. Chosen by eye."""

_MAX_OPAQUE_ELLIPSES = 80
"""More local ellipses than these are drawn faint. Chosen by eye."""

_MIN_LABELLED_RADIUS = 16.0
"""Horizontal radius from which on an ellipse has room for its number. Chosen by eye."""


def plane_figure(plane: ComponentPlane) -> Markup:
    """Return the drawing; it holds the fused components whole and the centres of all local ones."""
    x_range, y_range = _axis_range(plane, 0), _axis_range(plane, 1)
    is_line = plane.kind == "line"
    plot_height = min(420.0, 60.0 + 26.0 * len(plane.fused)) if is_line else 460.0
    if is_line:
        y_range = (len(plane.fused) - 0.3, -0.7)
    elif plane.kind == "projected" or _range_ratio(x_range, y_range) < _MAX_EQUAL_SCALE_RATIO:
        x_range, y_range = _equalise_scales(x_range, y_range, (WIDTH - sum(_MARGINS)) / plot_height)
    axes = Axes.over(x_range, y_range, plot_height, margins=_MARGINS)
    parts = axes.names(*plane.axes) + axes.x_ticks(7)
    if is_line:
        centres, numbers = [ellipse.centre[1] for ellipse in plane.fused], [str(e.component) for e in plane.fused]
        parts += axes.rows(centres, numbers)
    else:
        parts += axes.y_ticks()
    local_kind = "thin" if len(plane.local) <= _MAX_OPAQUE_ELLIPSES else "thin faint"
    layers = ((plane.local, local_kind), (plane.fused, "halo"), (plane.fused, "thick"))
    shapes = []
    for ellipses, layer_kind in layers:
        for ellipse in ellipses:
            # A halo of the paper's colour sets a fused ellipse off from what is below it; it has no colour class.
            kind = layer_kind if layer_kind == "halo" else f"{layer_kind} {colour_class(ellipse.component)}"
            shapes.append(_ellipse(ellipse, axes.x, axes.y, kind, plane.kind))
    parts += axes.clip(shapes, "frame")
    if not is_line:
        parts += [_component_number(ellipse, axes.x, axes.y) for ellipse in plane.fused]
    return axes.drawing(parts, _description(plane))


def _component_number(ellipse: ComponentEllipse, x: Scale, y: Scale) -> Markup:
    """Return the component's number, in its ellipse or next to one that is too small for it."""
    radius = _HALF_MASS_RADIUS * math.sqrt(max(ellipse.covariance[0], 0.0)) * abs(x.factor)
    kind, cx, cy = f"mark {colour_class(ellipse.component)}", x(ellipse.centre[0]), y(ellipse.centre[1])
    if radius < _MIN_LABELLED_RADIUS:
        return text(cx + radius + 7.0, cy - 7.0, str(ellipse.component), kind)
    return text(cx, cy + 5.0, str(ellipse.component), kind, "middle")


def _axis_range(plane: ComponentPlane, axis: int) -> tuple[float, float]:
    """Return the interval of all ellipses with a margin; local ones count no further than fused ones reach."""
    variance_index = (0, 2)[axis]  # of (xx, xy, yy)
    radii = [_HALF_MASS_RADIUS * math.sqrt(max(ellipse.covariance[variance_index], 0.0)) for ellipse in plane.fused]
    ends = []
    for ellipse, radius in zip(plane.fused, radii, strict=True):
        ends += [ellipse.centre[axis] - radius, ellipse.centre[axis] + radius]
    largest_radius = max(radii)
    for ellipse in plane.local:
        radius = min(largest_radius, _HALF_MASS_RADIUS * math.sqrt(max(ellipse.covariance[variance_index], 0.0)))
        ends += [ellipse.centre[axis] - radius, ellipse.centre[axis] + radius]
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low) or 0.5 * abs(low) or 1.0  # an interval of no length still needs one
    return low - margin, high + margin


def _range_ratio(x_range: tuple[float, float], y_range: tuple[float, float]) -> float:
    """Return how many times the longer range is as long as the shorter."""
    x_length, y_length = x_range[1] - x_range[0], y_range[1] - y_range[0]
    return max(x_length / y_length, y_length / x_length)


def _equalise_scales(
    x_range: tuple[float, float], y_range: tuple[float, float], aspect: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Widen one of the ranges so that a unit is as long in both directions."""
    x_length, y_length = x_range[1] - x_range[0], y_range[1] - y_range[0]
    more_x, more_y = max(0.0, aspect * y_length - x_length) / 2, max(0.0, x_length / aspect - y_length) / 2
    return (x_range[0] - more_x, x_range[1] + more_x), (y_range[0] - more_y, y_range[1] + more_y)


def _ellipse(ellipse: ComponentEllipse, x: Scale, y: Scale, kind: str, plane_kind: str) -> Markup:
    """Return the ellipse (on a line, the bar) that holds half of the component; a dot where it is tiny."""
    cx, cy = x(ellipse.centre[0]), y(ellipse.centre[1])
    xx, xy, yy = ellipse.covariance
    if plane_kind == "line":
        half_length = _HALF_MASS_RADIUS_1D * math.sqrt(max(xx, 0.0)) * abs(x.factor)
        shift = 6.0 if kind.startswith("thin") else 0.0
        return line(cx - max(half_length, 1.5), cy + shift, cx + max(half_length, 1.5), cy + shift, kind)
    # The covariance in units of the drawing, where y points down: y.factor is negative, and the tilt turns with it.
    matrix = np.array([[xx * x.factor**2, xy * x.factor * y.factor], [xy * x.factor * y.factor, yy * y.factor**2]])
    values, vectors = np.linalg.eigh(matrix)
    short, long = (_HALF_MASS_RADIUS * math.sqrt(max(float(value), 0.0)) for value in values)
    if long < 2.0:  # an ellipse that is smaller than a dot would not be seen
        return element("circle", cx=cx, cy=cy, r=2.0 if kind.startswith("thin") else 3.5, kind=kind)
    if kind.startswith("thin") and max(long, abs(cx), abs(cy)) > 20 * WIDTH:  # far wider than the page: a line at most
        return Markup("")
    angle = math.degrees(math.atan2(float(vectors[1, 1]), float(vectors[0, 1]))) % 180.0
    return element(
        "ellipse",
        rx=long,
        ry=max(short, 0.5),
        transform=f"translate({cx:.1f} {cy:.1f}) rotate({angle:.1f})",
        kind=kind,
    )


def _description(plane: ComponentPlane) -> str:
    centres = []
    for ellipse in plane.fused[:12]:
        x, y = (format_number(float(f"{coordinate:.3g}")) for coordinate in ellipse.centre)
        centres.append(f"{ellipse.component} at {x}" if plane.kind == "line" else f"{ellipse.component} at ({x}, {y})")
    more = f" and {len(plane.fused) - 12:,} more" if len(plane.fused) > 12 else ""
    locals_text = f" over {format_count(len(plane.local), 'local component')}" if plane.local else ""
    fused_text = format_count(len(plane.fused), "fused component")
    return f"{fused_text}{locals_text}. Centres of the fused: {', '.join(centres)}{more}."
