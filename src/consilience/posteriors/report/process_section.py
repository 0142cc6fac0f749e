"""Section of the page about sparse Gaussian processes: the function, kernel parameters, length-scales."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from consilience.drawing.blocks import Column, Figure, Section, Table, chip, markup, sentences, text_column
from consilience.drawing.words import format_count, shorten
from consilience.posteriors.report.content import PosteriorContent
from consilience.posteriors.report.gaussian_process_drawings import MAX_SITE_COLOURS, process_figure, site_colour
from consilience.posteriors.report.gaussian_processes import ProcessContent, ProcessParameters

_MAX_INPUTS = 12
"""Inputs beyond these have no column. Chosen by eye."""


def the_function(content: PosteriorContent) -> Section | None:
    """Return the fused function with its kernel."""
    process = content.process
    if process is None:
        return None
    figure = (
        Figure(process_figure(process), "The sparse Gaussian process", _caption(process)) if process.inducing else None
    )
    single = len(process.inputs) == 1
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
