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

from consilience.drawing.words import counted, fixed, number, printable, shortened


def fill(template: str, styles: tuple[str, ...] = ("report.css",), **shown: Any) -> str:
    """Return a page; the same values give the same text.

    Parameters
    ----------
    template, styles
        Files among the templates. The page's policy allows exactly these styles, by their digest, and nothing else.
    **shown
        What the template shows.
    """
    style = _style(styles)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template(template).render(style=style, style_hash=digest, **shown)
    return _dense(page).strip() + "\n"


_WHOLE = 10**15


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("consilience.drawing"),
        autoescape=True,
        undefined=StrictUndefined,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters |= {"number": _number, "fixed": fixed, "counted": counted, "shortened": shortened}
    return environment


def _visible(value: Any) -> Any:
    """Escape what is not for printing in everything that is filled in, since names may come from files of others."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number(value: Any) -> str:
    """Return a number as the report writes it, and any other value as its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return shortened(str(value), 200)
    if isinstance(value, int) and abs(value) >= _WHOLE:  # which may have hundreds of digits
        return shortened(str(value), 40)
    return number(value)


@cache
def _style(files: tuple[str, ...]) -> str:
    """Return the style sheets as they stand in the page."""
    folder = Path(__file__).parent / "templates"
    return _dense("\n".join((folder / file).read_text(encoding="utf-8") for file in files))


def _dense(text: str) -> str:
    """Return `text` without the empty lines that templates leave behind."""
    return re.sub(r"\n\s*\n", "\n", text)
