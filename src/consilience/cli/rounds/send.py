"""The command ``round send``: a site's file, or its models of several rounds, go to a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from consilience.checks import Json
from consilience.cli.cases import Case, Choice, CommandOfCases
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.modules import import_object
from consilience.cli.rounds.masks import MaskedOutput, masked_site_options, masks_of
from consilience.cli.rounds.places import (
    IN_A_ROUND,
    at_a_site,
    reached,
    site_options,
    valid_place,
    wait_for_open_round,
    warn,
)
from consilience.core.min_count import MIN_COUNT
from consilience.drawing.words import printable
from consilience.errors import OptionError
from consilience.federated.folder.masked_site import send_masked
from consilience.federated.folder.site import Sent, receive_folder, send_folder, sendable_files, take_part
from consilience.federated.folder.storage import storage_of
from consilience.federated.masking.exchange import TookPart
from consilience.federated.report import RoundReport
from consilience.files.limits import Limits

_WHAT: Choice = (
    Case(
        "a call without --refine",
        lambda given: given["refine"] is None,
        needs=("file",),
        takes=("fisher", "attempt", "allow_differencing"),
    ),
    Case("a call with --refine", lambda _given: True),
)


@click.command(cls=CommandOfCases, choices=[_WHAT, at_a_site("site", takes=("early",)), IN_A_ROUND])
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--to",
    "place",
    metavar="PLACE",
    required=True,
    callback=valid_place,
    help="Folder or URL of the round, or flower://HOST:PORT.",
)
@site_options
@click.option(
    "--fisher",
    "--description",
    "fisher",
    type=click.Path(path_type=Path),
    help="File of the network's Fisher information, or of its description.",
)
@masked_site_options("FILE.masked")
@click.option("--attempt", type=click.IntRange(1), help="A higher attempt replaces a lower one.  [default: the next]")
@click.option("--receive", type=click.Path(path_type=Path), help="Wait for the fused model and write it there.")
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds to wait for the server, and for the model.")
@click.option("--min-count", default=MIN_COUNT, show_default=True, help="Withhold components of fewer observations.")
@click.option("--early", is_flag=True, help="Send openly before a server has opened the round.")
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
def send(place: str, **options: Any) -> None:
    """Check FILE, what this site learned, and send it to a round, once its server has opened it.

    With --signing-key its numbers leave under masks, and the command stays until the sum is over; stopped, it goes on
    when it is called again. A round that is masked takes nothing else, and one that is not is refused.
    """
    masks = masks_of(options)
    with reached(place, options) as (storage, site):
        if masks is not None:
            _send_masked(storage, site, masks, options)
        else:
            _send(storage, site, options)


def _send_masked(place: Any, site: Any, masks: dict[str, Any], options: dict[str, Any]) -> None:
    """Take part with a file in a masked round, and print what came of it."""
    output = MaskedOutput(options["receive"], options.pop("quiet"), options.pop("as_json"))
    file = options.pop("file")
    for name in ("attempt", "early", "refine"):  # which only an open round takes
        del options[name]
    arguments = {**masks, "description": options.pop("fisher"), **options, "say": output.say}
    output.print(send_masked(file, place, site, **arguments), _masked_json)


def _masked_json(took: TookPart) -> dict[str, Json]:
    """Return a site's part in a masked round as JSON values."""
    is_in = took.site in took.report.sites
    values: dict[str, Json] = {"attempt": None, "sha256": None, "took_part": is_in, "rounds": took.sums}
    return {**values, "warnings": list(took.warnings)}


def _send(place: Any, site: Any, options: dict[str, Any]) -> None:
    """Send a file, or models of all rounds, and print what came of it."""
    file, receive, timeout = options["file"], options["receive"], options["timeout"]
    quiet, as_json = options["quiet"], options["as_json"]
    refine = None if options["refine"] is None else _import_callable(options["refine"])
    if not options["early"]:
        wait_for_open_round(place, timeout, lambda: _before_waiting(place, options))
    if refine is not None:
        _, report = take_part(place, site, refine, timeout=timeout, min_count=options["min_count"], say=warn)
        if receive is not None:
            receive_folder(place, receive, number=report.number, timeout=timeout)
        _print_rounds(report, receive, quiet, as_json)
        return
    sent = send_folder(
        file,
        place,
        site,
        fisher=options["fisher"],
        **{name: options[name] for name in ("attempt", "min_count", "allow_differencing")},
    )
    if not as_json:  # while the fused model is waited for
        _print_sent(sent, file, None, None, quiet, as_json)
    received = None if receive is None else receive_folder(place, receive, timeout=timeout)
    if as_json:
        _print_sent(sent, file, received, receive, quiet, as_json)
    elif received is not None and receive is not None:
        print_received(received, receive, quiet, sent.announcement.digest)


def _before_waiting(place: Any, options: dict[str, Any]) -> None:
    """Refuse a file that no server would take, and say that the round is waited for."""
    if (file := options["file"]) is not None:
        with sendable_files(file, options["fisher"], Limits(), options["min_count"], options["allow_differencing"]):
            pass
    if not options["quiet"]:
        line = f"waiting for a server to open the round in {storage_of(place).where}; --early sends without waiting"
        click.echo(printable(line), err=True)


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
        print_received(report, receive, quiet, digest)


def print_received(report: RoundReport, receive: Path, quiet: bool, digest: str) -> None:
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
