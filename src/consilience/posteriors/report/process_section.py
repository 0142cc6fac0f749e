"""Section of the page about sparse Gaussian processes: the function, kernel parameters, length-scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from consilience.drawing.axes import Axes
from consilience.drawing.blocks import Column, Figure, Section, Table, chip, markup, sentences, text_column
from consilience.drawing.svg import colour_class, element
from consilience.drawing.words import format_count, format_number, shorten
from consilience.posteriors.report.content import PosteriorContent
from consilience.posteriors.report.gaussian_processes import Points, PredictiveBand, ProcessContent, ProcessParameters

_MAX_INPUTS = 12
"""Inputs beyond these have no column. Chosen by eye."""


def the_function(content: PosteriorContent) -> Section | None:
    """Return the fused function with its kernel."""
    process = content.process
    if process is None:
        return None
    drawn, label = process.inducing, "The sparse Gaussian process"
    figure = Figure(process_figure(process), label, _caption(process)) if drawn else None
    single = len(process.inputs) == 1  # then the length-scale is a column beside the others, else a table of its own
    kernels_caption = sentences(
        "In the units of the data.",
        single and "Length-scale: how far one must go until the function is another.",
        "Noise: the variance of an observation about the function.",
    )
    kernels = [
        text_column("Kernel", lambda row: row[1].kernel, total=process.fused.kernel),
        _number(process, "Inducing inputs", "inducing"),
        _number(process, "Variance", "variance"),
        Column("Length-scale", lambda row: row[1].lengthscales[0], total=process.fused.lengthscales[0])
        if single
        else None,
        _number(process, "Noise", "noise"),
        _number(process, "Mean", "constant"),
        _number(process, "Observations", "observations"),
    ]
    n_inputs = len(process.inputs)
    scales_caption = sentences(
        "Length-scales, in the units of the data: how far one must go in an input until the function is another. An "
        "input of long length-scale hardly matters.",
        n_inputs > _MAX_INPUTS and f"The first {_MAX_INPUTS} of {n_inputs} inputs are shown.",
    )

    def scale(place: int) -> Column:
        title, total = shorten(process.inputs[place], 20), process.fused.lengthscales[place]
        return Column(title, lambda row: row[1].lengthscales[place], total=total)

    blocks = [
        figure,
        _table(process, "Table of kernel parameters", kernels, kernels_caption),
        None
        if single
        else _table(
            process, "Table of length-scales", [*map(scale, range(min(n_inputs, _MAX_INPUTS)))], scales_caption
        ),
    ]
    return Section("function", "The function", blocks)


def _number(process: ProcessContent, title: str, name: str) -> Column:
    """Return the column of one parameter; a total that is not known is a dash."""
    total = getattr(process.fused, name)
    return Column(title, lambda row: getattr(row[1], name), total="–" if total is None else total)


def _table(process: ProcessContent, label: str, columns: list[Column | None], caption: Markup) -> Table:
    """Return a table of the sites' processes, the fused one below."""
    n_drawn = len(process.site_processes)

    def name(row: tuple[int, ProcessParameters]) -> Any:
        index, parameters = row
        return markup("{}{}", chip(site_colour(index, n_drawn)) if process.inducing else "", shorten(parameters.name))

    first = text_column("Process", name, total=markup("{}Fused", chip("fused-chip")))
    return Table(label, list(enumerate(process.site_parameters)), [first, *columns], "site", caption)


def _caption(process: ProcessContent) -> Markup:
    n_drawn, n_rows = len(process.site_processes), len(process.rows)
    if process.band is not None:
        observations = ", 95 % of observations in the light one" if process.fused.noise is not None else ""
        shape = (
            f"The line is the fused function. 95 % of the function lies in the dark band{observations}. Diamonds are "
            "the fused inducing inputs with their values."
        )
    else:
        shape = "Diamonds are the fused inducing inputs in the two inputs of shortest length-scale."
    colours = "in a colour for each" if n_drawn <= MAX_SITE_COLOURS else "all in grey"
    means = ", and thin lines their own means" if process.band is not None else ""
    sites = f"Circles are those of the sites, {colours}{means}."
    part = f"{n_rows:,} of " if n_rows < process.n_rows else ""
    return sentences(
        shape,
        sites if n_drawn else "Give the sites’ files as well to see theirs.",
        n_rows and f"Dots are {part}{format_count(process.n_rows, 'row')} of data.",
    )


MAX_SITE_COLOURS = 10
"""More sites than these are all drawn in grey: report.css has ten colours."""


def site_colour(index: int, n_sites: int) -> str:
    """Return the CSS class of the colour of site `index` of `n_sites` that are drawn."""
    return colour_class(index if n_sites <= MAX_SITE_COLOURS else -1)


def process_figure(process: ProcessContent) -> Markup:
    """Return the function with its 95 % band, for one input, or the inducing inputs in two of several inputs."""
    axes = _axes(process)
    parts = axes.names(*process.axes) + axes.x_ticks(7) + axes.y_ticks(6)
    shapes = _dots(axes, process.rows, 2.2, "datum")
    if process.band is not None:
        shapes += _bands(process.band, axes)
        shapes.append(axes.curve(zip(process.band.x, process.band.mean, strict=True), "fused"))
    for index, site in enumerate(process.site_processes):
        colour = site_colour(index, len(process.site_processes))
        if site.mean:
            shapes.append(axes.curve(site.mean, f"thin {colour}"))
        shapes += _dots(axes, site.inducing, 6.5, f"dot {colour}")
    shapes += [axes.diamond(point, 4.5, "fused-point") for point in process.inducing]
    return axes.drawing(parts + axes.clip(shapes, "curve-frame"), _description(process))


def _axes(process: ProcessContent) -> Axes:
    points = [*process.inducing, *process.rows, *(point for site in process.site_processes for point in site.inducing)]
    x_values, y_values = [a for a, _ in points], [b for _, b in points]
    x_range = _padded(x_values)
    if process.band is not None:
        x_range = (process.band.x[0], process.band.x[-1])
        for middle, half in zip(process.band.mean, process.band.observation, strict=True):
            y_values += [middle - half, middle + half]
    return Axes.over(x_range, _padded(y_values), 380.0, margins=(58.0, 14.0))


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of values, and a little more on either side."""
    low, high = min(values), max(values)
    padding = 0.04 * (high - low)
    return low - padding, high + padding


def _bands(band: PredictiveBand, axes: Axes) -> list[Markup]:
    """Return what holds 95 % of observations, and on it what holds 95 % of the function."""
    polygons = []
    for half, kind in ((band.observation, "band-wide"), (band.function, "band-narrow")):
        upper = [(a, m + h) for a, m, h in zip(band.x, band.mean, half, strict=True)]
        lower = [(a, m - h) for a, m, h in zip(band.x, band.mean, half, strict=True)]
        polygons.append(element("polygon", points=axes.path([*upper, *reversed(lower)]), kind=kind))
    return polygons if band.observation != band.function else polygons[1:]


def _dots(axes: Axes, points: Points, radius: float, kind: str) -> list[Markup]:
    """Return circles that are opaque together."""
    return [element("g", Markup("").join(axes.dots(points, radius)), kind=kind)] if points else []


def _description(process: ProcessContent) -> str:
    site_counts = ", ".join(f"{shorten(site.name)} {len(site.inducing)}" for site in process.site_processes[:12])
    more = f" and {len(process.site_processes) - 12} more sites" if len(process.site_processes) > 12 else ""
    sites_text = f"; sites have {site_counts}{more}" if site_counts else ""
    description = f"{format_count(len(process.inducing), 'fused inducing input')}{sites_text}."
    if process.rows:
        description += f" {format_count(len(process.rows), 'row')} of data."
    if process.band is None:
        x_name, y_name = map(shorten, process.axes)
        return f"{description} Drawn in {x_name} and {y_name}."
    band_points = list(zip(process.band.x, process.band.mean, process.band.function, strict=True))
    told = (map(_three_digits, point) for point in band_points[:: max(1, len(band_points) // 6)])
    values = [f"{m} ± {half} at {a}" for a, m, half in told]
    return f"{description} The fused function with its 95 % band: {'; '.join(values)}."


def _three_digits(value: float) -> str:
    return format_number(float(f"{value:.3g}"))
