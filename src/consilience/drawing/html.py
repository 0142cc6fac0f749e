"""HTML pages of blocks: one file each, without scripts, fetching nothing, every name in it escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from consilience.drawing.blocks import Block, Section, markup, render_blocks, sort_rules
from consilience.drawing.downloads import read_sheets

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta name="generator" content="consilience">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}: {subject} {result}</title>
<style>{style}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
<p class="lead"><span>{subject}</span> <span>{result}</span></p>
{head}
<nav aria-label="Sections">
<ul>
{links}
</ul>
</nav>
</header>

{sections}
<footer class="note">{foot}</footer>
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Page:
    """A page of sections."""

    title: str  # what kind of page it is
    lead: tuple[str, str]  # what it is about, in two parts that stay together
    head: Sequence[Block | None]  # what stands above the list of sections
    sections: Sequence[Section | None]  # its sections, each with a link; those without blocks are left out
    foot: str  # the last line
    # Files of style sheets; the page's policy allows exactly these, by their digest, and nothing else.
    styles: tuple[str, ...] = ("report.css",)

    def render(self) -> str:
        """Return the page; the same blocks give the same text."""
        sections = [section for section in self.sections if section is not None and any(section.blocks)]
        body = Markup("\n\n").join(section.render() for section in sections)
        style = _style_sheet(self.styles, body)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        link = '<li><a href="#{}">{}</a></li>'
        page = markup(
            _PAGE,
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
            title=self.title,
            subject=self.lead[0],
            result=self.lead[1],
            style=Markup(style),  # noqa: S704  (a file of ours)
            head=render_blocks(self.head),
            links=Markup("\n").join(markup(link, part.anchor, part.link or part.title) for part in sections),
            sections=body,
            foot=self.foot,
        )
        return str(page)


def _style_sheet(files: tuple[str, ...], sections: str) -> str:
    """Return the text of the style sheets exactly as the page has it, since the policy's digest is of that text."""
    lines = [*read_sheets(*files).splitlines(), *sort_rules(sections)]
    return "\n".join(line for line in lines if line.strip())
