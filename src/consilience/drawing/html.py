"""HTML pages from Jinja templates: one file each, without scripts, fetching nothing, every name in it escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from consilience.drawing.words import format_count, format_fixed, format_number, printable, shorten


def render_template(template: str, styles: tuple[str, ...] = ("report.css",), **values: Any) -> str:
    """Return a page; the same values give the same text.

    Parameters
    ----------
    template : str
        File name of a template.
    styles : tuple of str, optional
        File names of style sheets. The page's policy allows exactly these, by their digest, and nothing else.
        Default: ``report.css`` alone.
    **values
        Variables of the template.
    """
    style = _style_sheet(styles)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template(template).render(style=style, style_hash=digest, **values)
    return _without_empty_lines(page).strip() + "\n"


_MAX_INTEGER = 10**15
"""From here on integers are written as text: below it float64 holds them exactly. Chosen by hand."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("consilience.drawing"),
        autoescape=True,
        undefined=StrictUndefined,
        lstrip_blocks=True,
        finalize=_escape_text,
    )
    environment.filters |= {
        "number": _format_value,
        "fixed": format_fixed,
        "counted": format_count,
        "shortened": shorten,
    }
    return environment


def _escape_text(value: Any) -> Any:
    """Escape unprintable characters of every text that a template fills in: names may come from others' files."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _format_value(value: Any) -> str:
    """Return a number as the report writes it, and any other value as its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return shorten(str(value), 200)
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER:  # which may have hundreds of digits
        return shorten(str(value), 40)
    return format_number(value)


@cache
def _style_sheet(files: tuple[str, ...]) -> str:
    """Return the text of the style sheets as it stands in the page, which is what the policy's digest is of."""
    folder = Path(__file__).parent / "templates"
    return _without_empty_lines("\n".join((folder / file).read_text(encoding="utf-8") for file in files))


def _without_empty_lines(text: str) -> str:
    """Return `text` without the empty lines that templates leave behind."""
    return re.sub(r"\n\s*\n", "\n", text)
