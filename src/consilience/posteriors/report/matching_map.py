"""Who is who: sites against fused components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.drawing.svg import WIDTH, drawing, element, text
from consilience.drawing.words import counted, fixed, shortened
from consilience.posteriors.report.members import Component, Site

SITES_AT_MOST = 60
"""More sites than this are shown as shares."""

_SHADES = 5
_LEGEND = 350.0


def matching_map(sites: Sequence[Site], n_components: int) -> Markup:
    """Return one row per site and one column per fused component; a cell says which local components became it.

    The shade of a cell is the mean confidence of its matches. Dropped components have a column of their own.
    """
    gone = [_said(_cells(site).get(-1, ())) for site in sites]
    aside = min(130.0, max(46.0, 7.2 * max(map(len, gone)) + 12.0)) if any(gone) else 0.0
    gap = 24.0 if aside else 0.0
    names = [shortened(site.name, 24) for site in sites]
    left = max(16.0 + 7.4 * max(map(len, names)), 90.0)
    width = min(46.0, (WIDTH - left - aside - gap) / n_components)
    step = 26.0
    top = 50.0 if width < 20 else 44.0
    foot = top + step * len(sites)
    parts = [text(left, 14, "fused component", "axis")]
    every = 1 if width >= 20 else next(n for n in (2, 5, 10, 20, 50, 100, 10**9) if n * width >= 26)
    numbered = range(0, n_components, every)
    parts += [text(left + (column + 0.5) * width, top - 10, str(column), "tick", "middle") for column in numbered]
    last = left + n_components * width + gap
    if aside:
        parts.append(text(last + 0.5 * aside, top - 10, "dropped", "tick", "middle"))
    for row, site in enumerate(sites):
        y = top + step * row
        parts.append(text(left - 12, y + 17, names[row], "name", "end"))
        parts.append(element("line", x1=left, y1=y + 13, x2=left + n_components * width, y2=y + 13, kind="row"))
        for column, own in sorted(_cells(site).items()):
            x, wide = (last, aside) if column < 0 else (left + column * width, width)
            parts.append(_cell(site, column, own, x, y, wide, step))
    if any(site.confidence is not None for site in sites):
        parts += _legend(foot + 24, left)
        foot += 40
    return drawing(parts, foot + 6, _alt(sites, n_components), max(last + aside + 8, left + _LEGEND))


def _cells(site: Site) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, label in enumerate(site.labels or ()):
        found.setdefault(label, []).append(place)
    return found


def _said(own: Sequence[int]) -> str:
    return ",".join(map(str, own))


def _cell(site: Site, column: int, own: Sequence[int], x: float, y: float, width: float, step: float) -> Markup:
    known = [] if site.confidence is None else [v for i in own if (v := site.confidence[i]) is not None]
    sure = float(np.mean(known)) if known else None
    gap = 2.0 if width >= 12 else 0.5
    box = element(
        "rect",
        x=x + gap,
        y=y + 2,
        width=width - 2 * gap,
        height=step - 4,
        rx=3 if width >= 12 else 0,
        kind="cell gone" if column < 0 else f"cell {_shade(site, sure)}",
    )
    said = _said(own)
    if 7.2 * len(said) > width - 6:
        said = f"{len(own)}×" if width >= 24 else ""
    words = f"{shortened(site.name)}: {', '.join(map(str, own[:20]))} " + (
        "dropped" if column < 0 else f"→ {column}" + ("" if sure is None else f", confidence {fixed(sure, 2)}")
    )
    inner = [element("title", words), box]
    if said:
        inner.append(text(x + width / 2, y + 17, said, "gone-text" if column < 0 else "cell-text", "middle"))
    return element("g", Markup("").join(inner))


def _shade(site: Site, sure: float | None) -> str:
    if site.confidence is None:
        return "s3"
    return "s0" if sure is None else f"s{min(_SHADES, 1 + int(sure * _SHADES))}"


def _legend(y: float, left: float) -> list[Markup]:
    parts = [text(left - 12, y + 10, "confidence", "axis", "end")]
    for shade in range(1, _SHADES + 1):
        x = left + 70 * (shade - 1)
        parts.append(element("rect", x=x + 2, y=y - 2, width=22, height=15, rx=3, kind=f"cell s{shade}"))
        parts.append(text(x + 29, y + 10, f"≥ {(shade - 1) / _SHADES:.1f}" if shade > 1 else "< 0.2", "tick"))
    return parts


def _alt(sites: Sequence[Site], n_components: int) -> str:
    labels = [np.array(site.labels or (), dtype=np.int64) for site in sites]
    holders = np.zeros(n_components, dtype=np.int64)
    for own in labels:
        holders[np.unique(own[own >= 0])] += 1
    gone = sum(int((own < 0).sum()) for own in labels)
    return (
        f"A map of {counted(len(sites), 'site')} against {counted(n_components, 'fused component')}. "
        f"{int((holders > 1).sum())} components were found at several sites, {int((holders == 1).sum())} at one; "
        f"the most widely shared at {int(holders.max(initial=0))}. {counted(gone, 'local component')} dropped."
    )


def shares(components: Sequence[Component], n_sites: int, n_dropping: int) -> Markup:
    """Return, for each fused component, the share of sites that have it: the map of many sites."""
    shown = components[:SITES_AT_MOST]
    step, left, top, right = 22.0, 90.0, 30.0, 150.0
    parts = [text(0, 14, "component", "axis"), text(left, 14, "share of sites", "axis")]
    rows = [(str(one.number), len(one.members or ()), one.confidence, False) for one in shown]
    if n_dropping:
        rows.append(("dropped", n_dropping, None, True))
    known = any(one.confidence is not None for one in shown)
    for row, (name, holders, sure, gone) in enumerate(rows):
        y, length = top + step * row, (WIDTH - left - right) * holders / n_sites
        shade = (
            "gone"
            if gone
            else f"s{min(_SHADES, 1 + int(sure * _SHADES))}"
            if sure is not None
            else "s0"
            if known
            else "s3"
        )
        parts.append(text(left - 12, y + 15, name, "tick", "end"))
        parts.append(
            element("rect", x=left, y=y + 3, width=max(length, 1.0), height=step - 6, rx=2, kind=f"cell {shade}")
        )
        parts.append(text(left + length + 8, y + 15, f"{holders:,} of {n_sites:,}", "tick"))
    counts = [len(one.members or ()) for one in components]
    alt = f"The share of {n_sites:,} sites that have each of {counted(len(components), 'fused component')}: "
    alt += f"from {min(counts):,} to {max(counts):,} sites. {n_dropping:,} sites have components that were dropped."
    foot = top + step * len(rows) + 6
    if known:
        parts += _legend(foot + 14, left)
        foot += 34
    return drawing(parts, foot, alt)
