"""The commands ``serve`` and ``send``: federated rounds of fusion over a shared folder, a bucket, or Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.masked import MaskedOptions, flower_connection, only_for, place_and_site, warn, warn_of_insecure
from consilience.cli.modules import import_module, import_object
from consilience.cli.options import module_option, parse_settings
from consilience.core.min_count import MIN_COUNT
from consilience.core.recipe import Recipe, read_recipe
from consilience.drawing.words import printable
from consilience.errors import OptionError
from consilience.federated.convergence import table
from consilience.federated.flower.server import serve_flower
from consilience.federated.flower.site import send_flower
from consilience.federated.folder.server import TOLERANCE, report_path, serve_folder
from consilience.federated.folder.site import Sent, receive_folder, send_folder, take_part
from consilience.federated.masking.keys import read_public_keys
from consilience.federated.masking.network_sum import BY_OBSERVATIONS, SumNoise
from consilience.federated.masking.table import Masked
from consilience.federated.plan import DEADLINE
from consilience.federated.report import RoundError, RoundReport, json_line
from consilience.federated.requests.table import Then
from consilience.federated.round import RoundResult
from consilience.files.limits import Limits


@click.command()
@click.argument("place", required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the fused model.")
@click.option("--flower", is_flag=True, help="Let sites come over Flower instead of to a PLACE.")
@click.option("--address", metavar="HOST:PORT", help="Where to listen, such as 0.0.0.0:8000.")
@click.option("--certificates", type=click.Path(path_type=Path), help="Folder with server.crt and server.key.")
@click.option("--site-keys", type=click.Path(path_type=Path), help="Folder with the public key NAME.pub of each site.")
@click.option("--insecure", is_flag=True, help="Without TLS; for trying out on one machine.")
@click.option(
    "--sites", help="Names of the sites that may take part, separated by commas; over Flower, those of the keys."
)
@click.option("--method", help="Name of a method; see `consilience methods`.  [default: the recommended one]")
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of the method.")
@click.option("--recipe", type=click.Path(path_type=Path), help="A YAML file with method, options and seed.")
@module_option()
@click.option(
    "--weights",
    help="How much each site counts: a=2,b=1; masked also n_observations, of descriptions.  [default: all the same]",
)
@click.option("--deadline", default=DEADLINE, show_default=True, help="Seconds after which the round ends.")
@click.option("--quorum", type=click.IntRange(2), help="Good contributions it takes.  [default: more than half]")
@click.option("--expect", type=click.Path(path_type=Path), help="A file whose kind and shapes all must have.")
@click.option(
    "--max-file-size", "limit", default=Limits().file_bytes, show_default=True, help="Bytes that a file may have."
)
@click.option("--max-components", default=1000, show_default=True, type=click.IntRange(1), help="Of a posterior.")
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1), help="Rounds at most.")
@click.option("--tolerance", default=TOLERANCE, show_default=True, help="Rounds end below this relative change.")
@click.option(
    "--then",
    metavar="KIND[:N][,...]",
    help="Requests that follow, and that sites answer with `consilience answer`, such as em:3 or head,choose.",
)
@click.option("--report", "page", type=click.Path(path_type=Path), help="File for a page about the fusion, HTML.")
@click.option("--work", type=click.Path(path_type=Path), help="The server's own folder.  [default: OUTPUT.work]")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    help="Record of the sites of published models: no two are published that together disclose one or two sites.",
)
@click.option("--masked", is_flag=True, help="Sum what sites send under masks, and see the sum alone.")
@click.option(
    "--signing-keys",
    type=click.Path(path_type=Path),
    help="Folder with the signing key NAME.pub of each site, --masked.",
)
@click.option("--epsilon", type=float, help="Noise on masked averages of networks, with --delta and --clip.")
@click.option("--delta", type=float, help="Of that noise.")
@click.option("--clip", type=float, help="Norm to which updates of networks are cut before noise is added.")
@click.option("--allow-single", is_flag=True, help="Publish one site's own network where no fused one is better.")
@click.option("--trust-counts", is_flag=True, help="Count a network's observations whole, however many are claimed.")
@click.option("--poll", default=1.0, show_default=True, help="Seconds between looks into the place.")
@click.option("--seed", type=click.IntRange(0), help="Seed; the same seed gives the same bytes.  [default: 0]")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
@click.option(
    "--log",
    "log_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines on stderr for people, or JSON for a machine.",
)
def serve(
    place: str | None,
    output: Path,
    sites: str | None,
    method: str | None,
    settings: tuple[str, ...],
    recipe: Path | None,
    module: str | None,
    weights: str | None,
    limit: int,
    max_components: int,
    page: Path | None,
    seed: int | None,
    quiet: bool,
    as_json: bool,
    log_format: str,
    flower: bool,
    address: str | None,
    certificates: Path | None,
    site_keys: Path | None,
    insecure: bool,
    masked: bool,
    signing_keys: Path | None,
    epsilon: float | None,
    delta: float | None,
    clip: float | None,
    **round_options: Any,
) -> None:
    """Wait for what sites send to PLACE (a folder or URL that all reach), and fuse it.

    The round ends when every site's contribution is in and good, at the deadline, or when the process gets SIGUSR1.
    OUTPUT is the fused model, and OUTPUT with .round.json in place of its suffix says who took part, and why others did
    not; while the round is open, who is in and who is missing. A server that was stopped goes on when started again.

    Where too few answer a request of --then, or send to a later one of --rounds, OUTPUT is the model before it and the
    command ends with status 1. The same command asks a request again.

    With --masked the server sees the sum alone: it takes --signing-keys, --expect (statistics of the same estimator, or
    the common start of networks), and sites that stay (`consilience send --masked`). --quorum is then how many of them
    open the sum, more than two thirds by default, and the deadline is that of each of five steps.
    """
    shown = json_line if log_format == "json" else printable
    arguments: dict[str, Any] = {
        **round_options,
        **_planned(recipe, settings, method, seed, round_options["then"]),
        **({} if module is None else {"module": import_module(module, "--module")}),
        "weights": None if weights in (None, BY_OBSERVATIONS) else _parse_weights(str(weights)),
        "masked": _masked(masked, signing_keys, weights == BY_OBSERVATIONS, (epsilon, delta, clip)),
        "limits": Limits(file_bytes=limit, components=max_components),
        "say": None if quiet or as_json else (lambda line: click.echo(shown(line), err=True)),
        "sites": _site_names(sites, signing_keys if masked and not flower else None),
    }
    if flower:
        if place is not None or address is None or site_keys is None:
            raise click.UsageError("--flower takes --address and --site-keys, and no PLACE.")
        warn_of_insecure(insecure)
        connection: dict[str, Any] = {"site_keys": site_keys, "certificates": certificates, "insecure": insecure}
        result = serve_flower(address, output, **connection, **arguments)
    else:
        if place is None or arguments["sites"] is None:
            raise click.UsageError("Missing argument 'PLACE' or option '--sites'.")
        only_for("--flower", address=address, certificates=certificates, site_keys=site_keys, insecure=insecure)
        result = serve_folder(place, output, **arguments)
    _report(result, output, page, quiet, as_json)


def _planned(
    recipe: Path | None, settings: tuple[str, ...], method: str | None, seed: int | None, then: str | None
) -> dict[str, Any]:
    """Return method, options and seed as a recipe and the command line state them."""
    if then is not None:
        Then.parse(then)  # before a recipe or key is read
    plan = Recipe() if recipe is None else read_recipe(recipe)
    if plan.models or plan.weights is not None or plan.module is not None or plan.example is not None:
        raise OptionError(recipe, "a round takes method, options, seed, symmetry and reference of a recipe, no more")
    symmetry = {} if plan.symmetry is None else {"symmetry": Path(plan.symmetry)}
    stated = {"method": method or plan.method, "rng": seed if seed is not None else (plan.seed or 0)}
    return {**plan.options, **parse_settings(settings), **symmetry, **stated}


def _site_names(sites: str | None, keys: Path | None) -> list[str] | None:
    """Return the names of the sites, by their keys where these are given alone; None where nothing names them."""
    if sites is None:
        return None if keys is None else list(read_public_keys(keys))
    return [name.strip() for name in sites.split(",") if name.strip()]


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


def _masked(
    is_masked: bool, signing_keys: Path | None, by_observations: bool, noise: tuple[float | None, ...]
) -> Masked | None:
    """Return how a round is masked; None for an open one."""
    if not is_masked:
        epsilon, delta, clip = noise
        only_for("--masked", signing_keys=signing_keys, epsilon=epsilon, delta=delta, clip=clip)
        if by_observations:
            raise click.UsageError("--weights n_observations: for --masked only; in open rounds descriptions say it.")
        return None
    if signing_keys is None:
        raise click.UsageError("--masked takes --signing-keys, a folder with NAME.pub of each site.")
    if noise.count(None) not in (0, len(noise)):
        raise click.UsageError("Noise takes all of --epsilon, --delta and --clip.")
    epsilon, delta, clip = noise
    if epsilon is None or delta is None or clip is None:
        return Masked(signing_keys, by_observations)
    return Masked(signing_keys, by_observations, SumNoise(epsilon, delta, clip))


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


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--to", "place", help="Folder or URL of the round.")
@click.option("--site", help="Name of this site.")
@click.option("--flower", metavar="HOST:PORT", help="Address of a server that runs with --flower.")
@click.option("--key", type=click.Path(path_type=Path), help="Private key of this site, for --flower.")
@click.option("--root-certificates", type=click.Path(path_type=Path), help="Certificate by which it is known, PEM.")
@click.option("--insecure", is_flag=True, help="Without TLS; for trying out on one machine.")
@click.option(
    "--fisher",
    "--description",
    "fisher",
    type=click.Path(path_type=Path),
    help="File of the network's Fisher information, or of its description.",
)
@click.option("--masked", is_flag=True, help="Send under masks, to a server that runs with --masked, and stay.")
@click.option("--signing-key", type=click.Path(path_type=Path), help="Ed25519 key of this site, for --masked.")
@click.option(
    "--signing-keys", type=click.Path(path_type=Path), help="Folder with NAME.pub of all sites, not from the server."
)
@click.option("--work", type=click.Path(path_type=Path), help="Own folder, for --masked.  [default: FILE.masked]")
@click.option("--attempt", type=click.IntRange(1), help="A higher attempt replaces a lower one.  [default: the next]")
@click.option("--receive", type=click.Path(path_type=Path), help="Wait for the fused model and write it there.")
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds to wait for it.")
@click.option("--min-count", default=MIN_COUNT, show_default=True, help="Withhold components of fewer observations.")
@click.option(
    "--allow-differencing",
    is_flag=True,
    help="Send a result of adding or removing a site, which tells that site's sums to whoever has the one before it.",
)
@click.option(
    "--refine",
    metavar="PKG.MOD:CALLABLE",
    help="Take part in all rounds: called with the fused model (None at first) and the round's number, it returns this "
    "site's model. Importing it runs its code.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def send(
    file: Path | None,
    place: str | None,
    site: str | None,
    refine: str | None,
    receive: Path | None,
    timeout: float,
    min_count: float,
    quiet: bool,
    as_json: bool,
    flower: str | None,
    key: Path | None,
    root_certificates: Path | None,
    insecure: bool,
    masked: bool,
    signing_key: Path | None,
    signing_keys: Path | None,
    work: Path | None,
    **announcement: Any,
) -> None:
    """Check FILE, what this site learned, and send it to a round that `consilience serve` waits for.

    With --masked its numbers leave under masks, and the command stays until the sum is over; stopped, it goes on when
    it is called again.
    """
    connection = {"key": key, "root_certificates": root_certificates, "insecure": insecure}
    if masked:
        if refine is not None or file is None or announcement.pop("attempt") is not None:
            raise click.UsageError("--masked takes FILE, and no --refine or --attempt.")
        own = MaskedOptions(signing_key, signing_keys, work, receive, timeout, min_count, quiet, as_json)
        own.send(file, place, site, flower=flower, connection=connection, **announcement)
        return
    only_for("--masked", signing_key=signing_key, signing_keys=signing_keys, work=work)
    if flower is not None:
        usage = "--flower takes FILE and --key, and no --to, --site (its key says who) or --refine."
        if refine is not None or file is None:
            raise click.UsageError(usage)
        known = flower_connection(place, site, connection, usage)
        sent = send_flower(file, flower, receive=receive, min_count=min_count, timeout=timeout, **known, **announcement)
        _print_sent(sent, file, sent.report, receive, quiet, as_json)
        return
    place, site = place_and_site(place, site, connection, "Missing option '--to' or '--site'.")
    if (file is None) == (refine is None):
        raise click.UsageError("Give one of FILE and --refine.")
    if file is None:
        _print_rounds(_take_part(place, site, str(refine), receive, timeout, min_count), receive, quiet, as_json)
        return
    sent = send_folder(file, place, site, min_count=min_count, **announcement)
    if not as_json:  # while the fused model is waited for
        _print_sent(sent, file, None, None, quiet, as_json)
    received = None if receive is None else receive_folder(place, receive, timeout=timeout)
    if as_json:
        _print_sent(sent, file, received, receive, quiet, as_json)
    elif received is not None and receive is not None:
        _print_received(received, receive, quiet, sent.announcement.digest)


def _take_part(
    place: str, site: str, refine: str, receive: Path | None, timeout: float, min_count: float
) -> RoundReport:
    """Take part in all rounds with what --refine names, and write the fused model where it is asked for."""
    _, report = take_part(place, site, _import_callable(refine), timeout=timeout, min_count=min_count, say=warn)
    if receive is not None:
        receive_folder(place, receive, number=report.number, timeout=timeout)
    return report


def _print_rounds(report: RoundReport, receive: Path | None, quiet: bool, as_json: bool) -> None:
    """Print in how many rounds this site took part."""
    if as_json:
        wrote = [] if receive is None else [receive]
        nothing = dict.fromkeys(("attempt", "sha256"))
        echo_json({**nothing, "took_part": None, "warnings": [], "rounds": report.number, "wrote": wrote})
    elif not quiet:
        click.echo(f"took part in {report.number} rounds" + ("" if receive is None else f"; wrote {receive}"))


def _sent_json(sent: Sent, report: RoundReport | None, receive: Path | None) -> dict[str, Any]:
    """Return what was sent as JSON values, and whether it is in the fused model where that came back."""
    digest = sent.announcement.digest
    return {
        "attempt": sent.announcement.attempt,
        "sha256": digest,
        "took_part": None if report is None else digest in {site.sha256 for site in report.took_part},
        "warnings": list(sent.warnings),
        "rounds": None,
        "wrote": [] if receive is None or report is None else [receive],
    }


def _print_sent(
    sent: Sent, file: Path, report: RoundReport | None, receive: Path | None, quiet: bool, as_json: bool
) -> None:
    """Print what was sent and its warnings; where the fused model came back with it, that too."""
    if as_json:
        echo_json(_sent_json(sent, report, receive))
        return
    for warning in sent.warnings:
        warn(warning)
    attempt, digest = sent.announcement.attempt, sent.announcement.digest
    if not quiet:
        click.echo(f"{'had sent' if sent.again else 'sent'} {file} as attempt {attempt} ({digest[:12]})")
    if report is not None and receive is not None:
        _print_received(report, receive, quiet, digest)


def _print_received(report: RoundReport, receive: Path, quiet: bool, digest: str) -> None:
    """Print who took part in a round; warn where the contribution with this digest was left out, and why."""
    if digest not in {site.sha256 for site in report.took_part}:
        reasons = [reason for site in report.left_out if site.sha256 == digest for reason in site.reasons]
        warn(f"this site's contribution is not in the fused model: {'; '.join(reasons) or 'it came too late'}")
    if not quiet:
        click.echo(f"{len(report.took_part)} of {len(report.expected)} sites took part; wrote {receive}")


def _import_callable(text: str) -> Any:
    """Return the callable that --refine names; importing it runs its code."""
    refine = import_object(text, f"--refine {text}")
    if not callable(refine):
        raise OptionError(f"--refine {text}: is a {type(refine).__name__}, expected what can be called")
    return refine
