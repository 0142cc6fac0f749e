"""The command group ``consilience`` with all its commands, an example of each, and the short one: ``demo``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from consilience.catalogue import suggestion
from consilience.cli.answer import answer
from consilience.cli.completion import completion
from consilience.cli.describe import describe
from consilience.cli.doctor import doctor
from consilience.cli.evaluate import evaluate
from consilience.cli.fisher import fisher
from consilience.cli.fuse import check, fuse
from consilience.cli.head import head
from consilience.cli.inspect import inspect
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.merge import merge
from consilience.cli.methods import methods
from consilience.cli.networks import barrier, symmetry
from consilience.cli.pack import pack
from consilience.cli.report import report
from consilience.cli.serve import send, serve
from consilience.cli.short_warnings import short_warnings


class _SuggestingGroup(click.Group):
    """Commands, of which a misspelt one is answered with the one that was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word, or raise with the nearest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            meant = suggestion(args[0], self.list_commands(ctx))
            raise click.UsageError(f"No such command {args[0]!r}{meant or '.'} [E-COMMAND]", ctx)
        return super().resolve_command(ctx, args)


_EXIT_CODES = """\b
Exit codes: 0 done, 1 the input is at fault (a line for each problem on stderr),
2 wrong usage or options, 130 interrupted."""


@click.group(cls=_SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(package_name="consilience")
def cli() -> None:
    """Fuse models that were trained apart into one. No data travels, only parameters."""
    click.get_current_context().with_resource(short_warnings())


EXAMPLES = {
    "answer": "consilience answer shared/round --site lund --data patients.csv",
    "barrier": "consilience barrier lund.safetensors oslo.safetensors --module nets:make --data test.npz",
    "check": "consilience check lund.safetensors oslo.safetensors",
    "completion": "consilience completion bash",
    "demo": "consilience demo",
    "describe": "consilience describe lund.safetensors --module nets:make --data train.npz -o lund-said.safetensors",
    "doctor": "consilience doctor",
    "evaluate": "consilience evaluate fused.safetensors lund.safetensors --data patients.csv",
    "fisher": "consilience fisher lund.safetensors --module nets:make --data train.npy -o lund.fisher.safetensors",
    "fuse": "consilience fuse lund.safetensors oslo.safetensors -o fused.safetensors --set regularization=0.3",
    "head": "consilience head ridge --data train.npz --fourier 500 -o lund-head.safetensors",
    "inspect": "consilience inspect fused.safetensors",
    "merge": "consilience merge llama-law llama-medicine -o merged --method ties --base llama --set density=0.2",
    "methods": "consilience methods kl",
    "pack": "consilience pack sites -o packed",
    "report": "consilience report fused.safetensors lund.safetensors oslo.safetensors -o report.html",
    "send": "consilience send lund.safetensors --to shared/round --site lund",
    "serve": "consilience serve shared/round --sites lund,oslo -o fused.safetensors",
    "symmetry": "consilience symmetry --module nets:make --example 1,784 -o symmetry.json",
}
"""An example of every command, which its --help shows."""

for _command in (
    fuse, check, inspect, describe, head, report, evaluate, symmetry, fisher, barrier, merge, pack, serve, send, answer,
    methods, doctor, completion,
):  # fmt: skip
    cli.add_command(_command)


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
@json_option
def demo(folder: Path, seeds: int, quiet: bool, as_json: bool) -> None:
    """Train five sites on real data, fuse their files, and compare, in FOLDER."""
    from consilience.cli.demo import run_demo  # here, so that the other commands start without its imports

    run_demo(folder, seeds, (lambda _line: None) if quiet or as_json else click.echo)
    if as_json:
        written = [folder / "demo.json", folder / "demo.svg", folder / "report.html"]
        echo_json({"wrote": written, "results": json.loads((folder / "demo.json").read_text())})


for _name, _command in cli.commands.items():
    _command.epilog = f"\b\nExample:\n  {EXAMPLES[_name]}"
