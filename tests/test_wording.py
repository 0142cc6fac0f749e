"""First sentences, titles and messages have the field's words: those that a newcomer would need a dictionary for fail.

What is looked at are the first sentence of every docstring, all texts in the source that are no docstrings (messages,
captions, lines of the command), the headings of the documentation, and the prose and tables of its pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "consilience"

PRIVATE = {
    "told": "given, stated, known; distinguished for told apart",
    "tells? of": "discloses",
    "is said of": "describes, is stated about",
    "stands? in(?! for)": "is in",
    "beside": "with, besides, next to",
    "of starts? of their own": "independently initialised",
    "of one start": "with a common initialisation",
    "alike sites": "IID sites",
    "made[- ]up": "synthetic; fabricated by a site",
    "drawn inputs": "synthetic inputs",
    "laws?": "distribution",
    "battery": "benchmark",
    "who is who": "matching",
    "what came out": "the fused model",
    "those of the most": "the largest sites",
    "own starts": "independent initialisations",
}
"""Words of this project alone, and those of the field."""
PATTERN = re.compile(rf"\b({'|'.join(PRIVATE)})\b", re.IGNORECASE)

LAWS = re.compile(r"\blaws?\b", re.IGNORECASE)
"""In ``testing`` a law is what holds of every correct family, adapter or transport, as in algebra."""

READ_PAGES = (".", "start", "guides", "sites", "concepts", "results", "coming_from", "gallery", "evidence")
"""Folders of pages that are read as prose, the landing page and README with them."""

RECORDS = "docs/adr"
"""Titles of decision records are the names by which they are cited."""


def first_sentence(text: str) -> str:
    """Return a docstring up to its first stop.

    Examples
    --------
    >>> first_sentence("Return a mean: of rows.\\n\\nMore of it.")
    'Return a mean:'
    """
    paragraph = " ".join(text.split("\n\n")[0].split())
    found = re.match(r"(.*?[.:;!?])(\s|$)", paragraph)
    return found[1] if found else paragraph


def texts_of(source: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every first sentence and every text that is no docstring."""
    tree = ast.parse(source.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), first_sentence(text)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements
        if is_text and " " in node.value:
            yield node.lineno, node.value


def private_words(text: str, place: str) -> list[str]:
    """Return the private words in a text at a place in the source."""
    if place.startswith("testing/"):
        text = LAWS.sub("", text)
    return [found[0].lower() for found in PATTERN.finditer(text)]


@pytest.mark.parametrize("room", sorted(path.name for path in SOURCES.iterdir() if path.suffix != ".pyi"))
def test_first_sentences_and_messages_have_the_words_of_the_field(room):
    entry = SOURCES / room
    files = sorted(entry.rglob("*.py")) if entry.is_dir() else [entry]
    found = []
    for path in files:
        place = path.relative_to(SOURCES).as_posix()
        found += [
            f"{place}:{line}: {words}: {text[:80]}"
            for line, text in texts_of(path)
            if (words := private_words(text, place))
        ]
    assert found == []


def test_headings_of_the_documentation_have_the_words_of_the_field():
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        place = page.relative_to(ROOT).as_posix()
        if place.startswith(RECORDS):
            continue
        headings = [line for line in page.read_text().splitlines() if re.match(r"#+ ", line)]
        found += [f"{place}: {line}" for line in headings if PATTERN.search(line)]
    assert found == []


@pytest.mark.parametrize("folder", READ_PAGES)
def test_pages_have_the_words_of_the_field(folder):
    docs, found = ROOT / "docs", []
    for page in sorted([*(docs / folder).glob("*.md"), *([ROOT / "README.md"] if folder == "." else [])]):
        place = page.relative_to(ROOT).as_posix()
        text = re.sub(r"(?ms)^```.*?^```$", lambda block: "\n" * block[0].count("\n"), page.read_text())
        lines = re.sub(r"`[^`\n]*`|<!--.*?-->", "", text).splitlines()
        found += [f"{place}:{number}: {line[:80]}" for number, line in enumerate(lines, 1) if PATTERN.search(line)]
    assert found == []
