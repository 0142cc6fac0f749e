"""Drawings of components: the matching, the plane, the criterion over their number, and their entropies.

In the plane fused components are thick, local ones thin in the colour of what they became. The ellipse of a component
with centre m and covariance S is { x : (x - m)^T S^-1 (x - m) = 2 log 2 }, which holds half of a Gaussian in the plane;
on a line it is the bar of the middle half, m +- 0.6745 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.core.findings import PathPoint
from consilience.drawing.axes import Axes, curve, left_margin
from consilience.drawing.cells import cell, cell_legend
from consilience.drawing.svg import WIDTH, Scale, colour_class, drawing, element, line, text
from consilience.drawing.words import format_count, format_fixed, format_number, shorten
from consilience.posteriors.report.members import ComponentSummary, SiteSummary
from consilience.posteriors.report.planar_components import ComponentEllipse, ComponentPlane

MAX_DOTS = 600
"""With more local components than these, boxes and ranges stand for dots. Bounds the size of the page; by hand."""

_MAX_ROWS = 60
"""Components beyond these get no row. Bounds the size of the page; chosen by hand."""

_STEP = 24.0
"""Height of a row. Chosen by eye."""


def path_curve(points: Sequence[PathPoint], chosen_number: int, measure: str) -> Markup:
    """Return the criterion, or the cost, against the number of components, with the chosen number marked."""
    xs, ys = [point.n_components for point in points], [point.value for point in points]
    chosen_index = next((i for i, x in enumerate(xs) if x == chosen_number), None)
    ends = f"from {format_number(ys[0])} at {xs[0]} to {format_number(ys[-1])} at {xs[-1]}"
    alt = f"The {measure} against the number of components, {ends}; "
    there = "" if chosen_index is None else f", where it is {format_number(ys[chosen_index])}"
    alt += f"{chosen_number} was chosen{there}."
    return curve(xs, ys, "number of components", measure, alt, chosen_index=chosen_index)


def entropy_chart(components: Sequence[ComponentSummary]) -> Markup:
    """Return, for each fused component, its entropy as a diamond and those of the local ones behind it as dots.

    Components without an entropy have no row. With more than `MAX_DOTS` local ones, a line from the least to the
    largest and a box between the quartiles stand for the dots of each row.
    """
    drawn = [component for component in components if component.entropy is not None][:_MAX_ROWS]
    values = np.array([v for one in drawn for v in (one.entropy, *one.local_entropies)], dtype=np.float64)
    rows = [number + 0.5 for number in range(len(drawn))]
    value_range = (float(values.min()), float(values.max()))
    # The larger row is the lower: components stand in their order from the top.
    axes = Axes.over(value_range, (float(len(drawn)), 0.0), _STEP * len(drawn), margins=(64.0, 12.0), inset=(12.0, 0.0))
    parts = axes.names("entropy in nats; left is surer", "component") + axes.x_ticks(7)
    parts += axes.rows(rows, [str(component.number) for component in drawn])
    draws_dots = sum(len(component.local_entropies) for component in drawn) <= MAX_DOTS
    n_surer = 0
    for row, component in zip(rows, drawn, strict=True):
        local_entropies, colour = np.array(component.local_entropies), colour_class(component.number)
        if draws_dots:
            parts += axes.dots(((value, row) for value in local_entropies.tolist()), 4, f"dot {colour}")
        elif local_entropies.size:
            y, quantiles = axes.y(row), np.quantile(local_entropies, [0.0, 0.25, 0.75, 1.0]).tolist()
            low, first, third, high = map(axes.x, quantiles)
            parts.append(line(low, y, high, y, f"range {colour}"))
            parts.append(element("rect", x=first, y=y - 5, width=third - first, height=10, kind=f"box {colour}"))
        entropy = component.entropy
        assert entropy is not None  # noqa: S101  (narrows the type; rows without one are left out)
        parts.append(axes.diamond((entropy, row), 7.5, f"diamond {colour}"))
        n_surer += bool(local_entropies.size) and entropy < float(np.median(local_entropies))
    n_compared = sum(bool(component.local_entropies) for component in drawn)
    alt = f"Entropies of {format_count(len(drawn), 'fused component')} and of the local components behind them, "
    alt += f"from {format_fixed(float(values.min()), 1)} to {format_fixed(float(values.max()), 1)} nats. "
    alt += f"{n_surer} of {n_compared} fused components are surer than the median of their local ones."
    return axes.drawing(parts, alt)


SITES_AT_MOST = 60
"""With more sites than this the map gives way to shares of sites. Bounds the size of the page; chosen by hand."""

_N_SHADES = 5
"""Shades of confidence, each a fifth of [0, 1]; report.css has as many beside that for no confidence."""

_LEGEND_WIDTH = 350.0
"""Width of the legend of confidences: five entries of 70."""


def matching_map(sites: Sequence[SiteSummary], n_components: int) -> Markup:
    """Return one row per site and one column per fused component; a cell says which local components became it.

    The shade of a cell is the mean confidence of its matches. Dropped components have a column of their own.
    """
    dropped_texts = [_join_numbers(site.numbers_by_label().get(-1, ())) for site in sites]
    dropped_width = min(130.0, max(46.0, 7.2 * max(map(len, dropped_texts)) + 12.0)) if any(dropped_texts) else 0.0
    gap = 24.0 if dropped_width else 0.0
    names = [shorten(site.name, 24) for site in sites]
    left = max(16.0 + 7.4 * max(map(len, names)), 90.0)
    # Widths of texts are estimated at 7.2 to 7.4 a character, since no font can be measured here.
    width = min(46.0, (WIDTH - left - dropped_width - gap) / n_components)
    step = 26.0
    header_height = 50.0 if width < 20 else 44.0
    table_height = header_height + step * len(sites)
    parts = [text(left, 14, "fused component", "axis"), *_column_numbers(n_components, left, width, header_height - 10)]
    dropped_x = left + n_components * width + gap
    if dropped_width:
        parts.append(text(dropped_x + 0.5 * dropped_width, header_height - 10, "dropped", "tick", "middle"))
    for row, site in enumerate(sites):
        y = header_height + step * row
        parts.append(text(left - 12, y + 17, names[row], "name", "end"))
        parts.append(element("line", x1=left, y1=y + 13, x2=left + n_components * width, y2=y + 13, kind="row"))
        for column, numbers in sorted(site.numbers_by_label().items()):
            x, cell_width = (dropped_x, dropped_width) if column < 0 else (left + column * width, width)
            parts.append(_cell(site, column, numbers, x, y, cell_width, step))
    if any(site.confidence is not None for site in sites):
        parts += _confidence_legend(table_height + 24, left)
        table_height += 40
    return drawing(
        parts,
        table_height + 6,
        _map_in_words(sites, n_components),
        max(dropped_x + dropped_width + 8, left + _LEGEND_WIDTH),
    )


def _column_numbers(n_columns: int, left: float, width: float, y: float) -> list[Markup]:
    """Return the numbers of columns, where they have room; else every second, fifth, ..."""
    every = 1 if width >= 20 else next(n for n in (2, 5, 10, 20, 50, 100, 10**9) if n * width >= 26)
    places = range(0, n_columns, every)
    return [text(left + (column + 0.5) * width, y, str(column), "tick", "middle") for column in places]


def _join_numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _cell(
    site: SiteSummary, column: int, numbers: Sequence[int], x: float, y: float, width: float, step: float
) -> Markup:
    """Return the cell of a site and a fused component (column -1: dropped), with the numbers of the site's own."""
    confidences = site.confidences_of(numbers)
    mean = float(np.mean(confidences)) if confidences else None
    gap = 2.0 if width >= 12 else 0.5
    label = _join_numbers(numbers)
    if 7.2 * len(label) > width - 6:  # where the numbers have no room, how many there are
        label = f"{len(numbers)}×" if width >= 24 else ""
    tooltip = f"{shorten(site.name)}: {', '.join(map(str, numbers[:20]))} " + (
        "dropped" if column < 0 else f"→ {column}" + ("" if mean is None else f", confidence {format_fixed(mean, 2)}")
    )
    shade = "gone" if column < 0 else _shade_class(site.confidence is not None, mean)
    kinds = f"cell {shade}", "gone-text" if column < 0 else "cell-text"
    return cell(x + gap, y + 2, width - 2 * gap, step - 4, kinds[0], tooltip, label, kinds[1])


def _shade_class(has_confidences: bool, confidence: float | None) -> str:
    """Return the CSS class of a confidence: s1 to s5, s0 where it is not known, s3 where no match has one."""
    if confidence is None:
        return "s0" if has_confidences else "s3"
    return f"s{min(_N_SHADES, 1 + int(confidence * _N_SHADES))}"


def _confidence_legend(y: float, left: float) -> list[Markup]:
    meanings = ["< 0.2", *(f"≥ {shade / _N_SHADES:.1f}" for shade in range(1, _N_SHADES))]
    entries = [(f"cell s{shade}", meaning) for shade, meaning in enumerate(meanings, start=1)]
    return [text(left - 12, y + 10, "confidence", "axis", "end"), *cell_legend(left + 2, y, 70, entries)]


def _map_in_words(sites: Sequence[SiteSummary], n_components: int) -> str:
    held = [label for site in sites for label in set(site.labels or ()) if label >= 0]
    n_holders = np.bincount(held, minlength=n_components)  # sites that have each fused component
    n_dropped = sum(site.n_dropped for site in sites)
    return (
        f"A map of {format_count(len(sites), 'site')} against {format_count(n_components, 'fused component')}. "
        f"{int((n_holders > 1).sum())} components were found at several sites, {int((n_holders == 1).sum())} at one; "
        f"the most widely shared at {int(n_holders.max(initial=0))}. "
        f"{format_count(n_dropped, 'local component')} dropped."
    )


def share_bars(components: Sequence[ComponentSummary], n_sites: int, n_dropping: int) -> Markup:
    """Return, for each fused component, the share of sites that have it: the map of many sites."""
    drawn = components[:SITES_AT_MOST]
    step, left, top, right = 22.0, 90.0, 30.0, 150.0
    parts = [text(0, 14, "component", "axis"), text(left, 14, "share of sites", "axis")]
    # Name, number of sites, confidence, whether these are the dropped ones.
    rows = [(str(component.number), len(component.members or ()), component.confidence, False) for component in drawn]
    if n_dropping:
        rows.append(("dropped", n_dropping, None, True))
    has_confidence = any(component.confidence is not None for component in drawn)
    for row, (name, n_holders, confidence, is_dropped) in enumerate(rows):
        y, length = top + step * row, (WIDTH - left - right) * n_holders / n_sites
        shade_class = "gone" if is_dropped else _shade_class(has_confidence, confidence)
        parts.append(text(left - 12, y + 15, name, "tick", "end"))
        size = {"width": max(length, 1.0), "height": step - 6}
        parts.append(element("rect", x=left, y=y + 3, **size, rx=2, kind=f"cell {shade_class}"))
        parts.append(text(left + length + 8, y + 15, f"{n_holders:,} of {n_sites:,}", "tick"))
    counts = [len(component.members or ()) for component in components]
    shown = format_count(len(components), "fused component")
    description = (
        f"The share of {n_sites:,} sites that have each of {shown}: from {min(counts):,} to {max(counts):,} sites. "
        f"{n_dropping:,} sites have components that were dropped."
    )
    chart_height = top + step * len(rows) + 6
    if has_confidence:
        parts += _confidence_legend(chart_height + 14, left)
        chart_height += 34
    return drawing(parts, chart_height, description)


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

_NUMBER_SIZE = 18.0
"""Width and height that the number of a component takes. Chosen by eye."""

_MIN_LABELLED_RADIUS = 16.0
"""Horizontal radius from which on an ellipse has room for its number. Chosen by eye."""


def plane_figure(plane: ComponentPlane) -> Markup:
    """Return the drawing; it holds the fused components whole and the centres of all local ones."""
    x_range, y_range = _axis_range(plane, 0), _axis_range(plane, 1)
    is_line = plane.kind == "line"
    plot_height = min(420.0, 60.0 + 26.0 * len(plane.fused)) if is_line else 460.0
    left, right = _MARGINS
    if is_line:
        y_range = (len(plane.fused) - 0.3, -0.7)
    else:
        left = left_margin(y_range, left)
        if plane.kind == "projected" or _range_ratio(x_range, y_range) < _MAX_EQUAL_SCALE_RATIO:
            x_range, y_range = _equalise_scales(x_range, y_range, (WIDTH - left - right) / plot_height)
    axes = Axes.over(x_range, y_range, plot_height, margins=(left, right))
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
        parts += _component_numbers(plane.fused, axes.x, axes.y)
    return axes.drawing(parts, _plane_in_words(plane))


def _component_numbers(ellipses: Sequence[ComponentEllipse], x: Scale, y: Scale) -> list[Markup]:
    """Return the components' numbers, each in its ellipse or next to one that is too small for it, none on another."""
    taken: list[tuple[float, float]] = []
    numbers = []
    for ellipse in ellipses:
        radius = _HALF_MASS_RADIUS * math.sqrt(max(ellipse.covariance[0], 0.0)) * abs(x.factor)
        kind, cx, cy = f"mark {colour_class(ellipse.component)}", x(ellipse.centre[0]), y(ellipse.centre[1])
        is_small = radius < _MIN_LABELLED_RADIUS
        left, bottom = (cx + radius + 7.0, cy - 7.0) if is_small else (cx, cy + 5.0)
        while any(abs(left - a) < _NUMBER_SIZE and abs(bottom - b) < _NUMBER_SIZE for a, b in taken):
            left += _NUMBER_SIZE
        taken.append((left, bottom))
        numbers.append(text(left, bottom, str(ellipse.component), kind, None if is_small else "middle"))
    return numbers


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
    place = f"translate({cx:.1f} {cy:.1f}) rotate({angle:.1f})"
    return element("ellipse", rx=long, ry=max(short, 0.5), transform=place, kind=kind)


def _plane_in_words(plane: ComponentPlane) -> str:
    centres = []
    for ellipse in plane.fused[:12]:
        x, y = (format_number(float(f"{coordinate:.3g}")) for coordinate in ellipse.centre)
        centres.append(f"{ellipse.component} at {x}" if plane.kind == "line" else f"{ellipse.component} at ({x}, {y})")
    more = f" and {len(plane.fused) - 12:,} more" if len(plane.fused) > 12 else ""
    locals_text = f" over {format_count(len(plane.local), 'local component')}" if plane.local else ""
    fused_text = format_count(len(plane.fused), "fused component")
    return f"{fused_text}{locals_text}. Centres of the fused: {', '.join(centres)}{more}."
