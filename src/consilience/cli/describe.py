"""The command ``describe``: what a site says of a network beside its weights, measured on its data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import consilience as cs
from consilience.catalogue import did_you_mean
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.options import (
    answer_option,
    example_option,
    module_option,
    overwrite_option,
    parse_classes,
    parse_settings,
)
from consilience.core.features import Features
from consilience.core.inspection import table
from consilience.core.min_count import MIN_COUNT
from consilience.drawing.words import printable
from consilience.errors import InputError
from consilience.estimators.adapters.base import EstimatorAdapter, new_estimator
from consilience.estimators.adapters.table import ESTIMATORS
from consilience.estimators.site_rows import read_labelled
from consilience.files.atomic import refuse_unwritable
from consilience.networks.descriptions.files import description_path


@click.command()
@click.argument("network", type=click.Path(path_type=Path))
@module_option()
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="What it was trained on: .npz with x and y (numbers or names of classes), or inputs alone, .npy too.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File for the network with its symmetry.  [default: none]"
)
@click.option("--classes", metavar="N|A,B,...", help="Number or names of the classes.  [default: one for each output]")
@example_option()
@click.option("--n-observations", type=float, help="How many it was trained on, where the data are some of them.")
@click.option(
    "--class-prior",
    default="own",
    show_default=True,
    type=click.Choice(["own", "removed"]),
    help="Removed: trained with a logit-adjusted loss.",
)
@click.option(
    "--min-count", default=MIN_COUNT, show_default=True, type=click.FloatRange(0), help="Withhold smaller classes."
)
@click.option(
    "--withhold-columns",
    is_flag=True,
    default=None,
    help="Of an estimator: make columns constant that set fewer than --min-count rows apart.",
)
@click.option(
    "--layers/--no-layers",
    default=None,
    help="With second moments of what every layer reads and answers, for kfac.  [default: without]",
)
@answer_option
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    help="Rows that were held out of training, as --data: checked to be none of these; a digest of them is written.",
)
@click.option(
    "--share-network",
    is_flag=True,
    default=None,
    help="Let the other sites have it, to compare it with fused ones on their held-out rows, where all sites do.",
)
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="A hyper-parameter of an estimator.")
@overwrite_option
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def describe(
    network: Path,
    module: str | None,
    data: Path,
    output: Path | None,
    classes: str | None,
    example: Sequence[str],
    answer: str | int | None,
    settings: Sequence[str],
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Describe NETWORK by a site's data: counts of classes, moments of inputs, channels and layers; no observation.

    It may be a Bayesian network: of that, nothing is said of channels.

    Or it is the name of an estimator of scikit-learn, such as GaussianNB (`consilience methods` lists them). That is
    fitted here to the data, .npz with x and y or .csv whose last column is y, and its sums are written to --output.

    The description is written beside the network, as SITE.description.safetensors beside SITE.safetensors, and with
    --output the network too, with its symmetry, so that files alone can be fused. Send both.
    """
    from consilience.api.kinds import kind_of_file  # here with the others, since networks only need them
    from consilience.cli.modules import import_module, make_example

    if (adapter := _estimator_called(network)) is not None:
        _refuse_network_options(
            {**options, "module": module, "classes": classes, "answer": answer, "example": example or None}
        )
        kept = {name: options[name] for name in _OF_ESTIMATORS}
        _describe_estimator(adapter, data, output, settings, kept, overwrite, quiet, as_json)
        return
    if settings or options.pop("withhold_columns"):
        raise click.UsageError(f"{'--set' if settings else '--withhold-columns'} is for estimators.")
    if module is None:
        raise _missing_module(network)
    target = description_path(network if output is None else output)
    wrote = [target] if output is None else [output, target]
    for path in reversed(wrote):
        refuse_unwritable(path, network, data, overwrite=overwrite, anywhere=output is None)
    template = import_module(module, "--module")
    stated: dict[str, Any] = {"example": make_example(example, template)} if example else {}
    if classes is not None:
        stated["classes"] = parse_classes(classes)
    stated |= {} if answer is None else {"output": answer}
    keywords = stated | {name: value for name, value in options.items() if value is not None}
    kind = kind_of_file(network)
    described = kind.describe_file(network, template, data, is_rewritten=output is not None, **keywords)
    cs.save(described.description if output is None else described, wrote[0], overwrite=True)
    notes = () if described.symmetry is None else described.symmetry.notes
    _print_written(target, notes, wrote, quiet, as_json)


def _print_written(target: Path, notes: Sequence[str], wrote: Sequence[Path], quiet: bool, as_json: bool) -> None:
    """Print what is in the file of a description or of sums, and which files were written."""
    from consilience.api.kinds import inspect_file  # here and above, since the other commands start without it

    if as_json:
        echo_json({"description": inspect_file(target).document, "notes": notes, "wrote": wrote})
    elif not quiet:
        click.echo(table(inspect_file(target).rows))
        for note in notes:
            echo_prose(f"note: {printable(note)}")
        click.echo(f"wrote {', '.join(map(str, wrote))}")


_OF_ESTIMATORS = ("min_count", "withhold_columns")
"""Options that an estimator takes."""


def _refuse_network_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that an estimator does not take."""
    stated = {name for name, value in options.items() if value is not None}
    if odd := sorted(stated - {*_OF_ESTIMATORS, "class_prior"}):
        raise click.UsageError(f"--{odd[0].replace('_', '-')} is for networks.")


def _estimator_called(name: Path) -> EstimatorAdapter | None:
    """Return the adapter of an estimator of scikit-learn by its name; None for the path of a file."""
    known = (adapter for adapter in ESTIMATORS if adapter.module.startswith("sklearn."))
    return next((adapter for adapter in known if str(name) in (adapter.class_name, adapter.kind)), None)


def _describe_estimator(
    adapter: EstimatorAdapter, data: Path, output: Path | None, settings: Sequence[str],
    kept: Mapping[str, Any], overwrite: bool, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fit an estimator to the rows of a file, and write its sums."""
    if output is None:
        raise click.UsageError("Missing option '--output', the file for the sums of the estimator.")
    refuse_unwritable(output, data, overwrite=overwrite, anywhere=False)
    X, y, names = read_labelled(data, adapter.needs)
    model = new_estimator(adapter.module, adapter.class_name, parse_settings(settings))
    try:
        fitted = model.fit(X) if y is None else model.fit(X, y)
    except ValueError as error:
        if str(error).startswith("Unknown label type"):  # scikit-learn goes on with all values
            text = f"a {adapter.class_name} needs classes, and the targets are numbers that are not whole"
            raise InputError(data, text, "give the class of each row as y, or in the last column of a .csv") from error
        reason = f"a {adapter.class_name} cannot be fitted to it: {str(error).splitlines()[0][:200]}"
        raise InputError(data, reason) from error
    features = None if names is None else Features(names=names)
    cs.save(fitted, output, data=X if y is None else (X, y), features=features, overwrite=True, **kept)
    _print_written(output, (), [output], quiet, as_json)


def _missing_module(network: Path) -> click.UsageError:
    """Return the error of a network without a module, which may be the misspelt name of an estimator."""
    meant = "" if os.path.exists(network) else did_you_mean(network, [one.class_name for one in ESTIMATORS])
    if meant:
        return click.UsageError(f"{network} is no file and no estimator, did you mean {meant}?")
    text = "Missing option '--module', which networks need; for an estimator give its name, such as GaussianNB."
    return click.UsageError(text)
