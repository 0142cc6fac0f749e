"""Server of masked sums in a shared folder or a bucket: five steps for every sum, each with a deadline.

    sites/NAME/SHA256                  a message, and N-ATTEMPT-SHA256, its announcement: N = 5 (M - 1) + K
    server/M/masked.json               the plan of sum M, written after the expected file
    server/M/agreed-K                  what was agreed on after step K

The server has no secret. In its work folder are the plan, the copies of messages, and for each step which of them
counted (agreed-K.json), written before anything that follows from it is published: a server that was killed agrees on
the same again. Who sends nothing in time of a step is out of those that follow; with T sites left the sum is opened.
Sums after the first one are of the same sites: where one of them drops out, they end, since sites open no sum of
another group (`masking.opened`).
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from consilience.api.kinds import load_file
from consilience.checks import Json
from consilience.core.fusion import Fusion
from consilience.core.provenance import file_digest
from consilience.errors import ConsilienceError, InputError, Problem, fault_of
from consilience.federated.contribution import Contribution, select_announcements
from consilience.federated.folder.inbox import Inbox, remembering
from consilience.federated.folder.storage import Storage, retry
from consilience.federated.ledger import sites_between, too_near
from consilience.federated.masking import fixed_point
from consilience.federated.masking.keys import read_public_keys
from consilience.federated.masking.messages import (
    ADVERTISE,
    CONFIRM,
    DEAL,
    MASK,
    REVEAL,
    STEP_NAMES,
    STEPS,
    Message,
    read_message,
)
from consilience.federated.masking.network_sum import BY_OBSERVATIONS, EQUAL
from consilience.federated.masking.opened import MIN_DIFFERENCE
from consilience.federated.masking.plan import MaskedPlan, default_threshold
from consilience.federated.masking.server import MaskedServer
from consilience.federated.masking.summands import Summand, SumResult
from consilience.federated.masking.table import Masked, summand_of
from consilience.federated.plan import RoundPlan
from consilience.federated.report import OPEN, Event, Record, RoundError, RoundReport
from consilience.federated.requests.base import RoundRequest, write_message
from consilience.federated.requests.exchange import Round, finish, request
from consilience.federated.requests.table import Then, request_kind
from consilience.files.atomic import write_bytes
from consilience.files.limits import exceeded_limits
from consilience.files.opening import read_file, read_text
from consilience.files.safetensors_file import SafetensorsFile


class _Copies(Mapping[str, Message]):
    """Messages of one step in the server's copies, read when they are asked for: many sites' do not fit into memory."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.paths = dict(sorted(paths.items()))

    def __getitem__(self, site: str) -> Message:
        return read_message(SafetensorsFile(self.paths[site], site))

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, eq=False)
class MaskedSums:
    """The masked sums of one call of `serve_folder`."""

    # As of the server.
    storage: Storage
    plan: RoundPlan
    work: Path
    masked: Masked  # how the round is masked
    # The requests whose answers are summed, starting from the expected file; None to sum files like it.
    then: Then | None
    say: Callable[[str], None]
    # Looks for what sites send until all is there or the step is over, given an inbox, what tells, and the sum.
    collect: Callable[[Inbox, Callable[[], bool], int], str]
    show: Callable[[RoundReport], bool]  # writes the report of an open sum
    ledger: Path | None
    # Writes the report and the model of a round for the server and for sites; returns the report.
    end: Callable[[RoundReport, Path | None], RoundReport]
    digest: str  # SHA-256 of all that was fixed before, for reports
    left: dict[str, list[str]] = field(default_factory=dict)  # what was wrong with sites in the steps of the open sum
    groups: list[tuple[str, ...]] = field(default_factory=list)  # whose sums were opened, in order

    @cached_property
    def expected(self) -> SafetensorsFile:
        """The expected file."""
        assert self.plan.expect is not None  # noqa: S101  (narrows the type; `serve_folder` has asked)
        return SafetensorsFile(self.plan.expect)

    def run(self, reports: list[RoundReport]) -> tuple[Fusion | None, list[RoundReport]]:
        """Run the sums that have not ended; return the fusion where there is one, and the reports of all."""
        self.groups[:] = [report.sites for report in reports]
        if self.then is None:
            self.say(self._waiting(1))
            result, report = self._sum(1, self.expected, 1)
            reports.append(report)
            return (result.model if isinstance(result.model, Fusion) else None), reports
        model = load_file(self.expected)
        message: RoundRequest | None = request(self.then.kind, model, rounds=self.then.rounds)
        done: list[Round] = []
        while message is not None:
            number = message.number
            folder = self._folder(number)
            write_message(folder / "expected.safetensors", message)
            file = SafetensorsFile(folder / "expected.safetensors")
            if number <= len(reports):  # had ended: reduced again from the sum
                done.append(self._replayed(number, file))
            else:
                self.say(self._waiting(number))
                try:
                    _, report = self._sum(number, file, message.rounds, model, done)
                except RoundError as error:
                    if number == 1:
                        raise
                    reports.append(self.end(error.report, None))
                    self.say(Event(f"sum {number} failed; the model of sum {number - 1} stays", "failed", number))
                    break
                reports.append(report)
                self.groups.append(report.sites)
            message = done[-1].next_request
        finished = finish(model, done)
        return (finished if isinstance(finished, Fusion) else None), reports

    def _waiting(self, number: int) -> Event:
        sites = ", ".join(self._sites)
        return Event(f"masked sum {number}: waiting for {sites} in {self.storage.where}", "waiting", number)

    @property
    def _sites(self) -> tuple[str, ...]:
        """The sites of the next sum: those of the last one."""
        return self.groups[-1] if self.groups else self.plan.sites

    def _folder(self, number: int) -> Path:
        folder = self.work / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _summand(self, file: SafetensorsFile, threshold: int) -> Summand:
        weights: Any = BY_OBSERVATIONS if self.masked.by_observations else (self.plan.weights or EQUAL)
        return summand_of(file, weights, self.masked.noise, None, threshold)

    def _masked_plan(self, number: int, summand: Summand, file: SafetensorsFile, rounds: int) -> MaskedPlan:
        """Return the plan of a sum: the one in the work folder, or a new one with a new random number."""
        path = self._folder(number) / "masked.json"
        if path.exists():
            return MaskedPlan.from_json(json.loads(read_text(path)), str(path))
        keys = read_public_keys(self.masked.signing_keys)
        plan = MaskedPlan(
            {site: keys[site] for site in self._sites},
            summand.length,
            self.plan.quorum or 0,
            content={
                "summand": summand.name,
                "expected": file.digest,
                "sum": number,
                "sums": rounds,
                # Two rounds that are alike in everything else are two: what was signed for one is nothing in the other.
                "nonce": secrets.token_hex(16),
                **summand.content,
            },
        )
        write_bytes(path, plan.data)
        return plan

    def _sum(
        self, number: int, file: SafetensorsFile, rounds: int, start: Any = None, done: list[Round] | None = None
    ) -> tuple[SumResult, RoundReport]:
        """Run the five steps of a sum, and write what it comes to.

        Raises RoundError when fewer sites than the threshold were left at a step, or the sum makes no model.
        """
        folder = self._folder(number)
        summand = self._summand(file, self.plan.quorum or default_threshold(len(self.plan.sites)))
        plan = self._masked_plan(number, summand, file, rounds)
        for line in [*plan.warnings(), *summand.warnings(plan)] if number == 1 else []:
            self.say(Event(line, "log", number))
        self._publish(number, plan, file)
        steps: dict[int, _Copies] = {}
        problems: list[Problem] = []
        report = self._report(number, plan, steps, summand)
        try:
            server = MaskedServer(plan)
            for step in STEPS:
                steps[step] = self._step(number, step, server)
                report = self._report(number, plan, steps, summand)
                self._agree(number, step, server, steps[step], report)
            words, problems = server.open(steps[MASK], steps[REVEAL])
            for problem in problems:
                self.left.setdefault(str(problem.subject), []).append(problem.without_subject().text)
            result = summand.result(words, report.sites, plan_record(plan), plan.fractional_bits)
            report = self._report(number, plan, steps, summand, result)
            write_bytes(folder / "sum.bin", fixed_point.to_bytes(words))
        except Exception as error:  # whatever sums of strangers make fail
            if isinstance(error, ConsilienceError) and error.may_pass:  # a server that starts again goes on with it
                raise
            # Another try has another plan: no site is to begin with this one.
            retry(lambda: self.storage.remove(f"server/{number}/masked.json"))
            forget_failed(self.work, number)
            fault = error if isinstance(error, ConsilienceError) else InputError([fault_of(error)])
            raise RoundError(_failed(report, fault)) from error
        fused = folder / "fused.safetensors"
        is_last = True
        if self.then is None or done is None:
            summand.save(result, fused)
        else:
            done.append(result.model)
            is_last = done[-1].next_request is None
            finished, reduction = finish(start, done), done[-1].reduction
            summand.save(SumResult(finished), fused)
            verdict = request_kind(self.then.kind).verdict(reduction.content)
            report = replace(report, verdict=None if verdict is None else verdict.text)
        report = replace(
            report, fused={"sha256": file_digest(fused), "bytes": fused.stat().st_size}, continues=not is_last
        )
        return result, self.end(report, fused)

    def _publish(self, number: int, plan: MaskedPlan, file: SafetensorsFile) -> None:
        """Publish what a sum is made of; who has dropped out of an earlier one is left out."""
        retry(lambda: self.storage.remove(f"server/{number}/round.json"))  # of an earlier try, which failed
        retry(partial(self.storage.put, f"server/{number}/expected.safetensors", file.path))
        retry(partial(self.storage.put, f"server/{number}/masked.json", plan.data))
        self.left.clear()
        for site in sorted(set(self.plan.sites) - set(plan.sites)):
            self.left[site] = [f"was not in sum {number - 1}, and a sum with it would reveal what it sends"]

    def _replayed(self, number: int, file: SafetensorsFile) -> Round:
        """Return what a request came to in a sum that had ended."""
        plan = MaskedPlan.from_json(json.loads(read_text(self._folder(number) / "masked.json")), "masked.json")
        summand = self._summand(file, plan.threshold)
        if file.digest != plan.content.get("expected"):
            raise InputError(self.work, f"has another request in sum {number} than this version makes", code="E-ROUND")
        words = fixed_point.as_words(read_file(self._folder(number) / "sum.bin"))
        result: Round = summand.result(words, (), plan_record(plan), plan.fractional_bits).model
        return result

    def _agree(
        self, number: int, step: int, server: MaskedServer, messages: Mapping[str, Message], report: RoundReport
    ) -> None:
        """Agree on what came, and publish it; only for a group that sites open."""
        if step <= MASK:
            self._refuse_near(number, tuple(messages))
        name = f"server/{number}/agreed-{step}"
        if step == DEAL:
            for site, message in server.agree_on_shares(messages).items():
                retry(partial(self.storage.put, f"{name}/{site}", message.data))
            return
        if step == REVEAL:
            return
        if step == MASK and self.ledger is not None and (near := too_near(self.ledger, report.sites, MIN_DIFFERENCE)):
            raise InputError(near)
        agreements = {
            ADVERTISE: server.agree_on_keys,
            MASK: server.agree_on_sum,
            CONFIRM: server.agree_on_confirmations,
        }
        message = agreements[step](messages)
        retry(partial(self.storage.put, name, message.data))

    def _refuse_near(self, number: int, sites: tuple[str, ...]) -> None:
        """Raise where few sites have dropped out since an earlier sum: the others do not open one without them."""
        for opened, group in enumerate(self.groups, start=1):
            if gone := sites_between(sites, group, MIN_DIFFERENCE):
                names, they = ", ".join(gone), "it" if len(gone) == 1 else "they"
                text = f"dropped out after sum {opened}, and a sum without {names} would reveal what {they} sent"
                remedy = f"the requests end, and the model of sum {number - 1} stays"
                raise InputError(names, text, remedy, "E-ROUND")

    def _step(self, number: int, step: int, server: MaskedServer) -> _Copies:
        """Return the messages of a step that count: those decided on before, or those that come until the deadline."""
        count = len(STEPS) * (number - 1) + step
        decided = self._folder(number) / f"agreed-{step}.json"
        files = self.work / str(count) / "files"
        if not decided.exists():
            digests = self._collect(number, step, count, server)
            write_bytes(decided, json.dumps(digests).encode())
        digests = json.loads(read_text(decided))
        for site in server.expected(step):
            if site not in digests["sites"]:
                reason = digests["left"].get(site, "nothing in time")
                self.left.setdefault(site, []).append(f"step {step}, {STEP_NAMES[step]}: {reason}")
        return _Copies({site: files / site / digest for site, digest in digests["sites"].items()})

    def _collect(self, number: int, step: int, count: int, server: MaskedServer) -> dict[str, dict[str, str]]:
        """Wait for the messages of a step; return the digests of the good ones, and what is wrong with others."""
        expected = server.expected(step)
        if len(expected) < server.plan.threshold:
            text = f"{len(expected)} sites are left, and it takes {server.plan.threshold}"
            raise InputError(f"step {step}", text, code="E-FEW")
        inbox = Inbox(self.storage, replace(self.plan, sites=expected, quorum=None, weights=None), count, self.work)
        check, said = remembering(partial(self._problem, step, server)), set[str]()
        good, problems = dict[str, str](), dict[str, str]()

        def has_all() -> bool:
            by_announcement = {one.announcement: one for one in inbox.contributions()}
            good.clear()
            problems.clear()
            problems.update(inbox.blocked)
            for site, announcement in select_announcements(by_announcement).chosen.items():
                contribution = by_announcement[announcement]
                if problem := check(contribution):
                    problems[site] = problem
                else:
                    good[site] = announcement.digest
                is_waiting = contribution.path is None and contribution.problem is None
                if not is_waiting and site not in said:
                    said.add(site)
                    text = f"{site}: {STEP_NAMES[step]} {problem or 'in'}"
                    self.say(Event(text, "refused" if problem else "in", number, site))
            self.show(self._open_report(number, server.plan, step, good, problems, expected))
            return len(good) == len(expected)

        self.collect(inbox, has_all, number)
        self.say(Event(f"sum {number}, step {step}: {STEP_NAMES[step]} of {len(good)} sites", "closed", number))
        return {"sites": good, "left": problems}

    def _problem(self, step: int, server: MaskedServer, contribution: Contribution) -> str:
        """Return what is wrong with a site's message; empty where nothing is. Nothing that it may hold raises."""
        if contribution.problem is not None or contribution.path is None:
            return contribution.problem or "its file never came"
        site = contribution.announcement.site
        file = SafetensorsFile(contribution.path, site)
        try:
            if problems := exceeded_limits(file, self.plan.limits):
                return "; ".join(str(problem.without_subject()) for problem in problems)
            if file.digest != contribution.announcement.digest:
                return "its content is not what was announced; send it again"
            return server.problem(step, site, read_message(file)) or ""
        except ConsilienceError as error:
            return "; ".join(str(problem.without_subject()) for problem in error.problems)
        except MemoryError:
            return "takes more memory than there is"
        except Exception as error:  # whatever one site's message makes fail must not end the round of all
            return fault_of(error).text

    def _open_report(
        self,
        number: int,
        plan: MaskedPlan,
        step: int,
        good: Mapping[str, str],
        problems: Mapping[str, str],
        expected: tuple[str, ...],
    ) -> RoundReport:
        """Return the report of an open sum: who is in at this step, who is missing, and who was refused and why."""
        return RoundReport(
            self.plan.name,
            number,
            self.plan.sites,
            took_part=tuple(Record(site) for site in sorted(good)),
            left_out=tuple(Record(site, reasons=(problems[site],)) for site in sorted(problems)),
            missing=tuple(site for site in expected if site not in good and site not in problems),
            closed=OPEN,
            quorum=plan.threshold,
            deadline=float(self.plan.deadline),
            seed=self.plan.seed,
            plan=self.digest,
            masked={**plan_record(plan), "step": step},
        )

    def _report(
        self,
        number: int,
        plan: MaskedPlan,
        steps: Mapping[int, _Copies],
        summand: Summand,
        result: SumResult | None = None,
    ) -> RoundReport:
        """Return the report of a sum as far as it has come."""
        summed = steps[MASK] if MASK in steps else steps.get(max(steps, default=0), _Copies({}))
        never = tuple(
            site
            for site in self.plan.sites
            if ADVERTISE in steps and site not in steps[ADVERTISE] and site in self.left
        )
        missing = tuple(site for site in never if self.left[site][0].endswith("nothing in time"))
        details = {} if result is None else dict(result.details)
        return RoundReport(
            self.plan.name,
            number,
            self.plan.sites,
            took_part=tuple(
                Record(site, sha256=path.name, bytes=path.stat().st_size) for site, path in summed.paths.items()
            ),
            left_out=tuple(
                Record(site, reasons=tuple(reasons))
                for site, reasons in sorted(self.left.items())
                if site not in missing and site not in summed
            ),
            missing=missing,
            closed="all sites in" if len(summed) == len(plan.sites) else "deadline",
            quorum=plan.threshold,
            deadline=float(self.plan.deadline),
            method=f"masked sum of {summand.name}",
            seed=self.plan.seed,
            masked={**plan_record(plan), **details, "troubles": self._troubles(summed)},
        )

    def _troubles(self, summed: Mapping[str, Any]) -> list[str]:
        """Return what went wrong with sites whose numbers are in the sum all the same."""
        return [
            f"{site}: {reason}" for site, reasons in sorted(self.left.items()) if site in summed for reason in reasons
        ]


def _failed(report: RoundReport, error: ConsilienceError) -> RoundReport:
    """Return the report of a sum that came to nothing."""
    left_out = (*report.left_out, *(Record(site, reasons=("nothing was summed",)) for site in report.sites))
    problems = tuple(error.problems)
    return replace(report, took_part=(), method=None, problems=problems, fused=None, left_out=left_out)


def plan_record(plan: MaskedPlan) -> dict[str, Json]:
    """Return what provenance and reports say of a plan."""
    record = {"round": plan.round_id.hex(), "threshold": plan.threshold, "fractional_bits": plan.fractional_bits}
    return {**record, **({"noise": plan.content["noise"]} if "noise" in plan.content else {})}


def remove_copies(work: Path, n_sums: int) -> None:
    """Remove the copies of messages from the work folder."""
    for number in range(1, len(STEPS) * n_sums + 1):
        for name in ("files", "seen"):
            shutil.rmtree(work / str(number) / name, ignore_errors=True)


def forget_failed(work: Path, number: int) -> None:
    """Remove everything of a sum that failed: another try is another sum, with new keys of all sites."""
    for path in [work / str(number) / "masked.json", *(work / str(number)).glob("agreed-*.json")]:
        path.unlink(missing_ok=True)
    for step in STEPS:
        folder = work / str(len(STEPS) * (number - 1) + step)
        (folder / "started").unlink(missing_ok=True)
        for name in ("files", "seen"):
            shutil.rmtree(folder / name, ignore_errors=True)
