"""The command ``report``: a page about a fused file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from consilience.errors import InputError, OptionError
from consilience.files.atomic import refuse_unwritable
from consilience.networks.files import file_kind


@click.command()
@click.argument("fused", type=click.Path(path_type=Path))
@click.argument("sites", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the page, HTML.")
@click.option(
    "--data",
    "data",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A sequence whose states are drawn over time, or rows to hold against the curve of a Gaussian process: .csv,"
    " .npy or .npz. May be given several times.",
)
@click.option("--truth", metavar="COLUMN", help="The column of the data with the true label of every step.")
@click.option(
    "--barrier",
    "barriers",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Curves to draw, of `consilience barrier -o`; called by the file's name. May be given several times.",
)
@click.option(
    "--plane",
    "planes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A plane to draw, saved in Python; called by the file's name. May be given several times.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def report(
    fused: Path,
    sites: tuple[Path, ...],
    output: Path,
    data: tuple[Path, ...],
    truth: str | None,
    barriers: tuple[Path, ...],
    planes: tuple[Path, ...],
    quiet: bool,
) -> None:
    """Write a page about FUSED, and about its SITES where their files are given.

    With --data it also shows what the fused model says of these; such a page stays where the data may be seen. A page
    about a network has the curves of --barrier and the maps of --plane.
    """
    from consilience.posteriors.report.files import (
        content_of_files,  # here, so that the other commands start without jinja2
    )
    from consilience.posteriors.report.page import write_page

    refuse_report(output, (fused, *sites))
    refuse_report(output, data, "data")
    refuse_report(output, (*barriers, *planes), "curves")
    kind = _kind(fused)
    if kind in ("network", "bayesian"):
        if data or truth is not None:
            raise OptionError("--data, --truth: for statistical models, and this is a network; see --barrier")
        _write_network_page(output, fused, kind, sites, _by_name(barriers) or {}, _by_name(planes) or {})
    elif barriers or planes:
        raise OptionError(f"--barrier, --plane: for networks only, and {fused} is none")
    else:
        write_page(output, content_of_files(fused, sites, _by_name(data), truth))
    if not quiet:
        click.echo(f"wrote {output}")


def _kind(file: Path) -> str:
    try:
        return file_kind(file)
    except InputError:  # said better by whoever reads it
        return ""


def _write_network_page(
    output: Path,
    fused: Path,
    kind: str,
    sites: tuple[Path, ...],
    barriers: Mapping[str, Path],
    planes: Mapping[str, Path],
) -> None:
    """Write the page about a fused network, a Bayesian one or another."""
    from consilience.bayesian.report.files import bayesian_content_of_files  # here, as above
    from consilience.bayesian.report.page import write_bayesian_content
    from consilience.networks.report.files import network_content_of_files
    from consilience.networks.report.page import write_network_content

    shown: dict[str, Any] = {}
    if barriers or planes:
        from consilience.networks.landscape.barrier import Barrier
        from consilience.networks.landscape.plane import Plane  # here, since they need torch

        shown["barriers"] = {name: Barrier.load(path) for name, path in barriers.items()}
        shown["planes"] = {name: Plane.load(path) for name, path in planes.items()}
    if kind == "bayesian":
        write_bayesian_content(output, replace(bayesian_content_of_files(fused, sites), **shown))
    else:
        write_network_content(output, replace(network_content_of_files(fused, sites), **shown))


def _by_name(files: tuple[Path, ...]) -> dict[str, Path] | None:
    """Return files of data by what to call them: their names without folder and suffix, where these differ."""
    if not files:
        return None
    stems = [file.stem for file in files]
    if len(set(stems)) == len(files):
        return dict(zip(stems, files, strict=True))
    names = [str(file) for file in files]
    if double := [name for place, name in enumerate(names) if name in names[:place]]:
        raise InputError(f"{double[0]}: is given twice; leave one out")
    return dict(zip(names, files, strict=True))


def refuse_report(output: Path, others: tuple[Path, ...], what: str = "models") -> None:
    """Raise when a report cannot be written, or would take the place of one of the other files of the job.

    Raises
    ------
    InputError
        Saying why.
    """
    refuse_unwritable(output)
    for other in others:
        try:
            same = output.resolve() == other.resolve() or output.samefile(other)
        except (OSError, ValueError):  # one of them does not exist, or cannot
            same = False
        if same:
            raise InputError(f"{output}: is also a file of {what}; give another name to the report")
