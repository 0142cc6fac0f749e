"""Links that save a table as CSV, or a figure as SVG.

The file is in the link itself, so that nothing is fetched and no script runs.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from functools import cache

from markupsafe import Markup, escape

from consilience.drawing.style_sheets import read_sheets, rules_of
from consilience.drawing.words import printable, shorten

MAX_BYTES = 400_000
"""A larger file has no link. Bounds the size of the page; chosen by hand."""

MAX_CELL = 200
"""Letters of a text in a saved table. Bounds the size of the page; chosen by hand."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell must not begin with, since spreadsheets would run it; names come from files of others (OWASP)."""


def csv_link(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Return a link that saves a table as CSV; numbers whole, texts so that no spreadsheet takes them for formulas."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([_inert(title) for title in head])
    for row in rows:
        writer.writerow([value if isinstance(value, int | float) else _inert(str(value)) for value in row])
    return _link(name, "csv", "text/csv", lines.getvalue())


def svg_link(name: str, drawing: Markup) -> Markup:
    """Return a link that saves a figure as SVG with the styles that it needs, in light colours."""
    opening, rest = str(drawing).split(">", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return _link(name, "svg", "image/svg+xml", f"{opening}><style>{_style_of(str(drawing))}</style>{rest}")


def without_links(page: Markup) -> Markup:
    """Return HTML of ours without the links that save and the buttons that sort, which are of no use in a notebook."""
    kept = re.sub(r'<p class="downloads">.*?</p>\n?|<span class="sorts">.*?</span>', "", str(page))
    return Markup(kept)  # noqa: S704  (it was HTML of ours before)


def _inert(text: str) -> str:
    cut = shorten(text, MAX_CELL)
    return f"'{cut}" if cut.startswith(_FORMULA) else cut


def _link(name: str, suffix: str, kind: str, content: str) -> Markup:
    if len(content) > MAX_BYTES:
        return Markup("")
    file = re.sub(r"[^a-z0-9]+", "-", name.lower())[:60].strip("-") or "figure"
    data = base64.b64encode(content.encode("utf-8", "replace")).decode()
    template = '<a class="download" download="{}.{}" href="data:{};base64,{}" aria-label="Save as {}: {}">{}</a>'
    parts = (file, suffix, kind, data, suffix.upper(), escape(printable(name)), suffix.upper())
    return Markup(template).format(*parts)  # noqa: S704  (a literal of ours; what is filled in is escaped)


def _style_of(drawing: str) -> str:
    """Return the rules that a figure uses, in light colours and without variables, which few editors know."""
    classes = {name for names in re.findall(r'class="([^"]*)"', drawing) for name in names.split()}
    colours, rules = _figure_rules()
    kept = []
    for selectors, body in rules:
        used = [one for one in selectors if set(re.findall(r"\.([\w-]+)", one)) <= classes]
        if used:
            kept.append(f"{','.join(used)}{{{body}}}")
    return re.sub(r"var\(--([\w-]+)\)", lambda name: colours.get(name[1], "#000"), "".join(kept))


@cache
def _figure_rules() -> tuple[dict[str, str], list[tuple[list[str], str]]]:
    """Return the light colours by name, and the rules that may be of figures: their selectors and their text."""
    rules = list(rules_of(read_sheets("report.css", "network.css", "bayesian.css")))
    variables = (body for head, body in rules if head == ":root")
    colours = {name: value for body in variables for name, value in re.findall(r"--([\w-]+): *([^;]+);", body)}
    of_figures = re.compile(r"svg\b|\.[a-z][\d-]$")
    split = [([one.strip() for one in head.split(",")], body) for head, body in rules if not head.startswith("@")]
    return colours, [(heads, body) for heads, body in split if all(of_figures.match(one) for one in heads)]
