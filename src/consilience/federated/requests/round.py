"""A round of answers without a transport: select, check and reduce what sites sent, and report on each.

The selection is that of a round of models: the highest attempt of a site counts, two contents under one attempt leave
it out, copies count once. With fewer good answers than the quorum the state stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consilience.errors import ConsilienceError, Problem
from consilience.federated.contribution import Announcement, Contribution, select_announcements
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.federated.requests.base import Answer, RoundRequest, StandingAnswer, read_answer
from consilience.federated.requests.exchange import Round, answer_problems, reduce
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile


@dataclass(frozen=True, eq=False)
class CheckedAnswer:
    """An answer of a site, or the problems for which it is rejected.

    Parameters
    ----------
    problems : tuple of Problem
        Everything that is wrong with it. Default: nothing.
    answer : Answer, optional
        The answer. Default: None, where there are problems.
    """

    problems: tuple[Problem, ...] = ()
    answer: Answer | None = None


def check_answer(contribution: Contribution, message: RoundRequest, limits: Limits) -> CheckedAnswer:
    """Return the answer in a site's file, or what is wrong with it; nothing that it may hold raises.

    Parameters
    ----------
    contribution : Contribution
        The server's copy of the file.
    message : Request
        The request that it should answer.
    limits : Limits
        Largest sizes of a file.
    """
    if contribution.problem is not None or contribution.path is None:
        return CheckedAnswer((Problem.of(contribution.problem or "its file never came"),))
    file = SafetensorsFile(contribution.path, contribution.announcement.site)
    if problems := exceeded_limits(file, limits):
        return CheckedAnswer(tuple(problem.without_subject() for problem in problems))
    try:
        if file.digest != contribution.announcement.digest:
            return CheckedAnswer((Problem("", "its content is not what was announced; send it again"),))
        answer = read_answer(file)
        problems = answer_problems(message, answer)
    except ConsilienceError as error:
        return CheckedAnswer(tuple(problem.without_subject() for problem in error.problems))
    except MemoryError:  # of a file within the limits, but not within this machine
        return CheckedAnswer((Problem("", "takes more memory than there is"),))
    if problems:
        return CheckedAnswer(tuple(problem.without_subject() for problem in problems))
    return CheckedAnswer((), answer)


def run_request(
    plan: RoundPlan,
    message: RoundRequest,
    contributions: Iterable[Contribution],
    checked: Mapping[Announcement, CheckedAnswer],
    standing: Mapping[str, StandingAnswer],
    late: Mapping[str, tuple[Announcement, StandingAnswer]],
    *,
    number: int,
    closed: str,
    unknown: Sequence[str] = (),
    blocked: Mapping[str, str] | None = None,
) -> tuple[Round, RoundReport]:
    """Return what the answers to a request come to, and the report.

    Parameters
    ----------
    plan : RoundPlan
        What was fixed before the round.
    message : Request
        The request.
    contributions : iterable of Contribution
        Answers of this round, in any order, any number of times.
    checked : mapping of Announcement to CheckedAnswer
        What `check_answer` says of those that are selected.
    standing : mapping of str to StandingAnswer
        The answers that counted in the round before, by site.
    late : mapping of str to (Announcement, StandingAnswer)
        Answers to earlier requests that came since, by site.
    number, closed, unknown, blocked
        As for `run_round`.

    Raises
    ------
    RoundError
        When fewer answers than the quorum are good, or they cannot be reduced; its ``report`` says why.
    """
    by_announcement = {contribution.announcement: contribution for contribution in contributions}
    expected = set(plan.sites)
    selection = select_announcements(one for one in by_announcement if one.site in expected)
    reasons: dict[str, Sequence[str]] = {
        site: checked[one].problems for site, one in selection.chosen.items() if checked[one].problems
    }
    reasons |= {site: [reason] for site, reason in {**selection.conflicts, **(blocked or {})}.items()}
    first_sender: dict[str, str] = {}  # by digest
    for site in sorted(set(selection.chosen) - set(reasons)):
        first = first_sender.setdefault(selection.chosen[site].digest, site)
        if first != site:
            reasons[site] = [f"sent the same answer as {first}, which counts once"]
    answers: dict[str, Answer] = {}
    for site, announcement in sorted(selection.chosen.items()):
        answer = checked[announcement].answer
        if site not in reasons and answer is not None:
            answers[site] = answer
    result, problems = None, list[Problem]()
    if len(answers) < plan.needed:
        shortage = f"{len(answers)} good answers, and the round needs {plan.needed}"
        problems = [Problem("", f"{shortage}; the model stays as it was")]
    else:
        try:
            result = reduce(message, answers, standing, {site: one for site, (_, one) in late.items()})
        except ConsilienceError as error:
            problems = list(error.problems)
    if result is None:
        reasons |= {site: ["is good, but nothing came of it"] for site in answers}
    carried = {} if result is None else result.reduction.carried
    report = RoundReport(
        plan.name,
        number,
        plan.sites,
        took_part=()
        if result is None
        else tuple(
            Record.of(selection.chosen[site], bytes=_n_bytes(by_announcement[selection.chosen[site]]))
            for site in answers
        ),
        left_out=tuple(
            Record.of(selection.chosen[site], *map(str, reasons[site]))
            if site in selection.chosen
            else Record(site, reasons=tuple(map(str, reasons[site])))
            for site in sorted(reasons)
        ),
        missing=tuple(site for site in plan.sites if site not in selection.chosen and site not in reasons),
        ignored=tuple(
            Record.of(one, f"attempt {selection.chosen[one.site].attempt} replaces attempt {one.attempt}")
            for one in selection.ignored
        ),
        unknown=tuple(sorted(({one.site for one in by_announcement} - expected) | set(unknown))),
        closed=closed,
        quorum=plan.needed,
        deadline=float(plan.deadline),
        method=None if result is None else message.kind,
        seed=plan.seed,
        problems=tuple(problems),
        request={
            "kind": message.kind,
            "number": message.number,
            "rounds": message.rounds,
            "sha256": message.digest,
        },
        carried=tuple(
            Record(
                site,
                sha256=result.reduction.standing[site].answer.digest,
                reasons=(f"answer to request {result.reduction.standing[site].answer.number}: {reason}",),
            )
            for site, reason in carried.items()
        )
        if result is not None
        else (),
    )
    if result is None:
        raise RoundError(report)
    return result, report


def _n_bytes(contribution: Contribution) -> int | None:
    return None if contribution.path is None else contribution.path.stat().st_size
