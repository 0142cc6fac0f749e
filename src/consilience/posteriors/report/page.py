"""The report of fused posteriors as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilience.drawing.html import render_template
from consilience.files.atomic import write_bytes
from consilience.posteriors.methods import METHODS
from consilience.posteriors.report import charts
from consilience.posteriors.report.component_plane import plane_figure
from consilience.posteriors.report.content import PosteriorContent
from consilience.posteriors.report.gaussian_process_drawings import MAX_SITE_COLOURS, process_figure, site_colour
from consilience.posteriors.report.matching_map import SITES_AT_MOST, matching_map, share_bars
from consilience.posteriors.report.state_drawings import SEQUENCES_AT_MOST, STATES_AT_MOST, timelines, transitions

_MEANINGS = {
    "certified_gap": "largest part by which a relaxed matching may miss its optimum",
    "left_out": "local components left out, having too few observations",
    "regularization": "price of a component, in spreads",
    "spread": "standard deviation of cross-site divergences",
    "violations": "local components that share a cluster with another of their own site",
}


def write_page(path: Path, content: PosteriorContent) -> None:
    """Write the report to `path`, whole or not at all.

    Raises
    ------
    InputError
        When the path cannot be written.
    """
    write_bytes(path, render(content).encode("utf-8"))


def render(content: PosteriorContent) -> str:
    """Return the report as HTML; the same content gives the same text."""
    return render_template(
        "report.html.j2",
        content=content,
        findings=content.findings,
        figures=_figures(content),
        most=SITES_AT_MOST,
        most_sequences=SEQUENCES_AT_MOST,
        most_states=STATES_AT_MOST,
        max_colours=MAX_SITE_COLOURS,
        site_colour=site_colour,
        methods_without_average={kind.name for kind in METHODS if kind.keeps_models},
        summaries={kind.name: kind.summary for kind in METHODS},
        meanings=_MEANINGS,
    )


def _figures(content: PosteriorContent) -> Mapping[str, Any]:
    """Return every figure that there is something to draw of."""
    sites, components, findings = content.sites, content.components, content.findings
    too_many_sites = len(sites) > SITES_AT_MOST
    n_dropping = sum(any(label < 0 for label in site.labels or ()) for site in sites)
    has_entropies = any(component.entropy is not None and component.local_entropies for component in components)
    chain, process = content.chain, content.process
    return {
        "map": matching_map(sites, len(components)) if content.is_matched and not too_many_sites else None,
        "shares": share_bars(components, len(sites), n_dropping) if content.is_matched and too_many_sites else None,
        "descent": charts.descent_curve(findings.history) if len(findings.history) > 1 else None,
        "path": charts.path_curve(findings.path, len(components), findings.measure) if len(findings.path) > 1 else None,
        "uncertainty": charts.entropy_chart(components) if has_entropies else None,
        "plane": plane_figure(content.plane) if content.plane is not None else None,
        "transitions": transitions(chain.states) if chain is not None and len(chain.states) <= STATES_AT_MOST else None,
        "timelines": timelines(chain) if chain is not None else [],
        "process": process_figure(process) if process is not None and process.inducing else None,
    }
