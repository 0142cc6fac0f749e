"""What the documentation needs beside Sphinx: inventories of other projects, formulas, records, an example's report."""

from __future__ import annotations

import doctest
import json
import re
import zlib
from pathlib import Path
from typing import Any

from docutils.nodes import document, emphasis
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx


def write_inventories(table: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """Write the inventory of each project in a table, and return what intersphinx asks for.

    So that nothing is fetched while the documentation is built. The table has a line ``project URL`` before the lines
    ``name type address`` of the project's objects, whose address may have ``$`` in place of the name.
    """
    projects: dict[str, tuple[str, list[str]]] = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if len(fields) == 2:
            project = fields[0]
            projects[project] = fields[1], []
        elif fields:
            name, kind, address = fields
            projects[project][1].append(f"{name} {kind} 1 {address.replace('$', name)} -")
    folder.mkdir(parents=True, exist_ok=True)
    for project, (_, lines) in projects.items():
        header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        header += "# The remainder of this file is compressed using zlib.\n"
        compressed = zlib.compress("".join(f"{line}\n" for line in lines).encode())
        (folder / f"{project}.inv").write_bytes(header.encode() + compressed)
    return {project: (url, str(folder / f"{project}.inv")) for project, (url, _) in projects.items()}


def mend_docstrings(_app: Sphinx, _what: str, _name: str, _obj: object, _options: Any, lines: list[str]) -> None:
    """Link pages that docstrings name; escape bars of norms, which reStructuredText takes for substitutions."""
    for number, line in enumerate(lines):
        parts = line.split("``")
        linked = [re.sub(r"docs/([\w/]+)\.md", r":doc:`/\1`", part.replace("|", "\\|")) for part in parts[::2]]
        parts[::2] = linked
        lines[number] = "``".join(parts)


def leave_words_of_types(_app: Sphinx, doctree: document) -> None:
    """Leave words of types such as "shape" in "ndarray of shape (n,)" without a link to an attribute of that name."""
    for node in list(doctree.findall(pending_xref)):
        target = node.get("reftarget", "")
        if node.get("refdomain") == "py" and node.get("refspecific") and target.isidentifier() and target.islower():
            node.replace_self(emphasis(target, target))


def add_scripts(app: Sphinx, page: str, _template: str, _context: dict[str, Any], _doctree: Any) -> None:
    """Give pages with formulas KaTeX, and the list of decision records its search."""
    if app.env.domains["math"].has_equations(page):  # type: ignore[attr-defined]
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/katex.min.js", priority=300, defer="defer")
    if page == "adr/index":
        app.add_js_file("record_texts.js")
        app.add_js_file("record_search.js")


def mark_references(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Call references items of their list: the role that docutils gives them is deprecated, and no list's."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def leave_out_of_search(_app: Sphinx, page: str, source: list[str]) -> None:
    """Leave decision records out of the search of the whole site, which they would lead; they have their own."""
    if page.startswith("adr/0"):
        source[0] = f"---\nnosearch: true\n---\n{source[0]}"


def write_records(app: Sphinx, error: Exception | None) -> None:
    """Write the words of the decision records, which the search of the whole site leaves out."""
    if error is None and app.builder.name == "html":
        records = sorted((Path(app.srcdir) / "adr").glob("0*.md"))
        texts = {record.stem: record.read_text(encoding="utf-8").lower() for record in records}
        (Path(app.outdir) / "_static/record_texts.js").write_text(f"const RECORDS = {json.dumps(texts)};\n")


def write_example_report(app: Sphinx, error: Exception | None) -> None:
    """Run the example of the page on two dimensions and put the report that it describes beside the page."""
    if error is None and app.builder.name == "html":
        text = (Path(app.srcdir) / "gallery/two_dimensions.md").read_text(encoding="utf-8")
        example = doctest.DocTestParser().get_doctest(text, {}, "two_dimensions", "two_dimensions.md", 0)
        options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        if doctest.DocTestRunner(optionflags=options).run(example, clear_globs=False).failed:
            raise RuntimeError("two_dimensions.md: its example fails")
        example.globs["fusion"].report(Path(app.outdir) / "gallery/two_dimensions_report.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what autodoc asks at each member, and what is made beside the pages."""
    app.connect("autodoc-process-docstring", mend_docstrings, priority=400)
    app.connect("source-read", leave_out_of_search)
    app.connect("doctree-read", leave_words_of_types)
    app.connect("html-page-context", add_scripts)
    app.connect("html-page-context", mark_references)
    app.connect("build-finished", write_records)
    app.connect("build-finished", write_example_report)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
