"""Charts of one number against another: the descent, the path over sizes, uncertainties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.drawing.svg import WIDTH, Scale, drawing, element, line, text, tick_label, ticks, tint, whole_ticks
from consilience.drawing.words import counted, fixed, number
from consilience.posteriors.report.details import Size
from consilience.posteriors.report.members import Component

_HALF = 390.0
_DOTS_AT_MOST = 600
_ROWS_AT_MOST = 60


def descent(history: Sequence[float]) -> Markup:
    """Return the objective against the step."""
    alt = f"The objective against the step. It went from {number(history[0])} to {number(history[-1])} in " + (
        f"{counted(len(history), 'step')}."
    )
    return _curve(list(range(1, len(history) + 1)), history, "step", "objective", alt, chosen=None)


def path(sizes: Sequence[Size], chosen: int, what: str) -> Markup:
    """Return the criterion, or the cost, against the number of components, with the chosen number marked."""
    xs, ys = [size.n_components for size in sizes], [size.value for size in sizes]
    at = next((i for i, x in enumerate(xs) if x == chosen), None)
    ends = f"from {number(ys[0])} at {xs[0]} to {number(ys[-1])} at {xs[-1]}"
    alt = f"The {what} against the number of components, {ends}; "
    alt += f"{chosen} was chosen" + ("." if at is None else f", where it is {number(ys[at])}.")
    return _curve(xs, ys, "number of components", what, alt, chosen=at)


def _curve(xs: Sequence[int], ys: Sequence[float], x_name: str, y_name: str, alt: str, chosen: int | None) -> Markup:
    height, right, top, bottom = 270.0, 10.0, 30.0, 46.0
    low, high = min(ys), _ceiling(ys)
    if high > 0 and 0 <= low < 0.35 * high:  # near enough to zero that leaving it out would exaggerate
        low = 0.0
    y = Scale(low, high, height - bottom, top + 6)
    marks = ticks(y.low, y.high) if high > low else [low]
    labels = [tick_label(mark, marks) for mark in marks]
    left = max(62.0, 12.0 + 7.5 * max(map(len, labels)))
    x = Scale(xs[0], xs[-1], left + 10, _HALF - right - 10)
    parts = [text(0, 14, y_name, "axis")]
    for mark, label in zip(marks, labels, strict=True):
        parts.append(line(left, y(mark), _HALF - right, y(mark), "grid"))
        parts.append(text(left - 8, y(mark) + 4, label, "tick", "end"))
    places = whole_ticks(xs[0], xs[-1], 6)
    parts += [text(x(place), height - bottom + 20, f"{place:,}", "tick", "middle") for place in places]
    parts.append(text(_HALF - right, height - 6, x_name, "axis", "end"))
    if chosen is not None:
        parts.append(line(x(xs[chosen]), top, x(xs[chosen]), height - bottom, "chosen"))
        side = "start" if x(xs[chosen]) < 0.6 * _HALF else "end"
        shift = 8 if side == "start" else -8
        parts.append(text(x(xs[chosen]) + shift, top + 10, f"chosen: {xs[chosen]}", "note", side))
    shown = [(x(a), y(min(b, high)), b > high) for a, b in zip(xs, ys, strict=True)]
    parts.append(element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b, _ in shown), kind="curve"))
    if len(xs) <= 80:
        parts += [element("circle", cx=a, cy=b, r=3, kind="point") for a, b, above in shown if not above]
        parts += [
            element("path", d=f"M{a - 5:.1f} {b + 4:.1f}h10l-5 -9z", kind="above") for a, b, above in shown if above
        ]
    if chosen is not None:
        parts.append(element("circle", cx=x(xs[chosen]), cy=y(ys[chosen]), r=6.5, kind="point pick"))
    return drawing(parts, height, alt, _HALF)


def _ceiling(values: Sequence[float]) -> float:
    """Return the largest value worth drawing to scale: a few far above the others would flatten what was decided."""
    low, upper = min(values), float(np.quantile(values, 0.75))
    limit = low + 4.0 * (upper - low)
    inside = max((value for value in values if value <= limit), default=max(values))
    return inside if upper > low and max(values) > low + 8.0 * (upper - low) else max(values)


def uncertainty(components: Sequence[Component]) -> Markup:
    """Return, for each fused component, its entropy as a diamond and those of the local ones behind it as dots."""
    shown = [one for one in components if one.entropy is not None][:_ROWS_AT_MOST]
    values = np.array([v for one in shown for v in (one.entropy, *one.local_entropies)], dtype=np.float64)
    step, left, top, bottom = 24.0, 64.0, 30.0, 44.0
    height = top + step * len(shown) + bottom
    x = Scale(float(values.min()), float(values.max()), left + 12, WIDTH - 24)
    marks = ticks(x.low, x.high, 7)
    foot = height - bottom
    parts = [line(x(mark), top - 6, x(mark), foot, "grid") for mark in marks]
    parts += [text(x(mark), foot + 18, tick_label(mark, marks), "tick", "middle") for mark in marks]
    parts += [
        text(0, 14, "component", "axis"),
        text(WIDTH - 24, height - 6, "entropy in nats; left is surer", "axis", "end"),
    ]
    single = sum(len(one.local_entropies) for one in shown) <= _DOTS_AT_MOST
    surer = 0
    for row, one in enumerate(shown):
        y, own = top + step * (row + 0.5), np.array(one.local_entropies)
        parts.append(text(left - 22, y + 4, str(one.number), "tick", "end"))
        parts.append(line(left, y, WIDTH - 12, y, "row"))
        if single:
            parts += [element("circle", cx=x(v), cy=y, r=4, kind=f"dot {tint(one.number)}") for v in own.tolist()]
        elif own.size:
            low, first, third, high = (x(float(v)) for v in np.quantile(own, [0.0, 0.25, 0.75, 1.0]))
            parts.append(line(low, y, high, y, f"range {tint(one.number)}"))
            parts.append(
                element("rect", x=first, y=y - 5, width=third - first, height=10, kind=f"box {tint(one.number)}")
            )
        entropy = one.entropy
        assert entropy is not None  # noqa: S101  (narrows the type; rows without one are left out)
        parts.append(element("path", d=_diamond(x(entropy), y), kind=f"diamond {tint(one.number)}"))
        surer += bool(own.size) and entropy < float(np.median(own))
    told = sum(bool(one.local_entropies) for one in shown)
    alt = f"Entropies of {counted(len(shown), 'fused component')} and of the local components behind them, "
    alt += f"from {fixed(float(values.min()), 1)} to {fixed(float(values.max()), 1)} nats. "
    alt += f"{surer} of {told} fused components are surer than the median of their local ones."
    return drawing(parts, height, alt)


def _diamond(x: float, y: float, size: float = 7.5) -> str:
    return f"M{x - size:.1f} {y:.1f} {x:.1f} {y - size:.1f} {x + size:.1f} {y:.1f} {x:.1f} {y + size:.1f}Z"
