"""The commands ``fuse`` and ``check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from consilience import api
from consilience.bayesian.methods import make_bayesian_method
from consilience.cli.kinds import Kind
from consilience.cli.networks import network_summary
from consilience.cli.options import fusion_options, plan_of, warned_in_a_line
from consilience.cli.report import refuse_report
from consilience.core.fusion import Fusion
from consilience.drawing.words import printable
from consilience.errors import InputError
from consilience.files.atomic import refuse_unwritable
from consilience.networks.fisher.inputs import without_information
from consilience.networks.fusion import NetworkFusion
from consilience.networks.methods import make_network_method
from consilience.posteriors.methods import make_method
from consilience.posteriors.methods.ensemble import NO_FILE
from consilience.posteriors.sharded.fuse import OPTIONS as SHARD_OPTIONS

_FEW = 8
"""Models that are named in a line; more are counted."""


_NO_NETWORK = "an ensemble is its members: keep the sites' files, or use method"

_MAKING: Mapping[Kind, tuple[Callable[[str, Mapping[str, Any]], Any], str]] = {
    "posteriors": (make_method, NO_FILE),
    "shards": (make_method, NO_FILE),
    "networks": (make_network_method, f"{_NO_NETWORK} 'consensus'"),
    "bayesian": (make_bayesian_method, f"{_NO_NETWORK} 'kl'"),
}
"""What makes a method of a name for each kind of models, and why an ensemble of these is no file."""


@click.command()
@fusion_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the fused model.")
@click.option("--report", "page", type=click.Path(path_type=Path), help="File for a page about the fusion, HTML.")
@click.option("--seed", type=click.IntRange(0), help="Seed; the same seed gives the same bytes.  [default: 0]")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def fuse(output: Path | None, page: Path | None, seed: int | None, quiet: bool, **given: Any) -> None:
    """Fuse MODELS (posterior files, network files and checkpoints, or Bayesian networks) into one file.

    Networks: files that consilience.save wrote with a symmetry can be fused alone. Of other checkpoints, --symmetry
    says which axes move together, or --module with --example finds and proves it. So it is with Bayesian networks.
    """
    plan = plan_of(**given)
    recipe = plan.recipe
    target = output or (None if recipe.output is None else Path(recipe.output))
    if target is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if recipe.method is not None:
        make, refusal = _MAKING[plan.kind]
        told = {name: value for name, value in recipe.options.items() if name not in SHARD_OPTIONS}
        if make(recipe.method, told).keeps_models:
            raise InputError(f"{target}: {refusal}")
    refuse_unwritable(target)
    page = page or (None if recipe.report is None else Path(recipe.report))
    others = [one for one in (recipe.symmetry, recipe.inputs) if one is not None]
    if page is not None:
        refuse_report(page, (target, *map(Path, [*recipe.models, *others])))
    if any(os.path.isdir(model) and _same_file(target.parent, model) for model in recipe.models):
        raise InputError(f"{target}: is in a folder of models to fuse; give another output")
    if any(_same_file(target, model) for model in recipe.models):
        raise InputError(f"{target}: is one of the models to fuse; give another output")
    if any(_same_file(target, other) for other in others):
        raise InputError(f"{target}: is read here; give another output")
    chosen = seed if seed is not None else (recipe.seed or 0)
    options = {**recipe.options, **plan.arguments()}
    with warned_in_a_line():
        fusion = api.fuse(
            recipe.models, recipe.method, weights=recipe.weights, rng=chosen, progress=not quiet, **options
        )
    fusion.save(target)
    if page is not None:
        fusion.report(page)
    if not quiet:
        click.echo(network_summary(fusion) if isinstance(fusion, NetworkFusion) else _summary(fusion))
        click.echo(f"wrote {target}" + ("" if page is None else f" and {page}"))


@click.command()
@fusion_options
def check(**given: Any) -> None:
    """Say everything that would go wrong when fusing MODELS; exit 1 if anything would."""
    plan = plan_of(**given)
    recipe = plan.recipe
    with warned_in_a_line():
        problems = api.check(recipe.models, recipe.method, weights=recipe.weights, **recipe.options, **plan.arguments())
    if problems:
        raise InputError(problems)
    if plan.kind == "shards":
        click.echo(f"ok: {api.shards(recipe.models).n_sites} models can be fused")
        return
    count = len(without_information(recipe.models)[0])
    click.echo(f"ok: {count} models can be fused")


def _same_file(one: Path, other: str | Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them does not exist, or cannot
        return False


def _summary(fusion: Fusion) -> str:
    inputs = fusion.provenance["inputs"]
    lines = [
        f"{fusion.details.get('sites', len(inputs))} models"
        f" with {sum(record['components'] for record in inputs)} components"
        f" -> {fusion.n_components} components (method {fusion.provenance['method']})"
    ]
    if fusion.history.size:
        lines.append(f"objective {fusion.objective:.6g} after {fusion.history.size} steps: {fusion.status.value}")
    if "regularization" in fusion.details:
        lines.append(f"regularization {fusion.details['regularization']:.4g}")
    if fusion.details.get("left_out"):
        lines.append(f"{fusion.details['left_out']} components with too few observations were left out")
    lines += [f"{printable(record['name'])}: {record['why']}" for record in fusion.details.get("outliers", [])]
    lines += _minority(fusion.details)
    if "vocabulary" in fusion.details:
        lines += _vocabulary(fusion.details["vocabulary"])
    if fusion.details.get("violations"):
        lines.append(f"{fusion.details['violations']} components share a cluster with another one of their own model")
    return "\n".join(lines)


def _minority(details: Mapping[str, Any]) -> list[str]:
    """Return what is said of components that fewer than half of the models hold."""
    held = details.get("minority", [])
    lines = [
        f"component {one['component']} is held by {one['sites']} only: "
        + ", ".join(map(printable, one["names"][:_FEW]))
        + (", ..." if one["sites"] > min(_FEW, len(one["names"])) else "")
        for one in held[:_FEW]
    ]
    if len(held) > _FEW:
        lines.append(f"{len(held) - _FEW} more components are held by fewer than half of the models")
    if details.get("dropped"):
        lines.append(f"{details['dropped']} components that fewer than half of the models hold were left out")
    return lines


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
