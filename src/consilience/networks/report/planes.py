"""Filled contour maps of loss surfaces on the plane through three networks, with markers where networks lie.

Between the points of the grid (alpha_i, beta_j) values are interpolated bilinearly, V = R E C^T with the surface E
(B, A) and interpolation weights R (rows, B) and C (columns, A) of two entries a row: their logarithms where levels are
about equal ratios apart. A cell near a point that is not finite is drawn as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array, Labels
from consilience.drawing.axes import HALF_WIDTH, Axes
from consilience.drawing.cells import UNKNOWN, cell_map, class_shade, shade_classes
from consilience.drawing.svg import element, text, ticks
from consilience.drawing.words import format_fixed, format_number, shorten

if TYPE_CHECKING:
    from consilience.networks.landscape.plane import Marker, Plane

_N_CLASSES = 7
"""About how many classes of values, each with a shade. Chosen by eye, so that neighbouring shades differ."""

_MIN_LOG_RATIO = 20.0
"""Ratio of the greatest to the least value from which on levels are ratios. Chosen by eye."""

_MARGINS = (62.0, 14.0)
"""Room left and right of the map. Chosen by eye."""

_HEIGHT_RANGE = (120.0, 420.0)
"""Least and greatest height of a map; a plane outside this is drawn to two scales. Chosen by eye."""

_CELLS_ACROSS = 200
"""Cells of a map across: about two units of the drawing each, finer than an eye sees. Chosen by eye."""


@dataclass(frozen=True)
class ContourLevels:
    """Values at which the shade of one quantity changes, the same in all planes."""

    edges: tuple[float, ...]  # the values, ascending; there is one shade more than these
    ratios: bool  # whether they are about equal ratios apart rather than equal differences


def levels_of(surfaces: Iterable[Array]) -> ContourLevels:
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
        return ContourLevels((), ratios=False)
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > _MIN_LOG_RATIO * low:  # two digits of each level, so that the legend is short
        exact_edges = np.geomspace(low, high, _N_CLASSES + 1)[1:-1].tolist()
        return ContourLevels(tuple(dict.fromkeys(float(f"{value:.2g}") for value in exact_edges)), ratios=True)
    edges = [float(f"{mark:.12g}") for mark in ticks(low, high, _N_CLASSES) if low < mark < high]
    return ContourLevels(tuple(edges), ratios=False)


def plane_map(plane: Plane, quantity: str, levels: ContourLevels) -> Markup:
    """Return the map of one quantity on a plane."""
    x_values, y_values = plane.alphas * plane.dx, plane.betas * plane.dy
    map_width = HALF_WIDTH - sum(_MARGINS)
    map_height = min(max(map_width * float(np.ptp(y_values) / np.ptp(x_values)), _HEIGHT_RANGE[0]), _HEIGHT_RANGE[1])
    x_range, y_range = ((float(values[0]), float(values[-1])) for values in (x_values, y_values))
    axes = Axes.over(x_range, y_range, map_height, HALF_WIDTH, _MARGINS)
    rows = max(2, round(_CELLS_ACROSS * map_height / map_width))
    classes = _class_grid(plane.values[quantity], plane.alphas, plane.betas, (rows, _CELLS_ACROSS), levels)
    shades = [class_shade(index, len(levels.edges) + 1) for index in range(len(levels.edges) + 1)]
    parts = axes.names("distance", shorten(quantity, 40))
    # The first row of a map is at the top, that of a surface at the least beta.
    parts.append(cell_map(shade_classes(classes[::-1], shades), axes.left, axes.top, map_width, map_height))
    parts += axes.x_ticks(6, grid=False) + axes.y_ticks(6, grid=False) + _marker_shapes(plane, axes)
    parts += _legend(levels, shades, axes, bool((classes == UNKNOWN).any()))
    return axes.drawing(parts, _description(plane, quantity), 2)


def is_drawable(plane: Plane) -> bool:
    """Return whether a plane, which may come from a file of somebody else, has a grid with an area."""
    sides = (plane.alphas * plane.dx, plane.betas * plane.dy)
    return all(len(side) > 1 and bool(np.all(np.isfinite(side)) and np.all(np.diff(side) > 0)) for side in sides)


def is_stretched(plane: Plane) -> bool:
    """Return whether the two directions had to be drawn to different scales."""
    ratio = float(np.ptp(plane.betas) * plane.dy / (np.ptp(plane.alphas) * plane.dx))
    map_width = HALF_WIDTH - sum(_MARGINS)
    return not _HEIGHT_RANGE[0] <= map_width * ratio <= _HEIGHT_RANGE[1]


def _class_grid(surface: Array, alphas: Array, betas: Array, shape: tuple[int, int], levels: ContourLevels) -> Labels:
    """Return the class of the value at the middle of every cell; `UNKNOWN` where a grid point near it is not finite.

    The surface (B, A) has values on the grid of alphas (A,) and betas (B,); the first row of cells has the least beta.
    """
    row_weights, column_weights = _interpolation_weights(betas, shape[0]), _interpolation_weights(alphas, shape[1])
    # One in place of what is not finite: it keeps the product and the logarithm finite, and is not drawn.
    is_finite = np.isfinite(surface)
    values = np.where(is_finite, surface, 1.0)
    edges = np.array(levels.edges)
    if levels.ratios:
        values, edges = np.log(values), np.log(edges)
    interpolated = row_weights @ values @ column_weights.T  # (rows, columns)
    classes = np.searchsorted(edges, interpolated, side="right")
    return np.where(row_weights @ (~is_finite).astype(np.float64) @ column_weights.T > 0, UNKNOWN, classes)


def _interpolation_weights(grid: Array, n_cells: int) -> Array:
    """Return the weights (n_cells, n) that interpolate values on a grid (n,) at the middles of equal cells over it."""
    cell_middles = grid[0] + (np.arange(n_cells) + 0.5) / n_cells * (grid[-1] - grid[0])
    # Each middle lies between two neighbouring grid points, the nearer of which has the larger weight.
    right_neighbour = np.clip(np.searchsorted(grid, cell_middles), 1, len(grid) - 1)
    fraction = (cell_middles - grid[right_neighbour - 1]) / (grid[right_neighbour] - grid[right_neighbour - 1])
    weights = np.zeros((n_cells, len(grid)))
    weights[np.arange(n_cells), right_neighbour - 1] = 1.0 - fraction
    weights[np.arange(n_cells), right_neighbour] = fraction
    return weights


def _marker_shapes(plane: Plane, axes: Axes) -> list[Markup]:
    """Return the networks on the map with their names, each where it covers no other as far as there is room.

    Greedy, in the order of the markers: a name goes right, left, above or below its network, to where the area that it
    covers of networks and of earlier names, weighted by their prices, plus a price for leaving the map, is least.
    """
    grid_ends = (plane.alphas[[0, -1]], plane.betas[[0, -1]])
    inside = [
        marker
        for marker in plane.markers
        if grid_ends[0][0] <= marker.alpha <= grid_ends[0][1] and grid_ends[1][0] <= marker.beta <= grid_ends[1][1]
    ]
    positions = [(axes.x(marker.alpha * plane.dx), axes.y(marker.beta * plane.dy)) for marker in inside]
    # Boxes that a name should not cover: the dots of all networks, then names as they are placed.
    occupied = [(px - 7, py - 7, px + 7, py + 7) for px, py in positions]
    prices = [20.0] * len(occupied)  # to cover a network is worse than to cover a name
    dots, labels = [], []
    for marker, (px, py) in zip(inside, positions, strict=True):
        name = shorten(marker.name, 26)
        length = _CHARACTER_WIDTH * len(name)
        middle = min(max(px, axes.left + length / 2), axes.right - length / 2)
        beside = (("start", px + 11, py + 4), ("end", px - 11, py + 4))
        label_spots = (*beside, ("middle", middle, py - 12), ("middle", middle, py + 22))
        boxes = [_box(anchor, a, b, length) for anchor, a, b in label_spots]
        costs = [
            sum(price * _overlap_area(box, other) for other, price in zip(occupied, prices, strict=True))
            + _overhang_price(box, axes)
            for box in boxes
        ]
        best = int(np.argmin(costs))
        occupied.append(boxes[best])
        prices.append(1.0)
        is_off_plane = marker.distance > 1e-6 * math.hypot(plane.dx, plane.dy)
        dots.append(element("circle", cx=px, cy=py, r=5.5, kind="marker off" if is_off_plane else "marker"))
        anchor, a, b = label_spots[best]
        labels.append(text(a, b, name, "marker-name", anchor))
    return dots + labels


_CHARACTER_WIDTH = 8.2
"""Width of a bold character, on average, in the fonts of report.css; measured by eye."""

Box = tuple[float, float, float, float]


def _box(anchor: str, x: float, y: float, length: float) -> Box:
    """Return the box (left, top, right, bottom) that a line of text covers."""
    start = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * length
    return start, y - 11.0, start + length, y + 4.0


def _overlap_area(box: Box, other: Box) -> float:
    overlap_width, overlap_height = (min(box[n + 2], other[n + 2]) - max(box[n], other[n]) for n in (0, 1))
    return max(overlap_width, 0.0) * max(overlap_height, 0.0)


def _overhang_price(box: Box, axes: Axes) -> float:
    """Return the price of the part of a text that is off the map, on which it is easiest to read."""
    return 15.0 * sum(max(0.0, beyond) for beyond in (axes.left - box[0], box[2] - axes.right, axes.top - box[1]))


def _legend(levels: ContourLevels, shades: Sequence[int], axes: Axes, has_unknown: bool) -> list[Markup]:
    y, step = axes.bottom + 52, min(60.0, (axes.right - axes.left) / (len(shades) + has_unknown))
    parts = []
    for index, shade in enumerate(shades):
        parts.append(element("rect", x=axes.left + step * index, y=y, width=step, height=13, kind=f"h{shade}"))
    for index, edge in enumerate(levels.edges):
        parts.append(text(axes.left + step * (index + 1), y + 29, format_number(edge), "tick", "middle"))
    if has_unknown:
        x = axes.left + step * len(shades) + 6
        parts.append(element("rect", x=x, y=y, width=step - 6, height=13, kind="unknown-box"))
        parts.append(text(x + (step - 6) / 2, y + 29, "none", "tick", "middle"))
    return parts


def _description(plane: Plane, quantity: str) -> str:
    surface = plane.values[quantity]
    finite = surface[np.isfinite(surface)]
    range_text = "nowhere finite"
    if finite.size:
        range_text = f"from {format_number(float(finite.min()))} to {format_number(float(finite.max()))}"
    descriptions = [_marker_description(marker, quantity) for marker in plane.markers[:12]]
    size = f"{len(plane.alphas)} × {len(plane.betas)} points"
    return f"{shorten(quantity, 40).capitalize()} on a plane of {size}: {range_text}. {'; '.join(descriptions)}."


def _marker_description(marker: Marker, quantity: str) -> str:
    value = format_number(float(marker.values[quantity])) if quantity in marker.values else "–"
    return (
        f"{shorten(marker.name, 40)} at ({format_fixed(marker.alpha, 2)}, {format_fixed(marker.beta, 2)}) has {value}"
    )
