"""Formatting of numbers, counts and names in reports.

Names come from files of others, so nothing in them may act: control characters and marks of direction are escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_SUFFIX = ".safetensors"
"""Suffix of the library's files, left out of short names."""


def printable(text: str) -> str:
    """Return `text` with what is not for printing escaped: control characters, lone surrogates, marks of direction.

    Examples
    --------
    >>> printable("age"), len(printable(chr(10)))
    ('age', 2)
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def shorten(text: str, limit: int = 60) -> str:
    """Return `text` printable and at most `limit` signs long, cut in the middle.

    Examples
    --------
    >>> shorten("hospital-of-the-holy-ghost", 11)
    'hospi…ghost'
    """
    # Escaping makes a text up to ten times as long, so only what may be shown of a huge one is escaped.
    safe = printable(text[: 4 * limit] + text[-4 * limit :] if len(text) > 8 * limit else text)
    tail = (limit - 1) // 2
    return safe if len(safe) <= limit else f"{safe[: limit - 1 - tail]}…{safe[-tail:]}"


def format_number(value: float | None) -> str:
    """Return a number with four significant digits, and commas from a thousand on; a dash for none.

    Examples
    --------
    >>> format_number(12345.6), format_number(0.012345), format_number(None), format_number(7)
    ('12,346', '0.01235', '–', '7')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return with_minus_sign(f"{int(value):,}")
    return with_minus_sign(f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}")


def format_fixed(value: float | None, digits: int) -> str:
    """Return a number with `digits` digits after the point, so that columns line up; a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"
    return with_minus_sign(f"{value:,.{digits}f}" if abs(value) < 1e12 else f"{value:.4g}")


def format_beside(value: float, width: float) -> str:
    """Return a number with four significant digits, or as many as a hundredth of a width takes, if these are more.

    Examples
    --------
    >>> format_beside(1700000123.4, 1800.0), format_beside(1700000123.4, 2.5), format_beside(12.3456, 2.5)
    ('1,700,000,123', '1,700,000,123.40', '12.35')
    """
    if not (0.0 < width < abs(value) / 1000.0 and math.isfinite(value)):
        return format_number(value)
    return format_fixed(value, min(max(0, 2 - math.floor(math.log10(width))), 12))


def with_minus_sign(text: str) -> str:
    """Return the text of a number with a minus sign in place of its hyphen."""
    return text.replace("-", "−", 1) if text.startswith("-") else text


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> format_count(1, "model"), format_count(1200, "model")
    ('1 model', '1,200 models')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, and how many more there are.

    Examples
    --------
    >>> first_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def all_of(count: int, noun: str = "") -> str:
    """Return that something is of all of a number of things: both, where there are two.

    Examples
    --------
    >>> all_of(2, "sites"), all_of(1200, "sites"), all_of(2), all_of(1, "sites")
    ('both sites', 'all 1,200 sites', 'both', 'the one site')
    """
    if count == 1:
        return f"the one {noun.removesuffix('s')}".strip()
    return f"{'both' if count == 2 else f'all {count:,}'} {noun}".strip()


def natural_key(name: str) -> tuple[tuple[tuple[str, int, str], ...], str]:
    """Return what sorts site-2 before site-10; digits are compared as texts, since a hostile name may have thousands.

    Examples
    --------
    >>> sorted(["site-10", "site-9", "site-1", "site-"], key=natural_key)
    ['site-', 'site-1', 'site-9', 'site-10']
    """
    # A number without leading zeros is compared by its length first, which orders as its value does.
    parts = re.split(r"([0-9]+)", name)
    digits = [part.lstrip("0") for part in [*parts[1::2], ""]]
    return tuple((text, len(stripped), stripped) for text, stripped in zip(parts[::2], digits, strict=True)), name


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the folder and the suffix that all share.

    Examples
    --------
    >>> short_names(["in/a/site-1.safetensors", "in/b/site-2.safetensors"])
    ['a/site-1', 'b/site-2']
    """
    parts = [name.split("/") for name in names]
    n_shared = 0
    while all(len(p) > n_shared + 1 for p in parts) and len({p[n_shared] for p in parts}) == 1:
        n_shared += 1
    short = ["/".join(p[n_shared:]) for p in parts]
    if all(name.endswith(_SUFFIX) and len(name) > len(_SUFFIX) for name in short):
        short = [name.removesuffix(_SUFFIX) for name in short]
    return short
