"""The components as ellipses: local ones thin, in the colour of the fused one that they became."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from consilience.drawing.svg import WIDTH, Scale, drawing, element, line, text, tick_label, ticks, tint
from consilience.drawing.words import counted, number
from consilience.posteriors.report.planar_components import Oval, Plane

_HALF_MASS = math.sqrt(2.0 * math.log(2.0))  # radius, in standard deviations, of the ellipse with half of a Gaussian
_HALF_MASS_LINE = 0.6745
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 14.0, 30.0, 46.0
_EQUAL_UP_TO = 3.0
_FAINT_FROM = 80
_ROOM_FOR_NUMBER = 16.0


def plane(found: Plane) -> Markup:
    """Return the drawing; it holds the fused components whole and the centres of all local ones."""
    x_range, y_range = _range(found, 0), _range(found, 1)
    wide, high = WIDTH - _LEFT - _RIGHT, 460.0
    if found.kind == "line":
        high = min(420.0, 60.0 + 26.0 * len(found.fused))
        y_range = (-0.7, len(found.fused) - 0.3)
    elif found.kind == "projected" or _ratio(x_range, y_range) < _EQUAL_UP_TO:
        x_range, y_range = _equal(x_range, y_range, wide / high)
    x = Scale(x_range[0], x_range[1], _LEFT, _LEFT + wide)
    ends = (_TOP, _TOP + high) if found.kind == "line" else (_TOP + high, _TOP)
    y = Scale(y_range[0], y_range[1], *ends)
    height = _TOP + high + _BOTTOM
    parts = _frame(found, x, y, height)
    thin = "thin" if len(found.local) <= _FAINT_FROM else "thin faint"
    shapes = [_ellipse(oval, x, y, f"{thin} {tint(oval.component)}", found.kind) for oval in found.local]
    shapes += [_ellipse(oval, x, y, "halo", found.kind) for oval in found.fused]
    shapes += [_ellipse(oval, x, y, f"thick {tint(oval.component)}", found.kind) for oval in found.fused]
    clip = element("clipPath", element("rect", x=_LEFT, y=_TOP, width=wide, height=high), id="frame")
    parts.append(element("defs", clip))
    parts.append(element("g", Markup("").join(shapes), clip_path="url(#frame)"))
    if found.kind != "line":
        parts += [_mark(oval, x, y) for oval in found.fused]
    return drawing(parts, height, _alt(found))


def _mark(oval: Oval, x: Scale, y: Scale) -> Markup:
    """Return the component's number, in its ellipse or beside one that is too small for it."""
    reach = _HALF_MASS * math.sqrt(max(oval.covariance[0], 0.0)) * abs(x.factor)
    kind, cx, cy = f"mark {tint(oval.component)}", x(oval.centre[0]), y(oval.centre[1])
    if reach < _ROOM_FOR_NUMBER:
        return text(cx + reach + 7.0, cy - 7.0, str(oval.component), kind)
    return text(cx, cy + 5.0, str(oval.component), kind, "middle")


def _range(found: Plane, axis: int) -> tuple[float, float]:
    """Return the interval of all ellipses with a margin; local ones count no further than fused ones reach."""
    at = (0, 2)[axis]
    reach = [_HALF_MASS * math.sqrt(max(oval.covariance[at], 0.0)) for oval in found.fused]
    ends = [oval.centre[axis] + sign * r for oval, r in zip(found.fused, reach, strict=True) for sign in (-1, 1)]
    most = max(reach)
    for oval in found.local:
        r = min(most, _HALF_MASS * math.sqrt(max(oval.covariance[at], 0.0)))
        ends += [oval.centre[axis] - r, oval.centre[axis] + r]
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low) or 0.5 * abs(low) or 1.0
    return low - margin, high + margin


def _ratio(one: tuple[float, float], other: tuple[float, float]) -> float:
    a, b = one[1] - one[0], other[1] - other[0]
    return max(a / b, b / a)


def _equal(
    x_range: tuple[float, float], y_range: tuple[float, float], aspect: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Widen one of the ranges so that a unit is as long in both directions."""
    wide, high = x_range[1] - x_range[0], y_range[1] - y_range[0]
    more_x, more_y = max(0.0, aspect * high - wide) / 2, max(0.0, wide / aspect - high) / 2
    return (x_range[0] - more_x, x_range[1] + more_x), (y_range[0] - more_y, y_range[1] + more_y)


def _frame(found: Plane, x: Scale, y: Scale, height: float) -> list[Markup]:
    across = ticks(x.low, x.high, 7)
    parts = [text(0, 14, found.axes[1], "axis"), text(WIDTH - _RIGHT, height - 6, found.axes[0], "axis", "end")]
    foot = height - _BOTTOM
    parts += [line(x(mark), _TOP, x(mark), foot, "grid") for mark in across]
    parts += [text(x(mark), foot + 18, tick_label(mark, across), "tick", "middle") for mark in across]
    if found.kind == "line":
        for oval in found.fused:
            parts.append(line(_LEFT, y(oval.centre[1]), WIDTH - _RIGHT, y(oval.centre[1]), "row"))
            parts.append(text(_LEFT - 12, y(oval.centre[1]) + 4, str(oval.component), "tick", "end"))
        return parts
    up = ticks(y.low, y.high, 5)
    parts += [line(_LEFT, y(mark), WIDTH - _RIGHT, y(mark), "grid") for mark in up]
    parts += [text(_LEFT - 8, y(mark) + 4, tick_label(mark, up), "tick", "end") for mark in up]
    return parts


def _ellipse(oval: Oval, x: Scale, y: Scale, kind: str, of: str) -> Markup:
    """Return the ellipse (on a line, the bar) that holds half of the component; a dot where it is tiny."""
    cx, cy = x(oval.centre[0]), y(oval.centre[1])
    xx, xy, yy = oval.covariance
    if of == "line":
        reach = _HALF_MASS_LINE * math.sqrt(max(xx, 0.0)) * abs(x.factor)
        shift = 6.0 if kind.startswith("thin") else 0.0
        return line(cx - max(reach, 1.5), cy + shift, cx + max(reach, 1.5), cy + shift, kind)
    matrix = np.array([[xx * x.factor**2, xy * x.factor * y.factor], [xy * x.factor * y.factor, yy * y.factor**2]])
    values, vectors = np.linalg.eigh(matrix)
    short, long = (_HALF_MASS * math.sqrt(max(float(value), 0.0)) for value in values)
    if long < 2.0:
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


def _alt(found: Plane) -> str:
    centres = [
        f"{oval.component} at ({number(float(f'{oval.centre[0]:.3g}'))}, {number(float(f'{oval.centre[1]:.3g}'))})"
        if found.kind != "line"
        else f"{oval.component} at {number(float(f'{oval.centre[0]:.3g}'))}"
        for oval in found.fused[:12]
    ]
    more = f" and {len(found.fused) - 12:,} more" if len(found.fused) > 12 else ""
    behind = f" over {counted(len(found.local), 'local component')}" if found.local else ""
    return f"{counted(len(found.fused), 'fused component')}{behind}. Centres of the fused: {', '.join(centres)}{more}."
