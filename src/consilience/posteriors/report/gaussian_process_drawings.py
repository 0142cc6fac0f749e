"""Drawings of sparse Gaussian processes: the fused function and its 95 % bands, with all inducing inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from consilience.drawing.svg import WIDTH, Scale, colour_class, drawing, element, line, text, tick_label, ticks
from consilience.drawing.words import format_count, format_number, shorten
from consilience.posteriors.report.gaussian_processes import Points, PredictiveBand, ProcessContent

MAX_SITE_COLOURS = 10
"""More sites than these are all drawn in grey: report.css has ten colours."""

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 58.0, 14.0, 30.0, 46.0, 380.0
"""Margins of the plot within the drawing, and its height. Chosen by eye."""


def site_colour(index: int, n_sites: int) -> str:
    """Return the CSS class of the colour of site `index` of `n_sites` that are drawn."""
    return colour_class(index if n_sites <= MAX_SITE_COLOURS else -1)


def process_figure(process: ProcessContent) -> Markup:
    """Return the function with its 95 % band, for one input, or the inducing inputs in two of several inputs."""
    x, y = _scales(process)
    parts = _frame(process, x, y)
    shapes = [_dots(process.rows, x, y, 2.2, "datum")]
    if process.band is not None:
        shapes += _bands(process.band, x, y)
    if process.band is not None:
        middle = zip(process.band.x, process.band.mean, strict=True)
        shapes.append(element("polyline", points=_path(middle, x, y), kind="fused"))
    for index, site in enumerate(process.site_processes):
        colour = site_colour(index, len(process.site_processes))
        if site.mean:
            shapes.append(element("polyline", points=_path(site.mean, x, y), kind=f"thin {colour}"))
        shapes.append(_dots(site.inducing, x, y, 6.5, f"dot {colour}"))
    shapes += [element("path", d=_diamond(x(a), y(b)), kind="fused-point") for a, b in process.inducing]
    frame = element("rect", x=_LEFT, y=_TOP, width=WIDTH - _LEFT - _RIGHT, height=_HEIGHT)
    parts.append(element("defs", element("clipPath", frame, id="curve-frame")))
    parts.append(element("g", Markup("").join(shapes), clip_path="url(#curve-frame)"))
    return drawing(parts, _TOP + _HEIGHT + _BOTTOM, _description(process))


def _scales(process: ProcessContent) -> tuple[Scale, Scale]:
    points = [*process.inducing, *process.rows, *(point for site in process.site_processes for point in site.inducing)]
    x_values, y_values = [a for a, _ in points], [b for _, b in points]
    margin = 0.04
    if process.band is not None:
        x_values, margin = [process.band.x[0], process.band.x[-1]], 0.0
        for middle, half in zip(process.band.mean, process.band.observation, strict=True):
            y_values += [middle - half, middle + half]
    return (
        _scale(x_values, _LEFT, WIDTH - _RIGHT, margin),
        _scale(y_values, _TOP + _HEIGHT, _TOP, 0.04),
    )


def _scale(values: Sequence[float], start: float, end: float, margin: float) -> Scale:
    low, high = min(values), max(values)
    padding = margin * (high - low)
    return Scale(low - padding, high + padding, start, end)


def _frame(process: ProcessContent, x: Scale, y: Scale) -> list[Markup]:
    axis_y = _TOP + _HEIGHT
    x_marks, y_marks = ticks(x.low, x.high, 7), ticks(y.low, y.high, 6)
    parts = [text(0, 14, process.axes[1], "axis"), text(WIDTH - _RIGHT, axis_y + 40, process.axes[0], "axis", "end")]
    parts += [line(x(mark), _TOP, x(mark), axis_y, "grid") for mark in x_marks]
    parts += [text(x(mark), axis_y + 18, tick_label(mark, x_marks), "tick", "middle") for mark in x_marks]
    parts += [line(_LEFT, y(mark), WIDTH - _RIGHT, y(mark), "grid") for mark in y_marks]
    return parts + [text(_LEFT - 8, y(mark) + 4, tick_label(mark, y_marks), "tick", "end") for mark in y_marks]


def _bands(band: PredictiveBand, x: Scale, y: Scale) -> list[Markup]:
    """Return what holds 95 % of observations, and on it what holds 95 % of the function."""
    polygons = []
    for half, kind in ((band.observation, "band-wide"), (band.function, "band-narrow")):
        upper = [(a, m + h) for a, m, h in zip(band.x, band.mean, half, strict=True)]
        lower = [(a, m - h) for a, m, h in zip(band.x, band.mean, half, strict=True)]
        polygons.append(element("polygon", points=_path([*upper, *reversed(lower)], x, y), kind=kind))
    return polygons if band.observation != band.function else polygons[1:]


def _path(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)


def _dots(points: Points, x: Scale, y: Scale, radius: float, kind: str) -> Markup:
    circles = (element("circle", cx=x(a), cy=y(b), r=radius) for a, b in points)
    return element("g", Markup("").join(circles), kind=kind) if points else Markup("")


def _diamond(x: float, y: float, size: float = 4.5) -> str:
    return f"M{x - size:.1f} {y:.1f} {x:.1f} {y - size:.1f} {x + size:.1f} {y:.1f} {x:.1f} {y + size:.1f}Z"


def _description(process: ProcessContent) -> str:
    site_counts = ", ".join(f"{shorten(site.name)} {len(site.inducing)}" for site in process.site_processes[:12])
    more = f" and {len(process.site_processes) - 12} more sites" if len(process.site_processes) > 12 else ""
    sites_text = f"; sites have {site_counts}{more}" if site_counts else ""
    description = f"{format_count(len(process.inducing), 'fused inducing input')}{sites_text}."
    if process.rows:
        description += f" {format_count(len(process.rows), 'row')} of data."
    if process.band is None:
        x_name, y_name = map(shorten, process.axes)
        return f"{description} Drawn in {x_name} and {y_name}."
    band_points = list(zip(process.band.x, process.band.mean, process.band.function, strict=True))
    values = [
        f"{_three_digits(m)} ± {_three_digits(half)} at {_three_digits(a)}"
        for a, m, half in band_points[:: max(1, len(band_points) // 6)]
    ]
    return f"{description} The fused function with its 95 % band: {'; '.join(values)}."


def _three_digits(value: float) -> str:
    return format_number(float(f"{value:.3g}"))
