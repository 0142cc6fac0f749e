"""The report of a fusion of networks as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilience.drawing.html import fill
from consilience.files.atomic import write_bytes
from consilience.networks.report.barriers import LINES_AT_MOST, barrier_curves, quantities
from consilience.networks.report.content import NetworkContent
from consilience.networks.report.couplings import MAPS_AT_MOST, coupling_map, share_legend
from consilience.networks.report.planes import Levels, drawable, levels_of, plane_map, stretched
from consilience.networks.report.quality import bars
from consilience.posteriors.report import charts
from consilience.posteriors.report.matching_map import SITES_AT_MOST

PLANES_AT_MOST = 8
"""More planes than these are not drawn."""

QUANTITIES_AT_MOST = 4
"""More quantities than these are not drawn of a barrier or a plane."""


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
    **more: Any,
) -> str:
    """Return the report as HTML; the same content gives the same text. `more` is what another template shows."""
    return fill(
        template,
        styles,
        content=content,
        findings=content.findings,
        told=content.told,
        figures=_figures(content),
        most=SITES_AT_MOST,
        most_lines=LINES_AT_MOST,
        most_maps=MAPS_AT_MOST,
        most_planes=PLANES_AT_MOST,
        legend=share_legend(),
        meanings={},
        **more,
    )


def _figures(content: NetworkContent) -> Mapping[str, Any]:
    """Return every figure that there is something to draw of."""
    barriers = content.barriers
    planes = {k: v for k, v in content.planes.items() if drawable(v)}
    return {
        "descent": charts.descent(content.drawn_history) if len(content.drawn_history) > 1 else None,
        "bars": bars(content.groups, content.apart) if content.has_distances else None,
        "couplings": [(one, coupling_map(one, one.shares)) for one in content.couplings if one.shares is not None],
        "barriers": [barrier_curves(barriers, name) for name in quantities(barriers)[:QUANTITIES_AT_MOST]],
        "planes": [
            (name, plane, stretched(plane), drawn)
            for name, plane, drawn in _maps(dict(list(planes.items())[:PLANES_AT_MOST]))
        ],
    }


def _maps(planes: Mapping[str, Any]) -> list[tuple[str, Any, list[Any]]]:
    """Return each plane with its maps; a quantity has the same levels in all planes."""
    names = dict.fromkeys(name for one in planes.values() for name in one.values)
    levels: dict[str, Levels] = {
        name: levels_of([one.values[name] for one in planes.values() if name in one.values]) for name in names
    }
    return [
        (name, one, [plane_map(one, quantity, levels[quantity]) for quantity in list(one.values)[:QUANTITIES_AT_MOST]])
        for name, one in planes.items()
    ]
