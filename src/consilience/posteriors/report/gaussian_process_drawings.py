"""Drawings of sparse Gaussian processes: the fused function with its inducing inputs, over those of its sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from consilience.drawing.svg import WIDTH, Scale, drawing, element, line, text, tick_label, ticks, tint
from consilience.drawing.words import counted, number, shortened
from consilience.posteriors.report.gaussian_processes import Band, Points, Process

COLOURS = 10
"""More sites than these are all drawn alike."""

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 58.0, 14.0, 30.0, 46.0, 380.0


def site_tint(place: int, sites: int) -> str:
    """Return the class of a site's colour, by its place among all that are drawn."""
    return tint(place if sites <= COLOURS else -1)


def process_figure(found: Process) -> Markup:
    """Return the function with its 95 % band, for one input, or the inducing inputs in two of several inputs."""
    x, y = _scales(found)
    parts = _frame(found, x, y)
    inside = [_dots(found.rows, x, y, 2.2, "datum")]
    if found.band is not None:
        inside += _bands(found.band, x, y)
    if found.band is not None:
        middle = zip(found.band.x, found.band.mean, strict=True)
        inside.append(element("polyline", points=_path(middle, x, y), kind="fused"))
    for place, source in enumerate(found.sources):
        colour = site_tint(place, len(found.sources))
        if source.mean:
            inside.append(element("polyline", points=_path(source.mean, x, y), kind=f"thin {colour}"))
        inside.append(_dots(source.inducing, x, y, 6.5, f"dot {colour}"))
    inside += [element("path", d=_diamond(x(a), y(b)), kind="fused-point") for a, b in found.inducing]
    box = element("rect", x=_LEFT, y=_TOP, width=WIDTH - _LEFT - _RIGHT, height=_HEIGHT)
    parts.append(element("defs", element("clipPath", box, id="curve-frame")))
    parts.append(element("g", Markup("").join(inside), clip_path="url(#curve-frame)"))
    return drawing(parts, _TOP + _HEIGHT + _BOTTOM, _alt(found))


def _scales(found: Process) -> tuple[Scale, Scale]:
    everything = [*found.inducing, *found.rows, *(point for source in found.sources for point in source.inducing)]
    across, upwards = [a for a, _ in everything], [b for _, b in everything]
    margin = 0.04
    if found.band is not None:
        across, margin = [found.band.x[0], found.band.x[-1]], 0.0
        for middle, half in zip(found.band.mean, found.band.observation, strict=True):
            upwards += [middle - half, middle + half]
    return (
        _scale(across, _LEFT, WIDTH - _RIGHT, margin),
        _scale(upwards, _TOP + _HEIGHT, _TOP, 0.04),
    )


def _scale(values: Sequence[float], start: float, end: float, margin: float) -> Scale:
    low, high = min(values), max(values)
    more = margin * (high - low)
    return Scale(low - more, high + more, start, end)


def _frame(found: Process, x: Scale, y: Scale) -> list[Markup]:
    foot = _TOP + _HEIGHT
    across, up = ticks(x.low, x.high, 7), ticks(y.low, y.high, 6)
    parts = [text(0, 14, found.axes[1], "axis"), text(WIDTH - _RIGHT, foot + 40, found.axes[0], "axis", "end")]
    parts += [line(x(mark), _TOP, x(mark), foot, "grid") for mark in across]
    parts += [text(x(mark), foot + 18, tick_label(mark, across), "tick", "middle") for mark in across]
    parts += [line(_LEFT, y(mark), WIDTH - _RIGHT, y(mark), "grid") for mark in up]
    return parts + [text(_LEFT - 8, y(mark) + 4, tick_label(mark, up), "tick", "end") for mark in up]


def _bands(band: Band, x: Scale, y: Scale) -> list[Markup]:
    """Return what holds 95 % of observations, and on it what holds 95 % of the function."""
    drawn = []
    for half, kind in ((band.observation, "band-wide"), (band.function, "band-narrow")):
        upper = [(a, m + h) for a, m, h in zip(band.x, band.mean, half, strict=True)]
        lower = [(a, m - h) for a, m, h in zip(band.x, band.mean, half, strict=True)]
        drawn.append(element("polygon", points=_path([*upper, *reversed(lower)], x, y), kind=kind))
    return drawn if band.observation != band.function else drawn[1:]


def _path(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)


def _dots(points: Points, x: Scale, y: Scale, radius: float, kind: str) -> Markup:
    drawn = (element("circle", cx=x(a), cy=y(b), r=radius) for a, b in points)
    return element("g", Markup("").join(drawn), kind=kind) if points else Markup("")


def _diamond(x: float, y: float, size: float = 4.5) -> str:
    return f"M{x - size:.1f} {y:.1f} {x:.1f} {y - size:.1f} {x + size:.1f} {y:.1f} {x:.1f} {y + size:.1f}Z"


def _alt(found: Process) -> str:
    own = ", ".join(f"{shortened(source.name)} {len(source.inducing)}" for source in found.sources[:12])
    more = f" and {len(found.sources) - 12} more sites" if len(found.sources) > 12 else ""
    behind = f"; sites have {own}{more}" if own else ""
    said = f"{counted(len(found.inducing), 'fused inducing input')}{behind}."
    if found.rows:
        said += f" {counted(len(found.rows), 'row')} of data."
    if found.band is None:
        across, upwards = map(shortened, found.axes)
        return f"{said} Drawn in {across} and {upwards}."
    told = list(zip(found.band.x, found.band.mean, found.band.function, strict=True))
    means = [f"{_three(m)} ± {_three(half)} at {_three(a)}" for a, m, half in told[:: max(1, len(told) // 6)]]
    return f"{said} The fused function with its 95 % band: {'; '.join(means)}."


def _three(value: float) -> str:
    return number(float(f"{value:.3g}"))
