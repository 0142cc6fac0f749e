"""Heat maps as inline SVG: maps of very many cells, and single cells with a label and a tooltip.

A map has one path for each shade, neighbours in a row as one stroke, so that it stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup

from consilience.checks import Labels
from consilience.drawing.svg import element, text

N_SHADES = 9
"""Colours of the scale, ``h0`` for the least; as many as network.css and bayesian.css define."""

BLANK, UNKNOWN = -1, -2
"""A cell that is left out, and one whose value is not finite; `shade_classes` indexes its table with them."""


def cell_map(shades: Labels, x: float, y: float, width: float, height: float) -> Markup:
    """Return a heat map of shades (R, C), the first row at the top: 0 to `N_SHADES` - 1, or `BLANK` or `UNKNOWN`.

    Its upper left corner and size are in units of the drawing.
    """
    cell_width, cell_height = width / shades.shape[1], height / shades.shape[0]
    paths = [
        element("path", d=_row_strokes(shades == shade), kind="unknown" if shade == UNKNOWN else f"h{shade}")
        for shade in np.unique(shades[shades != BLANK]).tolist()
    ]
    # Paths count in cells; a stroke one cell high runs along the middle of its row, hence half a cell down.
    transform = f"translate({x:.1f} {y + 0.5 * cell_height:.2f}) scale({cell_width:.4f} {cell_height:.4f})"
    return element("g", Markup("").join(paths), kind="cells", transform=transform)


def _row_strokes(mask: Labels) -> str:
    """Return the path of horizontal strokes, a cell high, that cover the cells of a mask (R, C)."""
    # Padded with a blank column on either side, every run of a row has one rising and one falling edge.
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    row, start = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    return "".join(f"M{a} {r}h{b - a}" for r, a, b in zip(row.tolist(), start.tolist(), end.tolist(), strict=True))


def cell(
    x: float,
    y: float,
    width: float,
    height: float,
    kind: str,
    tooltip: str,
    label: str = "",
    label_kind: str = "cell-text",
) -> Markup:
    """Return one cell of a small map, its corners round where it is large enough, its label in its middle."""
    box = element("rect", x=x, y=y, width=width, height=height, rx=3 if width >= 12 else 0, kind=kind)
    named = text(x + width / 2, y + height / 2 + 4.5, label, label_kind, "middle") if label else Markup("")
    return element("g", element("title", tooltip) + box + named)


def cell_legend(x: float, y: float, step: float, entries: Iterable[tuple[str, str]]) -> list[Markup]:
    """Return a legend: a row of cells, `step` apart, each of a kind and followed by its meaning."""
    parts = []
    for place, (kind, meaning) in enumerate(entries):
        parts.append(element("rect", x=x + step * place, y=y - 2, width=21, height=15, rx=3, kind=kind))
        parts.append(text(x + step * place + 27, y + 10, meaning, "tick"))
    return parts


def class_shade(index: int, n_classes: int) -> int:
    """Return the shade of class `index` of `n_classes`, which are spread over the whole scale.

    Examples
    --------
    >>> [class_shade(index, 5) for index in range(5)]
    [0, 2, 4, 6, 8]
    """
    return round(index * (N_SHADES - 1) / max(n_classes - 1, 1))


def shade_classes(classes: Labels, shades: Sequence[int]) -> Labels:
    """Return the shades of classes, `shades` having one for each class; `BLANK` and `UNKNOWN` stay what they are."""
    table = np.array([*shades, UNKNOWN, BLANK], dtype=np.int64)  # index -1 is BLANK, -2 UNKNOWN
    return np.asarray(table[classes], dtype=np.int64)
