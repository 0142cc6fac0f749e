"""Sections of the page about loss landscapes: lines between networks, and planes through them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array
from consilience.drawing.axes import HALF_WIDTH, Axes, from_zero, line_kind
from consilience.drawing.blocks import (
    Block,
    BlockGroup,
    Column,
    Figure,
    Heading,
    Paragraph,
    Section,
    Table,
    markup,
    sentences,
    text_column,
)
from consilience.drawing.words import format_count, format_number, shorten
from consilience.networks.report.content import NetworkContent
from consilience.networks.report.planes import ContourLevels, is_drawable, is_stretched, levels_of, plane_map
from consilience.networks.report.sections import line_chip

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane


PLANES_AT_MOST = 8
"""Planes beyond these are not drawn. Bounds the size of the page; chosen by hand."""

QUANTITIES_AT_MOST = 4
"""Values of a barrier or a plane beyond these are not drawn. Bounds the size of the page; chosen by hand."""

_MAX_VALUES, _MAX_COLUMNS = 12, 6
"""Values of a line, and columns of values of a plane, beyond these are not in tables. Chosen by eye."""


def between_networks(content: NetworkContent) -> Section | None:
    """Return the barriers on lines between networks."""
    barriers = content.barriers
    if not barriers:
        return None
    quantities = list(dict.fromkeys(name for barrier in barriers.values() for name in barrier.values))
    figures = [
        Figure(barrier_curves(barriers, name), f"Barrier curves, figure {number}")
        for number, name in enumerate(quantities[:QUANTITIES_AT_MOST], start=1)
    ]
    drawn = f" The first {MAX_LINES} of {len(barriers)} lines are drawn." if len(barriers) > MAX_LINES else ""
    note = Markup(
        "Networks on the straight line between two, from the first at <i>t</i> = 0 to the second at <i>t</i> = 1."
    )
    rows = [
        (index, name, barrier, value)
        for index, (name, barrier) in enumerate(barriers.items())
        for value in list(barrier.values)[:_MAX_VALUES]
    ]
    columns = [
        text_column("Line", lambda row: markup("{}{}", line_chip(row[0], MAX_LINES), shorten(row[1], 40))),
        text_column("Value", lambda row: row[3], limit=30),
        Column("At t = 0", lambda row: float(row[2].values[row[3]][0])),
        Column("At t = 1", lambda row: float(row[2].values[row[3]][-1])),
        Column("Above the line", lambda row: row[2].height(row[3])),
        Column("Above the worse", lambda row: row[2].height_over_maximum(row[3])),
        Column("Above the mean", lambda row: row[2].height_over_mean(row[3])),
    ]
    caption = (
        "How far the line rises above the straight line between its ends, above the worse end, and above the mean of "
        "the ends. 0 or less: no barrier."
    )
    blocks: list[Block] = [
        BlockGroup(figures),
        Paragraph(markup("{}{}", note, drawn), "note"),
        Table("Table of barriers", rows, columns, "value", caption),
    ]
    return Section("between", "Between networks", blocks)


def around_networks(content: NetworkContent) -> Section | None:
    """Return the planes through networks; a quantity has the same levels in all of them."""
    if not content.planes:
        return None
    planes = [(name, plane) for name, plane in content.planes.items() if is_drawable(plane)][:PLANES_AT_MOST]
    names = dict.fromkeys(name for _, plane in planes for name in plane.values)
    levels = {name: levels_of([plane.values[name] for _, plane in planes if name in plane.values]) for name in names}
    blocks: list[Block] = []
    for name, plane in planes:
        blocks += _plane_blocks(shorten(name), plane, levels, n_planes=len(planes))
    if len(content.planes) > len(planes):
        verb = "is" if len(planes) == 1 else "are"
        why = f", at most {PLANES_AT_MOST}" if len(planes) == PLANES_AT_MOST else "; the others have no area"
        count = format_count(len(content.planes), "plane")
        blocks.append(Paragraph(f"{len(planes)} of {count} {verb} drawn{why}.", "note"))
    return Section("planes", "Around networks", blocks)


def _plane_blocks(name: str, plane: Plane, levels: dict[str, ContourLevels], n_planes: int) -> list[Block]:
    maps = [
        Figure(plane_map(plane, quantity, levels[quantity]), f"{name}, figure {number}")
        for number, quantity in enumerate(list(plane.values)[:QUANTITIES_AT_MOST], start=1)
    ]
    through = [shorten(marker.name, 30) for marker in plane.markers[:3]]
    *earlier, last = through or [""]
    networks = f" through {', '.join(earlier)} and {last}" if earlier else f" through {last}" if last else ""
    stretched = ", drawn to different scales in the two directions" if is_stretched(plane) else ""
    note = sentences(
        f"The plane{networks}, evaluated at {len(plane.alphas)} × {len(plane.betas)} points and interpolated between.",
        f"Distances are between parameters{stretched}.",
        "Rings are networks outside the plane, at their nearest point.",
        n_planes > 1 and "A shade means the same in all planes.",
    )

    def value(quantity: str) -> Column:
        return Column(shorten(quantity, 30).capitalize(), lambda marker: marker.values.get(quantity))

    columns = [
        text_column("Network", attrgetter("name"), limit=40),
        *map(value, list(plane.values)[:_MAX_COLUMNS]),
        Column("Off the plane", attrgetter("distance")),
    ]
    caption = "Values of the networks themselves, and how far they are from the plane."
    table = Table(f"Networks on {name}", plane.markers, columns, "network", caption, "narrow")
    return [Heading(name), BlockGroup(maps), Paragraph(note, "note"), table]


MAX_LINES = 10
"""Lines beyond these are not drawn: report.css has ten colours."""


def barrier_curves(barriers: Mapping[str, Barrier], quantity: str) -> Markup:
    """Return the curves of one quantity along every line."""
    curves = {
        name: (barrier.t, barrier.values[quantity])
        for name, barrier in list(barriers.items())[:MAX_LINES]
        if quantity in barrier.values
    }
    finite = np.concatenate([values[np.isfinite(values)] for _, values in curves.values()])
    value_range = from_zero(float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    axes = Axes.over((0.0, 1.0), value_range, 200.0, HALF_WIDTH, inset=(0.0, 4.0))
    parts = axes.names("t", shorten(quantity, 40)) + axes.y_ticks() + axes.x_ticks(grid=False)
    for index, (t, values) in enumerate(curves.values()):
        parts += [axes.curve(points, line_kind(index)) for points in _finite_pieces(t, values)]
    return axes.drawing(parts + axes.legend(curves), _description(curves, quantity), len(curves))


def _finite_pieces(t: Array, values: Array) -> list[list[tuple[float, float]]]:
    """Return the points of every stretch of finite values, so that a line has a gap where a network has none."""
    is_finite = np.isfinite(values)
    piece_starts = np.flatnonzero(np.diff(is_finite.astype(np.int8)) != 0) + 1
    return [
        list(zip(t[indices].tolist(), values[indices].tolist(), strict=True))
        for indices in np.split(np.arange(len(t)), piece_starts)
        if is_finite[indices[0]]
    ]


def _description(curves: Mapping[str, tuple[Array, Array]], quantity: str) -> str:
    descriptions = []
    for name, (t, values) in curves.items():
        middle = float(np.interp(0.5, t, values))
        start, end = format_number(float(values[0])), format_number(float(values[-1]))
        ends = f"{start} at t = 0, {format_number(middle)} in the middle, {end} at 1"
        n_missing = int((~np.isfinite(values)).sum())
        descriptions.append(
            f"{shorten(name, 40)}: {ends}" + (f", not finite at {n_missing:,} places" if n_missing else "")
        )
    return f"{shorten(quantity, 40).capitalize()} on lines between networks. {'; '.join(descriptions)}."
