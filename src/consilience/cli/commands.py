"""The command group ``consilience`` with all its commands, and the two short ones: ``methods`` and ``demo``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click

from consilience.bayesian.methods import BAYESIAN_METHODS
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.methods.table import TENSOR_METHODS
from consilience.cli.answer import answer
from consilience.cli.describe import describe
from consilience.cli.evaluate import evaluate
from consilience.cli.fisher import fisher
from consilience.cli.fuse import check, fuse
from consilience.cli.head import head
from consilience.cli.inspect import inspect
from consilience.cli.merge import merge
from consilience.cli.networks import barrier, symmetry
from consilience.cli.pack import pack
from consilience.cli.report import report
from consilience.cli.serve import send, serve
from consilience.cli.short_warnings import short_warnings
from consilience.draws.methods import DRAWS_METHODS
from consilience.draws.methods.base import DrawsMethod
from consilience.estimators.adapters.base import EstimatorAdapter
from consilience.estimators.adapters.table import ESTIMATORS
from consilience.networks.method import NetworkMethod
from consilience.networks.methods import NETWORK_METHODS
from consilience.posteriors.method import Method
from consilience.posteriors.methods import METHODS


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="consilience")
def cli() -> None:
    """Fuse models that were trained apart into one. No data travels, only parameters."""
    click.get_current_context().with_resource(short_warnings())


for _command in (
    fuse, check, inspect, describe, head, report, evaluate, symmetry, fisher, barrier, merge, pack, serve, send, answer,
):  # fmt: skip
    cli.add_command(_command)


@cli.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """Say what every method does, or those called NAME, what they need and give, and their options.

    Without a NAME, estimators that need no method are listed too.
    """
    tables: dict[str, Sequence[type[Method] | type[NetworkMethod] | type[TensorMethod] | type[DrawsMethod]]] = {
        "Posteriors of statistical models": METHODS,
        "Neural networks": NETWORK_METHODS,
        "Bayesian neural networks": BAYESIAN_METHODS,
        "Checkpoints, with `consilience merge`": TENSOR_METHODS,
        "Posterior draws": DRAWS_METHODS,
    }
    names = sorted({method.name for table in tables.values() for method in table})
    if name is not None and name not in names:
        raise click.BadParameter(f"there is no method {name}; there are {', '.join(names)}", param_hint="NAME")
    for title, table in tables.items():
        shown = [method for method in table if name in (None, method.name)]
        if shown:
            click.echo(f"{title}\n")
        for method in shown:
            _print_method(method)
    if name is None:
        click.echo("Estimators, fused by their sums, which takes no method\n")
        for adapter in ESTIMATORS:
            _print_estimator(adapter)


def _print_estimator(adapter: EstimatorAdapter) -> None:
    """Print an estimator, what its fusion is, and what a site gives for it."""
    data = "X" if adapter.needs == "nothing" else "(X, y)"
    needs = "the fitted object" if adapter.lacks is None else f"cs.describe(model, data={data}) at the site"
    if adapter.sent_as is not None:
        needs = f"{adapter.sent_as} at the site"
    if adapter.disclosure() is not None:
        needs += ", and min_count=0 everywhere: extremes are single observations"
    library = adapter.kind.partition(".")[0]
    called = adapter.class_name if library == "sklearn" else f"{adapter.class_name} of {library}"
    click.echo(f"{called:30} {adapter.mark:10} needs: {needs}")


def _format_default(value: Any) -> str:
    """Return the default of an option as ``--set`` takes it; "..." for an option without a default."""
    if value is MISSING:
        return "..."
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _print_method(method: type[Method] | type[NetworkMethod] | type[TensorMethod] | type[DrawsMethod]) -> None:
    """Print what a method does, needs and gives, its paper, and its options with their defaults."""
    click.echo(f"{method.name:12} {method.summary}")
    click.echo(f"{'':12} needs: {method.needs}")
    click.echo(f"{'':12} gives: {method.gives}")
    click.echo(f"{'':12} paper: {method.paper}")
    options = [f"{option.name}={_format_default(option.default)}" for option in fields(method)]
    click.echo(f"{'':12} options: {', '.join(options) or 'none'}\n")


@cli.command()
@click.argument("folder", default="consilience-demo", type=click.Path(path_type=Path))
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of repetitions, compared seed by seed.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def demo(folder: Path, seeds: int, quiet: bool) -> None:
    """Train five sites on real data, fuse their files, and compare, in FOLDER."""
    from consilience.cli.demo import run_demo  # here, so that the other commands start without its imports

    run_demo(folder, seeds, (lambda _line: None) if quiet else click.echo)
