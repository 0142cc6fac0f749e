"""Blocks of a page: paragraphs, lists, facts, tables and figures, in sections.

A block is a value that renders itself to HTML. Texts are escaped where they are rendered, names from files of others
included; ``Markup`` is HTML of ours, made with `markup`, which escapes what it fills in. A block of None is left out,
and so is a section without blocks, with its link.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from markupsafe import Markup, escape

from consilience.drawing.downloads import csv_link, svg_link
from consilience.drawing.words import format_count, format_fixed, format_number, natural_key, printable, shorten
from consilience.errors import split_code

MAX_ROWS = 60
"""Rows of a table beyond these are counted. Bounds the size of the page; chosen by hand."""

_MAX_INTEGER = 10**15
"""From here on integers are written as text: below it float64 holds them exactly. Chosen by hand."""


class Block(Protocol):
    """A part of a section, such as a table or a figure."""

    def render(self) -> Markup:
        """Return it as HTML."""


def markup(template: str, *values: object, **named: object) -> Markup:
    """Return HTML of ours with values in its places, escaped.

    Examples
    --------
    >>> markup("<b>{}</b> and {}", "<i>", 3)
    Markup('<b>&lt;i&gt;</b> and 3')
    """
    escaped = {name: _escaped(value) for name, value in named.items()}
    return Markup(template).format(*map(_escaped, values), **escaped)  # noqa: S704  (templates are literals of ours)


def prose(value: object) -> Markup:
    """Return a text escaped, its code (in backticks) marked; HTML of ours as it is.

    Examples
    --------
    >>> prose("give `min_count=0` to keep <b>")
    Markup('give <code>min_count=0</code> to keep &lt;b&gt;')
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return _escaped(value)
    parts = map(_escaped, split_code(value))
    return Markup("").join(markup("<code>{}</code>", part) if place % 2 else part for place, part in enumerate(parts))


def sentences(*parts: object) -> Markup:
    """Return texts behind one another, those that are empty, None or False left out."""
    return Markup(" ").join(prose(part) for part in parts if part)


def listed(texts: Iterable[object], separator: str = ", ") -> Markup:
    """Return texts with a separator between them."""
    return Markup(separator).join(map(_escaped, texts))  # noqa: S704  (separators are literals of ours)


def format_value(value: Any, digits: int | None = None) -> str:
    """Return a number as tables write it, with `digits` after the point if given, and any other value as its text."""
    if digits is not None and not isinstance(value, str):
        return format_fixed(value, digits)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return shorten(str(value), 200)
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER:  # which may have hundreds of digits
        return shorten(str(value), 40)
    return format_number(value)


def chip(kind: str) -> Markup:
    """Return a small disc in the colour of a CSS class."""
    return markup('<span class="chip {}"></span>', kind)


def _escaped(value: object) -> Markup:
    """Return a text escaped, its unprintable characters too; HTML of ours as it is."""
    return escape(value if isinstance(value, Markup) or not isinstance(value, str) else printable(value))


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `kind` is its CSS class."""

    content: object
    kind: str = ""

    def render(self) -> Markup:
        """Return it as HTML."""
        return markup("<p{}>{}</p>", _class(self.kind), prose(self.content))


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    content: object

    def render(self) -> Markup:
        """Return it as HTML."""
        return markup("<h3>{}</h3>", self.content)


@dataclass(frozen=True)
class Items:
    """A list without numbers; `kind` is its CSS class."""

    contents: Iterable[object]
    kind: str = "plain"

    def render(self) -> Markup:
        """Return it as HTML."""
        entries = (markup("<li>{}</li>", prose(content)) for content in self.contents)
        return markup("<ul{}>{}</ul>", _class(self.kind), Markup("\n").join(entries))


@dataclass(frozen=True)
class Facts:
    """Names with what there is to say of each; those of None are left out."""

    contents: Mapping[str, object | None]

    def render(self) -> Markup:
        """Return it as HTML."""
        said = {name: content for name, content in self.contents.items() if content is not None}
        entries = (markup("<dt>{}</dt><dd>{}</dd>", name, prose(content)) for name, content in said.items())
        return markup("<dl>\n{}\n</dl>", Markup("\n").join(entries))


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption."""

    drawing: Markup  # as SVG
    label: str  # what readers who do not see it are told that it is; without one, the figure does not scroll on its own
    caption: object = ""  # what to see in it

    def render(self) -> Markup:
        """Return it as HTML."""
        return _figure(self.drawing, self.label, self.caption, svg_link(self.label, self.drawing) if self.label else "")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: object
    value: Callable[[Any], object]  # gives the value of a row's item; None is shown as a dash
    kind: str = "n"  # CSS class of its cells: "n" is for numbers
    digits: int | None = None  # after the point; by default four significant ones
    limit: int = 60  # of the length of a text
    total: object = None  # what stands in the last row, below a line, which a table has if any column does

    def shown(self, value: object) -> object:
        """Return a value as the column writes it."""
        if isinstance(value, Markup):
            return value
        if self.kind != "n":
            return shorten("–" if value is None else str(value), self.limit)
        return format_value(value, self.digits)


def text_column(
    title: object, value: Callable[[Any], object], limit: int = 60, total: object = None, kind: str = ""
) -> Column:
    """Return a column of texts."""
    return Column(title, value, kind, limit=limit, total=total)


@dataclass(frozen=True)
class Table:
    """A table with a row for every item."""

    label: str  # what it is a table of
    items: Sequence[Any]  # what rows are of
    columns: Sequence[Column | None]  # the first names the rows; those of None are left out
    noun: str  # what to call an item where there are too many to show
    caption: object = ""  # what to see in it
    kind: str = ""  # CSS class

    def render(self) -> Markup:
        """Return it as HTML."""
        columns = [column for column in self.columns if column is not None]
        values = [[column.value(item) for column in columns] for item in self.items[:MAX_SAVED_ROWS]]
        shown = values[:MAX_ROWS]
        can_sort = len(shown) >= MIN_SORTED_ROWS and len(columns) <= len(_LETTERS)
        # The rank of every row by every column (rows, columns).
        ranks = list(zip(*map(_ranks, zip(*shown, strict=True)), strict=True)) if can_sort else [()] * len(shown)
        rows = [_row(columns, row, rank) for row, rank in zip(shown, ranks, strict=True)]
        if len(self.items) > MAX_ROWS:
            last = '<tr class="last" role="row"><td colspan="{}" role="cell">and {} more</td></tr>'
            rows.append(markup(last, len(columns), format_count(len(self.items) - MAX_ROWS, self.noun)))
        template = '<thead role="rowgroup"><tr role="row">{}</tr></thead>\n<tbody role="rowgroup">\n{}\n</tbody>{}'
        head = _head(columns, f"sort-{_slug(self.label)}" if can_sort else "")
        body = markup(template, head, Markup("\n").join(rows), _foot(columns))
        kind = f"{self.kind} columns-{len(columns)}".strip()
        table = markup('<table role="table" aria-label="{}"{}>\n{}\n</table>', self.label, _class(kind), body)
        titles = [_plain(column.title) for column in columns]
        saved = csv_link(self.label, titles, ([_plain(value) for value in row] for row in values))
        return _figure(table, self.label, self.caption, saved)


@dataclass(frozen=True)
class BlockGroup:
    """Blocks next to one another; `kind` is the CSS class that says how."""

    blocks: Sequence[Block | None]
    kind: str = "pair"

    def render(self) -> Markup:
        """Return it as HTML."""
        return markup('<div class="{}">\n{}\n</div>', self.kind, render_blocks(self.blocks))


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens by their title; paper shows them open."""

    title: str
    blocks: Sequence[Block | None]

    def render(self) -> Markup:
        """Return it as HTML."""
        body = render_blocks(self.blocks)
        return markup('<details class="folded"><summary>{}</summary>\n{}\n</details>', self.title, body)


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    anchor: str  # its name in addresses
    title: str
    blocks: Sequence[Block | None] = field(default_factory=tuple)  # what stands in it
    link: str = ""  # what the list of sections calls it; by default its title

    def render(self) -> Markup:
        """Return it as HTML."""
        head = markup('<h2 id="{}-title">{}</h2>', self.anchor, self.title)
        body = render_blocks(self.blocks)
        return markup('<section id="{0}" aria-labelledby="{0}-title">\n{1}\n{2}\n</section>', self.anchor, head, body)


def render_blocks(blocks: Iterable[Block | None]) -> Markup:
    """Return blocks as HTML, one below the other; those of None are left out."""
    return Markup("\n").join(block.render() for block in blocks if block is not None)


def _head(columns: Sequence[Column], name: str) -> Markup:
    """Return the heads of columns, with the buttons of this name that sort by them if it has one."""
    head = '<th scope="col" role="columnheader"{}>{}{}</th>'
    buttons = [_sort_button(name, place, column.title) if name else "" for place, column in enumerate(columns)]
    heads = (markup(head, _class(c.kind), button, c.title) for c, button in zip(columns, buttons, strict=True))
    return Markup("").join(heads)


def _foot(columns: Sequence[Column]) -> Markup:
    """Return the row of totals; nothing where no column has one."""
    if all(column.total is None for column in columns):
        return Markup("")
    totals = [Markup("") if column.total is None else column.total for column in columns]
    return markup('\n<tfoot role="rowgroup">{}</tfoot>', _row(columns, totals))


def _row(columns: Sequence[Column], values: Sequence[object], ranks: Sequence[int] = ()) -> Markup:
    """Return a row, whose first cell is its head; `ranks` are its places when sorted by each column."""
    cells = [column.shown(value) for column, value in zip(columns, values, strict=True)]
    others = [
        markup('<td role="cell"{} data-label="{}">{}</td>', _class(column.kind), _plain(column.title), cell)
        for column, cell in zip(columns[1:], cells[1:], strict=True)
    ]
    places = " ".join(f"{_LETTERS[column]}{rank}" for column, rank in enumerate(ranks))
    row = '<tr role="row"{}>\n<th scope="row" role="rowheader">{}</th>\n{}\n</tr>'
    return markup(row, _class(places), cells[0], Markup("\n").join(others))


# Tables sort without a script. The head of each column holds radio buttons; while one is chosen, the table is laid out
# as a grid and every row stands at its rank in that column, which a class of the row says ("c7": column c, rank 7).
# `sort_rules` are the rules for the ranks that a page has.

_LETTERS = "abcdefghijkl"
MIN_SORTED_ROWS = 3
"""Rows from which on a table can be sorted: fewer are seen at a glance. Chosen by hand."""
MAX_SAVED_ROWS = 1000
"""Rows that a saved table has at most. Bounds the size of the page; chosen by hand."""


def sort_rules(page: str) -> list[str]:
    """Return the rules that sort the tables of a page of ours."""
    classes = re.findall(r'<tr role="row" class="((?:[a-l]\d+ ?)+)">', page)
    places = {place for names in classes for place in names.split()}
    ordered = sorted(places, key=lambda place: (place[0], int(place[1:])))
    rules = [f"table:has(.by-{place[0]}:checked) .{place}{{--rank:{place[1:]}}}" for place in ordered]
    widths = sorted({int(count) for count in re.findall(r'<table [^>]*class="[^"]*columns-(\d+)"', page)})
    grid = "table.columns-{0}:has(.sort:checked){{grid-template-columns:repeat({0},auto)}}"
    return rules + [grid.format(count) for count in widths]


def _sort_button(name: str, place: int, title: object) -> Markup:
    """Return the buttons that sort by a column, ascending and descending; arrow keys go from one to the next."""
    button = '<input type="radio" class="sort {} by-{}" name="{}" aria-label="Sort by {}, {}">'
    said = _plain(title)
    ways = (("up", "ascending"), ("down", "descending"))
    buttons = Markup("").join(markup(button, way, _LETTERS[place], name, said, meaning) for way, meaning in ways)
    return markup('<span class="sorts">{}</span>', buttons)


def _ranks(values: Sequence[object]) -> list[int]:
    """Return the rank of each value: numbers by size, texts in their natural order, what is missing last."""

    def key(place: int) -> tuple[int, float, Any]:
        value = values[place]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return 2, 0.0, natural_key("")
        if isinstance(value, int | float):
            huge = math.inf if value > 0 else -math.inf
            return 0, float(value) if abs(value) < _MAX_INTEGER else huge, natural_key("")
        text = str(_plain(value))
        try:
            return 0, float(text), natural_key("")
        except ValueError:
            return 1, 0.0, natural_key(text[:200])

    ranks = [0] * len(values)
    for rank, place in enumerate(sorted(range(len(values)), key=key)):
        ranks[place] = rank
    return ranks


def _plain(value: object) -> Any:
    """Return a value as a saved table has it: HTML of ours as its text, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return str(Markup(re.sub(r"<summary>.*?</summary>", "", str(value))).striptags())  # noqa: S704  (ours, made a text)
    return value


def _slug(label: str) -> str:
    """Return a label as a name in addresses."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "table"


def _figure(content: Markup, label: str, caption: object, saved: object = "") -> Markup:
    scroll = '<div class="scroll" role="region" aria-label="{}" tabindex="0">\n{}\n</div>'
    shown = markup(scroll, label, content) if label else content
    said = markup("\n<figcaption>{}</figcaption>", caption) if caption else ""
    links = markup('\n<p class="downloads">{}</p>', saved) if saved else ""
    return markup("<figure>\n{}{}{}\n</figure>", shown, said, links)


def _class(kind: str) -> Markup:
    """Return the attribute of a CSS class; nothing for none."""
    return markup(' class="{}"', kind) if kind else Markup("")
