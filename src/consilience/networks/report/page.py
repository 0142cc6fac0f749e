"""The report of a fusion of networks as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilience.drawing.html import render_template
from consilience.files.atomic import write_bytes
from consilience.networks.report.barriers import MAX_LINES, barrier_curves, quantity_names
from consilience.networks.report.content import NetworkContent
from consilience.networks.report.couplings import MAX_MAPS, coupling_map, share_legend
from consilience.networks.report.planes import ContourLevels, is_drawable, is_stretched, levels_of, plane_map
from consilience.networks.report.quality import bars
from consilience.posteriors.report import charts
from consilience.posteriors.report.matching_map import SITES_AT_MOST

PLANES_AT_MOST = 8
"""Planes beyond these are not drawn. Bounds the size of the page; chosen by hand."""

QUANTITIES_AT_MOST = 4
"""Values of a barrier or a plane beyond these are not drawn. Bounds the size of the page; chosen by hand."""


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
    template: str = "network.html.j2",
    styles: tuple[str, ...] = ("report.css", "network.css"),
    **context: Any,
) -> str:
    """Return the report as HTML; the same content gives the same text.

    Parameters
    ----------
    content : NetworkContent
        What to show.
    template : str, optional
        File name of the template; another one extends that of networks. Default: that of networks.
    styles : tuple of str, optional
        File names of the style sheets.
    **context
        Further variables of another template.
    """
    return render_template(
        template,
        styles,
        content=content,
        findings=content.findings,
        network_findings=content.network_findings,
        figures=_figures(content),
        most=SITES_AT_MOST,
        most_lines=MAX_LINES,
        most_maps=MAX_MAPS,
        most_planes=PLANES_AT_MOST,
        legend=share_legend(),
        meanings={},
        **context,
    )


def _figures(content: NetworkContent) -> Mapping[str, Any]:
    """Return every figure that there is something to draw of."""
    barriers = content.barriers
    planes = {name: plane for name, plane in content.planes.items() if is_drawable(plane)}
    return {
        "descent": charts.descent_curve(content.shown_history) if len(content.shown_history) > 1 else None,
        "bars": bars(content.groups, content.unrelated_distance) if content.has_distances else None,
        "couplings": [
            (coupling, coupling_map(coupling, coupling.shares))
            for coupling in content.couplings
            if coupling.shares is not None
        ],
        "barriers": [barrier_curves(barriers, name) for name in quantity_names(barriers)[:QUANTITIES_AT_MOST]],
        "planes": [
            (name, plane, is_stretched(plane), maps)
            for name, plane, maps in _maps(dict(list(planes.items())[:PLANES_AT_MOST]))
        ],
    }


def _maps(planes: Mapping[str, Any]) -> list[tuple[str, Any, list[Any]]]:
    """Return each plane with its maps; a quantity has the same levels in all planes."""
    names = dict.fromkeys(name for plane in planes.values() for name in plane.values)
    levels: dict[str, ContourLevels] = {
        name: levels_of([plane.values[name] for plane in planes.values() if name in plane.values]) for name in names
    }
    return [
        (
            name,
            plane,
            [plane_map(plane, quantity, levels[quantity]) for quantity in list(plane.values)[:QUANTITIES_AT_MOST]],
        )
        for name, plane in planes.items()
    ]
