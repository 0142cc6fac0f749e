"""Draw the rooms of the library and the way of one fusion through them: ``python docs/figures/house.py``.

The rooms are the layers in ``pyproject.toml``, so that the figure shows the walls that are checked. ``--check`` writes
nothing and exits 1 when the figure is out of date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from consilience.drawing.svg import element

ROOT = Path(__file__).resolve().parents[2]
FIGURE = Path(__file__).with_suffix(".svg")

ROOMS = {
    "cli": "commands",
    "federated": "rounds between sites",
    "testing": "laws for classes of others",
    "api": "public functions, table of kinds",
    "methods": "public method names",
    "results": "public result names",
    "learners": "local learners",
    "features": "feature maps of heads",
    "checkpoints": "merged as streams",
    "bayesian": "Gaussian weights",
    "networks": "neural",
    "estimators": "by sums",
    "draws": "of posteriors",
    "posteriors": "statistical models",
    "core": "shared types: Kind, Fusion, Verdict",
    "drawing": "charts and pages",
    "files": "read and write",
    "engines": "threads, Dask",
    "matching": "assignment, transport",
    "families": "exponential families",
    "catalogue": "codes, hints",
    "errors": "what is refused",
    "checks": "of arguments",
}
"""What each room is for; a room without a line here stops the script."""

KINDS = ("checkpoints", "bayesian", "networks", "estimators", "draws", "posteriors")

WAY = (
    ("api", "fuse()", 0.5),
    ("core", "name_inputs()", 0.5),
    ("files", "open_files()", 0.5),
    ("api", "kind_of()", 1.5),
    ("posteriors", "Kind.prepare()", 1.5),
    ("families", "Family.check()", 1.5),
    ("posteriors", "Method.match()", 2.5),
    ("matching", "ascend()", 2.5),
    ("posteriors", "combine()", 3.5),
    ("matching", "group_sums()", 3.5),
    ("posteriors", "rebuild()", 4.5),
    ("core", "verdict", 5.5),
)
"""Stations of one fusion of mixtures: the room, what runs there, and where it stands, in columns."""

COLUMNS = ("read", "check, describe", "match", "average", "rebuild", "verdict")

WIDTH, TOP, ROW, GAP = 980.0, 52.0, 38.0, 6.0
ROOM_LEFT, ROOM_WIDTH, COLUMN_LEFT, COLUMN_WIDTH = 16.0, 288.0, 320.0, 107.0
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
INK, QUIET, KIND_FILL, ROOM_FILL, BAND, WAY_INK = "#1c2430", "#5a6675", "#dcebf7", "#eef0f3", "#f7f8fa", "#b3470f"


def layers() -> list[list[str]]:
    """Return the rooms of every layer, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [
        re.split(r"\s*[|:]\s*", layer) for layer in next(one for one in contracts if one["type"] == "layers")["layers"]
    ]


def label(x: float, y: float, content: str, size: float = 12.0, fill: str = INK, **attributes: object) -> Markup:
    """Return a line of text."""
    return element("text", content, x=x, y=y, font_size=size, fill=fill, **attributes)


def rooms(rows: list[list[str]]) -> list[Markup]:
    """Return the boxes of the rooms and the bands beside them."""
    parts: list[Markup] = []
    for row, names in enumerate(rows):
        y = TOP + row * (ROW + GAP)
        parts.append(
            element("rect", x=COLUMN_LEFT - 8, y=y, width=WIDTH - COLUMN_LEFT - 4, height=ROW, rx=4, fill=BAND)
        )
        width = (ROOM_WIDTH - GAP * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            x = ROOM_LEFT + place * (width + GAP)
            fill = KIND_FILL if name in KINDS else ROOM_FILL
            parts.append(element("rect", x=x, y=y, width=width, height=ROW, rx=4, fill=fill))
            if len(names) == 1:
                parts.append(label(x + 10, y + 24, name, 14.0, font_weight="600"))
                parts.append(label(x + width - 10, y + 24, ROOMS[name], 11.5, QUIET, text_anchor="end"))
            else:
                parts.append(label(x + 10, y + 17, name, 14.0, font_weight="600"))
                parts.append(label(x + 10, y + 31, ROOMS[name], 11.0, QUIET))
    return parts


def way(rows: list[list[str]]) -> list[Markup]:
    """Return the stations of one fusion and the arrows between them."""
    row_of = {name: row for row, names in enumerate(rows) for name in names}
    stations = [
        (COLUMN_LEFT + COLUMN_WIDTH * column, TOP + row_of[room] * (ROW + GAP) + ROW / 2 - 6, text)
        for room, text, column in WAY
    ]
    parts = [
        label(COLUMN_LEFT + COLUMN_WIDTH * (place + 0.5), TOP - 14, name, 13.0, text_anchor="middle", font_weight="600")
        for place, name in enumerate(COLUMNS)
    ]
    parts += [arrow(x1, y1, x2, y2) for (x1, y1, _), (x2, y2, _) in pairwise(stations)]
    for x, y, text in stations:
        parts.append(element("circle", cx=x, cy=y, r=4.5, fill=WAY_INK))
        width = 6.1 * len(text) + 6
        # On the ground of its band, so that an arrow passes below it.
        parts.append(element("rect", x=x - width / 2, y=y + 7, width=width, height=15, fill=BAND))
        parts.append(label(x, y + 18.5, text, 11.0, text_anchor="middle"))
    return parts


def arrow(x1: float, y1: float, x2: float, y2: float) -> Markup:
    """Return an arrow to the next station: straight down in a column, and between columns halfway along a corridor."""
    if x1 == x2:
        path = f"M{x1:g} {y1:g}V{y2 - 8:g}"
    else:
        middle, turn = (x1 + x2) / 2, 6 if y2 > y1 else -6  # corners of radius 6
        path = f"M{x1:g} {y1:g}H{middle - 6:g}q6 0 6 {turn}V{y2 - turn:g}q0 {turn} 6 {turn}H{x2 - 8:g}"
    return element("path", d=path, fill="none", stroke=WAY_INK, stroke_width=1.8, marker_end="url(#head)")


def figure() -> str:
    """Return the figure as SVG."""
    rows = layers()
    height = TOP + len(rows) * (ROW + GAP) + 36
    head = Markup(
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8Z" fill="{}"/></marker></defs>'
    ).format(WAY_INK)
    title = element("title", "The packages of consilience, and the way of one fusion of mixtures through them")
    ground = element("rect", width=WIDTH, height=height, rx=8, fill="#ffffff")
    caption = "An import may only go down. Blue: the kinds of models. Orange: one call of cs.fuse on mixtures in files."
    foot = label(ROOM_LEFT, height - 16, caption, 12.0, QUIET)
    heading = label(ROOM_LEFT, TOP - 14, "packages", 13.0, font_weight="600")
    body = Markup("\n").join([title, head, ground, heading, *rooms(rows), *way(rows), foot])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'font-family="{FONT}">\n{body}\n</svg>\n'
    )


def main() -> None:
    """Write the figure, or check that it would not change."""
    drawn = figure()
    if "--check" not in sys.argv:
        FIGURE.write_text(drawn)
    elif FIGURE.read_text() != drawn:
        sys.exit("docs/figures/house.svg is out of date; run python docs/figures/house.py")


if __name__ == "__main__":
    main()
