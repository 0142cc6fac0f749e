"""The command ``extract``: the adapter nearest to what a fine-tune changed."""

from __future__ import annotations

from typing import Any

import click

import consilience as cs
from consilience.checkpoints.mergekit import where_model_lies
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.options import rank_option
from consilience.drawing.words import printable


@click.command()
@click.argument("model", type=click.Path(path_type=str))
@click.option("--base", required=True, type=click.Path(path_type=str), help="What the model was trained from.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=str), help="Folder of the adapter, to write.")
@rank_option("Of every module, at most; or the share of energy to keep.", default="16")
@click.option("--dtype", default="float32", show_default=True, help="Of the adapter.")
@click.option("--drop-rest", is_flag=True, help="Leave norms, embeddings and heads that changed out.")
@click.option("--allow-differences", is_flag=True, help="Note configurations that differ instead of refusing them.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def extract(model: str, base: str, output: str, drop_rest: bool, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the LoRA adapter of a rank that is nearest to what MODEL changed in its base, as peft reads it."""
    found = cs.extract_adapter(
        where_model_lies(model), where_model_lies(base), output, rest="drop" if drop_rest else "save", **options
    )
    if as_json:
        echo_json({
            "modules": len(found.errors), "error": found.error, "errors": dict(found.errors), "notes": found.notes,
            "wrote": [found.output],
        })  # fmt: skip
    elif not quiet:
        worst = max(found.errors, key=lambda module: found.errors[module])
        lost = f"{found.error:.1e} of all changes are lost, up to {found.errors[worst]:.1e} in {worst}"
        echo_prose(f"an adapter of {len(found.errors)} modules; {lost}\nwrote {printable(str(found.output))}")
        for note in found.notes:
            echo_prose(f"note: {printable(note)}")
