"""Style sheets of the pages, read as rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path


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
