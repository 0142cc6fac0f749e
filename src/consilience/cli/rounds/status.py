"""The command ``round status``: who is in a round, who is missing, what is asked, and how it ended.

Everybody who reaches the place of a round sees what sites announced and what the server published. What the server
makes of it while the round is open, who was refused and when it ends, is in its own files with OUTPUT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from consilience.checks import Json
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.rounds.places import address_of, read_plan, valid_place
from consilience.drawing.words import printable
from consilience.errors import InputError
from consilience.federated.contribution import parse_announcement
from consilience.federated.folder.answer import fetch_request
from consilience.federated.folder.inbox import MAX_FILES, seconds_left, site_folder
from consilience.federated.folder.server import report_path, work_folder_of
from consilience.federated.folder.site import read_report
from consilience.federated.folder.storage import LocalStorage, Storage, storage_of
from consilience.federated.masking.messages import STEP_NAMES, STEPS
from consilience.federated.report import OPEN, RoundReport
from consilience.federated.requests.table import Then
from consilience.files.limits import Limits
from consilience.files.opening import read_file

NOT_OPENED, OVER, FAILED = "not opened", "over", "failed"
"""States of a round, besides "open"."""


@dataclass(frozen=True)
class RoundStatus:
    """How a round stands."""

    place: str
    state: str  # "not opened", "open", "over" or "failed"
    number: int  # of the round that is open, or of the last one
    sites_in: tuple[str, ...] = ()  # who sent something, or by the server's own report who is in
    missing: tuple[str, ...] = ()
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by site, why
    request: Mapping[str, Json] | None = None  # kind, number and rounds of the request that is open
    step: int | None = None  # of the masked sum that is open
    seconds_left: float | None = None  # until the deadline; None where it is not known
    report: RoundReport | None = None  # the last one that was published

    def to_json(self) -> dict[str, Json]:
        """Return the status as JSON values."""
        report = None if self.report is None else self.report.to_json()
        values = {name: getattr(self, name) for name in ("place", "state", "number", "request", "step", "seconds_left")}
        verdict = None if self.report is None else self.report.verdict
        sites = {"sites_in": list(self.sites_in), "missing": list(self.missing), "refused": dict(self.refused)}
        return {**values, **sites, "verdict": verdict, "report": report}

    def lines(self) -> Iterator[str]:
        """Yield the status as lines for people."""
        if self.state != OPEN:
            yield f"the round of {self.place} is {self.state}"
            yield from [] if self.report is None else self.report.lines()
        else:
            asked = "" if self.request is None else " (request {kind} {number} of {rounds})".format(**self.request)
            step = "" if self.step is None else f", step {self.step} of {len(STEPS)}: {STEP_NAMES[self.step]}"
            yield f"round {self.number}{asked} of {self.place} is open{step}"
            yield f"deadline: {_interval(self.seconds_left)}"
        if self.state in (OPEN, NOT_OPENED):
            yield f"in: {', '.join(self.sites_in) or 'nobody'}"
            yield from [f"missing: {', '.join(self.missing)}"] if self.missing else []
            yield from (f"refused: {site}: {'; '.join(reasons)}" for site, reasons in sorted(self.refused.items()))


@click.command()
@click.argument("place", required=False, callback=valid_place)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="OUTPUT of the server, where that runs.")
@click.option("--work", type=click.Path(path_type=Path), help="The server's own folder.  [default: OUTPUT.work]")
@json_option
def status(place: str | None, output: Path | None, work: Path | None, as_json: bool) -> None:
    """Show who is in the round in PLACE, who is missing, which request is open, and how it ended.

    With the OUTPUT of its server, on the machine where that runs, also who was refused and why, and how long it is
    until the deadline. Of a round over Flower, OUTPUT alone is given.
    """
    own = None if output is None else work_folder_of(output, work)
    if place is not None and address_of(place) is not None:
        raise click.UsageError("A round over Flower is seen where its server runs: give -o OUTPUT in place of PLACE.")
    if place is None and own is None:
        raise click.UsageError("Give PLACE, or -o OUTPUT of the server, or both.")
    shown = read_status(place, output, own)
    if as_json:
        echo_json(shown.to_json())
    else:
        for line in shown.lines():
            echo_prose(printable(line))


def read_status(place: str | None, output: Path | None, work: Path | None) -> RoundStatus:
    """Return how a round stands.

    `place` is a folder or URL, None for a round over Flower; `output` and `work` are the server's own, where they are
    at hand. Raises InputError where there is no such folder.
    """
    own, storage = _own_report(output), storage_of(str(work / "flower") if place is None and work else str(place))
    where = storage.where if place is not None else f"{output}"
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        if own is not None:  # the folder of a round over Flower is gone when it is over
            return _own_status(where, own, own, None)
        raise InputError(storage.where, "there is no such folder, and no report of a server", code="E-MISSING")
    plan, published = read_plan(storage), _published(storage)
    last = published[-1] if published else None
    if plan is None:
        return RoundStatus(where, NOT_OPENED, 1, sites_in=tuple(sorted(storage.names("sites", MAX_FILES))))
    if own is not None and own.closed == OPEN:
        return _own_status(where, own, last, work, _request(storage, plan, own.number))
    if last is not None and (last.problems or not last.goes_on):
        return RoundStatus(where, FAILED if last.problems else OVER, last.number, last.sites, last.missing, report=last)
    return _announced_status(where, storage, plan, len(published) + 1, last)


def _own_report(output: Path | None) -> RoundReport | None:
    """Return the server's own report with its output; None without one."""
    if output is None or not report_path(output).exists():
        return None
    return RoundReport.from_bytes(read_file(report_path(output)))


def _own_status(
    place: str,
    own: RoundReport,
    published: RoundReport | None,
    work: Path | None,
    request: Mapping[str, Json] | None = None,
) -> RoundStatus:
    """Return the status by the server's own report."""
    step = None if own.masked is None or own.closed != OPEN else int(own.masked.get("step", 1))
    count = own.number if step is None else len(STEPS) * (own.number - 1) + step
    state = OPEN if own.closed == OPEN else FAILED if own.problems else OVER
    return RoundStatus(
        place,
        state,
        own.number,
        own.sites,
        own.missing,
        {record.site: record.reasons for record in own.left_out},
        request,
        step,
        None if work is None or own.deadline is None else _seconds_left(work / str(count) / "started", own.deadline),
        published,
    )


def _announced_status(
    place: str, storage: Storage, plan: Mapping[str, Json], number: int, last: RoundReport | None
) -> RoundStatus:
    """Return the status of an open round by what sites announced in its place."""
    step = _masked_step(storage, number) if plan.get("masked") is True else None
    count = number if step is None else len(STEPS) * (number - 1) + step
    sites = _sites_of(plan)
    sites_in = tuple(site for site in sites if _has_announced(storage, site, count))
    missing = tuple(site for site in sites if site not in sites_in)
    return RoundStatus(
        place, OPEN, number, sites_in, missing, request=_request(storage, plan, number), step=step, report=last
    )


def _sites_of(plan: Mapping[str, Json]) -> list[str]:
    sites: Any = plan["sites"]  # a list, as `read_plan` has seen
    return [str(site) for site in sites]


def _published(storage: Storage) -> list[RoundReport]:
    """Return the reports that the server published, of all rounds that are over."""
    reports: list[RoundReport] = []
    while (report := read_report(storage, len(reports) + 1)) is not None:
        reports.append(report)
    return reports


def _has_announced(storage: Storage, site: str, number: int) -> bool:
    """Return whether a site has announced a contribution to a round."""
    parsed = (parse_announcement(site, name) for name in storage.names(site_folder(site), MAX_FILES))
    return any(one is not None and one.number == number for one in parsed)


def _masked_step(storage: Storage, number: int) -> int:
    """Return the step of a masked sum that is open: the one after those that the server agreed on."""
    agreed = {name for name in storage.names(f"server/{number}", MAX_FILES) if name.startswith("agreed-")}
    return min(len(agreed) + 1, len(STEPS))


def _request(storage: Storage, plan: Mapping[str, Json], number: int) -> Mapping[str, Json] | None:
    """Return kind, number and rounds of the request that is open as a round; None for a round of models."""
    if plan.get("masked") is True:
        then = plan.get("then")
        asked = None if then is None else Then.parse(str(then))
        return None if asked is None else {"kind": asked.kind, "number": number, "rounds": asked.rounds}
    message = None if number == 1 else fetch_request(storage, number, Limits())
    return None if message is None else {"kind": message.kind, "number": message.number, "rounds": message.rounds}


def _seconds_left(started: Path, deadline: float) -> float | None:
    """Return how long it is until the deadline of a round; None where it has not started."""
    return max(0.0, seconds_left(started, deadline)) if started.exists() else None


def _interval(seconds: float | None) -> str:
    """Return how long it is until a deadline, in words.

    Examples
    --------
    >>> _interval(90061.0), _interval(59.9), _interval(0.0)
    ('in 25 h 1 min', 'in 59 s', 'is past')
    """
    if seconds is None:
        return "known where the server runs (-o OUTPUT)"
    if seconds <= 0:
        return "is past"
    minutes, hours = int(seconds // 60) % 60, int(seconds // 3600)
    return f"in {int(seconds)} s" if seconds < 60 else f"in {hours} h {minutes} min" if hours else f"in {minutes} min"
