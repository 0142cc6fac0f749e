"""What is for networks only: the commands ``symmetry`` and ``barrier``, and what ``fuse`` says of a fused network."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consilience import api
from consilience.cli.options import example_option, module_option
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError
from consilience.files.atomic import refuse_unwritable
from consilience.networks.files import write_symmetry
from consilience.networks.inspect import proof_of

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.symmetry.symmetry import Symmetry

_FEW = 8
"""Groups that have a line; more are format_count."""

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
