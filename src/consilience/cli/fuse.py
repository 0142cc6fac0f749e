"""The commands ``fuse`` and ``check``: models in files become one file, or one line for each thing that forbids it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

import consilience as cs
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.options import FusionPlan, fusion_options, make_fusion_plan
from consilience.cli.report import refuse_report
from consilience.cli.shell_wording import in_words_of_the_command
from consilience.core.arguments import SHARD_KEYWORDS
from consilience.errors import InputError, OptionError
from consilience.files.atomic import refuse_unwritable

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
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def fuse(
    output: Path | None,
    page: Path | None,
    held_out: tuple[str, ...],
    seed: int | None,
    quiet: bool,
    as_json: bool,
    **plan_options: Any,
) -> None:
    """Fuse MODELS (posterior files, statistics, network files and checkpoints, or Bayesian networks) into one file.

    Networks: files that consilience.save wrote with a symmetry can be fused alone. Of other checkpoints, --symmetry
    says which axes move together, or --module with --example finds and proves it. So it is with Bayesian networks.
    """
    plan = make_fusion_plan(**plan_options)
    recipe = plan.recipe
    target = output or (None if recipe.output is None else Path(recipe.output))
    if target is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    page = page or (None if recipe.report is None else Path(recipe.report))
    _refuse_outputs(plan, target, page)
    seed = seed if seed is not None else (recipe.seed or 0)
    options = {**recipe.options, **plan.arguments(), **_held_out(held_out)}
    fusion = cs.fuse(plan.models, recipe.method, rng=seed, progress=not (quiet or as_json), **options)
    fusion.save(target)
    wrote = [target]
    if page is not None:
        fusion.report(page)
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


def _held_out(rows: tuple[str, ...]) -> dict[str, Any]:
    """Return the keyword of ``fuse`` for files of held-out rows, each NAME=FILE."""
    files: dict[str, str] = {}
    for text in rows:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise OptionError("held_out", f"expected NAME=FILE, such as lund=held.npz; found {text!r:.80}")
        if name in files:
            raise OptionError("held_out", f"has rows of {name} twice", "give one file for each site", "E-TWICE")
        files[name] = file
    return {"held_out": files} if files else {}


def _refuse_outputs(plan: FusionPlan, target: Path, page: Path | None) -> None:
    """Raise where the fused model or its page cannot be written, or would replace what is read, before that is read."""
    recipe = plan.recipe
    if recipe.method is not None:
        options = {name: value for name, value in recipe.options.items() if name not in FUSE_OPTIONS}
        if plan.kind.make_method(recipe.method, options).keeps_models:
            raise InputError(target, *plan.kind.no_file)
    refuse_unwritable(target)
    models: list[str | Path] = [*recipe.models, *(file.path for file in plan.files)]  # folders, and what is in them
    beside = [path for path in (recipe.symmetry, recipe.inputs) if path is not None]
    if page is not None:
        refuse_report(page, (target, *map(Path, [*models, *beside])))
    if any(os.path.isdir(model) and _is_same_file(target.parent, model) for model in recipe.models):
        raise InputError(target, "is in a folder of models to fuse", "give another output", "E-OUTPUT")
    for paths, text in ((models, "is one of the models to fuse"), (beside, "is read here")):
        if any(_is_same_file(target, path) for path in paths):
            raise InputError(target, text, "give another output", "E-OUTPUT")


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


def _is_same_file(path: Path, other: str | Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # one of the two does not exist, or its name cannot exist
        return False
