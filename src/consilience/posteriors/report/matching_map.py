"""Matching maps: sites against fused components, with the local components that became each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.drawing.cells import cell, cell_legend
from consilience.drawing.svg import WIDTH, drawing, element, text
from consilience.drawing.words import format_count, format_fixed, shorten
from consilience.posteriors.report.members import ComponentSummary, SiteSummary

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
        parts += _legend(table_height + 24, left)
        table_height += 40
    return drawing(
        parts,
        table_height + 6,
        _description(sites, n_components),
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
    kinds = (
        ("cell gone", "gone-text")
        if column < 0
        else (f"cell {_shade_class(site.confidence is not None, mean)}", "cell-text")
    )
    return cell(x + gap, y + 2, width - 2 * gap, step - 4, kinds[0], tooltip, label, kinds[1])


def _shade_class(has_confidences: bool, confidence: float | None) -> str:
    """Return the CSS class of a confidence: s1 to s5, s0 where it is not known, s3 where no match has one."""
    if confidence is None:
        return "s0" if has_confidences else "s3"
    return f"s{min(_N_SHADES, 1 + int(confidence * _N_SHADES))}"


def _legend(y: float, left: float) -> list[Markup]:
    meanings = ["< 0.2", *(f"≥ {shade / _N_SHADES:.1f}" for shade in range(1, _N_SHADES))]
    entries = [(f"cell s{shade}", meaning) for shade, meaning in enumerate(meanings, start=1)]
    return [text(left - 12, y + 10, "confidence", "axis", "end"), *cell_legend(left + 2, y, 70, entries)]


def _description(sites: Sequence[SiteSummary], n_components: int) -> str:
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
        parts.append(
            element("rect", x=left, y=y + 3, width=max(length, 1.0), height=step - 6, rx=2, kind=f"cell {shade_class}")
        )
        parts.append(text(left + length + 8, y + 15, f"{n_holders:,} of {n_sites:,}", "tick"))
    counts = [len(component.members or ()) for component in components]
    description = (
        f"The share of {n_sites:,} sites that have each of {format_count(len(components), 'fused component')}: "
    )
    description += (
        f"from {min(counts):,} to {max(counts):,} sites. {n_dropping:,} sites have components that were dropped."
    )
    chart_height = top + step * len(rows) + 6
    if has_confidence:
        parts += _legend(chart_height + 14, left)
        chart_height += 34
    return drawing(parts, chart_height, description)
