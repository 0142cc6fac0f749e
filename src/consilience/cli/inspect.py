"""The command ``inspect``: the contents of a file, told from its header alone."""

from __future__ import annotations

import json
from pathlib import Path

import click

from consilience.api.kinds import inspect_file
from consilience.core.inspection import table
from consilience.federated.requests.inspect import MESSAGE_FORMATS, inspect_message
from consilience.files.safetensors_file import open_files


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(file: Path, as_json: bool) -> None:
    """Say what is inside FILE: posterior, statistics, network (Bayesian too), what goes with it, symmetry, request."""
    (opened,) = open_files([file], [str(file)])  # what is wrong with a broken one, its reader says
    inspection = inspect_message(opened) if opened.stated_format in MESSAGE_FORMATS else inspect_file(file)
    click.echo(json.dumps(inspection.document, indent=2, sort_keys=True) if as_json else table(inspection.rows))
