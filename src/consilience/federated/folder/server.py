"""Server of rounds in a shared folder or a bucket: wait, fuse, publish, and resume after being killed.

The state is in the server's work folder: the plan (state.json), and for each round its start time, the copies of
contributions, the fused file and, written last, round.json. A server that starts with such a folder refuses another
plan, publishes again what a killed one may not have published, and goes on with the round that has no report. When all
rounds have ended the copies of contributions are removed. A server that is started again then, with the same plan,
repairs what is missing of what it published and returns the same reports.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from consilience.api.kinds import kind_of_file
from consilience.checks import Json, is_count
from consilience.core.fusion import Fusion
from consilience.core.provenance import file_digest, library_versions
from consilience.errors import ConsilienceError, InputError, OptionError, Problem
from consilience.federated.check import check_alone
from consilience.federated.contribution import Announcement, AnnouncementSelection, Contribution, select_announcements
from consilience.federated.convergence import change_between
from consilience.federated.folder.inbox import Inbox, remembering, seconds_left, site_folder
from consilience.federated.folder.masked_server import MaskedSums, remove_copies
from consilience.federated.folder.request_server import RequestServer
from consilience.federated.folder.storage import MAX_REPORT_BYTES, LocalStorage, Storage, retry, storage_of
from consilience.federated.ledger import record as record_group
from consilience.federated.ledger import too_near
from consilience.federated.masking.keys import read_public_keys
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.table import Masked
from consilience.federated.plan import DEADLINE, RoundPlan, is_positive
from consilience.federated.report import OPEN, Event, Record, RoundError, RoundReport
from consilience.federated.requests.exchange import request
from consilience.federated.requests.table import Then
from consilience.federated.round import RoundResult, plan_for, refuse_options, run_round
from consilience.files.atomic import refuse_unwritable, remove_stale, sole_use, write_atomically, write_bytes
from consilience.files.limits import Limits
from consilience.files.opening import read_file, read_text
from consilience.networks.method import NetworkMethod
from consilience.posteriors.method import Method

GRACE = 30.0
"""Seconds after the deadline in which files that were announced before it may still be copied. Chosen by hand."""

TOLERANCE = 1e-3
"""Relative change of the fused parameters below which rounds end. Chosen by hand: in docs/evidence/rounds.md, those of
networks are 0.04 to 0.08 after five rounds, so no experiment there has ended by it."""

_MAX_PAUSE = 5.0
"""Longest pause in seconds between two looks while the storage fails, unless `poll` is longer. Chosen by hand."""

Say = Callable[[str], None]
"""Called with a line for people."""


def serve_folder(
    place: str | Path,
    output: str | Path,
    *,
    sites: Sequence[str],
    method: str | Method | NetworkMethod | None = None,
    weights: Mapping[str, float] | None = None,
    quorum: int | None = None,
    deadline: float = DEADLINE,
    limits: Limits | None = None,
    expect: str | Path | None = None,
    rng: int = 0,
    rounds: int = 1,
    tolerance: float = TOLERANCE,
    then: str | Then | None = None,
    work: str | Path | None = None,
    ledger: str | Path | None = None,
    masked: Masked | None = None,
    allow_single: bool = False,
    trust_counts: bool = False,
    poll: float = 1.0,
    say: Say | None = None,
    **options: Any,
) -> RoundResult:
    """Wait for the contributions of sites in a shared folder or bucket, fuse them, and write the fused model.

    The round ends when every site's contribution is in and good, at the deadline, or on SIGUSR1. The fused file and
    ``round.json`` are written to `output` and next to it, and to ``server/`` in the place, where sites receive it.

    Parameters
    ----------
    place : path or URL
        A folder, or a URL that fsspec knows (``s3://...``; extra ``scale``). Only for this round.
    output : path
        File for the fused model; the report is written next to it, as ``NAME.round.json``.
    sites, method, weights, quorum, deadline, limits, expect
        See `RoundPlan`.
    rng : int
        Seed, as for ``consilience.fuse``. Default: 0.
    rounds : int
        Rounds at most: after each but the last, sites go on from the fused model and send again (`take_part`).
        Default: 1.
    tolerance : float
        Rounds end early when the relative change of the fused parameters is below it. Default: 1e-3.
    then : str, optional
        Requests that follow the round, as ``KIND`` or ``KIND:N``: ``"em:3"``, several in turn as ``"head,choose"``.
        Each is published, and sites answer it
        from their own data (`answer_folder`) until the deadline, which begins anew with every request. Default: none.
    work : path, optional
        The server's own folder, which no site can reach. A server that was killed resumes from there. Default: a folder
        next to `output`, removed when the round is over.
    ledger : path, optional
        A file of the server's own in which the sites of every published model are recorded. A model of sites that
        differ from those of an earlier one by one or two is not published: both together disclose what these sent.
        Default: none.
    masked : Masked, optional
        Sum what sites send under masks, so that the server sees the sum alone. It takes `expect`: a statistics file of
        the same estimator, the common start of networks, or with `then` the model from which requests start. The
        quorum is then the threshold, by default more than two thirds of the sites, and the deadline that of each of
        five steps. Default: none, an open round.
    allow_single : bool
        Publish one site's own network as the fused one, where the default finds no better or networks cannot be
        compared. Sites read it in the plan before they send. Default: False, such a round fails.
    trust_counts : bool
        Count a network's observations whole, however many its site claims. Default: False, at most three times the
        median.
    poll : float
        Seconds between looks into the place. Default: 1.
    say : callable, optional
        Called with each line of the log, a `report.Event`: a text with its kind, round and site. Default: no log.
    **options
        As for ``consilience.fuse``.

    Returns
    -------
    RoundResult
        The fusion, and a report for each round. Started again after the round has ended: the same reports, and no
        fusion. Where too few answered a request, ``report.problems`` says so, the model before it stays, and the same
        call, which keeps the work folder, asks again.

    Raises
    ------
    RoundError
        When fewer sites than the quorum sent what can be used.
    InputError
        When another round in this place is over, or `work` is of another round.
    OptionError
        For options that do not exist.

    Examples
    --------
    See `docs/sites/rounds.md`.
    """
    requests = Then.given(then)  # first, so that nobody waits for a misspelt name
    bounds, expected = limits or Limits(), None if expect is None else Path(expect)
    plan = RoundPlan(
        tuple(sites), method, options, rng, weights, quorum, deadline, bounds, expected,
        allow_single=allow_single, trust_counts=trust_counts, asks_sites=requests is not None and requests.asks_sites,
    )  # fmt: skip
    _refuse_numbers(rounds, poll, tolerance)
    if masked is not None:
        plan = _masked_plan(plan, masked, rounds)
    _refuse_requests(requests, plan, masked, rounds)
    if masked is None:
        refuse_options(plan)
        if expected is not None:
            plan_for(plan, kind_of_file(expected))
    target, storage = Path(output), storage_of(place)
    refuse_unwritable(target, overwrite=report_path(target).is_file())  # what an earlier run of this server wrote
    work_folder = work_folder_of(target, work)
    if isinstance(storage, LocalStorage) and work_folder.resolve().is_relative_to(storage.root.resolve()):
        remedy = "give a folder of the server's own as `work=`"
        raise InputError(work_folder, f"lies in {place}, where sites may write", remedy, "E-ROUND")
    with closing_signal() as interruption:
        book = None if ledger is None else Path(ledger)
        log = say or (lambda _line: None)
        server = _Server(storage, plan, work_folder, target, poll, log, requests, rounds, interruption, book, masked)
        work_folder.mkdir(parents=True, exist_ok=True)
        used = InputError(work_folder, "is in use: another process runs this round", "wait for it", "E-ROUND")
        with sole_use(work_folder / "lock", used):
            result = server.run(tolerance)
    if work is None and not result.has_failed_request:
        remove_work_folder(work_folder)
    return result


def _refuse_requests(requests: Then | None, plan: RoundPlan, masked: Masked | None, rounds: int) -> None:
    """Raise for requests that cannot follow the models of a plan."""
    if requests is None:
        return
    if rounds != 1:
        raise OptionError("then", "requests follow one round of models", "give one of rounds and then")
    requests.refuse_unfit(plan.method, plan.expect)
    if requests.after is not None and masked is not None:
        raise OptionError("then", "under masks requests are of one kind", "give one")


def _refuse_numbers(rounds: int, poll: float, tolerance: float) -> None:
    """Raise for numbers that are not positive."""
    for name, value, is_valid in (
        ("rounds", rounds, is_count(rounds)),
        ("poll", poll, is_positive(poll)),
        ("tolerance", tolerance, tolerance == 0 or is_positive(tolerance)),
    ):
        if not is_valid:
            raise OptionError(name, f"expected a positive number, found {value!r}")


def work_folder_of(output: Path, work: str | Path | None) -> Path:
    """Return the server's own folder: next to the fused file, where none was given."""
    return Path(work) if work is not None else output.with_name(f"{output.name}.work")


def remove_work_folder(folder: Path) -> None:
    """Remove the work folder of a round that is over.

    What says that a round is to be resumed goes first: of a server that is killed meanwhile the round stays over.
    """
    (folder / "state.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _masked_plan(plan: RoundPlan, masked: Masked, rounds: int) -> RoundPlan:
    """Return the plan of a masked round, or raise for what a server that sees the sum alone cannot do.

    Raises OptionError for `robust` and other options, a method, several rounds, and without an expected file. Raises
    InputError for sites without a key.
    """
    if plan.options.get("robust") not in (None, False):
        text = "compares what single sites send, and under masks the server sees the sum alone"
        raise OptionError("robust", text, "give one of robust and masked")
    if plan.options or plan.method not in (None, "average"):
        named = ", ".join(plan.options) or f"method {plan.method!r}"
        raise OptionError(named, "is for open rounds: masked contributions are added, and there is nothing to choose")
    if rounds != 1:
        raise OptionError("rounds", "a masked round is one sum of models, or of the answers that `then` asks for")
    if plan.expect is None:
        remedy = "give statistics of the same estimator, or the common start of networks"
        raise OptionError("expect", "is needed: a file that says what the numbers under masks are", remedy)
    keys = read_public_keys(masked.signing_keys)
    if missing := sorted(set(plan.sites) - set(keys)):
        raise InputError(masked.signing_keys, f"has no key of {', '.join(missing)}", "put NAME.pub there", "E-NEEDED")
    # Refuses a quorum that is no threshold.
    threshold = MaskedPlan({site: keys[site] for site in plan.sites}, 1, plan.quorum or 0).threshold
    return replace(plan, quorum=threshold, method=None)


@contextmanager
def closing_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGUSR1 sets: the round then closes with what it has, as at its deadline.

    Only in the main thread and where there is such a signal; a process that is stopped otherwise resumes its round.
    """
    event = threading.Event()
    number = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(number, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(number, before)


def report_path(output: Path) -> Path:
    """Return the file of a round's report, next to that of its fused model."""
    return output.with_name(f"{output.stem}.round.json")


@dataclass(frozen=True, eq=False)
class _Server:
    """One call of `serve_folder`: where contributions come from, and where everything goes."""

    storage: Storage
    plan: RoundPlan
    work: Path
    output: Path
    poll: float
    say: Say
    then: Then | None
    rounds: int
    interruption: threading.Event
    ledger: Path | None
    masked: Masked | None = None

    def run(self, tolerance: float) -> RoundResult:
        """Run the rounds that have not ended."""
        for path in (self.output, report_path(self.output)):
            remove_stale(path)
        if (ended := self._ended_before()) is not None:
            return ended
        reports = self._begin()
        if reports and not reports[-1].goes_on:
            return self._repeat(reports)
        is_open = self.masked is None
        result = self._run_open(tolerance, reports) if is_open else self._run_masked(reports)
        if not result.has_failed_request:
            self._remove_copies(len(result.reports))
        return result

    def _run_masked(self, reports: list[RoundReport]) -> RoundResult:
        """Run the masked sums of which there are no reports."""
        assert self.masked is not None  # noqa: S101  (narrows the type)
        sums = MaskedSums(
            self.storage,
            self.plan,
            self.work,
            self.masked,
            self.then,
            self.say,
            self._collect,
            self._status.write,
            self.ledger,
            self._end,
            self.digest,
        )
        try:
            fusion, reports = sums.run(reports)
        except RoundError as error:
            self._end(error.report, None)
            (self.work / "state.json").unlink()
            raise
        return RoundResult(fusion, tuple(reports))

    def _run_open(self, tolerance: float, reports: list[RoundReport]) -> RoundResult:
        """Run the rounds of which there are no reports."""
        if self.then is not None and reports:
            return self._answer_requests(self._fuse_again(reports[0]), reports)
        fusion = None
        while True:
            number = len(reports) + 1
            previous = self.work / str(number - 1) / "fused.safetensors" if reports else None
            try:
                result = self._round(number)
            except RoundError as error:
                self._end(error.report, None)
                (self.work / "state.json").unlink()  # another try is another round, with the copies in the work folder
                (self.work / str(number) / "started").unlink()
                if fusion is None:
                    raise
                self.say(Event(f"round {number} failed; the model of round {number - 1} stays", "failed", number))
                return RoundResult(fusion, (*reports, error.report))
            fusion = result.model
            file = self.work / str(number) / "fused.safetensors"
            # Into the work folder first: what is published is what a restarted server would publish again.
            fusion.save(file)
            change = change_between(previous, file, fusion.objective) if self.rounds > 1 else None
            is_last = number >= self.rounds or _is_below(change, tolerance)
            refusal = self._refusal_of_requests(fusion)
            report = replace(
                result.report,
                fused={"sha256": file_digest(file), "bytes": file.stat().st_size},
                convergence=change,
                continues=not is_last,
                then=None if self.then is None or refusal is not None else str(self.then),
            )
            reports.append(self._end(report, file))
            if refusal is not None:
                raise refusal
            if self.then is not None:
                return self._answer_requests(fusion, reports)
            if is_last:
                return RoundResult(fusion, tuple(reports))

    def _answer_requests(self, fusion: Fusion, reports: list[RoundReport]) -> RoundResult:
        """Run the requests that follow the round of models and have not ended."""
        assert self.then is not None  # noqa: S101  (narrows the type)
        server = RequestServer(self.storage, self.plan, self.work, self.then, self.say, self._wait, self._end)
        fusion, reports = server.run(fusion, reports)
        return RoundResult(fusion, tuple(reports))

    def _refusal_of_requests(self, fusion: Fusion) -> ConsilienceError | None:
        """Return why there are no such requests of this model, which the sites get all the same."""
        if self.then is None:
            return None
        try:
            request(self.then.kind, fusion, rounds=self.then.rounds)
        except ConsilienceError as error:
            return error
        return None

    def _fuse_again(self, report: RoundReport) -> Fusion:
        """Return the fusion of round 1 from the copies that a killed server had fused, which has the same bytes."""
        inbox, used = Inbox(self.storage, self.plan, 1, self.work), {record.sha256 for record in report.took_part}
        contributions = [one for one in inbox.contributions() if one.announcement.digest in used]
        fusion = run_round(self.plan, contributions, closed=report.closed).model
        file = self.work / "1" / "again.safetensors"
        fusion.save(file)
        if report.fused is None or file_digest(file) != report.fused["sha256"]:
            text = "fuses to another model than before, and sites may have answered a request from that one"
            raise InputError(self.work, text, "go on with the version that began, or begin a new round", "E-MISMATCH")
        return fusion

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that was fixed before the round, its place included."""
        return hashlib.sha256(json.dumps(self._fingerprint(), sort_keys=True).encode()).hexdigest()

    def _fingerprint(self) -> dict[str, Any]:
        """Return all that was fixed before the round, as JSON values."""
        then = None if self.then is None else str(self.then)
        masked: dict[str, Json] = {}
        if self.masked is not None:
            keys = {site: key.hex() for site, key in read_public_keys(self.masked.signing_keys).items()}
            noise = None if self.masked.noise is None else self.masked.noise.to_json()
            expect = None if self.plan.expect is None else file_digest(self.plan.expect)
            by_observations = self.masked.by_observations
            masked = {"masked": {"keys": keys, "noise": noise, "expect": expect, "by_observations": by_observations}}
        return {**self.plan.fingerprint(), "rounds": self.rounds, "then": then, "place": self.storage.where, **masked}

    def _ended_before(self) -> RoundResult | None:
        """Return the reports of a round of this plan that had ended in this place, what was published being repaired.

        None where the round is open, or has a work folder, from which it is resumed.
        """
        if (self.work / "state.json").exists():
            return None
        reports: list[RoundReport] = []
        while True:
            name = f"server/{len(reports) + 1}/round.json"
            try:
                reports.append(RoundReport.from_bytes(retry(partial(self.storage.read, name, MAX_REPORT_BYTES))))
            except FileNotFoundError:
                break
        fused = [report for report in reports if not report.problems]
        if not fused:
            return None
        own = report_path(self.output)
        # What lies next to the output is this server's own word; the place may be written by others.
        is_own = own.exists() and read_file(own) == reports[-1].to_bytes() and reports[-1].plan == self.digest
        record = fused[-1].fused
        if not is_own or record is None:
            text = "the round in this place is over"
            raise InputError(self.storage.where, text, "use a new one for another round", "E-ROUND")
        if not self.output.exists() or file_digest(self.output) != record["sha256"]:
            name = f"server/{fused[-1].number}/fused.safetensors"
            retry(partial(self.storage.fetch, name, record["sha256"], self.output, record["bytes"]))
        self._say_ended(reports)
        return RoundResult(None, tuple(reports))

    def _say_ended(self, reports: list[RoundReport]) -> None:
        self.say(Event(f"the round had ended, and {self.output} is its model", "ended", reports[-1].number))

    def _repeat(self, reports: list[RoundReport]) -> RoundResult:
        """Return the reports of rounds that had all ended, whose last one is published again, without copies."""
        self._remove_copies(len(reports))
        self._say_ended(reports)
        return RoundResult(None, tuple(reports))

    def _remove_copies(self, n_rounds: int) -> None:
        """Remove the copies of contributions, and the models made of them again, from the work folder."""
        if self.masked is not None:
            remove_copies(self.work, n_rounds)
        for number in range(1, n_rounds + 1):
            for name in ("files", "seen", "late"):
                shutil.rmtree(self.work / str(number) / name, ignore_errors=True)
            (self.work / str(number) / "again.safetensors").unlink(missing_ok=True)

    def _begin(self) -> list[RoundReport]:
        """Return the reports of rounds that a killed server had ended, and publish the plan for the sites."""
        self.work.mkdir(parents=True, exist_ok=True)
        fingerprint, then = self._fingerprint(), None if self.then is None else str(self.then)
        state = self.work / "state.json"
        reports: list[RoundReport] = []
        if state.exists():
            stored_plan = json.loads(read_text(state))
            if changed := sorted(key for key in fingerprint if stored_plan.get(key) != fingerprint[key]):
                text = f"is of a round with other {', '.join(changed)}"
                raise InputError(self.work, text, "go on with the same, or give another `work=`", "E-ROUND")
            while (ended := self.work / str(len(reports) + 1) / "round.json").exists():
                reports.append(RoundReport.from_bytes(read_file(ended)))
            if reports:  # the server may have been killed before it published the last one
                self._publish(reports[-1], self.work / str(len(reports)) / "fused.safetensors")
                if not reports[-1].goes_on:
                    return reports
            number = len(reports) + 1
            self.say(Event(f"going on with round {number} from {self.work}", "resumed", number))
        if not reports:  # an earlier try of this round, which failed, may have left its report
            retry(lambda: self.storage.remove("server/1/round.json"))
        for site in self.plan.sites:
            retry(partial(self.storage.prepare, site_folder(site)))
        public_plan = {
            "format": "consilience-round-plan",
            "format_version": 1,
            "library_version": library_versions()["consilience"],
            "name": self.plan.name,
            "sites": list(self.plan.sites),
            "rounds": self.rounds,
            "limits": fingerprint["limits"],
            **({} if then is None else {"then": then}),
            **({} if self.masked is None else {"masked": True}),
            **({"allow_single": True} if self.plan.allow_single else {}),
            "server": self._name,
        }
        retry(lambda: self.storage.put("server/plan.json", (json.dumps(public_plan, indent=1) + "\n").encode()))
        write_bytes(state, json.dumps(fingerprint).encode())
        return reports

    @cached_property
    def _name(self) -> str:
        """A random name of this server, the same after it was killed."""
        path = self.work / "name"
        if not path.exists():
            write_bytes(path, secrets.token_hex(8).encode())
        return read_text(path)

    def _refuse_other_server(self) -> None:
        """Raise where another server has opened a round in this place meanwhile: the later one goes on."""
        try:
            plan = json.loads(self.storage.read("server/plan.json", MAX_REPORT_BYTES))
        except (OSError, ValueError):  # may pass; the caller looks again
            return
        if isinstance(plan, dict) and plan.get("server", self._name) != self._name:
            text = "another server has opened a round here meanwhile; this one ends, and publishes nothing"
            raise InputError(self.storage.where, text, "give every round a place of its own", "E-ROUND")

    def _round(self, number: int) -> RoundResult:
        """Wait for the contributions of one round and fuse them."""
        inbox = Inbox(self.storage, self.plan, number, self.work)
        check = remembering(lambda one: check_alone(one, self.plan.limits))
        sites = ", ".join(self.plan.sites)
        self.say(Event(f"round {number}: waiting for {sites} in {self.storage.where}", "waiting", number))
        closed = self._wait(inbox, check, number)
        self.say(Event(f"round {number}: closed ({closed}), fusing", "closed", number))
        try:
            result = run_round(
                self.plan,
                inbox.contributions(),
                number=number,
                closed=closed,
                unknown=inbox.unexpected_folders(),
                blocked=inbox.blocked,
                check=check,
            )
            if self.ledger is not None and (problems := too_near(self.ledger, result.report.sites)):
                raise RoundError(_unpublished(result.report, problems))
        except RoundError as error:
            raise RoundError(_with_late(error.report, inbox)) from error
        return RoundResult(result.fusion, (_with_late(result.report, inbox),))

    def _wait(self, inbox: Inbox, check: Callable[[Contribution], Any], number: int) -> str:
        """Wait until every site's contribution is in and good, or the round ends; return what closed it.

        Who is in, who is missing and what was refused is in the report next to the output, as that of an open round,
        whenever it changes.
        """
        return self._collect(inbox, _News(self, inbox, check, number).has_all_good, number)

    def _collect(self, inbox: Inbox, has_all: Callable[[], bool], number: int) -> str:
        """Look for what sites send until all is there, the deadline is past, or a signal comes; return which.

        Time runs from the first start of the round, also while no server does. `number` is that of the round in
        messages.
        """
        remaining = seconds_left(self.work / str(inbox.number) / "started", self.plan.deadline)
        # A wall clock that was set back must not lengthen the round.
        deadline = time.monotonic() + min(remaining, self.plan.deadline)
        last = deadline + min(GRACE, self.plan.deadline)
        pause, takes_new = self.poll, True
        while True:
            is_over, is_interrupted = time.monotonic() >= deadline, self.interruption.is_set()  # then a last look
            was_over = is_over and remaining <= 0  # what came after the deadline, while no server ran, is late
            if not was_over:
                inbox.poll(last, takes_new=takes_new)
                takes_new = not is_over
            self._refuse_other_server()
            if inbox.trouble is not None:
                self.say(Event(f"trouble, trying again: {inbox.trouble}", "trouble", number))
            pause = self.poll if inbox.trouble is None else min(2.0 * pause, max(self.poll, _MAX_PAUSE))
            is_whole = has_all()
            # What was announced in time may still come for a while.
            may_come = not was_over and inbox.is_waiting and time.monotonic() < last
            if is_whole or is_interrupted or (is_over and not may_come):
                self.interruption.clear()  # a signal closes one round
                return "all sites in" if is_whole else "signal" if is_interrupted else "deadline"
            time.sleep(max(0.0, min(pause, (last if is_over else deadline) - time.monotonic())))

    @cached_property
    def _status(self) -> _StatusFile:
        """The report of the open round, next to the output."""
        return _StatusFile(report_path(self.output), self.say)

    def _end(self, report: RoundReport, fused: Path | None) -> RoundReport:
        """Write the result: first for a server that is killed here and resumes, then for its owner and the sites."""
        report = replace(report, plan=self.digest)
        if fused is not None:
            report.save(self.work / str(report.number) / "round.json")
        if self.ledger is not None and report.fused is not None:  # before anyone has the model
            record_group(self.ledger, report.sites, report.fused["sha256"])
        self._publish(report, fused)
        for line in report.outcome_lines():
            self.say(Event(f"round {report.number}: {line}", "outcome", report.number))
        return report

    def _publish(self, report: RoundReport, fused: Path | None) -> None:
        """Write the fused model for the server's owner and for the sites, and the report last."""
        self._refuse_other_server()
        if fused is not None:
            with write_atomically(self.output) as partial_path:
                shutil.copyfile(fused, partial_path)
            retry(lambda: self.storage.put(f"server/{report.number}/fused.safetensors", fused))
        report.save(report_path(self.output))
        retry(lambda: self.storage.put(f"server/{report.number}/round.json", report.to_bytes()))


@dataclass(eq=False)
class _StatusFile:
    """A file with the report of the open round, which the round can do without."""

    path: Path
    say: Say
    written: bytes = b""
    is_in_trouble: bool = False

    def write(self, report: RoundReport) -> bool:
        """Write a report where it is another than before, and return whether it is; where the disk is full, say so."""
        data = report.to_bytes()
        if data == self.written:
            return False
        try:
            write_bytes(self.path, data)
        except (ConsilienceError, OSError) as error:
            if not self.is_in_trouble:
                self.say(Event(f"trouble, trying again: {error}", "trouble", report.number))
            self.is_in_trouble = True
        else:
            self.written, self.is_in_trouble = data, False
        return True


@dataclass(eq=False)
class _News:
    """Contributions to an open round: every one is announced once, and the report follows every change."""

    server: _Server
    inbox: Inbox
    check: Callable[[Contribution], Any]
    number: int
    announced: set[str] = field(default_factory=set)
    line: str = ""

    def has_all_good(self) -> bool:
        """Announce what is new; return whether every site's contribution is in and good."""
        by_announcement = {contribution.announcement: contribution for contribution in self.inbox.contributions()}
        chosen = select_announcements(by_announcement).chosen
        checked = {site: self.check(by_announcement[announcement]) for site, announcement in chosen.items()}
        self.refuse_plan(checked)
        for site in sorted(checked):
            if by_announcement[chosen[site]].path is not None and site not in self.announced:
                self.announced.add(site)
                problems = "; ".join(checked[site].problems)
                kind = "refused" if problems else "in"
                self.server.say(Event(f"{site}: {problems or 'is in'}", kind, self.number, site))
        report = self.report(chosen, {site: one.problems for site, one in checked.items() if one.problems})
        if self.server._status.write(report) and (line := report.status_line()) != self.line:
            self.line = line
            self.server.say(Event(line, "status", self.number))
        has_problems = any(contribution.problems for contribution in checked.values())
        return len(checked) == len(self.server.plan.sites) and not has_problems

    def refuse_plan(self, checked: Mapping[str, Any]) -> None:
        """Raise OptionError, as soon as a model is in, where a round of its kind needs what the plan does not say."""
        files = [one.file for one in checked.values() if getattr(one, "file", None) is not None]
        if not files:
            return
        try:
            plan_for(self.server.plan, kind_of_file(files[0]))
        except OptionError:
            for name in ("state.json", f"{self.number}/started"):  # another plan may begin here with the same copies
                (self.server.work / name).unlink(missing_ok=True)
            raise

    def report(self, chosen: Mapping[str, Announcement], problems: Mapping[str, Sequence[str]]) -> RoundReport:
        """Return the report of the open round: who is in, who is missing, what was refused and why."""
        refused = {site: tuple(map(str, reasons)) for site, reasons in problems.items()}
        refused |= {site: (reason,) for site, reason in self.inbox.blocked.items()}
        return RoundReport.of_round(
            self.server.plan,
            self.number,
            AnnouncementSelection(chosen, (), {}),
            refused,
            took_part=tuple(Record.of(chosen[site]) for site in sorted(chosen) if site not in refused),
            unknown=tuple(self.inbox.unexpected_folders()),
            closed=OPEN,
            plan=self.server.digest,
        )


def _is_below(change: Mapping[str, Any] | None, tolerance: float) -> bool:
    """Return whether a fused model is known to have changed by less than a tolerance."""
    return change is not None and change["change"] is not None and change["change"] < tolerance


def _unpublished(report: RoundReport, problems: list[Problem]) -> RoundReport:
    """Return the report of a round whose model exists and is not published."""
    left_out = tuple(
        replace(record, bytes=None, weight=None, reasons=("is good, but nothing was published",))
        for record in report.took_part
    )
    return replace(report, took_part=(), left_out=(*report.left_out, *left_out), method=None, problems=tuple(problems))


def _with_late(report: RoundReport, inbox: Inbox) -> RoundReport:
    return report.with_late(tuple(Record.of(announcement) for announcement in inbox.late_announcements()))
