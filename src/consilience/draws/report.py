"""The report of fused draws as one HTML file: chains, forest plots, densities by site and fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.fft import irfft, rfft

from consilience.checks import Array, Json
from consilience.core.page_blocks import columns_of_sites, opening, options_and_versions
from consilience.core.provenance import read_fused
from consilience.drawing.axes import Axes, line_kind
from consilience.drawing.blocks import (
    Block,
    BlockGroup,
    Column,
    Facts,
    Figure,
    Items,
    Paragraph,
    Section,
    Table,
    text_column,
)
from consilience.drawing.html import Page
from consilience.drawing.svg import element, line
from consilience.drawing.words import format_count, format_number, shorten
from consilience.draws.draws import LEVEL, Draws
from consilience.draws.files import read_draws
from consilience.files.atomic import write_bytes
from consilience.files.safetensors_file import SafetensorsFile

MAX_PLOTS, MAX_SITES, MAX_CURVES = 24, 40, 10
"""Parameters with plots, sites with a row in a forest plot, and with a curve. Bounds the page; chosen by hand."""

_STEP = 22.0
"""Height of a row. Chosen by eye."""
_GRID = 160
"""Points of a curve. Chosen by eye."""


@dataclass(frozen=True, eq=False)
class DrawsContent:
    """What the report shows."""

    draws: Draws  # the fused draws
    record: Mapping[str, Any]  # the provenance with the verdict
    sites: Sequence[tuple[str, Draws]]  # the sites that are at hand, by name, with the variables of the fused draws


def content_of(draws: Draws, record: Mapping[str, Json], sites: Sequence[tuple[str, Draws]]) -> DrawsContent:
    """Return what the report shows of a fusion."""
    return DrawsContent(
        draws, record, [(name, site) for name, site in sites if set(draws.variables) <= set(site.variables)]
    )


def content_of_files(fused: SafetensorsFile, sites: Sequence[SafetensorsFile]) -> DrawsContent:
    """Return what the report shows of a fused file, and of its sites where their files are given."""
    return content_of(*read_fused(fused, sites, read_draws))


def write_page(path: Path, content: DrawsContent) -> None:
    """Write the report to `path`, whole or not at all."""
    write_bytes(path, render(content).encode("utf-8"))


def render(content: DrawsContent) -> str:
    """Return the report as HTML; the same content gives the same text."""
    records, draws = content.record["inputs"], content.draws
    outcome = f"{draws.n_draws:,} draws of their joint posterior"
    return Page(
        "Fusion report",
        (format_count(len(records), "site"), f"→ {draws.n_draws:,} draws of {len(draws.names):,} parameters"),
        opening(content.record, outcome),
        [_what_went_in(content), _parameters(content), _forests(content), _densities(content), _what_it_tells(),
         _how_it_was_made(content)],
        "One file: no scripts, nothing fetched, draws only.",
        ("report.css", "network.css"),
    ).render()  # fmt: skip


def _what_went_in(content: DrawsContent) -> Section:
    """Return the sites with their chains."""
    records = content.record["inputs"]
    facts = content.record["result"].get("sites")
    facts = facts if isinstance(facts, Mapping) else {}

    def fact(name: str) -> Any:
        return lambda one: (facts.get(one["name"]) or {}).get(name)

    columns = [
        Column("Chains", fact("chains"), digits=0),
        Column("Draws", fact("draws"), digits=0),
        Column("Least effective size", fact("least_ess"), digits=0),
        Column("Largest R-hat", fact("largest_rhat"), digits=3),
        Column("Observations", fact("n_observations"), digits=0),
    ]
    caption = "Effective sample sizes and R-hat are rank-normalised (Vehtari et al. 2021), over all parameters."
    return Section(
        "in", "What went in", [Table("Table of sites", records, columns_of_sites(records, columns), "site", caption)]
    )


def _columns(draws: Draws, order: Sequence[str]) -> Array:
    """Return all entries (n, d), variables in an order."""
    return np.concatenate([draws.variables[name].reshape(draws.n_draws, -1) for name in order], axis=1)


def _interval(column: Array) -> tuple[float, float]:
    low, high = np.quantile(column, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


def _parameters(content: DrawsContent) -> Section:
    """Return mean, deviation and interval of every fused parameter."""
    draws = content.draws
    values = _columns(draws, list(draws.variables))
    columns = [
        text_column("Parameter", lambda place: draws.names[place]),
        Column("Mean", lambda place: float(values[:, place].mean())),
        Column("Deviation", lambda place: float(values[:, place].std())),
        text_column(
            f"{100 * LEVEL:.0f} % interval",
            lambda place: " to ".join(format_number(end) for end in _interval(values[:, place])),
        ),
    ]
    items = list(range(len(draws.names)))
    return Section("parameters", "The fused posterior", [Table("Parameters", items, columns, "parameter")])


def _forests(content: DrawsContent) -> Section | None:
    """Return a forest plot for every parameter."""
    if not content.sites:
        return None
    order = list(content.draws.variables)
    fused = _columns(content.draws, order)
    sites = [(name, _columns(site, order)) for name, site in content.sites[:MAX_SITES]]
    names = content.draws.names
    blocks: list[Block] = [
        Figure(
            forest_plot(name, fused[:, place], [(site, values[:, place]) for site, values in sites]),
            f"Forest plot of {shorten(name)}",
            f"{shorten(name)}: squares are sites with {100 * LEVEL:.0f} % intervals; the diamond is the fusion.",
        )
        for place, name in enumerate(names[:MAX_PLOTS])
    ]
    if len(names) > MAX_PLOTS:
        blocks.append(Paragraph(f"{len(names) - MAX_PLOTS:,} more parameters have no plot."))
    if len(content.sites) > MAX_SITES:
        blocks.append(Paragraph(f"Of {len(content.sites):,} sites the first {MAX_SITES} have a row."))
    return Section("forest", "Forest plots", blocks)


def forest_plot(name: str, fused: Array, sites: Sequence[tuple[str, Array]]) -> Markup:
    """Return means and intervals of one parameter at all sites, and of the fused posterior below."""
    rows = [*sites, ("fused", fused)]
    intervals = [_interval(values) for _, values in rows]
    x_range = (min(low for low, _ in intervals), max(high for _, high in intervals))
    labels = [shorten(label, 22) for label, _ in rows]
    axes = Axes.over(x_range, (float(len(rows)), 0.0), _STEP * len(rows), margins=(170.0, 12.0), inset=(14.0, 0.0))
    parts = axes.names(shorten(name, 60), "site") + axes.x_ticks(7)
    parts += axes.rows([row + 0.5 for row in range(len(rows))], labels)
    for row, ((_, values), (low, high)) in enumerate(zip(rows, intervals, strict=True)):
        y, mean = axes.y(row + 0.5), float(values.mean())
        colour = "k1" if row == len(sites) else "k0"
        parts.append(line(axes.x(low), y, axes.x(high), y, f"range {colour}"))
        if row == len(sites):
            parts.append(axes.diamond((mean, row + 0.5), 7.0, f"diamond {colour}"))
        else:
            parts.append(element("rect", x=axes.x(mean) - 4, y=y - 4, width=8.0, height=8.0, kind=f"box {colour}"))
    ends = " to ".join(format_number(end) for end in intervals[-1])
    alt = f"{format_count(len(sites), 'site')} with {100 * LEVEL:g} % intervals of {name}."
    alt += f" The fused posterior has the mean {format_number(float(fused.mean()))}, from {ends}."
    return axes.drawing(parts, alt)


def _densities(content: DrawsContent) -> Section | None:
    """Return densities of the first parameters, by site and fused."""
    if not content.sites:
        return None
    order = list(content.draws.variables)
    fused = _columns(content.draws, order)
    sites = [(name, _columns(site, order)) for name, site in content.sites[:MAX_CURVES]]
    figures: list[Block | None] = [
        Figure(
            density_plot(name, fused[:, place], [(site, values[:, place]) for site, values in sites]),
            f"Densities of {shorten(name)}",
            shorten(name),
        )
        for place, name in enumerate(content.draws.names[:MAX_PLOTS])
    ]
    more = f" The first {MAX_CURVES} of {len(content.sites)} sites." if len(content.sites) > MAX_CURVES else ""
    caption = Paragraph(f"The thick curve is the fused posterior, the others are the sites' subposteriors.{more}")
    return Section("densities", "Densities by site", [caption, BlockGroup(figures)])


def density_plot(name: str, fused: Array, sites: Sequence[tuple[str, Array]]) -> Markup:
    """Return density curves of one parameter at all sites, and of the fused posterior."""
    low = min(float(np.quantile(values, 0.002)) for values in (fused, *(values for _, values in sites)))
    high = max(float(np.quantile(values, 0.998)) for values in (fused, *(values for _, values in sites)))
    grid = np.linspace(low, high, _GRID)
    curves = [kernel_density(values, grid) for values in (*(values for _, values in sites), fused)]
    top = max(float(curve.max()) for curve in curves)
    axes = Axes.over((low, high), (0.0, 1.05 * top), 150.0, 372.0, (50.0, 10.0))
    parts = axes.names(shorten(name, 40), "density") + axes.x_ticks(4) + axes.y_ticks(3)
    for number, curve in enumerate(curves[:-1]):
        points = list(zip(grid.tolist(), curve.tolist(), strict=True))
        parts.append(axes.curve(points, line_kind(number)))
    parts.append(axes.curve(list(zip(grid.tolist(), curves[-1].tolist(), strict=True)), "fused"))
    alt = f"Densities of {name} at {format_count(len(sites), 'site')} and fused; the fused one has its mean at"
    parts += axes.legend([site for site, _ in sites])
    return axes.drawing(parts, f"{alt} {format_number(float(fused.mean()))}.", len(sites))


def kernel_density(values: Array, grid: Array) -> Array:
    """Return a Gaussian kernel density estimate at an even grid, with Silverman's bandwidth (1986, equation 3.31).

    Values are counted in fine bins first, whose counts are smoothed by the fast Fourier transform.
    """
    quartiles = np.quantile(values, [0.25, 0.75])
    spread = min(float(values.std()), float(quartiles[1] - quartiles[0]) / 1.34) or float(values.std()) or 1.0
    bandwidth = 0.9 * spread * len(values) ** -0.2
    low, high = float(grid[0]) - 4 * bandwidth, float(grid[-1]) + 4 * bandwidth
    n_bins = 2048
    counts, edges = np.histogram(np.clip(values, low, high), bins=n_bins, range=(low, high))
    frequency = np.arange(n_bins // 2 + 1) * 2.0 * np.pi / (high - low)
    smooth = irfft(rfft(counts.astype(np.float64)) * np.exp(-0.5 * (bandwidth * frequency) ** 2), n_bins)
    density = np.maximum(smooth, 0.0) / (len(values) * (edges[1] - edges[0]))
    return np.interp(grid, 0.5 * (edges[:-1] + edges[1:]), density)


def _what_it_tells() -> Section:
    """Return what posterior draws tell about people."""
    tells = [
        "Where each parameter lies, and how surely: as much as a table of estimates with intervals.",
        "A parameter of one person (an effect by patient) discloses that person: leave such out.",
        "Posteriors of two sets of data that differ by one person disclose that person.",
        "No noise is added beyond that of sampling, so no formal privacy is given.",
    ]
    return Section("people", "What it tells about people", [Items(tells)])


def _how_it_was_made(content: DrawsContent) -> Section:
    """Return method, options, overlap and versions."""
    record = content.record
    result = record.get("result", {})
    overlap = result.get("overlap")
    facts: dict[str, object | None] = {"Method": record.get("method"), "Chosen": result.get("chosen")}
    if isinstance(overlap, Mapping):
        freedom = overlap.get("degrees_of_freedom")
        facts["Q"] = f"{overlap.get('q')} on {freedom} degrees of freedom, p = {overlap.get('p_value')}"
        facts["Least overlap"] = f"{overlap.get('coefficient')} in {overlap.get('coordinate')}"
    if result.get("acceptance_rate") is not None:
        facts["Accepted"] = f"{100 * float(result['acceptance_rate']):.1f} %"
    return Section("made", "How it was made", [Facts(facts), *options_and_versions(record)])
