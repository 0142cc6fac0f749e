"""Inline SVG: elements, scales and axis ticks.

Written without a plotting library so that drawings are small, follow the page's colours, and are the same bytes every
time. Coordinates are units of the drawing's view box, which is `WIDTH` wide unless a drawing says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup, escape

from consilience.drawing.words import shorten, with_minus_sign

WIDTH = 780.0
"""Width of a drawing that fills the page, about that of the text column of report.css. Chosen by eye."""


def element(tag: str, content: object = "", **attributes: object) -> Markup:
    """Return an SVG element, everything escaped but content that is `Markup`.

    Of attributes ``kind`` is the class, underscores stand for hyphens, and None leaves one out.
    """
    pieces = [Markup("<{}").format(tag)]
    for name, value in attributes.items():
        if value is not None:
            rendered = _coordinate(value) if isinstance(value, float) else value
            pieces.append(Markup(' {}="{}"').format({"kind": "class"}.get(name, name.replace("_", "-")), rendered))
    body = escape(content)
    pieces.append(Markup(">{}</{}>").format(body, tag) if body else Markup("/>"))
    return Markup("").join(pieces)


def _coordinate(value: float) -> str:
    """Return a coordinate to a tenth of a unit, far below what an eye can see."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def text(x: float, y: float, content: object, kind: str = "", anchor: str | None = None) -> Markup:
    """Return a line of text that starts, or ends or has its middle (`anchor`), at (x, y)."""
    printed = shorten(content, 80) if isinstance(content, str) and not isinstance(content, Markup) else content
    return element("text", printed, x=x, y=y, kind=kind or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, kind=kind)


def drawing(parts: Sequence[Markup], height: float, alt: str, width: float = WIDTH) -> Markup:
    """Return a drawing of these parts; `alt` says in words what it shows, for readers who do not see it."""
    kind = "wide" if width > 0.75 * WIDTH else None  # which a narrow screen scrolls rather than shrinks
    box = f"0 0 {_coordinate(width)} {_coordinate(height)}"
    size = {"width": width, "height": height}
    return element("svg", Markup("\n").join(parts), viewBox=box, **size, kind=kind, role="img", aria_label=alt)


def ticks(low: float, high: float, n_ticks: int = 5) -> list[float]:
    """Return about so many round numbers between `low` and `high`: multiples of 1, 2, 2.5 or 5 times a power of ten.

    Where the ends are equal or not finite, `low` is the only tick.

    Examples
    --------
    >>> ticks(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    if not math.isfinite(span) or span <= 1e-9 * max(abs(low), abs(high)):
        return [low]
    exact_step = span / n_ticks
    power = 10.0 ** math.floor(math.log10(exact_step))
    # The smallest round step that is not shorter, within rounding, than the exact one.
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= 0.999 * exact_step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def integer_ticks(low: int, high: int, n_ticks: int = 10) -> list[int]:
    """Return whole numbers between `low` and `high`, every one of them where there are few."""
    step = max(1, math.ceil((high - low) / n_ticks))
    for round_step in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000):
        if round_step >= step:
            step = round_step
            break
    first = -(-low // step) * step
    return list(range(first, high + 1, step))


MAX_FIXED = 1e15
"""Numbers from which on a float is no exact whole one, and all its digits tell nothing."""


def tick_label(value: float, marks: Sequence[float]) -> str:
    """Return a tick's number with as many digits as tell it from its neighbours among `marks`."""
    largest = max(abs(mark) for mark in marks)
    is_long = largest >= 1e6 or (0 < largest < 1e-3)
    if is_long and (len({f"{mark:.3g}" for mark in marks}) == len(marks) or largest >= MAX_FIXED):
        return with_minus_sign(f"{value:.3g}")
    step = min((abs(b - a) for a, b in pairwise(marks)), default=max(largest, 1.0))
    digits = next(d for d in range(10) if d == 9 or all(abs(round(v, d) - v) < 1e-3 * step for v in marks))
    return with_minus_sign(f"{round(value, digits) + 0.0:,.{digits}f}")


class Scale:
    """A linear map from values to coordinates; of the latter the first may be the larger one, as on an upward axis.

    Where the values at the ends are equal, half of their size, or 0.5, is added on either side.
    """

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.ends = (low, high)
        if not high > low:
            margin = 0.5 * abs(low) or 0.5
            low, high = low - margin, low + margin
        self.low, self.high, self.start = low, high, start
        self.factor = (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        return self.start + (value - self.low) * self.factor


def colour_class(component: int) -> str:
    """Return the CSS class of a component's colour, ``k-`` for none; after ten colours they come again."""
    return "k-" if component < 0 else f"k{component % 10}"
