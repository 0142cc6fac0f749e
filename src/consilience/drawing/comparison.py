"""Comparison of fused, local and pooled models, with the matching behind them, as an SVG file of its own.

Colours and sizes are attributes of the elements, not classes of a style sheet as in the report, so that any viewer
shows the file alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.checks import Array, Labels
from consilience.drawing.svg import Scale, element, tick_label, ticks

_FUSED, _LOCAL, _POOLED = "#b2182b", "#2166ac", "#767676"
"""Colours of fused models, of local ones and of those trained on pooled data."""

_INK, _SOFT, _RULE = "#222222", "#555555", "#dddddd"
"""Colours of words, of axes and of grid lines."""

_HEIGHT, _TOP, _BOTTOM = 460.0, 50.0, 390.0
"""Height of the drawing, and the ends of its panels. Chosen by eye, like all lengths in this file."""

_NAMES_WIDTH, _PANEL_WIDTH, _MATCHING_WIDTH, _GAP = 180.0, 300.0, 440.0, 30.0


def comparison_drawing(
    names: Sequence[str],
    scores: Sequence[tuple[str, Array, int]],
    matching: Labels,
    owner: Labels,
    labels: Sequence[str],
    label_meaning: str,
) -> Markup:
    """Return an SVG file of scores, one panel each, and of the matching behind them.

    A row is a model to compare; a fused one is known by a leading ``fused``, others by ``pooled`` in their names. A
    panel has its title, its values (n_rows, n_repetitions) and their decimal places; drawn are means, with their
    numbers, and standard deviations. `matching` (L,) is the fused component of each local one, -1 for none, `owner`
    (L,) its site, and `labels` (L,) what is written into its cell.
    """
    row_centres = np.linspace(_TOP, _BOTTOM, 2 * len(names) + 1)[1::2].tolist()  # (n_rows,)
    colours = [_FUSED if name.startswith("fused") else _POOLED if "pooled" in name else _LOCAL for name in names]
    parts = [_text(_NAMES_WIDTH, y, name, "end") for name, y in zip(names, row_centres, strict=True)]
    left = _NAMES_WIDTH + 15.0
    for title, values, digits in scores:
        parts += _score_panel(title, values, digits, row_centres, colours, left)
        left += _PANEL_WIDTH + _GAP
    left += 50.0  # for the names of the sites
    parts += _matching_panel(matching, owner, labels, label_meaning, left)
    width = left + _MATCHING_WIDTH + 15.0
    paper = element("rect", width=width, height=_HEIGHT, fill="white")
    return element(
        "svg", Markup("\n").join([paper, *parts]), xmlns="http://www.w3.org/2000/svg", width=width, height=_HEIGHT,
        viewBox=f"0 0 {width:g} {_HEIGHT:g}", font_family="sans-serif", font_size=13, fill=_INK, role="img",
        aria_label=_alternative_text(names, scores),
    )  # fmt: skip


def _score_panel(
    title: str, values: Array, digits: int, row_centres: Sequence[float], colours: Sequence[str], left: float
) -> list[Markup]:
    """Return the panel of one score: the mean of each row (n_rows, n_repetitions), its number, and its deviation."""
    mean, deviation = values.mean(axis=1), values.std(axis=1, ddof=1 if values.shape[1] > 1 else 0)
    low, high = float((mean - deviation).min()), float((mean + deviation).max())
    x = Scale(low, high, left + 10.0, left + _PANEL_WIDTH - 10.0)
    marks = ticks(low, high)
    parts = [_text(left + _PANEL_WIDTH / 2, _TOP - 22.0, title, "middle", font_weight="bold")]
    for mark in marks:
        parts.append(_line(x(mark), _TOP, x(mark), _BOTTOM, _RULE))
        parts.append(_text(x(mark), _BOTTOM + 16.0, tick_label(mark, marks), "middle", fill=_SOFT))
    parts.append(_line(left, _BOTTOM, left + _PANEL_WIDTH, _BOTTOM, _SOFT))
    for centre, spread, y, colour in zip(mean.tolist(), deviation.tolist(), row_centres, colours, strict=True):
        parts.append(_line(x(centre - spread), y, x(centre + spread), y, _SOFT))
        parts.append(element("circle", cx=x(centre), cy=y, r=5.0, fill=colour))
        # The number stands under the whisker, where it covers nothing, and within the panel.
        middle = min(max(x(centre), left + 18.0), left + _PANEL_WIDTH - 18.0)
        parts.append(_text(middle, y + 15.0, f"{centre:.{digits}f}", "middle", fill=_SOFT, font_size=11))
    return parts


def _matching_panel(
    matching: Labels, owner: Labels, labels: Sequence[str], label_meaning: str, left: float
) -> list[Markup]:
    """Return sites (rows) against fused components (columns), with the label of each local component in its cell."""
    n_fused, n_sites = int(matching.max()) + 1, int(owner.max()) + 1
    column_width, row_height = _MATCHING_WIDTH / n_fused, (_BOTTOM - _TOP) / n_sites
    right, middle = left + _MATCHING_WIDTH, left + _MATCHING_WIDTH / 2
    title = "Matching: red components were found at several sites"
    parts = [_text(middle, _TOP - 22.0, title, "middle", font_weight="bold")]
    for site in range(n_sites):
        y = _TOP + (site + 0.5) * row_height
        parts += [_line(left, y, right, y, _RULE), _text(left - 8.0, y, f"site {site + 1}", "end")]
    for column in range(n_fused):
        x = left + (column + 0.5) * column_width
        parts += [_line(x, _TOP, x, _BOTTOM, _RULE), _text(x, _BOTTOM + 16.0, str(column), "middle", fill=_SOFT)]
        members = np.flatnonzero(matching == column)
        colour = _FUSED if len(np.unique(owner[members])) > 1 else _LOCAL
        for site in np.unique(owner[members]).tolist():
            in_cell = members[owner[members] == site]
            step = row_height / (len(in_cell) + 1)
            for position, member in enumerate(in_cell.tolist(), start=1):
                y = _TOP + site * row_height + position * step
                parts.append(element("rect", x=x - 12.0, y=y - 10.0, width=24.0, height=20.0, rx=5.0, fill=colour))
                parts.append(_text(x, y, labels[member], "middle", fill="white"))
    parts.append(_text(middle, _BOTTOM + 38.0, "fused component", "middle"))
    parts.append(_text(middle, _BOTTOM + 56.0, f"(in the cells: {label_meaning})", "middle", fill=_SOFT))
    return parts


def _alternative_text(names: Sequence[str], scores: Sequence[tuple[str, Array, int]]) -> str:
    """Return the means of all scores in words, for readers who do not see the drawing."""
    said = []
    for title, values, digits in scores:
        means = (f"{name} {mean:.{digits}f}" for name, mean in zip(names, values.mean(axis=1), strict=True))
        said.append(f"{title}: {', '.join(means)}")
    return "; ".join(said)


def _text(x: float, y: float, content: str, anchor: str, **attributes: object) -> Markup:
    """Return a line of text whose middle is at the height y."""
    return element("text", content, x=x, y=y + 4.5, text_anchor=anchor, **attributes)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour)
