"""The report of fused posteriors as one HTML file, and what a notebook shows of them below the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consilience.core.page_blocks import act, how_it_was_made, in_short, status, verdict, what_to_know
from consilience.core.verdict import SIDE_BY_SIDE
from consilience.drawing.blocks import Block, Figure, Table
from consilience.drawing.html import Page
from consilience.drawing.words import format_count
from consilience.files.atomic import write_bytes
from consilience.posteriors.report import sections
from consilience.posteriors.report.chain_sections import how_states_follow, states_over_time
from consilience.posteriors.report.content import PosteriorContent, content_of
from consilience.posteriors.report.process_section import the_function

SECTIONS = (
    sections.what_went_in,
    sections.what_came_out,
    sections.how_sites_judge_it,
    sections.what_it_loses,
    sections.who_is_who,
    sections.the_components,
    how_states_follow,
    states_over_time,
    the_function,
    sections.how_certain,
    sections.how_it_was_found,
    sections.how_sites_differ,
)
"""The sections of the page but for the last, each a function of the content; one without blocks is left out."""

_MEANINGS = {
    "certified_gap": "largest part by which a relaxed matching may miss its optimum",
    "topics_at_loss": "numbers of topics, by nats a word that they lose against the best number",
    "runnalls_gain": "nats per observation that Runnalls' reduction, which was taken, loses less",
    "kmeans_gain": "nats per observation that the matching of k-means, which was taken, loses less",
    "left_out": "local components left out, having too few observations",
    "n_observations": "as whoever fused said of models that do not record them",
    "regularization": "price of a component, in spreads",
    "spread": "standard deviation of cross-site divergences",
    "unusable": "components without parameters, which were left out",
    "withheld": "components with fewer observations than min_count, which were left out",
    "violations": "local components that share a cluster with another of their own site",
}


def write_page(path: Path, content: PosteriorContent) -> None:
    """Write the report to `path`, whole or not at all."""
    write_bytes(path, render(content).encode("utf-8"))


def render(content: PosteriorContent) -> str:
    """Return the report as HTML; the same content gives the same text."""
    chain, process = content.chain, content.process
    shows_data = bool((chain and chain.timelines) or (process and process.rows))
    data_warning = "This page shows data, not parameters alone: keep it where these data may be seen."
    models = f"{format_count(len(content.sites), 'model')} with {format_count(content.n_local, 'component')}"
    components = format_count(len(content.components), "component")
    came_out = SIDE_BY_SIDE if content.keeps_models else f"one model of {components}"
    shown = "parameters and the data given with them" if shows_data else "parameters only"
    return Page(
        "Fusion report",
        (models, f"→ {components}"),
        [
            in_short(content.verdict, len(content.sites), came_out),
            verdict(content.verdict),
            status(content.findings),
            what_to_know(content.notes),
            act(data_warning) if shows_data else None,
        ],
        [*(section(content) for section in SECTIONS), how_it_was_made(content, _MEANINGS)],
        f"One file: no scripts, nothing fetched, {shown}.",
    ).render()


_NOTEBOOK_SECTIONS = (sections.who_is_who, sections.the_components)


def notebook_blocks(fusion: Any) -> Iterator[Block]:
    """Yield the figures and tables of the matching and of the components of a `PosteriorFusion`.

    Of shards, whose sites are not at hand, nothing is shown.
    """
    if not fusion.inputs:
        return
    by_name = {site.name: site.value for site in fusion.inputs}
    posteriors = [by_name.get(record["name"]) for record in fusion.record["inputs"]]
    content = content_of(fusion.record, fusion.posterior, posteriors)
    for section in _NOTEBOOK_SECTIONS:
        yield from (block for block in section(content).blocks if isinstance(block, Figure | Table))
