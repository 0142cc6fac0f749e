"""Barriers: what the networks on straight lines between two give, all lines on common axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array
from consilience.drawing.svg import Scale, drawing, element, line, text, tick_label, ticks, tint
from consilience.drawing.words import number, shortened

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier

LINES_AT_MOST = 10
"""Colours that can be told apart."""

_WIDTH, _PLOT, _LEFT, _RIGHT, _TOP, _BOTTOM = 390.0, 200.0, 62.0, 14.0, 30.0, 46.0


def quantities(barriers: Mapping[str, Barrier]) -> list[str]:
    """Return the names of all values, in the order in which they come."""
    return list(dict.fromkeys(name for one in barriers.values() for name in one.values))


def barrier_curves(barriers: Mapping[str, Barrier], quantity: str) -> Markup:
    """Return the curves of one quantity along every line."""
    shown = {
        name: (one.t, one.values[quantity])
        for name, one in list(barriers.items())[:LINES_AT_MOST]
        if quantity in one.values
    }
    finite = np.concatenate([values[np.isfinite(values)] for _, values in shown.values()])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high > 0 and 0 <= low < 0.35 * high:  # near enough to zero that leaving it out would exaggerate
        low = 0.0
    foot = _TOP + _PLOT
    x, y = Scale(0.0, 1.0, _LEFT, _WIDTH - _RIGHT), Scale(low, high, foot, _TOP + 4)
    up = ticks(y.low, y.high)
    across = ticks(0.0, 1.0)
    parts = [text(0, 14, shortened(quantity, 40), "axis"), text(_WIDTH - _RIGHT, foot + 38, "t", "axis", "end")]
    parts += [line(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), "grid") for mark in up]
    parts += [text(_LEFT - 8, y(mark) + 4, tick_label(mark, up), "tick", "end") for mark in up]
    parts += [text(x(mark), foot + 20, tick_label(mark, across), "tick", "middle") for mark in across]
    for place, (name, (t, values)) in enumerate(shown.items()):
        colour = f"{tint(place)} d{place % 4}"
        parts += [element("polyline", points=points, kind=f"line {colour}") for points in _pieces(t, values, x, y)]
        level = foot + _BOTTOM + 20.0 * place + 8
        parts.append(line(_LEFT, level, _LEFT + 34, level, f"line {colour}"))
        parts.append(text(_LEFT + 42, level + 4, shortened(name, 42), "tick"))
    return drawing(parts, foot + _BOTTOM + 20.0 * len(shown) + 6, _alt(shown, quantity), _WIDTH)


def _pieces(t: Array, values: Array, x: Scale, y: Scale) -> list[str]:
    """Return the points of every stretch without values that are not finite."""
    good = np.isfinite(values)
    starts = np.flatnonzero(np.diff(good.astype(np.int8)) != 0) + 1
    return [
        " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(t[own].tolist(), values[own].tolist(), strict=True))
        for own in np.split(np.arange(len(t)), starts)
        if good[own[0]]
    ]


def _alt(shown: Mapping[str, tuple[Array, Array]], quantity: str) -> str:
    told = []
    for name, (t, values) in shown.items():
        middle = float(np.interp(0.5, t, values))
        ends = f"{number(float(values[0]))} at t = 0, {number(middle)} in the middle, {number(float(values[-1]))} at 1"
        missing = int((~np.isfinite(values)).sum())
        told.append(f"{shortened(name, 40)}: {ends}" + (f", not finite at {missing:,} places" if missing else ""))
    return f"{shortened(quantity, 40).capitalize()} on lines between networks. {'; '.join(told)}."
