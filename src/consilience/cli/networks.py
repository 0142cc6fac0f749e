"""What is for networks only: the commands ``symmetry`` and ``barrier``, and what ``fuse`` says of a fused network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consilience import api
from consilience.bayesian.fusion import BayesianFusion
from consilience.cli.inspect import proof_of
from consilience.cli.options import example_option, module_option
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError
from consilience.files.atomic import refuse_unwritable
from consilience.networks.files import write_symmetry
from consilience.networks.fusion import NetworkFusion

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.symmetry.symmetry import Symmetry

_FEW = 8
"""Groups that have a line; more are counted."""

_STATISTICS = (
    "its statistics of batch normalisation are averages, which fit no network: measure them again with "
    "consilience.repair, given unlabeled inputs or moments from the sites"
)


@click.command()
@module_option(required=True)
@example_option(required=True)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the symmetry, JSON.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the changes that prove it.  [default: 0]")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def symmetry(module: str, example: Sequence[str], output: Path, seed: int, quiet: bool) -> None:
    """Find and prove which axes of a module's arrays move together, so that its files alone can be fused.

    Give what it writes to `consilience fuse --symmetry`.
    """
    from consilience.cli.modules import import_module, make_example  # here, since networks only need it

    refuse_unwritable(output)
    made = import_module(module, "--module")
    found = api.symmetry(made, make_example(example, made), seed)
    write_symmetry(output, found)
    if not quiet:
        click.echo("\n".join(_groups(found)))
        click.echo(f"wrote {output}")


def _groups(found: Symmetry) -> list[str]:
    """Return every group in a line, and what is to be known of all."""
    lines = [f"{format_count(len(found.groups), 'group')} of units that move together"]
    widths = max([5, *(len(printable(name)) for name in found.groups)])
    if found.groups:
        lines.append(f"{'group':{widths}}  {'units':>6}  may")
    for name, group in found.by_name.items():
        inside = "" if group.parent is None else f", inside {printable(group.parent)}"
        fixed = "" if group.resizable or group.parent is not None else ", of this number of units only"
        lines.append(f"{printable(name):{widths}}  {found.groups[name]:6}  {', '.join(group.actions)}{inside}{fixed}")
    lines += [f"note: {printable(note)}" for note in found.notes]
    return [*lines, f"proved: {proof_of(found)}"]


@click.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@module_option(required=True)
@click.option(
    "--data", required=True, type=click.Path(path_type=Path), help="Inputs with labels: .npz with x and y, .npy, .csv."
)
@click.option("--labels", metavar="COLUMN|FILE", help="Labels where the data have none: a column, or a file.")
@click.option(
    "--points", default=25, show_default=True, type=click.IntRange(2), help="Networks on the line, with ends."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the curves.")
def barrier(
    first: Path,
    second: Path,
    module: str,
    data: Path,
    labels: str | None,
    points: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Say how much worse the networks between A and B are than A and B, on labeled data.

    The two are taken with their units as they are numbered; a fused network keeps the numbering of its reference.
    """
    import torch  # here with the others, since networks only need them

    from consilience.cli.modules import import_module
    from consilience.networks.evaluate import labeled_inputs, module_of_file
    from consilience.networks.landscape.evaluation import Classification

    if output is not None:
        refuse_unwritable(output)
        if any(output.resolve() == other.resolve() for other in (first, second, data)):
            raise InputError(f"{output}: is read here; give another output")
    template = import_module(module, "--module")
    ends = [module_of_file(path, template) for path in (first, second)]
    rows = labeled_inputs(data, labels, ends[0])
    try:
        found = api.barrier(ends[0], ends[1], Classification(rows.inputs, torch.from_numpy(rows.labels)), points)
    except InputError as error:
        raise InputError([_named(problem, first, second) for problem in error.problems]) from error
    if output is not None:
        found.save(output)
    click.echo(json.dumps(_barrier_json(found), indent=2, sort_keys=True) if as_json else _barrier_text(found))
    if output is not None and not as_json:
        click.echo(f"wrote {output}")


def _named(problem: str, first: Path, second: Path) -> str:
    return problem.replace("net_a", str(first)).replace("net_b", str(second))


def _barrier_json(found: Barrier) -> dict[str, Any]:
    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "t": found.t.tolist(),
        "values": {name: [plain(one) for one in curve.tolist()] for name, curve in found.values.items()},
        "summary": {n: {what: plain(v) for what, v in one.items()} for n, one in found.summary().items()},
    }


_UNITS = {"loss": "nats", "error": "% wrong"}


def _barrier_text(found: Barrier) -> str:
    lines = [f"{len(found.t)} networks on the line; barriers over the line between the ends, the worse end, their mean"]
    for name, curve in found.values.items():
        unit = _UNITS.get(name, "")
        heights = [found.height(name), found.height_over_maximum(name), found.height_over_mean(name)]
        lines.append(
            f"{name:6} {', '.join(f'{one:.4f}' for one in heights)} {unit}; at A {curve[0]:.4f}, in the middle "
            f"{found.midpoint(name):.4f}, at B {curve[-1]:.4f}; highest at t = {found.peak(name):.3g}"
        )
    return "\n".join(lines)


def network_summary(fusion: NetworkFusion) -> str:
    """Return what came of fusing networks: widths, how well layers match, what is still to do."""
    method = fusion.provenance["method"]
    groups = fusion.groups
    outer = [name for name, group in fusion.network.symmetry.by_name.items() if group.parent is None]
    before = [sum(one.network.units[name] for name in outer) for one in fusion.inputs]
    units = str(before[0]) if len(set(before)) == 1 else f"{min(before)} to {max(before)}"
    what = "Bayesian networks" if isinstance(fusion, BayesianFusion) else "networks"
    lines = [f"{len(fusion.inputs)} {what}, units as they are numbered (method {method})"]
    if groups:
        lines = [
            f"{len(fusion.inputs)} {what} with {units} units each in {format_count(len(groups), 'group')}"
            f" -> {sum(groups[name] for name in outer)} units (method {method})"
        ]
        lines += _quality_table(fusion)
    if fusion.history.size:
        lines.append(f"objective {fusion.objective:.6g} after {fusion.history.size} steps: {fusion.status.value}")
    if isinstance(fusion, BayesianFusion):
        lines += _posteriors(fusion)
    if fusion.details["proved"]:
        lines.append("symmetry: proved")
    if "aligned" in fusion.details:
        lines.append(_merging(fusion.details))
    lines += [f"note: {printable(note)}" for note in fusion.details["notes"][:_FEW]]
    lines += _repairs(fusion)
    return "\n".join(lines)


def _posteriors(fusion: BayesianFusion) -> list[str]:
    """Return how many sites have the fused units, and how far posteriors came together."""
    found: Mapping[str, Any] = fusion.details
    lines = []
    for group, facts in list(found.get("groups", {}).items())[:_FEW]:
        counts = [f"{count} of {format_count(n, 'site')}" for n, count in enumerate(facts["shared"], 1) if count]
        lines.append(f"group {printable(group)}: {', '.join(counts[:_FEW])}")
    if "distance_after" in found:
        before, after = found["distance_before"], found["distance_after"]
        lines.append(f"distance of posteriors ({found['metric']}): {before:.6g} -> {after:.6g}")
    return lines


_TOLD = {"structure": "", "prior": "prior ", "shrinkage": "shrinkage ", "masked": "parameters in a mask: "}


def _merging(details: Mapping[str, Any]) -> str:
    """Return how networks were merged by what is known of their parameters."""
    said = [f"{word}{details[key]}" for key, word in _TOLD.items() if key in details]
    return ", ".join(["merged with units aligned" if details["aligned"] else "merged as they are", *said])


def _quality_table(fusion: NetworkFusion) -> list[str]:
    """Return a line for each of the first groups: units before and after, how many are shared, distance."""
    rows = [("group", "units", "fused", "shared", "distance")]
    for name in list(fusion.groups)[:_FEW]:
        quality = fusion.quality[name]
        own = [one.network.units[name] for one in fusion.inputs]
        spread = f"{own[0]}" if len(set(own)) == 1 else f"{min(own)}-{max(own)}"
        before = "" if quality.before is None else f"{quality.before:.3f} -> "
        distance = f"{before}{quality.distance:.3f}" if _comparable(fusion, name) else ""
        rows.append((printable(name), spread, str(quality.units), str(quality.shared), distance))
    shown = 5 if any(row[4] for row in rows[1:]) else 4
    widths = [max(len(row[column]) for row in rows) for column in range(shown)]
    lines = [
        f"  {row[0]:{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:shown], widths[1:], strict=True))
        for row in rows
    ]
    more = len(fusion.groups) - _FEW
    return [*lines, f"  and {more} more groups"] if more > 0 else lines


def _comparable(fusion: NetworkFusion, group: str) -> bool:
    """Return whether distances mean something: not of posteriors that lack units, whose deviation there is not zero."""
    return not isinstance(fusion, BayesianFusion) or all(moves[group].owned.all() for moves in fusion.transports)


def _repairs(fusion: NetworkFusion) -> list[str]:
    """Return whether layers were fitted, and what should still be done."""
    details: Mapping[str, Any] = fusion.details
    lines = [f"refit: {printable(str(details['refit']))}"] if "refit" in details else []
    if fusion.repaired is not None and fusion.repaired != details.get("refit"):
        lines.append(f"repaired: {printable(fusion.repaired)}")
    if fusion.needs_repair:
        lines.append(f"warning: {_STATISTICS}")
    return lines
