"""The command ``report``: an HTML page about a fused file."""

from __future__ import annotations

from pathlib import Path

import click

from consilience.api.kinds import kind_of_file
from consilience.checkpoints.report import record_at, write_page_of
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.options import overwrite_option
from consilience.errors import InputError, OptionError
from consilience.files.atomic import is_same_file, refuse_to_replace, refuse_unwritable
from consilience.files.safetensors_file import SafetensorsFile


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
    help="Curves to draw, of `consilience network barrier -o`; called by the file's name. May be given several times.",
)
@click.option(
    "--plane",
    "planes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A plane to draw, saved in Python; called by the file's name. May be given several times.",
)
@overwrite_option
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def report(
    fused: Path,
    sites: tuple[Path, ...],
    output: Path,
    data: tuple[Path, ...],
    truth: str | None,
    barriers: tuple[Path, ...],
    planes: tuple[Path, ...],
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a page about FUSED, a file or the folder of a merge, and about its SITES where their files are given.

    With --data it also shows what the fused model says of these; such a page stays where the data may be seen. A page
    about a network has the curves of --barrier and the maps of --plane.
    """
    for others, what in (((fused, *sites), "models"), (data, "data"), ((*barriers, *planes), "curves")):
        refuse_report(output, others, what, overwrite=True)
    refuse_to_replace(output, overwrite, anywhere=False)
    given = {"data": data, "barriers": barriers, "planes": planes}
    if (record := record_at(fused)) is not None and (fused.is_dir() or SafetensorsFile(fused).header().text is None):
        if options := [name for name, values in {**given, "truth": truth}.items() if values]:
            raise OptionError(", ".join(options), "shows nothing of a merge", "leave it out")
        write_page_of(output, record)
    else:
        file = SafetensorsFile(fused)
        shown = {name: _named_files(files) for name, files in given.items()}
        kind_of_file(file).write_report(output, file, [SafetensorsFile(site) for site in sites], truth=truth, **shown)
    if as_json:
        echo_json({"wrote": [output]})
    elif not quiet:
        click.echo(f"wrote {output}")


def _named_files(files: tuple[Path, ...]) -> dict[str, Path] | None:
    """Return files by the names that the page calls them: their stems where these differ, else their paths."""
    if not files:
        return None
    stems = [file.stem for file in files]
    if len(set(stems)) == len(files):
        return dict(zip(stems, files, strict=True))
    paths = [str(file) for file in files]
    if repeated := [path for number, path in enumerate(paths) if path in paths[:number]]:
        raise InputError(repeated[0], "is given twice", "leave one out", "E-TWICE")
    return dict(zip(paths, files, strict=True))


def refuse_report(output: Path, others: tuple[Path, ...], what: str = "models", overwrite: bool = False) -> None:
    """Raise InputError when a report cannot be written, or would replace another file of the same command.

    `others` are files that the command reads or writes beside it, and `what` is what these are.
    """
    refuse_unwritable(output, overwrite=True)
    if any(is_same_file(output, other) for other in others):
        raise InputError(output, f"is also a file of {what}", "give another name to the report", "E-OUTPUT")
    refuse_to_replace(output, overwrite, anywhere=False)
