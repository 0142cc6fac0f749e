"""Filling templates: every page is one file without scripts that fetches nothing, with every name in it escaped."""

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
    template, styles
        Files among the templates. The page's policy allows exactly these styles, by their digest, and nothing else.
    **shown
        What the template shows.
    """
    style = _style_sheet(styles)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template(template).render(style=style, style_hash=digest, **values)
    return _without_empty_lines(page).strip() + "\n"


_MAX_INTEGER = 10**15


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
    """Escape what is not for printing in everything that is filled in, since names may come from files of others."""
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
    """Return the style sheets as they stand in the page."""
    folder = Path(__file__).parent / "templates"
    return _without_empty_lines("\n".join((folder / file).read_text(encoding="utf-8") for file in files))


def _without_empty_lines(text: str) -> str:
    """Return `text` without the empty lines that templates leave behind."""
    return re.sub(r"\n\s*\n", "\n", text)
