"""How public values show themselves: a short text for a prompt, a long one, HTML for notebooks, and tables.

A class says its headline, what there is to know of it, and, where it can draw, blocks. From these follow

    repr(value)            the headline and the first facts, at most `MAX_LINES` lines of `MAX_WIDTH` letters
    value.summary()        the headline and all facts
    value._repr_html_()    the blocks of the reports, light and dark, as Jupyter, VS Code and marimo ask for them

Names in facts may come from files of others: they are printed with control characters and marks of direction escaped,
and in HTML as text.
"""

from __future__ import annotations

import re
import textwrap
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from consilience.catalogue import no_attribute
from consilience.drawing.blocks import Block, Facts, Heading, markup, render_blocks
from consilience.drawing.downloads import read_sheets, rules_of, with_images, without_links
from consilience.drawing.words import printable, shorten
from consilience.errors import UnsupportedError

MAX_LINES, MAX_WIDTH = 6, 100
"""Lines of a repr, and letters of a line: what a prompt shows of a value without pushing away what stood before."""

MAX_SENTENCE_LINES = 3
"""Lines that a repr gives to a verdict, as most of them need; what is longer is whole in `summary`."""

MAX_NAMES = 8
"""Names of sites that a line holds; more are counted."""


class Displayed:
    """A value that shows itself; a dataclass that derives from it is declared with ``repr=False``."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError in the words of the catalogue; defined attributes never come here."""
            if hasattr(type(self), name):  # a property that raised an AttributeError of its own: that one is the reason
                return object.__getattribute__(self, name)
            if name.startswith("_"):  # copying, unpickling and notebooks ask for what may not be there
                raise AttributeError(name)
            raise no_attribute(self, name, self._where_else(name))

    def _where_else(self, name: str) -> str:
        """Return where a value has what it is asked for and does not have, as a remedy; else ""."""
        places = {"plot": "there is nothing to draw: see its `summary()`", "to_frame": "see its `summary()`"}
        return places.get(name, "")

    @abstractmethod
    def _headline(self) -> str:
        """Return in a few words what it is and how large; the name of the class stands before them."""

    def _facts(self) -> Mapping[str, object | None]:
        """Return what there is to know of it, the most important first; those of None are left out.

        The name of a fact is empty where its text is a sentence that needs none.
        """
        return {}

    def _blocks(self) -> Sequence[Block | None]:
        """Return what stands below the headline in a notebook."""
        facts = {name: text for name, text in self._facts().items() if text is not None}
        return [Facts({name or "verdict": text for name, text in facts.items()})] if facts else []

    def __repr__(self) -> str:
        """Return the headline and the first facts, in a few lines."""
        return "\n".join(_first_lines(self._title(), self._facts()))

    def summary(self) -> str:
        """Return in lines of text all that there is to know of it."""
        said = [_said(name, text) for name, text in self._facts().items() if text is not None]
        return "\n".join([self._title(), *(f"  {line}" for line in said)])

    def _repr_html_(self) -> str:
        """Return it as notebooks show it: blocks of the reports, light and dark, every name escaped."""
        return fragment([Heading(self._title()), *self._blocks()])

    def _title(self) -> str:
        headline = printable(self._headline())
        return f"{type(self).__name__}: {headline}" if headline else type(self).__name__


def names_in_line(names: Sequence[str], limit: int = 24) -> str | None:
    """Return the first names in one line, each shortened, and how many more there are; None for no names.

    Examples
    --------
    >>> names_in_line(["lund", "oslo"]), names_in_line([str(n) for n in range(10)])
    ('lund, oslo', '0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    if not names:
        return None
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(shorten(str(name), limit) for name in names[:MAX_NAMES]) + more


def fragment(blocks: Sequence[Block | None]) -> str:
    """Return blocks as HTML for somebody else's page, with styles that apply to nothing else on it."""
    style = Markup(scoped_style())  # noqa: S704  (a file of ours)
    body = with_images(without_links(render_blocks(blocks)))
    return str(markup('<div class="consilience">\n<style>{}</style>\n{}\n</div>', style, body))


def _said(name: str, text: object) -> str:
    """Return a fact in one line."""
    return f"{printable(name)}: {printable(str(text))}" if name else printable(str(text))


def _first_lines(title: str, facts: Mapping[str, object | None]) -> Iterator[str]:
    """Yield the lines of a repr."""
    yield shorten(title, MAX_WIDTH)
    left = MAX_LINES - 1
    for name, text in facts.items():
        if text is None:
            continue
        lines = textwrap.wrap(_said(name, text)[: 20 * MAX_WIDTH], MAX_WIDTH - 4, break_on_hyphens=False)
        allowed = min(left, 1 if name else MAX_SENTENCE_LINES)
        if len(lines) > allowed > 0:
            lines[allowed - 1] = f"{lines[allowed - 1][: MAX_WIDTH - 5]}…"
        for place, line in enumerate(lines[:allowed]):
            yield ("  " if place == 0 else "    ") + line
        left -= len(lines[:allowed])


# The style sheet of the reports is for whole pages. Each of its rules is put below one class, so that the report and
# the notebook have one look and one source; what is said of the page itself is said of that element.

_SCOPE = ".consilience" * 3
"""Three times, so that these rules count for more than a notebook's own of all tables (``.jp-RenderedHTMLCommon``)."""
_PAGE_SELECTORS = re.compile(r"^(:root|html|body|\*)$")
_NOTEBOOK_THEMES = {
    "light": ('[data-jp-theme-light="true"]', "body.vscode-light"),
    "dark": ('[data-jp-theme-light="false"]', "body.vscode-dark"),
}
"""Marks of the themes of JupyterLab and VS Code, which count for more than what the system prefers."""


@cache
def scoped_style() -> str:
    """Return the style sheets of the reports with every rule below the class of a fragment."""
    rules = list(rules_of(read_sheets("report.css", "fragment.css")))
    colours = {"light": next(body for head, body in rules if head == ":root")}
    dark = next(body for head, body in rules if "prefers-color-scheme: dark" in head)
    colours["dark"] = next(body for head, body in rules_of(dark) if head == ":root")
    lines = []
    for head, body in rules:
        if head.startswith("@media"):
            inner = "".join(f"{_scoped(selector)}{{{text}}}" for selector, text in rules_of(body) if selector[0] != "@")
            lines.append(f"{head}{{{inner}}}")
        elif not head.startswith("@"):
            lines.append(f"{_scoped(head)}{{{body}}}")
    for theme, marks in _NOTEBOOK_THEMES.items():
        lines.append(f"{','.join(f'{mark} {_SCOPE}' for mark in marks)}{{{colours[theme]}color-scheme:{theme}}}")
    return "\n".join(lines)


def _scoped(selectors: str) -> str:
    """Return selectors that hold below the class of a fragment only."""
    parts = []
    for selector in re.split(r",(?![^(]*\))", selectors):
        name = selector.strip()
        parts.append(_SCOPE if _PAGE_SELECTORS.match(name) and name != "*" else f"{_SCOPE} {name}")
    return ",".join(parts)


class Tabular:
    """A value of which a table is what people want."""

    __slots__ = ()

    @abstractmethod
    def to_columns(self) -> Mapping[str, Sequence[Any]]:
        """Return the table as columns of one length by name, which every library of tables takes.

        ``polars.DataFrame(value.to_columns())`` and ``pyarrow.table(value.to_columns())`` need nothing between.
        """

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame.

        polars reads it through the interchange protocol, ``polars.from_dataframe(value.to_frame())``.

        Raises
        ------
        UnsupportedError
            Without pandas.
        """
        try:
            import pandas  # here, so that the library starts, and works, without it
        except ModuleNotFoundError as error:
            remedy = "pip install 'consilience[tables]', or take the columns with `to_columns()`"
            raise UnsupportedError(
                "", "a data frame needs pandas, which is not installed", remedy, "E-EXTRA"
            ) from error
        return pandas.DataFrame({name: list(values) for name, values in self.to_columns().items()})
