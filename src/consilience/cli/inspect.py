"""The command ``inspect``: the contents of a file, told from its header alone."""

from __future__ import annotations

from pathlib import Path

import click

from consilience.api.kinds import inspect_file
from consilience.cli.json_output import echo_json, json_option
from consilience.core.inspection import table
from consilience.federated.masking.inspect import inspect_masked
from consilience.federated.masking.messages import FORMAT as MASKED_FORMAT
from consilience.federated.requests.inspect import MESSAGE_FORMATS, inspect_message
from consilience.files.safetensors_file import open_files


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def inspect(file: Path, as_json: bool) -> None:
    """Say what is inside FILE: posterior, statistics, network (Bayesian too), what goes with it, symmetry, request."""
    (opened,) = open_files([file], [str(file)])  # what is wrong with a broken one, its reader says
    if opened.stated_format == MASKED_FORMAT:
        inspection = inspect_masked(opened)
    else:
        inspection = inspect_message(opened) if opened.stated_format in MESSAGE_FORMATS else inspect_file(file)
    if as_json:
        echo_json(inspection.document)
    else:
        click.echo(table(inspection.rows))
