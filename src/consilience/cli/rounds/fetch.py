"""The command ``round fetch``: the fused model of a round, for who did not wait for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from consilience.cli.cases import CommandOfCases
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.rounds.places import at_a_site, reached, site_options, valid_place, warn
from consilience.drawing.words import printable
from consilience.federated.folder.site import read_report, receive_folder, wait_for_report
from consilience.federated.folder.storage import storage_of
from consilience.federated.report import RoundReport
from consilience.files.atomic import refuse_unwritable


@click.command(cls=CommandOfCases, choices=[at_a_site(takes=("site",))])
@click.argument("place", callback=valid_place)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the fused model.")
@site_options
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds to wait for the end of the round.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def fetch(place: str, output: Path, timeout: float, quiet: bool, as_json: bool, **options: Any) -> None:
    """Wait until the round in PLACE is over, all its rounds and requests, and write the fused model to OUTPUT.

    A folder or bucket has it for as long as its files stay. Over Flower (flower://HOST:PORT) it is handed out while the
    server runs. With --site a warning says why that site's contribution is not in it.
    """
    refuse_unwritable(output)
    with reached(place, {**options, "timeout": timeout}, waits=False) as (storage, site):
        report = _receive_last(storage, output, timeout, quiet)
    if site is not None and site not in report.sites:
        _warn_of_left_out(report, site)
    if as_json:
        echo_json({"report": report.to_json(), "wrote": [output]})
    elif not quiet:
        for line in report.lines():
            echo_prose(line)
        click.echo(f"wrote {output}")


def _receive_last(place: Any, output: Path, timeout: float, quiet: bool) -> RoundReport:
    """Write the model after the last round or request of a place; return the report of its round."""
    storage, number, deadline = storage_of(place), 1, time.monotonic() + timeout
    if not quiet and read_report(storage, 1) is None:
        click.echo(printable(f"waiting for the end of the round in {storage.where}"), err=True)
    when = f"within {timeout:g} seconds"
    while (report := wait_for_report(storage, number, deadline, when)).goes_on and not report.problems:
        number += 1
    if report.problems and number > 1:
        warn(f"round {number} failed ({'; '.join(report.problems)}); this is the model of round {number - 1}")
        number -= 1
    return receive_folder(place, output, number=number, timeout=timeout)


def _warn_of_left_out(report: RoundReport, site: str) -> None:
    """Warn that a site's contribution is not in the fused model, and why."""
    records = [*report.left_out, *report.ignored, *report.carried]
    reasons = [reason for record in records if record.site == site for reason in record.reasons]
    if any(record.site == site for record in report.late):
        reasons.append("it came too late")
    if site in report.missing:
        reasons.append("nothing came of it")
    warn(f"{site} did not take part in round {report.number}: {'; '.join(reasons) or 'it was not expected'}")
