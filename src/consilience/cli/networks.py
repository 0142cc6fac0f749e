"""The commands ``symmetry`` and ``barrier``: symmetries of a network, and loss barriers between two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import consilience as cs
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.options import answer_option, example_option, module_option, overwrite_option
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError
from consilience.files.atomic import refuse_unwritable
from consilience.networks.files import write_symmetry
from consilience.networks.inspect import proof_of
from consilience.networks.symmetry.symmetry import UNITS

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.symmetry.symmetry import Symmetry


@click.command()
@module_option(required=True)
@example_option(required=True)
@answer_option
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the symmetry, JSON.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the changes that prove it.  [default: 0]")
@overwrite_option
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def symmetry(
    module: str,
    example: Sequence[str],
    answer: str | int | None,
    output: Path,
    seed: int,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Find and prove which axes of a module's arrays move together, so that its files alone can be fused.

    Give what it writes to `consilience fuse --symmetry`.
    """
    from consilience.cli.modules import import_module, make_example  # here, since networks only need it

    refuse_unwritable(output, overwrite=overwrite, anywhere=False)
    architecture = import_module(module, "--module")
    proved_symmetry = cs.symmetry(architecture, make_example(example, architecture), seed, output=answer)
    write_symmetry(output, proved_symmetry)
    roles = proved_symmetry.roles
    if as_json:
        groups = [
            {
                "name": name,
                "units": proved_symmetry.groups[name],
                "role": roles[name],
                "actions": group.actions,
                "parent": group.parent,
            }
            for name, group in proved_symmetry.by_name.items()
        ]
        proof = proof_of(proved_symmetry)
        echo_json({"groups": groups, "notes": proved_symmetry.notes, "proved": proof, "wrote": [output]})
    elif not quiet:
        click.echo("\n".join(_symmetry_lines(proved_symmetry)))
        click.echo(f"wrote {output}")


def _symmetry_lines(symmetry: Symmetry) -> list[str]:
    """Return a table with one line for each group, the notes on the symmetry, and its proof."""
    lines = [f"{format_count(len(symmetry.groups), 'group')} of units that move together"]
    roles = symmetry.roles
    name_width = max([5, *(len(printable(name)) for name in symmetry.groups)])
    if symmetry.groups:
        lines.append(f"{'group':{name_width}}  {'units':>6}  may")
    for name, group in symmetry.by_name.items():
        inside = "" if group.parent is None else f", inside {printable(group.parent)}"
        fixed = "" if group.resizable or group.parent is not None else ", of this number of units only"
        actions, role = (
            ", ".join(group.actions),
            "" if roles[name] == UNITS or inside else f"; {printable(roles[name])}",
        )
        lines.append(f"{printable(name):{name_width}}  {symmetry.groups[name]:6}  {actions}{role}{inside}{fixed}")
    lines += [f"note: {printable(note)}" for note in symmetry.notes]
    return [*lines, f"proved: {proof_of(symmetry)}"]


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
@json_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the curves.")
@overwrite_option
def barrier(
    first: Path,
    second: Path,
    module: str,
    data: Path,
    labels: str | None,
    points: int,
    as_json: bool,
    output: Path | None,
    overwrite: bool,
) -> None:
    """Say how much worse the networks between A and B are than A and B, on labeled data.

    The two are taken with their units as they are numbered; a fused network keeps the numbering of its reference.
    """
    import torch  # here with the others, since networks only need them

    from consilience.cli.modules import import_module
    from consilience.networks.evaluate import labeled_inputs, module_of_file
    from consilience.networks.landscape.evaluation import Classification

    if output is not None:
        refuse_unwritable(output, first, second, data, overwrite=overwrite, anywhere=False)
    template = import_module(module, "--module")
    ends = [module_of_file(path, template) for path in (first, second)]
    rows = labeled_inputs(data, labels, ends[0])
    try:
        curves = cs.barrier(ends[0], ends[1], Classification(rows.inputs, torch.from_numpy(rows.labels)), points)
    except InputError as error:
        raise InputError(p.renamed("net_a", first).renamed("net_b", second) for p in error.problems) from error
    if output is not None:
        curves.save(output, overwrite=True)
    if as_json:
        echo_json(_barrier_json(curves))
    else:
        click.echo(_barrier_text(curves))
    if output is not None and not as_json:
        click.echo(f"wrote {output}")


def _barrier_json(barrier: Barrier) -> dict[str, Any]:
    """Return the curves over t and their summary as JSON values."""
    return {"t": barrier.t, "values": dict(barrier.values), "summary": barrier.summary()}


_UNITS = {"loss": "nats", "error": "% wrong"}
"""Unit of each curve, by its name."""


def _barrier_text(barrier: Barrier) -> str:
    """Return a line for each curve: its barrier by three definitions, the values at A, halfway and B, and its peak."""
    lines = [
        f"{len(barrier.t)} networks on the line; barriers over the line between the ends, the worse end, their mean"
    ]
    for name, curve in barrier.values.items():
        unit = _UNITS.get(name, "")
        heights = [barrier.height(name), barrier.height_over_maximum(name), barrier.height_over_mean(name)]
        lines.append(
            f"{name:6} {', '.join(f'{height:.4f}' for height in heights)} {unit}; at A {curve[0]:.4f}, in the middle "
            f"{barrier.midpoint(name):.4f}, at B {curve[-1]:.4f}; highest at t = {barrier.peak(name):.3g}"
        )
    return "\n".join(lines)
