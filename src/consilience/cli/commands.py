"""The commands: fuse, check, inspect, methods, report, evaluate, demo."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click

from consilience import api
from consilience.cli.evaluation import evaluate
from consilience.cli.report import refuse_report, report
from consilience.errors import InputError, OptionError
from consilience.io.atomic import refuse_unwritable
from consilience.io.posterior_file import FileSummary, read_summary
from consilience.io.recipe import Recipe, parse_yaml, read_recipe
from consilience.methods import METHODS, make_method
from consilience.methods.ensemble import NO_FILE
from consilience.report.words import printable
from consilience.result import Fusion

_FEW = 8
"""Models that are named in a line; more are counted."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="consilience")
def cli() -> None:
    """Fuse models that were trained apart into one. No data travels, only parameters."""


def _fusion_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what ``fuse`` and ``check`` share."""
    decorators = [
        click.argument("models", nargs=-1, type=click.Path(path_type=str)),
        click.option("--method", help="Name of a method; see `consilience methods`.  [default: kl]"),
        click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of the method."),
        click.option("--weights", help="How much each model counts, separated by commas.  [default: all the same]"),
        click.option("--recipe", type=click.Path(path_type=Path), help="A YAML file with any of these settings."),
    ]
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@cli.command()
@_fusion_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the fused model.")
@click.option("--report", "page", type=click.Path(path_type=Path), help="File for a page about the fusion, HTML.")
@click.option("--seed", type=click.IntRange(0), help="Seed; the same seed gives the same bytes.  [default: 0]")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def fuse(
    models: tuple[str, ...],
    method: str | None,
    settings: tuple[str, ...],
    weights: str | None,
    recipe: Path | None,
    output: Path | None,
    page: Path | None,
    seed: int | None,
    quiet: bool,
) -> None:
    """Fuse MODELS (posterior files) into one file."""
    plan = _plan(models, method, settings, weights, recipe)
    target = output or (None if plan.output is None else Path(plan.output))
    if target is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if plan.method is not None and make_method(plan.method, plan.options).keeps_models:
        raise InputError(f"{target}: {NO_FILE}")
    refuse_unwritable(target)
    page = page or (None if plan.report is None else Path(plan.report))
    if page is not None:
        refuse_report(page, (target, *map(Path, plan.models)))
    if any(_same_file(target, model) for model in plan.models):
        raise InputError(f"{target}: is one of the models to fuse; give another output")
    chosen = seed if seed is not None else (plan.seed or 0)
    fusion = api.fuse(plan.models, plan.method, weights=plan.weights, rng=chosen, progress=not quiet, **plan.options)
    fusion.save(target)
    if page is not None:
        fusion.report(page)
    if not quiet:
        click.echo(_summary(fusion))
        click.echo(f"wrote {target}" + ("" if page is None else f" and {page}"))


cli.add_command(report)


@cli.command()
@_fusion_options
def check(
    models: tuple[str, ...], method: str | None, settings: tuple[str, ...], weights: str | None, recipe: Path | None
) -> None:
    """Say everything that would go wrong when fusing MODELS; exit 1 if anything would."""
    plan = _plan(models, method, settings, weights, recipe)
    problems = api.check(plan.models, plan.method, weights=plan.weights, **plan.options)
    if problems:
        raise InputError(problems)
    click.echo(f"ok: {len(plan.models)} models can be fused")


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(file: Path, as_json: bool) -> None:
    """Say what is inside FILE, from its header alone."""
    summary = read_summary(file)
    if as_json:
        document = {"header": summary.header.model_dump(), "shapes": {k: list(v) for k, v in summary.shapes.items()}}
        click.echo(json.dumps(document, indent=2, sort_keys=True))
    else:
        click.echo(_inspection(file, summary))


@cli.command()
def methods() -> None:
    """Say what every method does, needs and gives, and its options."""
    for kind in METHODS:
        click.echo(f"{kind.name:12} {kind.summary}")
        click.echo(f"{'':12} needs: {kind.needs}")
        click.echo(f"{'':12} gives: {kind.gives}")
        click.echo(f"{'':12} paper: {kind.paper}")
        options = [f"{o.name}={'...' if o.default is MISSING else o.default}" for o in fields(kind)]
        click.echo(f"{'':12} options: {', '.join(options)}\n")


@cli.command()
@click.argument("folder", default="consilience-demo", type=click.Path(path_type=Path))
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="Number of repetitions.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def demo(folder: Path, seeds: int, quiet: bool) -> None:
    """Train five sites on real data, fuse their files, and compare, in FOLDER."""
    from consilience.cli.demo import run_demo  # here, so that the other commands start without matplotlib

    run_demo(folder, seeds, (lambda _line: None) if quiet else click.echo)


cli.add_command(evaluate)


def _plan(
    models: tuple[str, ...], method: str | None, settings: tuple[str, ...], weights: str | None, recipe: Path | None
) -> Recipe:
    """Return the recipe with what the command line adds to it or replaces in it."""
    plan = Recipe() if recipe is None else read_recipe(recipe)
    options = dict(plan.options)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise OptionError(f"--set {setting}: expected OPTION=VALUE, such as --set regularization=0.3")
        try:
            options[name.replace("-", "_")] = parse_yaml(value)
        except ValueError as error:
            raise OptionError(f"--set {setting}: the value is not valid YAML") from error
    if reserved := sorted({"models", "weights", "rng", "engine", "progress", "samples", "method"} & set(options)):
        raise OptionError(f"{', '.join(reserved)}: not an option of a method")
    update: dict[str, Any] = {"options": options}
    if models:
        update["models"] = list(models)
    if method is not None:
        update["method"] = method
    if weights is not None:
        try:
            update["weights"] = [float(part) for part in weights.split(",")]
        except ValueError as error:
            raise OptionError(f"--weights {weights}: expected numbers separated by commas") from error
    merged = plan.model_copy(update=update)
    if not merged.models:
        raise click.UsageError("Missing argument 'MODELS...': no files to fuse.")
    return merged


def _same_file(one: Path, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them does not exist, or cannot
        return False


def _summary(fusion: Fusion) -> str:
    inputs = fusion.provenance["inputs"]
    lines = [
        f"{len(inputs)} models with {sum(record['components'] for record in inputs)} components"
        f" -> {fusion.n_components} components (method {fusion.provenance['method']})"
    ]
    if fusion.history.size:
        lines.append(f"objective {fusion.objective:.6g} after {fusion.history.size} steps: {fusion.status.value}")
    if "regularization" in fusion.details:
        lines.append(f"regularization {fusion.details['regularization']:.4g}")
    if fusion.details.get("left_out"):
        lines.append(f"{fusion.details['left_out']} components with too few observations were left out")
    lines += [f"{printable(record['name'])}: {record['why']}" for record in fusion.details.get("outliers", [])]
    if "vocabulary" in fusion.details:
        lines += _vocabulary(fusion.details["vocabulary"])
    if fusion.details.get("violations"):
        lines.append(f"{fusion.details['violations']} components share a cluster with another one of their own model")
    return "\n".join(lines)


def _vocabulary(found: Mapping[str, Any]) -> list[str]:
    """Return what is said of models whose words were aligned."""
    missing = found["missing"].items()
    lacking = ", ".join(f"{printable(name)} lacks {count}" for name, count in sorted(missing)[:_FEW])
    more = f" and {len(missing) - _FEW} more models lack some" if len(missing) > _FEW else ""
    return [
        f"vocabulary of {found['size']} words" + (f"; {lacking}{more}" if missing else ", put in alphabetical order"),
        *(
            f"{printable(name)}: shares only {100 * share:.1f} % of its words with any other model"
            for name, share in sorted(found.get("apart", {}).items())
        ),
    ]


def _inspection(file: Path, summary: FileSummary) -> str:
    header = summary.header
    family = {key: value for key, value in header.family.items() if key != "name"}
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("family", f"{header.family.get('name')} {family}"),
        ("components", str(next(iter(summary.shapes.get("natural", ())), 0))),
        ("model", ", ".join(f"{key} {value}" for key, value in header.source.items()) or "a posterior"),
    ]
    if header.counts:
        rows.append(("counts", f"smallest {min(header.counts):.4g}, largest {max(header.counts):.4g}"))
    names = header.features.names
    if names:
        rows.append(("features", ", ".join(names[:8]) + (f", ... ({len(names)})" if len(names) > 8 else "")))
    rows.append(("tensors", ", ".join(f"{name} {list(shape)}" for name, shape in sorted(summary.shapes.items()))))
    if header.provenance:
        made = header.provenance
        rows.append(("fused by", f"{made.method} {made.options} seed {made.seed}"))
        rows += [
            ("from", f"{record.name}: {record.components} components, sha256 {record.sha256}") for record in made.inputs
        ]
    return "\n".join(f"{name + ':':12} {printable(value)}" for name, value in rows)
