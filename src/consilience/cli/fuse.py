"""The commands ``fuse`` and ``check``: models in files become one file, or one line for each thing that forbids it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

import consilience as cs
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.options import FusionPlan, fusion_options, make_fusion_plan, overwrite_option
from consilience.cli.report import refuse_report
from consilience.cli.shell_wording import in_words_of_the_command
from consilience.core.arguments import SHARD_KEYWORDS
from consilience.errors import InputError, OptionError
from consilience.files.atomic import is_same_file, refuse_to_replace, refuse_unwritable

FUSE_OPTIONS = (*SHARD_KEYWORDS, "min_count")
"""Options of ``fuse`` that are no method's."""


@click.command()
@fusion_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the fused model.")
@click.option("--report", "page", type=click.Path(path_type=Path), help="File for a page about the fusion, HTML.")
@click.option(
    "--held-out",
    multiple=True,
    metavar="NAME=FILE",
    help="Rows that the site of a model held out, by its name: candidates are chosen on them. Once per site.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed; the same seed gives the same bytes.  [default: 0]")
@overwrite_option
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def fuse(
    output: Path | None,
    page: Path | None,
    held_out: tuple[str, ...],
    seed: int | None,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **plan_options: Any,
) -> None:
    """Fuse MODELS (posterior files, statistics, network files and checkpoints, or Bayesian networks) into one file.

    Networks need --module, with which candidates are made and compared. With a --method it is enough to know which
    axes move together: by files that consilience.save wrote with a symmetry, by --symmetry, or by --module with
    --example, which finds and proves it. So it is with Bayesian networks.
    """
    plan = make_fusion_plan(**plan_options)
    recipe = plan.recipe
    target = output or (None if recipe.output is None else Path(recipe.output))
    if target is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    page = page or (None if recipe.report is None else Path(recipe.report))
    rows = _held_out(held_out)
    _refuse_outputs(plan, target, page, overwrite, tuple(map(Path, rows.values())))
    seed = seed if seed is not None else (recipe.seed or 0)
    options = {**recipe.options, **plan.arguments(), **({"held_out": rows} if rows else {})}
    fusion = cs.fuse(plan.models, recipe.method, rng=seed, progress=not (quiet or as_json), **options)
    fusion.save(target, overwrite=True)  # as was looked at before
    wrote = [target]
    if page is not None:
        fusion.report(page, overwrite=True)
        wrote.append(page)
    if as_json:
        echo_json({
            "method": fusion.provenance.get("method"),
            "inputs": [one.get("name") for one in fusion.provenance.get("inputs", ())],
            "in_short": fusion.in_short, "verdict": fusion.verdict.to_json(), "summary": fusion.summary(),
            "wrote": wrote,
        })  # fmt: skip
    elif not quiet:
        echo_prose(in_words_of_the_command(fusion.summary()))
        echo_prose(f"wrote {' and '.join(map(str, wrote))}")


def _held_out(rows: tuple[str, ...]) -> dict[str, str]:
    """Return files of held-out rows by the names of models, each NAME=FILE."""
    files: dict[str, str] = {}
    for text in rows:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise OptionError("held_out", f"expected NAME=FILE, such as lund=held.npz; found {text!r:.80}")
        if name in files:
            raise OptionError("held_out", f"has rows of {name} twice", "give one file for each site", "E-TWICE")
        files[name] = file
    return files


def _refuse_outputs(
    plan: FusionPlan, target: Path, page: Path | None, overwrite: bool, held_out: tuple[Path, ...]
) -> None:
    """Raise where the fused model or its page cannot be written, or would replace what is read, before that is read."""
    recipe = plan.recipe
    if recipe.method is not None:
        options = {name: value for name, value in recipe.options.items() if name not in FUSE_OPTIONS}
        if plan.kind.make_method(recipe.method, options).keeps_models:
            raise InputError(target, *plan.kind.no_file)
    models = [*map(Path, recipe.models), *(file.path for file in plan.files)]  # folders, and what is in them
    beside = (*plan.read, *held_out)
    outputs = (target,) if page is None else (target, page)
    for output in outputs:
        refuse_unwritable(output, *beside, overwrite=True)
    if page is not None:
        refuse_report(page, (target, *models), overwrite=True)
    if any(os.path.isdir(model) and is_same_file(target.parent, Path(model)) for model in recipe.models):
        raise InputError(target, "is in a folder of models to fuse", "give another output", "E-OUTPUT")
    if any(is_same_file(target, path) for path in models):
        raise InputError(target, "is one of the models to fuse", "give another output", "E-OUTPUT")
    for output in outputs:
        refuse_to_replace(output, overwrite, anywhere=False)


@click.command()
@fusion_options
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def check(quiet: bool, as_json: bool, **plan_options: Any) -> None:
    """Say everything that would go wrong when fusing MODELS; exit 1 if anything would."""
    plan = make_fusion_plan(**plan_options)
    recipe = plan.recipe
    problems = cs.check(plan.models, recipe.method, **recipe.options, **plan.arguments())
    if problems:
        raise InputError(problems)
    if as_json:
        echo_json({"ok": True, "models": plan.n_models()})
    elif not quiet:
        click.echo(f"ok: {plan.n_models()} models can be fused")
