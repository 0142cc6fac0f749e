"""The report of a fusion of networks as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from consilience.core.fusion import SIDE_BY_SIDE
from consilience.core.page_blocks import how_it_was_made, in_short, status, verdict
from consilience.drawing.blocks import Section
from consilience.drawing.html import Page
from consilience.drawing.words import format_count
from consilience.files.atomic import write_bytes
from consilience.networks.report import sections
from consilience.networks.report.content import NetworkContent
from consilience.networks.report.landscape_sections import around_networks, between_networks

SECTIONS = (
    sections.what_was_chosen,
    sections.what_went_in,
    sections.what_data_say,
    sections.what_came_out,
    sections.how_good_it_is,
    sections.how_well_units_match,
    sections.who_is_who,
    between_networks,
    around_networks,
    sections.how_it_was_found,
)
"""The sections of the page but for the last, each a function of the content; one without blocks is left out."""


def write_network_content(path: Path, content: NetworkContent) -> None:
    """Write the report to `path`, whole or not at all.

    Raises
    ------
    InputError
        When the path cannot be written.
    """
    write_bytes(path, render_network(content).encode("utf-8"))


def render_network(
    content: NetworkContent,
    parts: Sequence[Callable[[Any], Section | None]] = SECTIONS,
    styles: tuple[str, ...] = ("report.css", "network.css"),
) -> str:
    """Return the report as HTML; the same content gives the same text.

    Parameters
    ----------
    content : NetworkContent
        What to show.
    parts : sequence of callable, optional
        The sections, each a function of the content. Default: those of networks.
    styles : tuple of str, optional
        File names of the style sheets.
    """
    size = SIDE_BY_SIDE if content.side_by_side else f"one of {format_count(content.parameters, 'parameter')}"
    parameters = format_count(content.parameters, "parameter")
    came_out = SIDE_BY_SIDE if content.side_by_side else f"one network of {parameters}"
    return Page(
        "Fusion report",
        (format_count(len(content.sites), content.noun), f"→ {size}"),
        [
            in_short(content.verdict, len(content.sites), came_out),
            verdict(content.verdict),
            status(content.findings),
            *sections.warnings(content),
        ],
        [*(part(content) for part in parts), how_it_was_made(content, {})],
        f"One file: no scripts, nothing fetched, parameters{content.beside} only.",
        styles,
    ).render()
