"""The commands ``round open``, ``round flower`` and ``round masked``: the servers of rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from consilience.cli.cases import Case, Choice, CommandOfCases
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.modules import import_module
from consilience.cli.options import method_option, module_option, parse_settings, settings_option
from consilience.cli.rounds.places import address_of, at_the_server, valid_address, valid_place, warn, warn_of_insecure
from consilience.core.recipe import Recipe, read_recipe
from consilience.drawing.words import printable
from consilience.errors import OptionError
from consilience.federated.convergence import table
from consilience.federated.flower.server import serve_flower
from consilience.federated.folder.server import TOLERANCE, report_path, serve_folder
from consilience.federated.masking.keys import read_public_keys
from consilience.federated.masking.network_sum import BY_OBSERVATIONS, SumNoise
from consilience.federated.masking.table import Masked
from consilience.federated.plan import DEADLINE
from consilience.federated.report import RoundError, json_line
from consilience.federated.requests.table import Then
from consilience.federated.round import RoundResult
from consilience.files.limits import Limits

Command = Callable[..., None]
Decorator = Callable[[Command], Command]
Serve = Callable[..., RoundResult]
"""`serve_folder` or `serve_flower`, with the place that they serve."""

_PATH = click.Path(path_type=Path)


def _all_of(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds options in the order in which the help lists them."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


_output = click.option("-o", "--output", required=True, type=_PATH, help="File for the fused model.")

_round_options = _all_of(
    click.option("--deadline", default=DEADLINE, show_default=True, help="Seconds after which the round ends."),
    click.option("--quorum", type=click.IntRange(2), help="Good contributions it takes.  [default: more than half]"),
    click.option("--max-file-size", default=Limits().file_bytes, show_default=True, help="Bytes that a file may have."),
    click.option(
        "--then",
        metavar="KIND[:N][,...]",
        help="Requests that follow, and that sites answer with `consilience round answer`: em:3, or head,choose.",
    ),
    click.option("--report", "page", type=_PATH, help="File for a page about the fusion, HTML."),
    click.option("--work", type=_PATH, help="The server's own folder.  [default: OUTPUT.work]"),
    click.option(
        "--ledger",
        type=_PATH,
        help="Record of the sites of published models: no two are published that together disclose one or two sites.",
    ),
    click.option("--poll", default=1.0, show_default=True, help="Seconds between looks for what came."),
    click.option("--quiet", is_flag=True, help="Print nothing but problems."),
    json_option,
    click.option(
        "--log",
        "log_format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Lines on stderr for people, or JSON for a machine.",
    ),
)
"""Options of every server."""

_fusion_options = _all_of(
    method_option("Name of a method; see `consilience methods`.  [default: the recommended one]"),
    settings_option(),
    click.option("--recipe", type=_PATH, help="A YAML file with method, options and seed."),
    module_option(),
    click.option("--weights", help="How much each site counts: a=2,b=1.  [default: all the same]"),
    click.option("--expect", type=_PATH, help="A file whose kind and shapes all must have."),
    click.option("--allow-single", is_flag=True, help="Publish one site's own network where no fused one is better."),
    click.option("--trust-counts", is_flag=True, help="Count a network's observations whole, however many it claims."),
    click.option("--max-components", default=1000, show_default=True, type=click.IntRange(1), help="Of a posterior."),
    click.option("--seed", type=click.IntRange(0), help="Seed; the same seed gives the same bytes.  [default: 0]"),
    click.option("--rounds", default=1, show_default=True, type=click.IntRange(1), help="Rounds at most."),
    click.option("--tolerance", default=TOLERANCE, show_default=True, help="Rounds end below this relative change."),
)
"""Options of a server that sees what sites send, and fuses it."""

_flower_options = _all_of(
    click.option("--site-keys", type=_PATH, help="Folder with the public key NAME.pub of each site."),
    click.option("--certificates", type=_PATH, help="Folder with server.crt and server.key."),
    click.option("--insecure", is_flag=True, help="Without TLS; for trying out on one machine."),
)
"""Options of a server that sites reach over Flower."""


@click.command("open")
@click.argument("place")
@click.option("--sites", required=True, help="Names of the sites that may take part, separated by commas.")
@_output
@_fusion_options
@_round_options
def open_round(place: str, **options: Any) -> None:
    """Wait for what sites send to PLACE (a folder or URL that all reach), and fuse it.

    The round ends when every site's contribution is in and good, at the deadline, or when the process gets SIGUSR1.
    OUTPUT is the fused model, and OUTPUT with .round.json in place of its suffix says who took part, and why others did
    not; while the round is open, who is in and who is missing. A server that was stopped goes on when started again.

    Where too few answer a request of --then, or send to a later one of --rounds, OUTPUT is the model before it and the
    command ends with status 1. The same command asks a request again.
    """
    _run(partial(serve_folder, place), options)


_TLS: Choice = (Case("the server", lambda _given: True, needs=(("certificates", "insecure"),)),)


@click.command(cls=CommandOfCases, choices=[_TLS])
@click.option(
    "--address",
    required=True,
    metavar="HOST:PORT",
    callback=valid_address,
    help="Where to listen, such as 0.0.0.0:8000.",
)
@click.option("--site-keys", required=True, type=_PATH, help="Folder with the public key NAME.pub of each site.")
@click.option("--certificates", type=_PATH, help="Folder with server.crt and server.key.")
@click.option("--insecure", is_flag=True, help="Without TLS; for trying out on one machine.")
@click.option("--sites", help="Names of the sites that may take part.  [default: those of the keys]")
@_output
@_fusion_options
@_round_options
def flower(address: str, site_keys: Path, certificates: Path | None, insecure: bool, **options: Any) -> None:
    """Listen for sites over Flower, each known by its key, and fuse what they send.

    It is the round of `consilience round open`, in a folder of the server's own; sites give flower://HOST:PORT as its
    place. A site's name is that of its key's file in --site-keys.
    """
    _run(_over_flower(address, site_keys, certificates, insecure), options)


_NOISE_OPTIONS = ("epsilon", "delta", "clip")
_NOISE: Choice = (
    Case("sums without noise", lambda given: all(given[name] is None for name in _NOISE_OPTIONS)),
    Case("noise on averages of networks", lambda _given: True, needs=_NOISE_OPTIONS),
)


@click.command(cls=CommandOfCases, choices=[at_the_server(), _NOISE])
@click.argument("place", callback=valid_place)
@_flower_options
@click.option("--sites", help="Names of the sites that may take part.  [default: those of the keys]")
@click.option("--signing-keys", required=True, type=_PATH, help="Folder with the signing key NAME.pub of each site.")
@click.option("--expect", required=True, type=_PATH, help="A file that says what the numbers under masks are.")
@_output
@click.option(
    "--weights",
    metavar="a=2,b=1|n_observations",
    help="How much each network counts: by name, or as its description says.  [default: all the same]",
)
@click.option("--epsilon", type=float, help="Of differential privacy of a site's contribution.")
@click.option("--delta", type=float, help="Of the same.")
@click.option("--clip", type=float, help="Norm to which updates of networks are cut before noise is added.")
@_round_options
def masked(
    place: str,
    signing_keys: Path,
    weights: str | None,
    site_keys: Path | None,
    certificates: Path | None,
    insecure: bool,
    sites: str | None,
    **options: Any,
) -> None:
    """Sum what sites send under masks to PLACE, a folder, a URL, or flower://HOST:PORT to listen at; see the sum alone.

    --expect is a file of statistics of the same estimator, the common start of networks, or with --then the model from
    which requests start. Sites stay until the sum is opened (`consilience round send --signing-key`). --quorum is how
    many of them open it, more than two thirds by default, and the deadline is that of each of five steps.
    """
    by_observations = weights == BY_OBSERVATIONS
    noise = [options.pop(name) for name in _NOISE_OPTIONS]  # all of them or none
    options["masked"] = Masked(signing_keys, by_observations, None if None in noise else SumNoise(*noise))
    options["weights"] = None if by_observations else weights
    address = address_of(place)
    if address is not None:
        options["sites"] = sites
        _run(_over_flower(address, site_keys, certificates, insecure), options)
    else:
        options["sites"] = sites if sites is not None else ",".join(read_public_keys(signing_keys))
        _run(partial(serve_folder, place), options)


def _over_flower(address: str, site_keys: Path | None, certificates: Path | None, insecure: bool) -> Serve:
    """Return the server at an address, having warned of one without TLS."""
    warn_of_insecure(insecure)
    connection: dict[str, Any] = {"site_keys": site_keys, "certificates": certificates, "insecure": insecure}
    return partial(serve_flower, address, **connection)


def _run(serve: Serve, options: dict[str, Any]) -> None:
    """Run the server of a round with the options of its command, and print what came of it."""
    output, page, quiet, as_json = (options.pop(name) for name in ("output", "page", "quiet", "as_json"))
    shown = json_line if options.pop("log_format") == "json" else printable
    sites, weights, module = (options.pop(name, None) for name in ("sites", "weights", "module"))
    file_bytes, components = options.pop("max_file_size"), options.pop("max_components", None)
    arguments: dict[str, Any] = {
        **_planned(options),
        **({} if module is None else {"module": import_module(module, "--module")}),
        "sites": None if sites is None else [name.strip() for name in sites.split(",") if name.strip()],
        "weights": None if weights is None else _parse_weights(weights),
        "limits": Limits(file_bytes=file_bytes, **({} if components is None else {"components": components})),
        "say": None if quiet or as_json else (lambda line: click.echo(shown(line), err=True)),
    }
    _report(serve(output, **arguments), output, page, quiet, as_json)


def _planned(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with method, its options and seed as a recipe and the command line state them."""
    if options["then"] is not None:
        Then.parse(options["then"])  # before a recipe or key is read
    if "recipe" not in options:  # of a masked round
        return options
    recipe, settings, method, seed = (options.pop(name) for name in ("recipe", "settings", "method", "seed"))
    plan = Recipe() if recipe is None else read_recipe(recipe)
    if plan.models or plan.weights is not None or plan.module is not None or plan.example is not None:
        raise OptionError(recipe, "a round takes method, options, seed, symmetry and reference of a recipe, no more")
    symmetry = {} if plan.symmetry is None else {"symmetry": Path(plan.symmetry)}
    stated = {"method": method or plan.method, "rng": seed if seed is not None else (plan.seed or 0)}
    return {**options, **plan.options, **parse_settings(settings), **symmetry, **stated}


def _report(result: RoundResult, output: Path, page: Path | None, quiet: bool, as_json: bool) -> None:
    """Write the page of a round, and print who took part; raise for what went wrong after its first model."""
    if page is not None and result.fusion is not None:
        result.fusion.report(page)
    elif page is not None and not page.exists():
        warn(f"{page} is not written: the round had ended before, and the sites' files that it shows are gone")
    if result.report.problems:  # of a later round or request; where the first one fails there is no result
        if not (quiet or as_json):
            click.echo(f"{output} is the model before that")
        raise RoundError(result.report)
    if as_json:
        pages = [] if page is None else [page]
        echo_json({"report": result.report.to_json(), "wrote": [output, report_path(output), *pages]})
    elif not quiet:
        _print_result(result, output)


def _print_result(result: RoundResult, output: Path) -> None:
    """Print who took part, how the rounds converged, and which files were written."""
    for line in result.report.lines():
        echo_prose(line)
    rows = [dict(report.convergence) for report in result.reports if report.convergence is not None]
    if rows:
        click.echo(table(rows))
    click.echo(f"wrote {output} and {report_path(output)}")


def _parse_weights(text: str) -> dict[str, float]:
    """Return weights by site, from a text such as "a=2,b=1"."""
    weights = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError as error:
            raise OptionError(f"--weights {text}: expected NAME=NUMBER separated by commas, such as a=2,b=1") from error
    return weights
