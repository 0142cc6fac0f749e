"""The command ``merge``: checkpoints larger than memory, merged into one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import consilience as cs
from consilience.checkpoints.card import NOT_COMPARED, in_short, noun_of
from consilience.checkpoints.merge import SHARD_BYTES, Merge
from consilience.checkpoints.mergekit import where_model_lies
from consilience.checkpoints.recipe import MergeRecipe, read_merge_recipe
from consilience.checkpoints.sweep import SweepRow, command_score, sweep
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.options import (
    method_option,
    parse_settings,
    rank_option,
    refuse_reserved,
    scheduler_address,
    settings_option,
)
from consilience.cli.report import refuse_report
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError, OptionError
from consilience.files.atomic import is_same_file

_NOT_NEEDED = (
    "--cuda", "--low-cpu-memory", "--lazy-unpickle", "--copy-tokenizer", "--trust-remote-code", "--write-model-card",
    "--read-to-gpu", "--gpu-rich", "--multi-gpu", "--safe-serialization", "--clone-tensors",
)  # fmt: skip
"""Flags of mergekit-yaml that change nothing here."""


def _flags_of_mergekit(function: Any) -> Any:
    """Add flags of mergekit-yaml to a command: read, and not shown in its help."""
    for flag in _NOT_NEEDED:
        name = f"no_{flag.strip('-').replace('-', '_')}"
        function = click.option(flag, name, is_flag=True, hidden=True)(function)
    for flag in ("--lora-merge-cache", "--transformers-cache", "--lora-merge-dtype"):
        function = click.option(flag, f"no_{flag.strip('-').replace('-', '_')}", hidden=True)(function)
    function = click.option("--out-shard-size", hidden=True)(function)
    function = click.option("--random-seed", type=click.IntRange(0), hidden=True)(function)
    return click.option("--allow-crimes", is_flag=True, hidden=True)(function)


def _read_flags(settings: dict[str, Any]) -> list[str]:
    """Take flags of mergekit-yaml out of settings; return a note where some were given."""
    if settings.pop("allow_crimes"):
        raise click.UsageError("--allow-crimes: name what may differ (--allow FIELD,...), or all (--allow-differences)")
    for theirs, ours in (("out_shard_size", "shard_size"), ("random_seed", "seed")):
        value = settings.pop(theirs)
        if settings[ours] is None:
            settings[ours] = value
    given = [name for name in list(settings) if name.startswith("no_") and settings.pop(name)]
    shown = ", ".join(f"--{name.removeprefix('no_').replace('_', '-')}" for name in given)
    return [f"{shown}: not needed here"] if given else []


@click.command()
@click.argument("models", nargs=-1, type=click.Path(path_type=str))
@click.option("-o", "--output", type=click.Path(path_type=str), help="Folder, or file named .safetensors, to write.")
@method_option(
    "One of `consilience methods`, or of mergekit, such as ties.  [default: average]", ("checkpoints", "adapters")
)
@click.option("--base", type=click.Path(path_type=str), help="What all were trained from, for ties, dare and the like.")
@settings_option()
@click.option("--weights", help="How much each model counts, such as 0.7,0.3.  [default: all the same]")
@click.option("--dtype", help="Of the output, such as bfloat16.  [default: as in the first model]")
@click.option("--shard-size", help="Largest file, such as 5GB.  [default: 5GB]")
@click.option("--fisher", "fishers", multiple=True, type=click.Path(path_type=str), help="Once for each model.")
@click.option(
    "--symmetry", type=click.Path(path_type=str), help="Match units first: what `consilience network symmetry` wrote."
)
@click.option("--recipe", type=click.Path(path_type=Path), help="A YAML file with any of these, and tensor patterns.")
@rank_option("Of adapters, at most; or the share of energy to keep.  [default: the sum of theirs]")
@click.option("--residual-into-base", is_flag=True, default=None, help="Average factors; --base takes the difference.")
@click.option("--vocabulary", metavar="base|union|N", help="Tokens of the output, where tokenizers differ.")
@click.option("--chat-template", metavar="NAME|auto", help="Of the output: chatml, llama3, mistral, alpaca, exaone.")
@click.option("--evaluate", metavar="COMMAND", help="Scores {model}: the last number that it prints.")
@click.option("--sweep", "sweeps", multiple=True, metavar="OPTION=A,B,...", help="Values to evaluate; method too.")
@click.option("--lower-is-better", is_flag=True, help="Of scores of --evaluate, such as losses.")
@click.option("--allow-differences", is_flag=True, help="Note configurations that differ instead of refusing them.")
@click.option("--allow", metavar="FIELD,...", help="Note these differences, such as rope_scaling,tokenizer.")
@click.option("--seed", type=click.IntRange(0), help="Of random choices.  [default: 0]")
@click.option("--engine", type=click.Choice(["local", "dask"]), help="Where files are written.  [default: local]")
@click.option("--scheduler", metavar="ADDRESS", help="Of Dask, such as tcp://host:8786; needs no --engine.")
@click.option("--threads", type=click.IntRange(1), help="How many calculate.  [default: cores, at most 4]")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--restart", is_flag=True, help="Do not go on where an interrupted run ended.")
@click.option("--report", type=click.Path(path_type=Path), help="Also write a page about the merge, HTML.")
@click.option("--dry-run", is_flag=True, help="Read headers only, and say what would be done.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@_flags_of_mergekit
@json_option
def merge(
    models: Sequence[str], recipe: Path | None, threads: int | None, overwrite: bool, restart: bool, dry_run: bool,
    allow_differences: bool, allow: str | None, evaluate: str | None, sweeps: Sequence[str], lower_is_better: bool,
    quiet: bool, as_json: bool, report: Path | None, engine: str | None, scheduler: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Merge MODELS (folders with safetensors, index files, or single files) into one, in little memory.

    MODELS may be one recipe instead, a YAML file of this library or of mergekit. Names of methods of mergekit, such as
    dare_ties, are known; a name on the hub is looked up in the hub's cache.

    With --evaluate all settings of --sweep are merged and scored, and the best is kept; a table of scores is written,
    from which a sweep that was stopped goes on.

    Tensors are streamed, so that checkpoints may be larger than memory. An interrupted merge goes on when the same
    command is given again.
    """
    if len(models) == 1 and recipe is None and Path(models[0]).suffix in RECIPES:
        recipe = Path(models[0])
        models = []
    if numbers := [model for model in models if _is_number(model) and not os.path.exists(model)]:
        raise click.UsageError(f"{numbers[0]} is no checkpoint; write weights with commas: --weights 0.5,0.5")
    flags = _read_flags(settings)
    plan = _complete_recipe(MergeRecipe() if recipe is None else read_merge_recipe(recipe), models, settings)
    if not plan.models:
        raise click.UsageError("Missing argument 'MODELS...': no checkpoints to merge.")
    if plan.output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    refuse_reserved(dict(plan.options), _MERGE_KEYWORDS)
    allowed = allow_differences or ([] if allow is None else [field.strip() for field in allow.split(",")])
    arguments = {
        "base": None if plan.base is None else where_model_lies(plan.base), "weights": plan.weights,
        "dtype": plan.dtype, "shard_bytes": SHARD_BYTES if plan.shard_size is None else plan.shard_size,
        "fishers": plan.fishers, "symmetry": plan.symmetry, "patterns": plan.tensors, "slices": plan.slices,
        "vocabulary": plan.vocabulary, "chat_template": plan.chat_template, "rank": plan.rank,
        "residual_into_base": plan.residual_into_base, "allow_differences": allowed, "rng": plan.seed,
        "engine": scheduler_address(engine, scheduler),
        "overwrite": overwrite, "threads": threads, **plan.options,
    }  # fmt: skip
    if evaluate is not None or sweeps:
        if dry_run or restart or report:
            text = "--evaluate takes no --dry-run, --restart and --report; remove the table to start anew."
            raise click.UsageError(text)
        _sweep(plan, arguments, evaluate, sweeps, lower_is_better, quiet, as_json)
        return
    for target in (Path(plan.output), *(() if report is None else (report,))):
        if recipe is not None and is_same_file(target, recipe):
            raise InputError(target, "is the recipe itself", "give another output", "E-OUTPUT")
    if report is not None:
        inputs = (Path(plan.output), *(Path(where_model_lies(model)) for model in plan.models))
        refuse_report(report, inputs, overwrite=overwrite)
    merged = cs.merge(
        [where_model_lies(model) for model in plan.models], plan.output, plan.method, resume=not restart,
        dry_run=dry_run, progress=not (quiet or as_json), **arguments,
    )  # fmt: skip
    notes = (*flags, *plan.notes, *merged.notes)
    pages = [] if report is None or dry_run else [report]
    for page in pages:
        merged.report(page, overwrite=True)
    if as_json:
        files = [
            {"name": shard.name, "bytes": shard.nbytes, "sha256": merged.digests.get(shard.name)}
            for shard in merged.plan.shards
        ]
        echo_json({
            "in_short": in_short(len(plan.models), noun_of(merged.provenance)), "tensors": merged.plan.tensors,
            "files": files, "bytes_in": merged.plan.bytes_in, "memory": merged.plan.memory, "notes": notes,
            "resumed": merged.resumed, "wrote": [] if dry_run else [merged.output, *pages],
        })  # fmt: skip
    elif not quiet:
        echo_prose(_plan_text(merged) if dry_run else _result_text(merged, len(plan.models), plan.method))
        for note in notes:
            echo_prose(f"note: {printable(note)}")
        if not dry_run:
            echo_prose(NOT_COMPARED)
        for page in pages:
            echo_prose(f"wrote {printable(str(page))}")


def _sweep(
    plan: MergeRecipe, arguments: Mapping[str, Any], command: str | None, sweeps: Sequence[str],
    lower_is_better: bool, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Merge at all settings, evaluate each, and keep the best."""
    if command is None or not sweeps:
        raise click.UsageError("--evaluate says how to score, --sweep what to try: give both.")
    assert plan.output is not None  # noqa: S101  (the caller has asked)
    settings: dict[str, list[Any]] = {}
    for text in sweeps:
        name, _, values = text.partition("=")
        if not name or not values:
            raise OptionError(f"--sweep {text}: expected OPTION=A,B,..., such as `scaling=0.3,0.5,1`")
        settings[name.replace("-", "_")] = [parse_settings([f"x={one}"])["x"] for one in values.split(",")]
    fixed = {name: v for name, v in {"method": plan.method, **arguments}.items() if name not in settings}

    def say(row: SweepRow) -> None:
        if not quiet and not as_json:
            far = "" if row.ratio is None else f", {row.ratio:.2f} times as far as the furthest model"
            said = ", ".join(f"{name} {value}" for name, value in row.setting.items())
            echo_prose(f"{row.score:.6g}: {said}{far}")

    found = sweep(
        [where_model_lies(model) for model in plan.models], plan.output, command_score(command), settings,
        larger_is_better=not lower_is_better, say=say, **fixed,
    )  # fmt: skip
    if as_json:
        rows = [{"setting": dict(row.setting), "score": row.score, "ratio": row.ratio} for row in found.rows]
        echo_json({"rows": rows, "best": found.best, "wrote": [plan.output, found.table]})
    elif not quiet:
        best = found.rows[found.best]
        said = ", ".join(f"{name} {value}" for name, value in best.setting.items())
        click.echo(f"best of {len(found.rows)}: {best.score:.6g} with {printable(said)}")
        click.echo(f"wrote {printable(plan.output)}, {printable(str(found.table))}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


RECIPES = (".yml", ".yaml")
"""What names of recipes end in."""

_MERGE_KEYWORDS = {
    "models", "output", "method", "base", "weights", "dtype", "shard_bytes", "fishers", "symmetry", "module", "example",
    "patterns", "slices", "vocabulary", "chat_template", "allow_differences", "rng", "resume", "overwrite", "dry_run",
    "threads", "engine", "progress", "rank", "residual_into_base",
}  # fmt: skip
"""Keywords of ``cs.merge`` that are no options of a method: --set, which passes options on, may not say them."""


def _complete_recipe(recipe: MergeRecipe, models: Sequence[str], settings: dict[str, Any]) -> MergeRecipe:
    """Return the recipe with what the command line adds to it or replaces in it.

    Models replace those of the recipe; settings are None or empty where they were left out.
    """
    weights = settings.pop("weights")
    update: dict[str, Any] = {
        "options": {**recipe.options, **parse_settings(settings.pop("settings"))},
        "fishers": list(settings.pop("fishers")) or recipe.fishers,
        "models": list(models) or recipe.models,
    }
    # The recipe's options are of its own method: another method on the command line starts without them.
    if settings["method"] not in (None, recipe.method):
        update["options"] = {key: value for key, value in update["options"].items() if key not in recipe.options}
    if weights is not None:
        try:
            update["weights"] = [float(part) for part in weights.replace(",", " ").split()]
        except ValueError as error:
            raise OptionError(f"--weights {weights}: expected numbers separated by commas") from error
    update |= {name: value for name, value in settings.items() if value is not None}
    if (update.get("vocabulary") or "").isdigit():
        update["vocabulary"] = int(update["vocabulary"])
    return recipe.model_copy(update=update)


def _plan_text(merged: Merge) -> str:
    """Return what a dry run prints: sizes, memory, and the files that would be written."""
    plan = merged.plan
    lines = [
        f"{plan.tensors} tensors, {format_bytes(plan.bytes_in)} to read, {format_bytes(plan.bytes_out)} to write, "
        f"{format_bytes(plan.memory)} of memory at most",
        *(f"{shard.name}: {len(shard.tasks)} tensors, {format_bytes(shard.nbytes)}" for shard in plan.shards),
        "nothing was written",
    ]
    return "\n".join(lines)


def _result_text(merged: Merge, n_models: int, method: str) -> str:
    """Return what a finished merge prints."""
    plan = merged.plan
    models = format_count(n_models, noun_of(merged.provenance))
    lines = [f"{models} of {plan.tensors} tensors -> {format_bytes(plan.bytes_out)} (method {method})"]
    if merged.resumed:
        lines.append(f"{merged.resumed} of {len(plan.shards)} files were there from an interrupted run")
    return "\n".join([*lines, f"wrote {printable(str(merged.output))}"])


def format_bytes(n_bytes: int) -> str:
    """Return a number of bytes with a decimal unit and three digits.

    Examples
    --------
    >>> format_bytes(2_069_047_816), format_bytes(512)
    ('2.07 GB', '512 B')
    """
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
