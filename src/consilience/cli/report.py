"""The command ``report``: a page about a fused file."""

from __future__ import annotations

from pathlib import Path

import click

from consilience.errors import InputError
from consilience.io.atomic import refuse_unwritable


@click.command()
@click.argument("fused", type=click.Path(path_type=Path))
@click.argument("sites", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the page, HTML.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def report(fused: Path, sites: tuple[Path, ...], output: Path, quiet: bool) -> None:
    """Write a page about FUSED, and about its SITES where their files are given."""
    from consilience.report.files import content_of_files  # here, so that the other commands start without jinja2
    from consilience.report.page import write_page

    refuse_report(output, (fused, *sites))
    write_page(output, content_of_files(fused, sites))
    if not quiet:
        click.echo(f"wrote {output}")


def refuse_report(output: Path, others: tuple[Path, ...]) -> None:
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
            raise InputError(f"{output}: is also a file of models; give another name to the report")
