"""The command ``fisher``: the Fisher information of a network, computed on a site's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import consilience as cs
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.options import module_option, overwrite_option
from consilience.drawing.words import format_count, printable
from consilience.files.atomic import refuse_unwritable
from consilience.networks.fisher.information import KINDS, LIKELIHOODS


@click.command()
@click.argument("network", type=click.Path(path_type=Path))
@module_option(required=True)
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Inputs of the site: .npy or .npz.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the information.")
@click.option(
    "--kind",
    default="diagonal",
    show_default=True,
    type=click.Choice(KINDS),
    help="The diagonal alone, the leading directions too, or Kronecker factors of layers.",
)
@click.option(
    "--likelihood", default="categorical", show_default=True, type=click.Choice(LIKELIHOODS), help="Of the outputs."
)
@click.option("--noise", default=1.0, show_default=True, help="Standard deviation of a gaussian likelihood.")
@click.option(
    "--n-draws", "n_draws", type=click.IntRange(1), help="Outcomes drawn for each input.  [default: the expectation]"
)
@click.option(
    "--prior-precision",
    default=1.0,
    show_default=True,
    help="Of the prior in training: observations times weight decay, for a mean loss.",
)
@click.option("--rank", default=256, show_default=True, type=click.IntRange(1), help="Directions kept at most.")
@click.option(
    "--n-observations", "n_observations", type=float, help="How many the site has, where the data are some of them."
)
@click.option(
    "--min-count", "minimum", default=100, show_default=True, type=click.IntRange(1), help="Fewer inputs are refused."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of what is drawn.")
@overwrite_option
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def fisher(
    network: Path,
    module: str,
    data: Path,
    output: Path,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    seed: int,
    **options: Any,
) -> None:
    """Compute the Fisher information of NETWORK on a site's data, for methods 'fisher', 'ssf' and 'kfac'.

    Only sums over all inputs are written, and directions of such sums, one for every four inputs at most. Send the file
    with the network's.
    """
    from consilience.cli.modules import import_module  # here with the others, since networks only need them
    from consilience.networks.evaluate import module_of_file
    from consilience.networks.module_inputs import read_inputs

    refuse_unwritable(output, network, data, overwrite=overwrite, anywhere=False)
    loaded_module = module_of_file(network, import_module(module, "--module"))
    inputs = read_inputs(data, loaded_module)
    information = cs.fisher(loaded_module, inputs, rng=seed, progress=not (quiet or as_json), **options)
    cs.save(information, output, overwrite=True)
    if as_json:
        echo_json({
            "observations": information.seen, "rank": information.rank, "layers": len(information.layers),
            "wrote": [output],
        })  # fmt: skip
    elif not quiet:
        form = f"diagonal and {format_count(information.rank, 'factor')}" if information.rank else "diagonal"
        if information.layers:
            form = f"Kronecker factors of {format_count(len(information.layers), 'layer')}"
        observations = format_count(information.seen or 0, "observation")
        click.echo(f"Fisher information of {printable(str(network))}: {form}, {observations}")
        click.echo(f"wrote {output}")
