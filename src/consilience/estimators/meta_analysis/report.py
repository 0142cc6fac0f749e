"""The report of a meta-analysis as one HTML file: forest plots, pooled coefficients, heterogeneity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from scipy.special import ndtri

from consilience.drawing.axes import Axes
from consilience.drawing.blocks import Block, Column, Facts, Figure, Paragraph, Section, Table, text_column
from consilience.drawing.html import Page
from consilience.drawing.svg import element, line
from consilience.drawing.words import format_count, format_number, shorten
from consilience.files.atomic import write_bytes

if TYPE_CHECKING:
    from consilience.estimators.meta_analysis.analysis import MetaAnalysis

MAX_PLOTS, MAX_SITES = 30, 60
"""Coefficients with a plot, and sites with a row in it; more are counted. Bounds the page's size; chosen by hand."""

_STEP = 24.0
"""Height of a row. Chosen by eye."""


def write_page(path: Path, analysis: MetaAnalysis) -> None:
    """Write the report to `path`, whole or not at all."""
    write_bytes(path, render(analysis).encode("utf-8"))


def render(analysis: MetaAnalysis) -> str:
    """Return the report as HTML; the same analysis gives the same text."""
    verdict = analysis.verdict
    remedy = f" To do: {verdict.remedy}." if verdict.remedy else ""
    n_sites, n_coefficients = len(analysis.sites), len(analysis.coefficients)
    return Page(
        "Meta-analysis",
        (format_count(n_sites, "site"), f"→ {format_count(n_coefficients, 'coefficient')}"),
        [Paragraph(verdict.text + remedy, "status act" if verdict.remedy else "status")],
        [_forests(analysis), _pooled(analysis), _how_it_was_made(analysis)],
        "One file: no scripts, nothing fetched, estimates only.",
    ).render()


def _forests(analysis: MetaAnalysis) -> Section:
    """Return a forest plot for every coefficient."""
    names = analysis.coefficients
    blocks: list[Block] = [
        Figure(
            forest_plot(analysis, number),
            f"Forest plot of {shorten(name)}",
            f"{shorten(name)}: squares are sites, as large as their weight; the coloured diamond is the random effect,"
            " the dashed line under it where another site's coefficient is expected.",
        )
        for number, name in enumerate(names[:MAX_PLOTS])
    ]
    if len(names) > MAX_PLOTS:
        blocks.append(Paragraph(f"{len(names) - MAX_PLOTS:,} more coefficients have no plot."))
    if len(analysis.sites) > MAX_SITES:
        blocks.append(Paragraph(f"Of {len(analysis.sites):,} sites the first {MAX_SITES} that know it have a row."))
    return Section("forest", "Forest plots", blocks)


def forest_plot(analysis: MetaAnalysis, number: int) -> Markup:
    """Return the estimates of all sites of one coefficient with their intervals, and the pooled ones below."""
    sites = np.flatnonzero(~np.isnan(analysis.estimates[:, number]))[:MAX_SITES]
    estimates = analysis.estimates[sites, number]
    margins = float(ndtri(0.5 + analysis.level / 2.0)) * np.sqrt(analysis.covariances[sites, number, number])
    pooled = {"random effect": analysis.random, "fixed effect": analysis.fixed}
    labels = [*(shorten(analysis.sites[site], 22) for site in sites), *pooled]
    of_pooled = np.concatenate([effects.intervals[number] for effects in pooled.values()])
    ends = np.concatenate([estimates - margins, estimates + margins, of_pooled])
    x_range = (min(0.0, float(ends.min())), max(0.0, float(ends.max())))
    prediction = np.clip(analysis.prediction[number], *x_range)  # of few sites it is many times as wide as all of them
    axes = Axes.over(x_range, (float(len(labels)), 0.0), _STEP * len(labels), margins=(170.0, 12.0), inset=(14.0, 0.0))
    parts = axes.names(shorten(analysis.coefficients[number], 60), "site") + axes.x_ticks(7)
    parts += axes.rows([row + 0.5 for row in range(len(labels))], labels)
    parts.append(axes.upright(0.0, "grid"))
    largest = float(analysis.weights[sites, number].max())
    for row, (site, mean, margin) in enumerate(zip(sites, estimates, margins, strict=True)):
        y, half = axes.y(row + 0.5), 2.5 + 4.5 * float(np.sqrt(analysis.weights[site, number] / largest))
        parts.append(line(axes.x(mean - margin), y, axes.x(mean + margin), y, "range k0"))
        parts.append(element("rect", x=axes.x(mean) - half, y=y - half, width=2 * half, height=2 * half, kind="box k0"))
    for row, effects in enumerate(pooled.values(), len(sites)):
        y, (low, high) = axes.y(row + 0.5), effects.intervals[number].tolist()
        colour = "k1" if row == len(sites) else "k-"
        if row == len(sites) and not np.isnan(prediction).any():
            parts.append(line(axes.x(prediction[0]), y + 8, axes.x(prediction[1]), y + 8, "chosen"))
        parts.append(line(axes.x(low), y, axes.x(high), y, f"range {colour}"))
        parts.append(axes.diamond((float(effects.mean[number]), row + 0.5), 7.0, f"diamond {colour}"))
    parts.append(axes.upright(float(analysis.random.mean[number]), "row"))
    ends = analysis.random.intervals[number]
    mean, low, high = (format_number(float(value)) for value in (analysis.random.mean[number], *ends))
    alt = f"Estimates of {format_count(len(sites), 'site')} with {100 * analysis.level:g} % intervals."
    alt += f" Their random effect is {mean}, from {low} to {high}."
    return axes.drawing(parts, alt)


def _pooled(analysis: MetaAnalysis) -> Section:
    """Return the pooled coefficients in numbers."""
    percent = f"{100 * analysis.level:g} %"

    def interval(title: str, ends: np.ndarray) -> Column:
        def shown(c: int) -> str | None:
            low, high = ends[c].tolist()
            return None if np.isnan(low) else f"{format_number(low)} to {format_number(high)}"

        return text_column(title, shown)

    columns = [
        text_column("Coefficient", lambda c: analysis.coefficients[c]),
        Column("Random", lambda c: float(analysis.random.mean[c])),
        interval(percent, analysis.random.intervals),
        Column("tau²", lambda c: float(analysis.tau2[c])),
        Column("I²", lambda c: float(analysis.i2[c]), digits=2),
        interval("Prediction", analysis.prediction),
        Column("Fixed", lambda c: float(analysis.fixed.mean[c])),
        interval(percent, analysis.fixed.intervals),
    ]
    caption = (
        "The fixed effect assumes one distribution for all sites; the random effect is the mean of distributions"
        " that may differ."
    )
    items = list(range(len(analysis.coefficients)))
    return Section("pooled", "Pooled coefficients", [Table("Pooled", items, columns, "coefficient", caption)])


def _how_it_was_made(analysis: MetaAnalysis) -> Section:
    """Return the method and the test."""
    test = analysis.heterogeneity
    structure = "independent coefficients" if analysis.is_diagonal else "any covariance"
    facts = {
        "Between sites": f"{analysis.method}, {structure}",
        "Intervals": f"{analysis.interval} at {100 * analysis.level:g} %",
        "Q": f"{test.q:.4g} on {test.degrees_of_freedom} degrees of freedom, p = {test.p_value:.2g}",
        "I²": f"{test.i2:.2f}",
    }
    return Section("made", "How it was made", [Facts(facts)])
