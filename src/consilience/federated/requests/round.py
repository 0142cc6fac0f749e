"""A round of answers without a transport: select, check and reduce what sites sent, and report on each.

The selection is that of a round of models: the highest attempt of a site counts, two contents under one attempt leave
it out, copies count once. With fewer good answers than the quorum the state stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consilience.errors import ConsilienceError, Problem
from consilience.federated.contribution import Announcement, Arrivals, Contribution, repeated
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.federated.requests.base import Answer, Reduction, RoundRequest, StandingAnswer, read_answer
from consilience.federated.requests.exchange import Round, answer_problems, reduce
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile


@dataclass(frozen=True, eq=False)
class CheckedAnswer:
    """An answer of a site, or the problems for which it is rejected."""

    problems: tuple[Problem, ...] = ()  # everything that is wrong with it. Default: nothing.
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


def _carried(reduction: Reduction) -> tuple[Record, ...]:
    """Return the records of sites whose earlier answers were carried on."""
    answers = {site: reduction.standing[site].answer for site in reduction.carried}
    return tuple(
        Record(site, sha256=one.digest, reasons=(f"answer to request {one.number}: {reduction.carried[site]}",))
        for site, one in answers.items()
    )
