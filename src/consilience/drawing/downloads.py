"""Figures and tables that stand alone, and the style sheets that they take their look from.

Links save them as SVG and CSV, and images show them in notebooks. The file is in the link or image itself, so that
nothing is fetched and no script runs.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape

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
    return _link(name, "svg", "image/svg+xml", _with_style(str(drawing), _light_style(str(drawing))))


def without_links(page: Markup) -> Markup:
    """Return HTML of ours without the links that save and the buttons that sort, which are of no use in a notebook."""
    kept = re.sub(r'<p class="downloads">.*?</p>\n?|<span class="sorts">.*?</span>', "", str(page))
    return Markup(kept)  # noqa: S704  (it was HTML of ours before)


def with_images(page: Markup) -> Markup:
    """Return HTML of ours with its drawings as images.

    A notebook that is not trusted, such as one that somebody sent, shows no ``svg`` and no ``style`` (JupyterLab's
    sanitizer takes them out), and shows images whose file is in their address. The image has light and dark colours of
    its own; browsers take those of the element that it stands in.
    """
    return Markup(_DRAWING.sub(_image, str(page)))  # noqa: S704  (it was HTML of ours before)


_DRAWING = re.compile(r"<svg\b([^>]*)>.*?</svg>", re.DOTALL)


def _image(drawing: re.Match[str]) -> str:
    """Return a drawing, whose attributes are the first group, as an image with its text for who does not see it."""
    content = _with_style(drawing[0], _style_by_scheme(drawing[0]))
    data = base64.b64encode(content.encode("utf-8", "replace")).decode()
    named = dict(re.findall(r'([\w-]+)="([^"]*)"', drawing[1]))
    kept = {"class": named.get("class"), "width": named["width"], "height": named["height"]}
    attributes = "".join(f' {name}="{value}"' for name, value in kept.items() if value is not None)
    return f'<img{attributes} alt="{named.get("aria-label", "")}" src="data:image/svg+xml;base64,{data}">'


def _with_style(drawing: str, style: str) -> str:
    """Return a drawing as a file with the styles that it needs."""
    opening, rest = drawing.split(">", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{opening}><style>{style}</style>{rest}"


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


_VARIABLE = re.compile(r"var\(--([\w-]+)\)")


def _light_style(drawing: str) -> str:
    """Return the rules that a drawing uses, in light colours and without variables, which few editors know."""
    light, _ = _colours()
    return _VARIABLE.sub(lambda name: light.get(name[1], "#000"), _used_rules(drawing))


def _style_by_scheme(drawing: str) -> str:
    """Return the rules that a drawing uses, with the colours of a light and of a dark page."""
    rules = f"svg{{background:var(--paper)}}{_used_rules(drawing)}"
    names = sorted(set(_VARIABLE.findall(rules)))
    light, dark = (
        f":root{{{''.join(f'--{name}:{colours[name]};' for name in names if name in colours)}}}"
        for colours in _colours()
    )
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}{rules}"


def _used_rules(drawing: str) -> str:
    """Return the rules of the style sheets whose classes a drawing has."""
    classes = {name for names in re.findall(r'class="([^"]*)"', drawing) for name in names.split()}
    kept = []
    for selectors, body in _figure_rules():
        used = [one for one in selectors if set(re.findall(r"\.([\w-]+)", one)) <= classes]
        if used:
            kept.append(f"{','.join(used)}{{{body}}}")
    return "".join(kept)


@cache
def _sheet() -> list[tuple[str, str]]:
    return list(rules_of(read_sheets("report.css", "network.css", "bayesian.css")))


@cache
def _colours() -> tuple[dict[str, str], dict[str, str]]:
    """Return the colours of a light page by name, and those of a dark one."""
    dark_rules = [rule for head, body in _sheet() if "prefers-color-scheme: dark" in head for rule in rules_of(body)]
    light, dark = (
        dict(pair for head, body in rules if head == ":root" for pair in _declared(body))
        for rules in (_sheet(), dark_rules)
    )
    return light, light | dark


def _declared(body: str) -> list[tuple[str, str]]:
    """Return the variables of a rule with their values."""
    return [(name, value.strip()) for name, value in re.findall(r"--([\w-]+): *([^;]+);", body)]


@cache
def _figure_rules() -> list[tuple[list[str], str]]:
    """Return the rules that may be of figures: their selectors and their text."""
    of_figures = re.compile(r"svg\b|\.[a-z][\d-]$")
    split = [([one.strip() for one in head.split(",")], body) for head, body in _sheet() if not head.startswith("@")]
    return [(heads, body) for heads, body in split if all(of_figures.match(one) for one in heads)]


@cache
def read_sheets(*files: str) -> str:
    """Return the text of style sheets without comments, one after the other."""
    folder = Path(__file__).parent / "styles"
    text = "\n".join((folder / file).read_text(encoding="utf-8") for file in files)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def rules_of(sheet: str) -> Iterator[tuple[str, str]]:
    """Yield the rules of a style sheet: what stands before the braces, and what is in them."""
    depth, start, head = 0, 0, ""
    for place, sign in enumerate(sheet):
        if sign == "{":
            if depth == 0:
                head, start = sheet[start:place].strip(), place + 1
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                yield head, sheet[start:place].strip()
                start = place + 1
