"""Check the built documentation: ``python docs/check_site.py docs/_build/html``.

Links and their anchors lead somewhere, tables have at most 8 columns unless folded, no line of code is cut, no page is
heavy, nothing is fetched from a network, formulas have what draws them, and the search finds what people look for.
Of the user's pages, prose is at most 2,000 words a page and 45,000 in all, and the median sentence of a page under 20
words.
Prints a line for each fault, and exits 1 where there are any.
"""

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

from sphinx.search.en import SearchEnglish

MAX_BYTES = 300_000
MAX_COLUMNS = 8
MAX_CODE = 88
TERMS = (
    "FedAvg", "GPU", "Jupyter", "install", "cite", "GDPR", "meta-analysis", "non-IID", "one-shot", "pandas", "Pipeline",
    "LoRA", "citation", "FAQ", "glossary", "differential privacy", "mergekit", "Flower", "scikit-learn", "PyMC",
)  # fmt: skip
"""What people search for; each must find a page, and none a decision record first."""
USERS_PAGES = ("start", "guides", "sites", "concepts", "results")
"""Folders of what a user reads; evidence, reference and decision records are looked up."""
MAX_WORDS = 2_000
MAX_SENTENCE = 20
MAX_WORDS_IN_ALL = 45_000
"""DESIGN's limits: words of prose on a page, the median sentence of a page, and words of the user's pages."""
WITHOUT_LIMIT = ("genindex", "search", "py-modindex")
"""Pages that Sphinx makes, which nobody reads as a page."""


class Page(HTMLParser):
    """A page as far as it is checked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.code: list[str] = []
        self.columns: list[int] = []
        self.has_formulas = False
        self._pre = self._folded = 0
        self._cells: int | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take links, anchors, what is fetched, code and tables."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        source = values.get("src") or (values.get("href") if tag == "link" else None)
        if source and values.get("rel") not in ("canonical", "author"):
            self.fetched.append(source)
        self.has_formulas |= "math" in values.get("class", "").split()
        if tag == "pre":
            self._pre += 1
            self.code.append("")
        elif tag == "details":
            self._folded += 1
        elif tag == "tr":
            self._cells = 0
        elif tag in ("td", "th") and self._cells is not None:
            self._cells += 1

    def handle_endtag(self, tag: str) -> None:
        """Close what was opened."""
        if tag == "pre":
            self._pre -= 1
        elif tag == "details":
            self._folded -= 1
        elif tag == "tr" and self._cells is not None:
            if not self._folded:
                self.columns.append(self._cells)
            self._cells = None

    def handle_data(self, data: str) -> None:
        """Take the text of code."""
        if self._pre:
            self.code[-1] += data


def faults_of_links(root: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Yield links inside the site that lead nowhere."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{path.relative_to(root)}: link to {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(root)}: link to {link}, which has no such anchor"


def faults_of_page(root: Path, path: Path, page: Page) -> Iterator[str]:
    """Yield what is wrong with one page."""
    name = path.relative_to(root)
    if path.stat().st_size > MAX_BYTES and not str(name).startswith(WITHOUT_LIMIT):
        yield f"{name}: {path.stat().st_size:,} bytes, at most {MAX_BYTES:,}"
    for source in page.fetched:
        if urlsplit(source).netloc:
            yield f"{name}: fetches {source}"
        elif not (path.parent / unquote(urlsplit(source).path)).exists():
            yield f"{name}: needs {source}, which is not there"
    if page.has_formulas and not any("katex/render.js" in source for source in page.fetched):
        yield f"{name}: formulas, and nothing that draws them"
    if (widest := max(page.columns, default=0)) > MAX_COLUMNS:
        yield f"{name}: a table of {widest} columns, at most {MAX_COLUMNS} unless it is folded"
    is_written = name.parts[0] not in ("api", "adr")  # signatures are as they are; records are not rewritten
    for line in (line for block in page.code if is_written for line in block.splitlines() if len(line) > MAX_CODE):
        yield f"{name}: code of {len(line)} columns: {line[:60]}"


def faults_of_sources(docs: Path) -> Iterator[str]:
    """Yield tables whose rows differ in their number of cells, and blocks that are not closed."""
    for path in sorted(docs.glob("[!_]*/*.md")):
        text = path.read_text(encoding="utf-8")
        for mark in ("```", "$$\n"):
            if len(re.findall(rf"(?m)^{re.escape(mark)}", text)) % 2:
                yield f"{path.relative_to(docs)}: a block of {mark.strip()} that is not closed"
        text = re.sub(r"(?ms)^```.*?^```$", "", text)
        for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
            rows = [re.sub(r"`[^`]*`", "", row).replace("\\|", "").count("|") for row in table.splitlines()]
            if len(set(rows)) > 1 or len(rows) < 2:
                yield f"{path.relative_to(docs)}: a broken table: {table[:60]!r}"


def prose_of(text: str) -> str:
    r"""Return a page without code, displayed formulas, tables, directives and comments.

    Examples
    --------
    >>> prose_of("# Title\n\nWords.\n\n| a | b |\n\n```python\nx\n```\n").split()
    ['#', 'Title', 'Words.']
    """
    text = re.sub(r"(?ms)^(```|\$\$).*?^\1$", "", text)
    text = re.sub(r"(?s)<!--.*?-->|\A---\n.*?\n---\n", "", text)
    text = re.sub(r"\$[^$]+\$", "x", text)  # a formula in a line is one word
    return re.sub(r"(?m)^(\||:::|:\w+:|%|<|\([\w-]+\)=$).*$", "", text)


def lengths_of_sentences(prose: str) -> list[int]:
    r"""Return the number of words of every sentence; headings and single words are none.

    Examples
    --------
    >>> lengths_of_sentences("# A title\n\nOne short sentence. And another one:\n\n- an item")
    [3, 3, 2]
    """
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", prose)
    blocks = [re.sub(r"^\s*(?:[-*]|\d+\.)\s", "", block) for block in blocks if not block.lstrip().startswith("#")]
    sentences = (sentence.split() for block in blocks for sentence in re.split(r"(?<=[.!?:])\s+", block))
    return [len(words) for words in sentences if len(words) > 1]


def faults_of_prose(docs: Path) -> Iterator[str]:
    """Yield user's pages that are too long or of long sentences."""
    total = 0
    for path in sorted(path for folder in USERS_PAGES for path in (docs / folder).glob("*.md")):
        name, prose = path.relative_to(docs), prose_of(path.read_text(encoding="utf-8"))
        total += (n_words := len(re.findall(r"\S*\w\S*", prose)))
        if n_words > MAX_WORDS:
            limit = f"at most {MAX_WORDS:,}"
            yield f"{name}: {n_words:,} words of prose, {limit}: move measurements to evidence, or split it"
        typical = median(lengths_of_sentences(prose) or [0])
        if typical >= MAX_SENTENCE:
            yield f"{name}: the median sentence has {typical:g} words, under {MAX_SENTENCE} are allowed"
    if total > MAX_WORDS_IN_ALL:
        yield f"the user's pages: {total:,} words of prose, at most {MAX_WORDS_IN_ALL:,}"


def faults_of_search(root: Path) -> Iterator[str]:
    """Yield terms that find nothing, or nothing but decision records."""
    text = (root / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[len("Search.setIndex(") : text.rindex(")")])
    stemmer = SearchEnglish({})
    for term in TERMS:
        found: set[int] | None = None
        for word in re.findall(r"\w+", term.lower()):
            stem = stemmer.stem(word)
            pages = [index[where].get(stem, []) for where in ("terms", "titleterms")]
            numbers = {number for one in pages for number in (one if isinstance(one, list) else [one])}
            found = numbers if found is None else found & numbers
        names = [index["docnames"][number] for number in found or ()]
        if not any(not name.startswith("adr/0") for name in names):
            yield f"search: {term!r} finds nothing"


def main() -> None:
    """Print the faults of a built site."""
    root = Path(sys.argv[1]).resolve()
    paths = [path for path in sorted(root.rglob("*.html")) if "_static" not in path.parts]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    docs = Path(__file__).parent
    faults = [*faults_of_links(root, pages), *faults_of_sources(docs), *faults_of_prose(docs), *faults_of_search(root)]
    faults += [fault for path, page in pages.items() for fault in faults_of_page(root, path, page)]
    print("\n".join(faults) or f"{len(pages)} pages: nothing wrong")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
