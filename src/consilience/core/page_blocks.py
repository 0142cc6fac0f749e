"""Blocks that pages of all kinds of fusions have: the status, digests, and how the fusion was made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from consilience.core.findings import Findings, VerdictSummary
from consilience.core.verdict import Verdict
from consilience.drawing.axes import descent_curve
from consilience.drawing.blocks import (
    MAX_ROWS,
    Block,
    BlockGroup,
    Column,
    Facts,
    Figure,
    Heading,
    Items,
    Paragraph,
    Section,
    Table,
    format_value,
    markup,
    prose,
    sentences,
    text_column,
)
from consilience.drawing.words import format_count, shorten

MAX_NOTES = 8
"""Notes on single models above the page; more are counted. Chosen by hand."""

DIGEST_CAPTION = "SHA-256 identifies each file; its first twelve digits are shown, and all of them on opening."


def verdict(found: VerdictSummary | None) -> Paragraph | None:
    """Return the verdict, and what to do about it; None where a file states none."""
    if found is None:
        return None
    return found.stated.paragraph()


def in_short(found: VerdictSummary | None, n_models: int, outcome: str) -> Paragraph | None:
    """Return the sentence that the page begins with; None where a file states no verdict."""
    return None if found is None else Paragraph(shorten(found.stated.in_short(n_models, outcome), 600), "short")


def what_to_know(notes: Sequence[str]) -> Block | None:
    """Return what should be known of single models; None for nothing."""
    if not notes:
        return None
    more = [f"and {len(notes) - MAX_NOTES} more"] if len(notes) > MAX_NOTES else []
    return Items([*(shorten(note, 300) for note in notes[:MAX_NOTES]), *more], "status open")


def status(findings: Findings) -> Paragraph:
    """Return how the fusion ended, and what to do about it."""
    name = markup("<strong>{}.</strong>", shorten(findings.status.replace("_", " ").capitalize(), 80))
    is_said = findings.remedy and findings.remedy != findings.status
    remedy = f"{findings.remedy[:1].upper()}{findings.remedy[1:]}." if is_said else ""
    ending = ""
    if findings.history and findings.objective is not None and math.isfinite(findings.objective):
        steps = format_count(len(findings.history), "step")
        ending = f"The objective ended at {format_value(findings.objective)} after {steps}."
    parts = (name, remedy, ending)
    return Paragraph(sentences(*parts), "status") if findings.is_converged else act(*parts)


def act(*parts: object) -> Paragraph:
    """Return something above the page that its reader should act on."""
    return Paragraph(sentences(*parts), "status act")


def strong(text: object) -> Markup:
    """Return a text that stands out."""
    return markup("<strong>{}</strong>", prose(text))


def code(text: object) -> Markup:
    """Return a name of code."""
    return markup("<code>{}</code>", text)


def digest_column(sites: Sequence[Any]) -> Column | None:
    """Return the column of digests; None where no site came from a file."""
    return text_column("SHA-256", lambda site: _digest(site.sha256)) if any(site.sha256 for site in sites) else None


def _digest(sha256: str | None) -> Markup | None:
    if not sha256:
        return None
    whole = shorten(sha256, 64)
    template = '<details><summary><code title="{}">{}</code></summary><code>{}</code></details>'
    return markup(template, whole, sha256[:12], whole)


def site_name(site: Any) -> Markup:
    """Return the short name of a site, which has the full one as its tooltip."""
    name = shorten(site.name)
    if site.name == site.full_name:
        return markup("{}", name)
    return markup('<span title="{}">{}</span>', shorten(site.full_name, 200), name)


def seed_text(seed: int | None) -> str:
    """Return the seed of a fusion in words."""
    return "a generator was given" if seed is None else str(seed)


def descent(history: Sequence[float], caption: object = "The objective after each step.") -> Figure | None:
    """Return the objective over the steps; None where there are too few to draw."""
    return Figure(descent_curve(history), "Descent of the objective", caption) if len(history) > 1 else None


def how_it_was_made(content: Any, meanings: Mapping[str, str]) -> Section:
    """Return options, further details and versions; `meanings` are of details, by name."""
    findings: Findings = content.findings
    options = [(code(shorten(name)), "not set" if value is None else value) for name, value in content.options]
    details: list[tuple[object, object]] = [(_detail(name, meanings), value) for name, value in findings.scalar_details]
    details += [(shorten(name.replace("_", " ")), "in the file") for name in findings.hidden_details[:MAX_ROWS]]
    versions = [(name, shorten(version, 40)) for name, version in content.versions]
    further: list[Block] = [Heading("Further details"), _pairs("Further details", "Detail", details)] if details else []
    of_method: list[Block] = [Heading("Options of the method"), _pairs("Options", "Option", options)]
    others: list[Block] = [*further, Heading("Versions"), _pairs("Versions", "Library", versions, "Version")]
    head = Paragraph("The same files, options, seed and versions give the same result.")
    pair = BlockGroup([BlockGroup(of_method, ""), BlockGroup(others, "")])
    return Section("made", "How it was made", [head, pair])


def _pairs(label: str, name: str, rows: Sequence[tuple[object, object]], value: str = "Value") -> Table:
    """Return a table of names and values."""
    columns = [text_column(name, lambda row: row[0]), Column(value, lambda row: row[1])]
    return Table(label, rows, columns, "entry", kind="pairs")


def _detail(name: str, meanings: Mapping[str, str]) -> Markup:
    shown = shorten(name.replace("_", " "))
    note = markup('<br><span class="note">{}</span>', meanings[name]) if name in meanings else ""
    return markup("{}{}", shown, note)


def opening(record: Mapping[str, Any], outcome: str) -> list[Block | None]:
    """Return what a page begins with by the record of a fusion: the verdict in short, and whole."""
    stated = Verdict.read(record.get("verdict"))
    if stated is None:
        return []
    return [Paragraph(stated.in_short(len(record["inputs"]), outcome), "short"), stated.paragraph()]


def columns_of_sites(records: Sequence[Any], columns: Sequence[Column]) -> list[Column]:
    """Return the columns of a table of the sites in a record: their names, what is given, and their digests.

    A column of which no site says anything is left out.
    """
    digests = text_column("SHA-256", lambda one: (one.get("sha256") or "")[:12] or None)
    said = [column for column in (*columns, digests) if any(column.value(one) is not None for one in records)]
    total = f"All {len(records):,}" if any(column.total is not None for column in said) else None
    return [text_column("Site", lambda one: one["name"], total=total), *said]


def options_and_versions(record: Mapping[str, Any]) -> list[Block]:
    """Return the options and the versions in the record of a fusion."""
    options = {
        name: "not set" if value is None else shorten(repr(value), 120)
        for name, value in record.get("options", {}).items()
    }
    return [Facts(options), Facts({name: shorten(str(one), 40) for name, one in record.get("versions", {}).items()})]
