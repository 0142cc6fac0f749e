"""The report of fused estimators as one HTML file: sites, who knows which class, coefficients, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array, Json
from consilience.core.candidates_section import choice_section
from consilience.core.findings import losses_at_sites, verdict_of
from consilience.core.page_blocks import columns_of_sites, opening, options_and_versions
from consilience.core.provenance import read_fused
from consilience.core.scores import LEVEL
from consilience.drawing.blocks import Block, Column, Facts, Figure, Items, Paragraph, Section, Table, text_column
from consilience.drawing.html import Page
from consilience.drawing.words import format_count, shorten
from consilience.errors import InputError, OptionError
from consilience.estimators.adapters.laplace import LaplaceProductAdapter
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.files import read_statistics
from consilience.estimators.inference import coefficients_of, column_names, inference_of, ratio_of, site_estimate
from consilience.estimators.meta_analysis.analysis import meta_analysis
from consilience.estimators.meta_analysis.report import MAX_PLOTS, MAX_SITES, forest_plot
from consilience.estimators.statistics import NOISE, Statistics
from consilience.files.atomic import write_bytes
from consilience.files.safetensors_file import SafetensorsFile

INTERCEPT = "intercept"
"""The coefficient whose exponential is no ratio."""
MAX_COEFFICIENTS = 200
"""Coefficients that the page shows at most; more are counted. Bounds its size; chosen by hand."""


@dataclass(frozen=True, eq=False)
class EstimatorContent:
    """What the report shows."""

    statistics: Statistics  # the sums of all sites
    record: Mapping[str, Any]  # the provenance with the verdict
    sites: Sequence[tuple[str, Statistics]]  # the sites that are at hand, by name
    level: float = LEVEL  # probability of intervals


def content_of(
    statistics: Statistics, record: Mapping[str, Json], sites: Sequence[tuple[str, Statistics]], level: float = LEVEL
) -> EstimatorContent:
    """Return what the report shows of a fusion."""
    if not (isinstance(level, Real) and 0.0 < level < 1.0):
        raise OptionError("level", f"expected a number between 0 and 1, found {level!r}", "give 0.95, say")
    return EstimatorContent(statistics, record, sites, float(level))


def content_of_files(fused: SafetensorsFile, sites: Sequence[SafetensorsFile]) -> EstimatorContent:
    """Return what the report shows of a fused file, and of its sites where their files are given."""
    return EstimatorContent(*read_fused(fused, sites, read_statistics))


def write_page(path: Path, content: EstimatorContent) -> None:
    """Write the report to `path`, whole or not at all."""
    write_bytes(path, render(content).encode("utf-8"))


def render(content: EstimatorContent) -> str:
    """Return the report as HTML; the same content gives the same text."""
    records, statistics = content.record["inputs"], content.statistics
    outcome = f"one {statistics.kind} on {statistics.n_observations:,.0f} rows"
    return Page(
        "Fusion report",
        (f"{format_count(len(records), 'site')} with {statistics.n_observations:,.0f} rows", f"→ {statistics.kind}"),
        opening(content.record, outcome),
        [
            choice_section(
                verdict_of(content.record.get("verdict")), "model", losses_at_sites(content.record["result"])
            ),
            _what_went_in(content),
            _who_knows_which_class(content),
            _coefficients(content),
            _how_sites_differ(content),
            _forests(content),
            _what_it_tells(content),
            _how_it_was_made(content),
        ],
        "One file: no scripts, nothing fetched, parameters only.",
    ).render()


def _what_went_in(content: EstimatorContent) -> Section:
    """Return the sites with their rows."""
    records = content.record["inputs"]
    rows = Column("Rows", lambda one: one.get("weight"), digits=0, total=content.statistics.n_observations)
    caption = "Sums over rows travelled, and no row."
    blocks: list[Block] = [Table("Table of sites", records, columns_of_sites(records, [rows]), "site", caption)]
    if categories := content.statistics.features.categories_in_words():
        blocks.append(Facts({"Categories of columns": "; ".join(categories)}))
    return Section("in", "What went in", blocks)


def _who_knows_which_class(content: EstimatorContent) -> Section | None:
    """Return how many rows of each class every site has."""
    known: Any = content.record["result"].get("classes")
    classes = content.statistics.classes
    if classes is None or not isinstance(known, Mapping):
        return None

    def rows_of(name: str) -> Column:
        return Column(shorten(name, 30), lambda site: known[site].get(name), digits=0)

    columns = [text_column("Site", lambda site: site), *(rows_of(name) for name in classes.names[:30])]
    caption = "Rows of each class; a dash where a site does not know the class, or has too few of it to say."
    return Section("classes", "Who knows which class", [Table("Classes", list(known), columns, "site", caption)])


def _coefficients(content: EstimatorContent) -> Section | None:
    """Return the coefficients of the fused estimator, with errors, intervals and ratios where there are any."""
    fused = coefficients_of(content.statistics, content.level)
    if fused is None:
        return None
    nothing = np.full(len(fused.values), np.nan)
    errors = nothing if fused.errors is None else fused.errors
    ends = np.stack([nothing, nothing], axis=1) if fused.intervals is None else fused.intervals
    entries = list(zip(fused.names, fused.values.tolist(), ends, errors.tolist(), strict=True))
    interval = f"{100 * content.level:g} % interval"
    columns = [text_column("Coefficient", lambda row: row[0]), Column("Fused", lambda row: row[1])]
    if fused.errors is not None:
        columns.append(Column("Standard error", lambda row: row[3]))
    if fused.intervals is not None:
        columns.append(_interval_column(interval))
    ratio = ratio_of(content.statistics)
    if ratio is not None:
        columns.append(Column(ratio, lambda row: None if row[0] == INTERCEPT else float(np.exp(row[1]))))
        if fused.intervals is not None:
            columns.append(text_column(f"{ratio}, {interval}", _ratio_interval))
    blocks: list[Block] = [
        Table("Coefficients", entries[:MAX_COEFFICIENTS], columns, "coefficient", _how_errors_are(content, ratio))
    ]
    if len(entries) > MAX_COEFFICIENTS:
        blocks.append(Paragraph(f"{len(entries) - MAX_COEFFICIENTS:,} more coefficients are not shown."))
    return Section("coefficients", "The coefficients", blocks)


def _ratio_interval(row: Any) -> str | None:
    """Return the ends of the interval of a ratio; None of the intercept."""
    return None if row[0] == INTERCEPT else f"{np.exp(row[2][0]):.3g} to {np.exp(row[2][1]):.3g}"


def _how_errors_are(content: EstimatorContent, ratio: str | None) -> str:
    """Return what the errors and ratios of a table of coefficients are."""
    statistics = content.statistics
    told = []
    if inference_of(statistics) is not None:
        told.append("Errors are those of least squares on the rows of all sites together.")
    elif isinstance(adapter_of_kind(statistics.kind), LaplaceProductAdapter):
        told.append("Errors are from the information of all sites' rows and the penalty, at the fused coefficients.")
    if ratio is not None:
        of = f" of class {statistics.classes.names[1]}" if statistics.classes and len(statistics.classes) == 2 else ""
        told.append(f"{ratio}: exp(coefficient){of}, for one unit more of a column.")
    return " ".join(told)


def _interval_column(title: str) -> Column:
    return text_column(title, lambda row: f"{row[2][0]:.4g} to {row[2][1]:.4g}")


def _how_sites_differ(content: EstimatorContent) -> Section | None:
    """Return the coefficients of each site's own least squares with intervals, and the fused ones."""
    fused = inference_of(content.statistics)
    if fused is None:
        return None
    inferences = ((name, inference_of(site)) for name, site in content.sites)
    own = [("all sites", fused), *((name, one) for name, one in inferences if one is not None)]
    if len(own) < 2:
        return None
    names = column_names(content.statistics)
    entries = [
        (f"{column}, {site}", one.coefficients[c], one.intervals(content.level)[c])
        for c, column in enumerate(names[: MAX_COEFFICIENTS // len(own) + 1])
        for site, one in own
    ]
    columns = [
        text_column("Coefficient", lambda row: row[0]),
        Column("Estimate", lambda row: float(row[1])),
        _interval_column(f"{100 * content.level:g} % interval"),
    ]
    caption = "Where intervals do not overlap, sites differ, and one distribution for all of them is an assumption."
    return Section("differ", "How sites differ", [Table("By site", entries, columns, "coefficient", caption)])


def _forests(content: EstimatorContent) -> Section | None:
    """Return a forest plot of the coefficient that differs most between sites, as in a meta-analysis of them."""
    estimates = _estimates(content.sites[:MAX_SITES])
    shown = list(next(iter(estimates.values()))[0])[:MAX_PLOTS] if estimates else []
    if len(estimates) < 2 or not shown:
        return None
    analyses = []
    for coefficient in shown:  # each alone, since rows of a site may be too few for all at once
        known = {
            name: (mean[coefficient], float(covariance[place, place]))
            for name, (mean, covariance) in estimates.items()
            for place in [list(mean).index(coefficient)]
            if covariance[place, place] > 0.0
        }
        if len(known) > 1:
            analyses.append((coefficient, meta_analysis(known, names=[coefficient], level=content.level)))
    if not analyses:
        return None
    coefficient, analysis = max(analyses, key=lambda one: float(one[1].i2[0]))  # the first of equals
    others = f", of {len(analyses)} the one that differs most between sites" if len(analyses) > 1 else ""
    blocks: list[Block] = [
        Figure(
            forest_plot(analysis, 0),
            f"Forest plot of {shorten(coefficient)}",
            f"{shorten(coefficient)}{others}: squares are sites, as large as their weight; the diamonds are the random"
            " and the fixed effect of a meta-analysis; the dashed line is where a further site is expected, cut at"
            " the edge. The fused coefficient in the table is that of all rows.",
        )
    ]
    if analysis.narrower:
        text = (
            "The interval of the random effect is narrower than the fixed effect's: too narrow where sites agree by"
            ' chance. `cs.meta_analysis(..., interval="truncated_hartung_knapp")` has intervals that never are.'
        )
        blocks.append(Paragraph(text))
    return Section("forest", "Forest plot", blocks)


def _estimates(sites: Sequence[tuple[str, Statistics]]) -> dict[str, tuple[dict[str, float], Array]]:
    """Return coefficients by name, and their covariance, of the sites that know them."""
    estimates = {}
    for name, site in sites:
        try:
            estimates[name] = site_estimate(site)
        except (InputError, np.linalg.LinAlgError):  # of another estimator, or of too few rows
            continue
    return estimates


def _what_it_tells(content: EstimatorContent) -> Section:
    """Return what sums tell about people."""
    of = "of each class" if content.statistics.classes is not None else "of all rows"
    is_expansion = isinstance(adapter_of_kind(content.statistics.kind), LaplaceProductAdapter)
    tells = [
        "Weighted products of columns; of fewer rows than columns, the space of these rows."
        if is_expansion
        else f"The mean row {of}; of images, a picture.",
        "Two fusions that differ by one person give that person's row; by one site, that site's sums.",
        *_products(content.statistics),
        content.statistics.approximations[0]
        if NOISE in content.statistics.counts
        else "No noise is added, so no formal privacy is given.",
    ]
    return Section("people", "What it tells about people", [Items(tells)])


def _products(statistics: Statistics) -> list[str]:
    """Return what products of columns disclose in addition to means."""
    if all(record.is_diagonal for record in statistics.moments.values()):
        return []
    return [
        "Products of columns. Scatter and mean give S + n m m^T, the sums of products about zero: of a column that is"
        " not zero for one row alone (a rare word, a rare category as 0 and 1) they hold that whole row, whatever"
        " min_count."
    ]


def _how_it_was_made(content: EstimatorContent) -> Section:
    """Return hyper-parameters, options and versions."""
    parameters = {name: shorten(repr(value), 120) for name, value in content.statistics.parameters.items()}
    blocks = [Facts(parameters), *options_and_versions(content.record)]
    if content.statistics.approximations:
        blocks.append(Items([shorten(text, 300) for text in content.statistics.approximations]))
    return Section("made", "How it was made", blocks)
