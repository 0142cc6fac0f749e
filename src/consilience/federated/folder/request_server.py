"""Server of requests in a shared folder or a bucket: publish, wait, reduce, and resume after being killed.

Requests follow the round of models in the same place, under the numbers after it, so that answers are announced as
models are:

    server/N/request.safetensors       the request of round N = 2, 3, ...
    server/N/fused.safetensors         the model after it, and round.json, its report, written last
    sites/NAME/SHA256                  a site's answer, and N-ATTEMPT-SHA256, its announcement

Everything that decides the result of a round is in the server's work folder before its report is: the request, the
copies of answers, and which of them counted (answers.json). A server that was killed reduces the same answers again,
and its requests have the same bytes.

The selection of answers is that of a round of models: the highest attempt of a site counts, two contents under one
attempt leave it out, copies count once. With fewer good answers than the quorum the state stays as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.core.fusion import Fusion
from consilience.core.provenance import file_digest
from consilience.errors import ConsilienceError, InputError, Problem, fault_of
from consilience.federated.contribution import Announcement, Arrivals, Contribution, repeated, select_announcements
from consilience.federated.convergence import change_between
from consilience.federated.folder.inbox import Inbox, remembering
from consilience.federated.folder.storage import Storage, retry
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.federated.requests.base import (
    Answer,
    Reduction,
    RoundRequest,
    StandingAnswer,
    read_answer,
    write_message,
)
from consilience.federated.requests.exchange import Round, answer_problems, finish, reduce, request
from consilience.federated.requests.table import Then
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.opening import read_file, read_text
from consilience.files.safetensors_file import SafetensorsFile


@dataclass(frozen=True, eq=False)
class CheckedAnswer:
    """An answer of a site, or the problems for which it is rejected."""

    problems: tuple[Problem, ...] = ()  # everything that is wrong with it
    answer: Answer | None = None  # the answer. Default: None, where there are problems.


def check_answer(contribution: Contribution, message: RoundRequest, limits: Limits) -> CheckedAnswer:
    """Return the answer in a site's file, or what is wrong with it; nothing that it may hold raises."""
    if contribution.problem is not None or contribution.path is None:
        return CheckedAnswer((Problem.of(contribution.problem or "its file never came"),))
    file = SafetensorsFile(contribution.path, contribution.announcement.site)
    answer = None
    try:
        if problems := exceeded_limits(file, limits):
            pass
        elif file.digest != contribution.announcement.digest:
            problems = [Problem("", "its content is not what was announced; send it again")]
        else:
            answer = read_answer(file)
            problems = answer_problems(message, answer)
    except ConsilienceError as error:
        problems = list(error.problems)
    except MemoryError:  # of a file within the limits, but not within this machine
        problems = [Problem("", "takes more memory than there is")]
    except Exception as error:  # whatever one site's answer makes fail must not end the round of all
        problems = [fault_of(error)]
    return CheckedAnswer(tuple(problem.without_subject() for problem in problems), None if problems else answer)


def run_request(
    plan: RoundPlan,
    message: RoundRequest,
    contributions: Iterable[Contribution],
    checked: Mapping[Announcement, CheckedAnswer],
    standing: Mapping[str, StandingAnswer],
    late: Mapping[str, StandingAnswer],
    *,
    number: int,
    closed: str,
    unknown: Sequence[str] = (),
    blocked: Mapping[str, str] | None = None,
) -> tuple[Round, RoundReport]:
    """Return what the answers to a request come to, and the report.

    `contributions` are answers of this round, in any order, any number of times, and `checked` what `check_answer` says
    of those that are selected. `standing` counted in the round before; `late` came since, to earlier requests. The rest
    is as for `run_round`. Raises RoundError when fewer answers than the quorum are good, or they cannot be reduced; its
    ``report`` says why.
    """
    arrivals = Arrivals.of(contributions, plan.sites, number)
    selection = arrivals.selection
    reasons = {
        site: tuple(map(str, checked[one].problems)) for site, one in selection.chosen.items() if checked[one].problems
    }
    reasons |= {site: (reason,) for site, reason in {**selection.conflicts, **(blocked or {})}.items()}
    copies = repeated(set(selection.chosen) - set(reasons), selection.chosen, "answer")
    reasons |= {site: (reason,) for site, reason in copies.items()}
    chosen = selection.chosen
    answers = {
        site: answer
        for site, one in sorted(chosen.items())
        if site not in reasons and (answer := checked[one].answer) is not None
    }
    result, problems = _reduced(plan, message, answers, standing, late)
    if result is None:
        reasons |= dict.fromkeys(answers, ("is good, but nothing came of it",))
        answers = {}
    report = RoundReport.of_round(
        plan,
        number,
        selection,
        reasons,
        took_part=tuple(
            Record.of(chosen[site], bytes=arrivals.by_announcement[chosen[site]].n_bytes) for site in answers
        ),
        unknown=tuple(sorted(arrivals.strangers | set(unknown))),
        closed=closed,
        method=None if result is None else message.kind,
        problems=tuple(problems),
        request={"kind": message.kind, "number": message.number, "rounds": message.rounds, "sha256": message.digest},
        carried=() if result is None else _carried(result.reduction),
    )
    if result is None:
        raise RoundError(report)
    return result, report


def _reduced(
    plan: RoundPlan,
    message: RoundRequest,
    answers: Mapping[str, Answer],
    standing: Mapping[str, StandingAnswer],
    late: Mapping[str, StandingAnswer],
) -> tuple[Round | None, list[Problem]]:
    """Return what answers come to, and why nothing does."""
    if len(answers) < plan.needed:
        shortage = f"{len(answers)} good answers, and the round needs {plan.needed}"
        return None, [Problem("", f"{shortage}; the model stays as it was")]
    try:
        return reduce(message, answers, standing, late), []
    except ConsilienceError as error:
        return None, list(error.problems)
    except Exception as error:  # whatever sums of strangers make fail: the model stays as it was
        return None, [fault_of(error).about("the sum of the answers")]


def _carried(reduction: Reduction) -> tuple[Record, ...]:
    """Return the records of sites whose earlier answers were carried on."""
    answers = {site: reduction.standing[site].answer for site in reduction.carried}
    return tuple(
        Record(site, sha256=one.digest, reasons=(f"answer to request {one.number}: {reduction.carried[site]}",))
        for site, one in answers.items()
    )


REQUEST_FILE = "request.safetensors"

FIRST_REQUEST = 2
"""Number of the round of the first request: the models come in round 1."""

_LATE_SECONDS = 30.0
"""Time in which answers to earlier requests are copied, after a round is over. Chosen by hand."""


def request_name(number: int) -> str:
    """Return the name of the request of a round in its place."""
    return f"server/{number}/{REQUEST_FILE}"


@dataclass(frozen=True, eq=False)
class RequestServer:
    """The requests of one call of `serve_folder`."""

    storage: Storage  # the place of the round
    plan: RoundPlan  # what was fixed before it
    work: Path  # the server's own folder
    then: Then  # kind and number of requests, and of those that follow them
    say: Callable[[str], None]  # called with each line of the log
    # Waits for the contributions of a round, given its inbox, its number and their check; returns what closed it.
    wait: Callable[[Inbox, Callable[[Contribution], Any], int], str]
    # Writes the report and the model of a round for the server and for sites; returns the report.
    end: Callable[[RoundReport, Path | None], RoundReport]
    first: int = FIRST_REQUEST  # number of the round of the first request

    def run(self, fusion: Fusion, reports: list[RoundReport]) -> tuple[Fusion, list[RoundReport]]:
        """Return the model after all requests, and the reports of all rounds.

        `fusion` is that of the models of round 1; `reports` are of the rounds that have ended: of round 1, and after a
        restart others.
        """
        message: RoundRequest | None = request(self.then.kind, fusion, rounds=self.then.rounds)
        done: list[Round] = []
        while message is not None:
            number = self.first + message.number - 1
            if number <= len(reports):  # had ended
                message = self._replay(number, message, done)
                continue
            try:
                reports.append(self._round(number, message, fusion, done))
            except RoundError as error:
                self.end(error.report, None)
                (self.work / str(number) / "started").unlink(missing_ok=True)
                self.say(f"round {number} failed; the model of round {number - 1} stays")
                reports.append(error.report)
                return (finish(fusion, done) if done else fusion), reports
            message = done[-1].next_request
        finished = finish(fusion, done)
        if self.then.after is None or not reports[self.first + len(done) - 2].continues:
            return finished, reports
        return replace(self, then=self.then.after, first=self.first + len(done)).run(finished, reports)

    def _round(self, number: int, message: RoundRequest, fusion: Fusion, done: list[Round]) -> RoundReport:
        """Publish a request, wait for answers, and write what they come to."""
        folder = self.work / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        self._write_request(folder / REQUEST_FILE, message)
        retry(lambda: self.storage.remove(f"server/{number}/round.json"))  # of an earlier try, which failed
        retry(lambda: self.storage.put(request_name(number), folder / REQUEST_FILE))
        inbox = Inbox(self.storage, self.plan, number, self.work)
        check = remembering(lambda one: check_answer(one, message, self.plan.limits))
        asked = f"{message.kind} {message.number} of {message.rounds}"
        self.say(f"round {number}: request {asked}, waiting for {', '.join(self.plan.sites)} in {self.storage.where}")
        closed = self.wait(inbox, check, number)
        self.say(f"round {number}: closed ({closed}), reducing")
        contributions = inbox.contributions()
        by_announcement = {one.announcement: one for one in contributions}
        chosen = select_announcements(one for one in by_announcement if one.site in self.plan.sites).chosen
        results = {one: check(by_announcement[one]) for one in chosen.values()}
        good = {site for site, one in chosen.items() if results[one].answer is not None}
        late = self._late_answers(number, set(self.plan.sites) - good, done)
        standing = done[-1].reduction.standing if done else {}
        result, report = run_request(
            self.plan,
            message,
            contributions,
            results,
            standing,
            {site: one for site, (_, one) in late.items()},
            number=number,
            closed=closed,
            unknown=inbox.unexpected_folders(),
            blocked=inbox.blocked,
        )
        used = {record.site: record.sha256 for record in report.took_part}
        late_used = {site: [self.first + one.request.number - 1, by.digest] for site, (by, one) in late.items()}
        record = json.dumps({"answers": used, "late": late_used})
        (folder / "answers.json").write_text(record)
        done.append(result)
        finished, file = finish(fusion, done), folder / "fused.safetensors"
        finished.save(file)
        report = replace(
            report,
            late=tuple(Record.of(one) for one in inbox.late_announcements()),
            fused={"sha256": file_digest(file), "bytes": file.stat().st_size},
            verdict=finished.verdict.text,
            convergence=change_between(self.work / str(number - 1) / "fused.safetensors", file, result.objective),
            continues=result.next_request is not None or self._goes_on(finished),
        )
        return self.end(report, file)

    def _goes_on(self, finished: Fusion) -> bool:
        """Return whether requests of another kind follow, and say where there are none of this model."""
        if self.then.after is None:
            return False
        try:
            request(self.then.after.kind, finished, rounds=self.then.after.rounds)
        except ConsilienceError as error:
            self.say(f"no request {self.then.after.kind} follows: {error}")
            return False
        return True

    def _write_request(self, file: Path, message: RoundRequest) -> None:
        """Write a request into the work folder, or raise where a killed server had published another one."""
        if file.exists() and read_file(file) != message.data:
            text = f"has another request {message.number} than this version makes, and sites may have answered it"
            raise InputError(self.work, text, "go on with the version that began, or begin a new round", "E-ROUND")
        write_message(file, message)

    def _late_answers(
        self, number: int, sites: set[str], done: list[Round]
    ) -> dict[str, tuple[Announcement, StandingAnswer]]:
        """Return the last good answer to an earlier request of every site that did not answer this one.

        They are copied into a folder of this round, so that what an earlier round has used stays there.
        """
        late: dict[str, tuple[Announcement, StandingAnswer]] = {}
        standing: Mapping[str, StandingAnswer] = done[-1].reduction.standing if done else {}
        for earlier in reversed(range(self.first, number)):
            message = done[earlier - self.first].request
            open_sites = {
                site
                for site in sites - set(late)
                if site not in standing or standing[site].request.number < message.number
            }
            if not open_sites:
                continue
            inbox = Inbox(self.storage, self.plan, earlier, self.work / str(number) / "late")
            inbox.poll(time.monotonic() + _LATE_SECONDS)
            by_announcement = {one.announcement: one for one in inbox.contributions()}
            for site, one in select_announcements(by_announcement).chosen.items():
                if site in open_sites:
                    answer = check_answer(by_announcement[one], message, self.plan.limits).answer
                    if answer is not None:
                        late[site] = (one, StandingAnswer(message, answer))
        return late

    def _replay(self, number: int, message: RoundRequest, done: list[Round]) -> RoundRequest | None:
        """Reduce the answers of a round that had ended once more; return the request that follows."""
        folder = self.work / str(number)
        if read_file(folder / REQUEST_FILE) != message.data:
            text = f"has another request in round {number} than this version makes"
            raise InputError(self.work, text, code="E-ROUND")
        record = json.loads(read_text(folder / "answers.json"))
        answers = {site: read_answer(folder / "files" / site / digest) for site, digest in record["answers"].items()}
        late = {
            site: StandingAnswer(
                done[earlier - self.first].request,
                read_answer(folder / "late" / str(earlier) / "files" / site / digest),
            )
            for site, (earlier, digest) in record["late"].items()
        }
        done.append(reduce(message, answers, done[-1].reduction.standing if done else {}, late))
        return done[-1].next_request
