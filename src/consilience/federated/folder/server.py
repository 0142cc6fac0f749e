"""The server's side of a round in a shared folder or a bucket."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from consilience.checks import is_count
from consilience.core.provenance import file_digest, library_versions
from consilience.errors import InputError, OptionError
from consilience.federated.check import Checked, check_alone
from consilience.federated.contribution import Announcement, Contribution, standing
from consilience.federated.convergence import change_between
from consilience.federated.folder.inbox import Inbox, site_folder
from consilience.federated.folder.storage import MOST_REPORT, LocalStorage, Storage, patiently, storage_of
from consilience.federated.plan import DEADLINE, RoundPlan, is_positive
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.federated.round import RoundResult, refuse_options, run_round
from consilience.files.atomic import refuse_unwritable, write_atomically, write_bytes
from consilience.files.limits import Limits
from consilience.networks.method import NetworkMethod
from consilience.posteriors.method import Method

GRACE = 30.0
"""Seconds after the deadline in which files that were announced before it may still be copied."""

TOLERANCE = 1e-3
_SLOWEST = 5.0

Say = Callable[[str], None]


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
    work: str | Path | None = None,
    poll: float = 1.0,
    say: Say | None = None,
    **options: Any,
) -> RoundResult:
    """Wait for the contributions of sites in a shared folder or bucket, fuse them, and write the fused model.

    The round ends when every site's contribution is in and good, or at the deadline. The fused file and ``round.json``
    are written to `output` and beside it, and to ``server/`` in the place, where sites receive it.

    Parameters
    ----------
    place
        A folder, or a URL that fsspec knows (``s3://...``; extra ``scale``). Only for this round.
    output
        File for the fused model; the report goes beside it, as ``NAME.round.json``.
    sites, method, weights, quorum, deadline, limits, expect
        See `RoundPlan`.
    rng
        Seed, as for ``consilience.fuse``.
    rounds
        Rounds at most: after each but the last, sites go on from the fused model and send again (`take_part`).
    tolerance
        Rounds end before when the relative change of the fused parameters is below it.
    work
        The server's own folder, which no site can reach. A server that was killed goes on from there. By default a
        folder beside `output`, removed when the round is over.
    poll
        Seconds between looks into the place.
    say
        Told what happens, a line at a time.
    **options
        As for ``consilience.fuse``.

    Returns
    -------
    RoundResult
        The fusion, and a report for each round.

    Raises
    ------
    RoundError
        When fewer sites than the quorum sent what can be used.
    InputError
        When the round in this place is over, or `work` is of another round.
    OptionError
        For options that do not exist.

    Examples
    --------
    See `docs/federated.md`.
    """
    plan = RoundPlan(
        tuple(sites),
        method,
        options,
        rng,
        weights,
        quorum,
        deadline,
        limits or Limits(),
        None if expect is None else Path(expect),
    )
    for name, value, good in (
        ("rounds", rounds, is_count(rounds)),
        ("poll", poll, is_positive(poll)),
        ("tolerance", tolerance, tolerance == 0 or is_positive(tolerance)),
    ):
        if not good:
            raise OptionError(f"{name}: expected a positive number, found {value!r}")
    refuse_options(plan)
    target = Path(output)
    refuse_unwritable(target)
    own = Path(work) if work is not None else target.with_name(f"{target.name}.work")
    storage = storage_of(place)
    if isinstance(storage, LocalStorage) and own.resolve().is_relative_to(storage.root.resolve()):
        raise InputError(f"{own}: lies in {place}, where sites may write; give a folder of the server's own as --work")
    server = _Server(storage, plan, own, target, poll, say or (lambda _line: None))
    result = server.run(rounds, tolerance)
    if work is None:
        shutil.rmtree(own, ignore_errors=True)
    return result


def report_path(output: Path) -> Path:
    """Return where the report of a round goes whose fused model goes to `output`."""
    return output.with_name(f"{output.stem}.round.json")


@dataclass(frozen=True, eq=False)
class _Server:
    storage: Storage
    plan: RoundPlan
    work: Path
    output: Path
    poll: float
    say: Say

    def run(self, rounds: int, tolerance: float) -> RoundResult:
        """Run the rounds that are left."""
        self._refuse_ended()
        reports = self._begin(rounds)
        fusion = None
        while True:
            number = len(reports) + 1
            previous = self.work / str(number - 1) / "fused.safetensors" if reports else None
            try:
                result = self._round(number)
            except RoundError as error:
                self._end(error.report, None)
                (self.work / "state.json").unlink()  # another try is another round, with the copies that are here
                (self.work / str(number) / "started").unlink()
                if fusion is None:
                    raise
                self.say(f"round {number} failed; the model of round {number - 1} stays")
                return RoundResult(fusion, (*reports, error.report))
            fusion, report = result.fusion, result.report
            file = self.work / str(number) / "fused.safetensors"
            fusion.save(file)
            change = change_between(previous, file, fusion.objective) if rounds > 1 else None
            moved = None if change is None else change["change"]
            done = number >= rounds or (moved is not None and moved < tolerance)
            report = replace(
                report,
                fused={"sha256": file_digest(file), "bytes": file.stat().st_size},
                convergence=change,
                continues=not done,
            )
            reports.append(self._end(report, file))
            if done:
                return RoundResult(fusion, tuple(reports))

    def _refuse_ended(self) -> None:
        try:
            text = patiently(lambda: self.storage.read("server/1/round.json", MOST_REPORT))
        except FileNotFoundError:
            return
        if not RoundReport.from_bytes(text).problems and not (self.work / "state.json").exists():
            raise InputError(f"{self.storage.where}: the round in this place is over; use a new one for another round")

    def _begin(self, rounds: int) -> list[RoundReport]:
        """Return the reports of rounds that a killed server had ended, and tell the sites what is asked for."""
        self.work.mkdir(parents=True, exist_ok=True)
        fingerprint = {**self.plan.fingerprint(), "rounds": rounds, "place": self.storage.where}
        state = self.work / "state.json"
        reports: list[RoundReport] = []
        if state.exists():
            before = json.loads(state.read_text())
            if changed := sorted(key for key in fingerprint if before.get(key) != fingerprint[key]):
                raise InputError(
                    f"{self.work}: is of a round with other {', '.join(changed)}; go on with the same, or give "
                    "another --work"
                )
            while (ended := self.work / str(len(reports) + 1) / "round.json").exists():
                reports.append(RoundReport.from_bytes(ended.read_bytes()))
            if reports:  # it may have been killed before others could see it
                self._publish(reports[-1], self.work / str(len(reports)) / "fused.safetensors")
                if not reports[-1].continues:
                    raise InputError(
                        f"{self.work}: the round had ended, and {self.output} is its model; remove this folder"
                    )
            self.say(f"going on with round {len(reports) + 1} from {self.work}")
        if not reports:  # what an earlier try of this round said, which failed
            patiently(lambda: self.storage.remove("server/1/round.json"))
        for site in self.plan.sites:
            patiently(partial(self.storage.prepare, site_folder(site)))
        told = {
            "format": "consilience-round-plan",
            "format_version": 1,
            "library_version": library_versions()["consilience"],
            "name": self.plan.name,
            "sites": list(self.plan.sites),
            "rounds": rounds,
            "limits": fingerprint["limits"],
        }
        patiently(lambda: self.storage.put("server/plan.json", (json.dumps(told, indent=1) + "\n").encode()))
        write_bytes(state, json.dumps(fingerprint).encode())
        return reports

    def _round(self, number: int) -> RoundResult:
        """Wait for the contributions of one round and fuse them."""
        inbox = Inbox(self.storage, self.plan, number, self.work)
        remembered: dict[Announcement, Checked] = {}

        def check(one: Contribution) -> Checked:
            if one.path is None and one.problem is None:  # it may still come
                return check_alone(one, self.plan.limits)
            if one.announcement not in remembered:
                remembered[one.announcement] = check_alone(one, self.plan.limits)
            return remembered[one.announcement]

        self.say(f"round {number}: waiting for {', '.join(self.plan.sites)} in {self.storage.where}")
        closed = self._wait(inbox, check, number)
        self.say(f"round {number}: closed ({closed}), fusing")
        try:
            result = run_round(
                self.plan,
                inbox.contributions(),
                number=number,
                closed=closed,
                unknown=inbox.strangers(),
                blocked=inbox.blocked,
                check=check,
            )
        except RoundError as error:
            raise RoundError(_with_late(error.report, inbox)) from error
        return RoundResult(result.fusion, (_with_late(result.report, inbox),))

    def _wait(self, inbox: Inbox, check: Callable[[Contribution], Checked], number: int) -> str:
        """Wait until every site's contribution is in and good, or the deadline is past; return which."""
        started = self.work / str(number) / "started"
        if not started.exists():
            write_bytes(started, repr(time.time()).encode())
        left = float(started.read_text()) + self.plan.deadline - time.time()
        ends = time.monotonic() + min(left, self.plan.deadline)
        pause, told = self.poll, set[str]()
        while True:
            last = time.monotonic() >= ends
            if not (last and left <= 0):  # what came while no server ran past the deadline is late
                inbox.poll(ends + min(GRACE, self.plan.deadline))
            if inbox.trouble is not None:
                self.say(f"trouble, trying again: {inbox.trouble}")
            pause = self.poll if inbox.trouble is None else min(2.0 * pause, max(self.poll, _SLOWEST))
            every = {one.announcement: one for one in inbox.contributions()}
            stands = standing(every).chosen
            found = {site: check(every[one]) for site, one in stands.items()}
            for site in sorted(found):
                if every[stands[site]].path is not None and site not in told:
                    told.add(site)
                    self.say(f"{site}: " + ("; ".join(found[site].problems) or "is in"))
            if len(found) == len(self.plan.sites) and not any(one.problems for one in found.values()):
                return "all sites in"
            if last:
                return "deadline"
            time.sleep(max(0.0, min(pause, ends - time.monotonic())))

    def _end(self, report: RoundReport, fused: Path | None) -> RoundReport:
        """Write what came out: for a server that is killed here and goes on, then for its owner and the sites."""
        if fused is not None:
            report.save(self.work / str(report.number) / "round.json")
        self._publish(report, fused)
        return report

    def _publish(self, report: RoundReport, fused: Path | None) -> None:
        """Write the fused model for the server's owner and for the sites, and the report last."""
        if fused is not None:
            with write_atomically(self.output) as beside:
                shutil.copyfile(fused, beside)
            patiently(lambda: self.storage.put(f"server/{report.number}/fused.safetensors", fused))
        report.save(report_path(self.output))
        patiently(lambda: self.storage.put(f"server/{report.number}/round.json", report.to_bytes()))


def _with_late(report: RoundReport, inbox: Inbox) -> RoundReport:
    return report.with_late(tuple(Record.of(one) for one in inbox.late()))
