"""The command ``pack``: many posterior files written as a few shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click

import consilience as cs
from consilience.checks import as_bytes
from consilience.cli.json_output import echo_json, json_option
from consilience.posteriors.sharded.file import SUFFIXES, Form
from consilience.posteriors.sharded.packing import DTYPES


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=str))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="New folder for the shards.")
@click.option("--shard-size", default="256MiB", show_default=True, help="Size of a shard, about.")
@click.option(
    "--dtype", default=DTYPES[0], show_default=True, type=click.Choice(DTYPES), help="float32 halves the size."
)
@click.option(
    "--form", default="safetensors", show_default=True, type=click.Choice(list(SUFFIXES)), help="Form of the shards."
)
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def pack(
    models: Sequence[str], output: Path, shard_size: str, dtype: str, form: str, quiet: bool, as_json: bool
) -> None:
    """Write MODELS (posterior files, or folders of them) as a few shards, which are read many times as fast."""
    shard_bytes, progress = as_bytes(shard_size, "--shard-size"), not (quiet or as_json)
    chosen = cast(Form, form)
    packing = cs.pack(list(models), output, shard_bytes=shard_bytes, dtype=dtype, form=chosen, progress=progress)
    if as_json:
        echo_json({
            "models": packing.n_sites, "components": packing.n_components, "shards": len(packing.files),
            "bytes": packing.bytes, "divergence": packing.divergence, "wrote": [output],
        })  # fmt: skip
    elif not quiet:
        click.echo(
            f"{packing.n_sites} models with {packing.n_components} components -> {len(packing.files)} shards, "
            f"{packing.bytes / 1e6:.3g} MB"
        )
        if packing.divergence > 0:
            click.echo(f"float32 moved no component by more than {packing.divergence:.2g} nats")
        click.echo(f"wrote {output}")
