"""Planes through three networks: filled levels of what the networks there give, with where networks lie.

Between the points that were evaluated, values are interpolated linearly (their logarithms where levels are ratios).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array, Labels
from consilience.drawing.cells import UNKNOWN, cells, of_scale, shaded
from consilience.drawing.svg import Scale, drawing, element, text, tick_label, ticks
from consilience.drawing.words import fixed, number, shortened

if TYPE_CHECKING:
    from consilience.networks.landscape.plane import Marker, Plane

_CLASSES = 7
_RATIO = 20.0  # of the greatest to the least value, from which on levels are ratios
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 390.0, 62.0, 14.0, 30.0, 40.0
_HEIGHTS = (120.0, 420.0)
_FINE = 200  # cells across


@dataclass(frozen=True)
class Levels:
    """Where the shades of one quantity change, the same in all planes.

    Parameters
    ----------
    edges
        Ascending; one shade more than these.
    ratios
        Whether they are about equal ratios apart rather than equal differences.
    """

    edges: tuple[float, ...]
    ratios: bool


def levels_of(surfaces: Iterable[Array]) -> Levels:
    """Return round levels between the least and the greatest value.

    Examples
    --------
    >>> levels_of([np.array([0.0, 1.0])]).edges
    (0.2, 0.4, 0.6, 0.8)
    >>> levels_of([np.array([0.01, 10.0])]).edges
    (0.027, 0.072, 0.19, 0.52, 1.4, 3.7)
    """
    values = np.concatenate([surface.ravel() for surface in surfaces])
    values = values[np.isfinite(values)]
    if values.size == 0 or values.min() == values.max():
        return Levels((), ratios=False)
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > _RATIO * low:
        exact = np.geomspace(low, high, _CLASSES + 1)[1:-1].tolist()
        return Levels(tuple(dict.fromkeys(float(f"{value:.2g}") for value in exact)), ratios=True)
    inner = [float(f"{mark:.12g}") for mark in ticks(low, high, _CLASSES) if low < mark < high]
    return Levels(tuple(inner), ratios=False)


def plane_map(plane: Plane, quantity: str, levels: Levels) -> Markup:
    """Return the map of one quantity on a plane."""
    across, upwards = plane.alphas * plane.dx, plane.betas * plane.dy
    wide = _WIDTH - _LEFT - _RIGHT
    high = min(max(wide * float(np.ptp(upwards) / np.ptp(across)), _HEIGHTS[0]), _HEIGHTS[1])
    foot = _TOP + high
    x = Scale(float(across[0]), float(across[-1]), _LEFT, _LEFT + wide)
    y = Scale(float(upwards[0]), float(upwards[-1]), foot, _TOP)
    rows = max(2, round(_FINE * high / wide))
    classes = _classes(plane.values[quantity], plane.alphas, plane.betas, (rows, _FINE), levels)
    shades = [of_scale(place, len(levels.edges) + 1) for place in range(len(levels.edges) + 1)]
    parts = [text(0, 14, shortened(quantity, 40), "axis"), text(_WIDTH - _RIGHT, foot + 36, "distance", "axis", "end")]
    parts.append(cells(shaded(classes[::-1], shades), _LEFT, _TOP, wide, high))
    marks = ticks(x.low, x.high, 6)
    parts += [text(x(mark), foot + 18, tick_label(mark, marks), "tick", "middle") for mark in marks]
    marks = ticks(y.low, y.high, 6)
    parts += [text(_LEFT - 8, y(mark) + 4, tick_label(mark, marks), "tick", "end") for mark in marks]
    parts += _markers(plane, x, y)
    parts += _legend(levels, shades, foot + _BOTTOM + 6, wide, bool((classes == UNKNOWN).any()))
    return drawing(parts, foot + _BOTTOM + 46, _alt(plane, quantity), _WIDTH)


def drawable(plane: Plane) -> bool:
    """Return whether a plane, which may come from a file of somebody else, has a grid with an area."""
    sides = (plane.alphas * plane.dx, plane.betas * plane.dy)
    return all(len(side) > 1 and bool(np.all(np.isfinite(side)) and np.all(np.diff(side) > 0)) for side in sides)


def stretched(plane: Plane) -> bool:
    """Return whether the two directions had to be drawn to different scales."""
    ratio = float(np.ptp(plane.betas) * plane.dy / (np.ptp(plane.alphas) * plane.dx))
    wide = _WIDTH - _LEFT - _RIGHT
    return not _HEIGHTS[0] <= wide * ratio <= _HEIGHTS[1]


def _classes(surface: Array, alphas: Array, betas: Array, shape: tuple[int, int], levels: Levels) -> Labels:
    """Return the class of every fine cell, its middle interpolated; `UNKNOWN` where a point near it is not finite."""
    down, across = _weights(betas, shape[0]), _weights(alphas, shape[1])
    known = np.isfinite(surface)
    values = np.where(known, surface, 1.0)
    edges = np.array(levels.edges)
    if levels.ratios:
        values, edges = np.log(values), np.log(edges)
    fine = down @ values @ across.T
    found = np.searchsorted(edges, fine, side="right")
    return np.where(down @ (~known).astype(np.float64) @ across.T > 0, UNKNOWN, found)


def _weights(places: Array, count: int) -> Array:
    """Return the weights (count, n) that interpolate values at n places at the middles of as many equal cells."""
    middles = places[0] + (np.arange(count) + 0.5) / count * (places[-1] - places[0])
    right = np.clip(np.searchsorted(places, middles), 1, len(places) - 1)
    part = (middles - places[right - 1]) / (places[right] - places[right - 1])
    weights = np.zeros((count, len(places)))
    weights[np.arange(count), right - 1] = 1.0 - part
    weights[np.arange(count), right] = part
    return weights


def _markers(plane: Plane, x: Scale, y: Scale) -> list[Markup]:
    """Return the networks on the map with their names, each where it covers no other as far as there is room."""
    ends = (plane.alphas[[0, -1]], plane.betas[[0, -1]])
    inside = [
        one for one in plane.markers if ends[0][0] <= one.alpha <= ends[0][1] and ends[1][0] <= one.beta <= ends[1][1]
    ]
    places = [(x(one.alpha * plane.dx), y(one.beta * plane.dy)) for one in inside]
    taken = [(px - 7, py - 7, px + 7, py + 7) for px, py in places]
    dear = [20.0] * len(taken)  # to cover a network is worse than to cover a name
    dots, names = [], []
    for one, (px, py) in zip(inside, places, strict=True):
        name = shortened(one.name, 26)
        length = _SIGN * len(name)
        middle = min(max(px, _LEFT + length / 2), _WIDTH - _RIGHT - length / 2)
        spots = (
            ("start", px + 11, py + 4),
            ("end", px - 11, py + 4),
            ("middle", middle, py - 12),
            ("middle", middle, py + 22),
        )
        boxes = [_box(anchor, a, b, length) for anchor, a, b in spots]
        cost = [
            sum(p * _overlap(box, other) for other, p in zip(taken, dear, strict=True)) + _outside(box) for box in boxes
        ]
        best = int(np.argmin(cost))
        taken.append(boxes[best])
        dear.append(1.0)
        beside = one.distance > 1e-6 * math.hypot(plane.dx, plane.dy)
        dots.append(element("circle", cx=px, cy=py, r=5.5, kind="marker off" if beside else "marker"))
        anchor, a, b = spots[best]
        names.append(text(a, b, name, "marker-name", anchor))
    return dots + names


_SIGN = 8.2  # width of a bold sign, on average
Box = tuple[float, float, float, float]


def _box(anchor: str, x: float, y: float, length: float) -> Box:
    """Return what a line of text covers."""
    start = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * length
    return start, y - 11.0, start + length, y + 4.0


def _overlap(one: Box, other: Box) -> float:
    wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def _outside(box: Box) -> float:
    """Return how much of a text is off the map, on which it is easiest to read."""
    return 15.0 * (max(0.0, _LEFT - box[0]) + max(0.0, box[2] - _WIDTH + _RIGHT) + max(0.0, _TOP - box[1]))


def _legend(levels: Levels, shades: Sequence[int], y: float, wide: float, unknown: bool) -> list[Markup]:
    count = len(shades) + unknown
    step = min(60.0, wide / count)
    parts = []
    for place, shade in enumerate(shades):
        parts.append(element("rect", x=_LEFT + step * place, y=y, width=step, height=13, kind=f"h{shade}"))
    for place, edge in enumerate(levels.edges):
        parts.append(text(_LEFT + step * (place + 1), y + 29, number(edge), "tick", "middle"))
    if unknown:
        x = _LEFT + step * len(shades) + 6
        parts.append(element("rect", x=x, y=y, width=step - 6, height=13, kind="unknown-box"))
        parts.append(text(x + (step - 6) / 2, y + 29, "none", "tick", "middle"))
    return parts


def _alt(plane: Plane, quantity: str) -> str:
    surface = plane.values[quantity]
    finite = surface[np.isfinite(surface)]
    ends = f"from {number(float(finite.min()))} to {number(float(finite.max()))}" if finite.size else "nowhere finite"
    told = [_told(one, quantity) for one in plane.markers[:12]]
    size = f"{len(plane.alphas)} × {len(plane.betas)} points"
    return f"{shortened(quantity, 40).capitalize()} on a plane of {size}: {ends}. {'; '.join(told)}."


def _told(one: Marker, quantity: str) -> str:
    value = number(float(one.values[quantity])) if quantity in one.values else "–"
    return f"{shortened(one.name, 40)} at ({fixed(one.alpha, 2)}, {fixed(one.beta, 2)}) has {value}"
