"""The command ``inspect``: the contents of a file, told from its header alone."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import click

from consilience.api.kinds import inspect_file
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import terminal_width
from consilience.core.inspection import table
from consilience.drawing.words import printable
from consilience.federated.inspect import MESSAGE_FORMATS, inspect_message
from consilience.files.safetensors_file import open_files


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def inspect(file: Path, as_json: bool) -> None:
    """Say what FILE is, in plain sentences, and what is inside: of any format, from its header alone."""
    (opened,) = open_files([file], [str(file)])  # what is wrong with a broken one, its reader says
    inspection = inspect_message(opened) if opened.stated_format in MESSAGE_FORMATS else inspect_file(file)
    if as_json:
        echo_json({**inspection.document, "plain": inspection.plain})
    else:
        for sentence in inspection.plain:
            click.echo(fill(printable(sentence), terminal_width()))
        click.echo()
        click.echo(table(inspection.rows))
