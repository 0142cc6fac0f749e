"""The command ``merge``: checkpoints larger than memory into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from consilience import api
from consilience.checkpoints.merge import SHARD_BYTES, Merge
from consilience.checkpoints.recipe import MergeRecipe, read_merge_recipe
from consilience.cli.options import settings_of
from consilience.drawing.words import printable
from consilience.errors import OptionError


@click.command()
@click.argument("models", nargs=-1, type=click.Path(path_type=str))
@click.option("-o", "--output", type=click.Path(path_type=str), help="Folder, or file named .safetensors, to write.")
@click.option("--method", help="average, fisher, ties, dare, task_arithmetic or slerp.  [default: average]")
@click.option("--base", type=click.Path(path_type=str), help="What all were trained from, for ties, dare and the like.")
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of the method.")
@click.option("--weights", help="How much each model counts, separated by commas.  [default: all the same]")
@click.option("--dtype", help="Of the output, such as bfloat16.  [default: as in the first model]")
@click.option("--shard-size", help="Largest file, such as 5GB.  [default: 5GB]")
@click.option("--fisher", "fishers", multiple=True, type=click.Path(path_type=str), help="Once for each model.")
@click.option(
    "--symmetry", type=click.Path(path_type=str), help="Match units first: what `consilience symmetry` wrote."
)
@click.option("--recipe", type=click.Path(path_type=Path), help="A YAML file with any of these, and tensor patterns.")
@click.option("--seed", type=click.IntRange(0), help="Of random choices.  [default: 0]")
@click.option("--threads", type=click.IntRange(1), help="How many calculate.  [default: cores, at most 4]")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--restart", is_flag=True, help="Do not go on where an interrupted run ended.")
@click.option("--dry-run", is_flag=True, help="Read headers only, and say what would be done.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def merge(
    models: Sequence[str], recipe: Path | None, threads: int | None, overwrite: bool, restart: bool, dry_run: bool,
    quiet: bool, **given: Any,
) -> None:  # fmt: skip
    """Merge MODELS (folders with safetensors, index files, or single files) into one, in little memory.

    Tensors are streamed, so that checkpoints may be larger than memory. An interrupted merge goes on when the same
    command is given again.
    """
    plan = _plan(MergeRecipe() if recipe is None else read_merge_recipe(recipe), models, given)
    if not plan.models:
        raise click.UsageError("Missing argument 'MODELS...': no checkpoints to merge.")
    if plan.output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    options = dict(plan.options)
    if reserved := sorted(set(options) & _RESERVED):
        raise OptionError(f"{', '.join(reserved)}: not an option of a method")
    done = api.merge(
        plan.models,
        plan.output,
        plan.method,
        base=plan.base,
        weights=plan.weights,
        dtype=plan.dtype,
        shard_bytes=SHARD_BYTES if plan.shard_size is None else plan.shard_size,
        fishers=plan.fishers,
        symmetry=plan.symmetry,
        patterns=plan.tensors,
        seed=plan.seed,
        resume=not restart,
        overwrite=overwrite,
        dry_run=dry_run,
        threads=threads,
        progress=not quiet,
        **options,
    )
    if not quiet:
        click.echo(_planned(done) if dry_run else _finished(done, len(plan.models), plan.method))
        for note in done.notes:
            click.echo(f"note: {printable(note)}")


_RESERVED = {
    "models", "output", "method", "base", "weights", "dtype", "shard_bytes", "fishers", "symmetry", "module", "example",
    "patterns", "seed", "resume", "overwrite", "dry_run", "threads", "progress",
}  # fmt: skip


def _plan(recipe: MergeRecipe, models: Sequence[str], given: dict[str, Any]) -> MergeRecipe:
    """Return the recipe with what the command line adds to it or replaces in it."""
    weights = given.pop("weights")
    update: dict[str, Any] = {
        "options": {**recipe.options, **settings_of(given.pop("settings"))},
        "fishers": list(given.pop("fishers")) or recipe.fishers,
        "models": list(models) or recipe.models,
    }
    if given["method"] not in (None, recipe.method):
        update["options"] = {key: value for key, value in update["options"].items() if key not in recipe.options}
    if weights is not None:
        try:
            update["weights"] = [float(part) for part in weights.split(",")]
        except ValueError as error:
            raise OptionError(f"--weights {weights}: expected numbers separated by commas") from error
    update |= {name: value for name, value in given.items() if value is not None}
    return recipe.model_copy(update=update)


def _planned(done: Merge) -> str:
    plan = done.plan
    lines = [
        f"{plan.tensors} tensors, {amount(plan.bytes_in)} to read, {amount(plan.bytes_out)} to write, "
        f"{amount(plan.memory)} of memory at most",
        *(f"{shard.name}: {len(shard.tasks)} tensors, {amount(shard.nbytes)}" for shard in plan.shards),
        "nothing was written",
    ]
    return "\n".join(lines)


def _finished(done: Merge, count: int, method: str) -> str:
    plan = done.plan
    lines = [f"{count} checkpoints of {plan.tensors} tensors -> {amount(plan.bytes_out)} (method {method})"]
    if done.resumed:
        lines.append(f"{done.resumed} of {len(plan.shards)} files were there from an interrupted run")
    return "\n".join([*lines, f"wrote {printable(str(done.output))}"])


def amount(count: int) -> str:
    """Return a number of bytes as people say it.

    Examples
    --------
    >>> amount(2_069_047_816), amount(512)
    ('2.07 GB', '512 B')
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
