"""The command ``evaluate``: scores of a fused model and of a site's own model on the site's data."""

from __future__ import annotations

from pathlib import Path

import click

from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.options import module_option


@click.command()
@click.argument("fused", type=click.Path(path_type=Path))
@click.argument("own", type=click.Path(path_type=Path))
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Rows that neither model was trained on: .csv, .parquet, .npy, or .npz (one array, or of"
    " scipy.sparse.save_npz; x and y for networks).",
)
@module_option()
@click.option("--labels", metavar="COLUMN|FILE", help="Known classes: a column of the data, or a file, one a line.")
@json_option
def evaluate(fused: Path, own: Path, data: Path, module: str | None, labels: str | None, as_json: bool) -> None:
    """Compare the FUSED model with your OWN (posterior, statistics or network files) on your data, before you adopt it.

    Nothing leaves this machine. Use data that neither model was trained on: scores on a model's own training data
    favour that model. Every score says its kind: a predictive density, one at point estimates, a bound, ... Networks,
    Bayesian ones too, need --module, and labels that are numbers of classes from 0.
    """
    from consilience.api.evaluate import evaluate as compare  # here, so that the other commands start without it

    template = None
    if module is not None:
        from consilience.cli.modules import import_module  # here, since networks only need it

        template = import_module(module, "--module")
    evaluation = compare(fused, own, data, labels, module=template)
    if as_json:
        echo_json(evaluation.to_json())
    else:
        echo_prose(str(evaluation))
