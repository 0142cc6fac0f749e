"""The command ``describe``: what a site says of a network beside its weights, measured on its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from consilience import api
from consilience.cli.options import example_option, module_option
from consilience.core.inspection import table
from consilience.drawing.words import printable
from consilience.errors import InputError
from consilience.files.atomic import refuse_unwritable
from consilience.networks.descriptions.files import description_path
from consilience.posteriors.thin_components import MIN_COUNT


@click.command()
@click.argument("network", type=click.Path(path_type=Path))
@module_option(required=True)
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
    "--layers/--no-layers",
    default=None,
    help="With second moments of what every layer reads and answers.  [default: where they take 4 MiB at most]",
)
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def describe(
    network: Path,
    module: str,
    data: Path,
    output: Path | None,
    classes: str | None,
    example: Sequence[str],
    quiet: bool,
    **options: Any,
) -> None:
    """Describe NETWORK by a site's data: counts of classes, moments of inputs, channels and layers; no observation.

    It may be a Bayesian network: of that, nothing is said of channels.

    The description is written beside the network, as SITE.description.safetensors beside SITE.safetensors, and with
    --output the network too, with its symmetry, so that files alone can be fused. Send both.
    """
    from consilience.api.kinds import inspect_file, kind_of_file  # here with the others, since networks only need them
    from consilience.cli.modules import import_module, make_example

    target = description_path(network if output is None else output)
    for path in (target, *([] if output is None else [output])):
        refuse_unwritable(path)
        if any(path.resolve() == other.resolve() for other in (network, data)):
            raise InputError(path, "is read here", "give another output")
    template = import_module(module, "--module")
    stated: dict[str, Any] = (
        {} if classes is None else {"classes": int(classes) if classes.isdecimal() else classes.split(",")}
    )
    if example:
        stated["example"] = make_example(example, template)
    is_rewritten = output is not None
    keywords = {name: value for name, value in {**stated, **options}.items() if value is not None}
    described = kind_of_file(network).describe_file(network, template, data, is_rewritten=is_rewritten, **keywords)
    if output is None:
        api.save(described.description, target)
    else:
        api.save(described, output)
    if not quiet:
        click.echo(table(inspect_file(target).rows))
        for note in () if described.symmetry is None else described.symmetry.notes:
            click.echo(f"note: {printable(note)}")
        click.echo(f"wrote {', '.join(str(path) for path in (output, target) if path is not None)}")
