"""Rounds without a transport: select, check and fuse contributions, and report on each.

The result is a function of the set of contributions, not of when or how often they came: the fused file of the same
contributions has the same bytes. It is the file that ``consilience fuse`` would write of the admitted sites' files,
each called as its site. Every contribution passes, in this order: selection of one per site, its own validation,
removal of copies, comparison with the others, size and scale, and ``consilience.check`` of all that are left; what
fails is left out with its reason. Whatever the fusion of the others then raises, or gives that the readers refuse, the
sites at fault are searched for, named and left out too (`isolation`). With fewer than the quorum nothing is fused.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import consilience as cs
from consilience.api.kinds import KINDS, NETWORKS, POSTERIORS, kind_of_file
from consilience.core.arguments import NETWORK_KEYWORDS
from consilience.core.fusion import Fusion
from consilience.core.kind import Facets, Kind, SiteFacts
from consilience.errors import ConsilienceError, InputError, OptionError, Problem, UnsupportedError
from consilience.federated.check import (
    CheckedContribution,
    check_alone,
    check_files,
    implausible,
    mismatches,
    oversized,
    site_order,
)
from consilience.federated.contribution import Announcement, Arrivals, Contribution, repeated
from consilience.federated.isolation import FusionFaultError, isolate
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.files.document import DESCRIPTION
from consilience.files.safetensors_file import SafetensorsFile

Checker = Callable[[Contribution], CheckedContribution]
"""Validates a contribution alone."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """The fused model of a round, and the reports."""

    # As from ``consilience.fuse``, with the names of sites for those of files. None from a server that was started
    # again after the round had ended: the sites' contributions are gone, and the fused file has the model.
    fusion: Fusion | None
    reports: tuple[RoundReport, ...]  # a report for each round, in order

    @property
    def report(self) -> RoundReport:
        """The report of the last round."""
        return self.reports[-1]

    @property
    def model(self) -> Fusion:
        """The fusion, where the round has just ended."""
        assert self.fusion is not None  # noqa: S101  (narrows the type)
        return self.fusion

    @property
    def has_failed_request(self) -> bool:
        """Whether too few answered a request: the model before it stays, and the same call asks again."""
        return self.report.request is not None and self.report.masked is None and bool(self.report.problems)


def run_round(
    plan: RoundPlan,
    contributions: Iterable[Contribution],
    *,
    number: int = 1,
    closed: str = "given",
    unknown: Sequence[str] = (),
    blocked: Mapping[str, str] | None = None,
    check: Checker | None = None,
) -> RoundResult:
    """Select, check and fuse the contributions of a round.

    Parameters
    ----------
    plan : RoundPlan
        What was fixed before the round.
    contributions : iterable of Contribution
        Contributions of this round, in any order, any number of times.
    number, closed, unknown
        For the report; see `RoundReport`.
    blocked : mapping of str to str, optional
        Sites from which nothing is accepted, with the reason. Default: none.
    check : callable, optional
        Validates a contribution alone; a server passes one that remembers results. Default: `check_alone`.

    Raises
    ------
    RoundError
        When fewer contributions than the quorum are good, or they cannot be fused; its ``report`` says why.
    OptionError
        For a method or options that do not exist.
    """
    check = check or (lambda contribution: check_alone(contribution, plan.limits))
    arrivals = Arrivals.of(contributions, plan.sites, number)
    selection = arrivals.selection
    checked: dict[str, CheckedContribution] = {
        site: check(arrivals.by_announcement[announcement]) for site, announcement in sorted(selection.chosen.items())
    }
    # A site is left out at the first test that it fails; each test sees only the sites that passed those before.
    reasons: dict[str, Sequence[str]]
    reasons = {site: contribution.problems for site, contribution in checked.items() if contribution.problems}
    reasons |= {
        site: [f"what it sent is for round {announcement.number}, and this is round {number}"]
        for site, announcement in arrivals.misnumbered.items()
    }
    reasons |= {site: [reason] for site, reason in {**selection.conflicts, **(blocked or {})}.items()}
    facts = _facts_of_fitting(plan, checked, selection.chosen, reasons)
    plan = _with_method(plan, checked, list(facts))
    fusion, good, problems = _fused(plan, checked, facts, reasons)
    if fusion is not None and (problems := _refusal_to_publish(plan, fusion)):
        reasons |= {site: ["is good, but nothing was published"] for site in good}
        fusion = None
    notes = () if fusion is None else claim_notes({site: facts[site] for site in good}, _bounds(plan, checked, good))
    report = RoundReport.of_round(
        plan,
        number,
        selection,
        reasons,
        took_part=() if fusion is None else _took_part(good, selection.chosen, arrivals.by_announcement, plan),
        unknown=tuple(sorted(arrivals.strangers | set(unknown))),
        closed=closed,
        method=None if fusion is None else fusion.provenance["method"],
        verdict=None if fusion is None else fusion.verdict.text,
        chosen=None if fusion is None else _chosen(fusion),
        single_site=None if fusion is None else fusion.single_site,
        notes=notes,
        problems=tuple(problems),
    )
    if fusion is None:
        raise RoundError(report)
    return RoundResult(fusion, (report,))


def _facts_of_fitting(
    plan: RoundPlan,
    checked: Mapping[str, CheckedContribution],
    chosen: Mapping[str, Announcement],
    reasons: dict[str, Sequence[str]],
) -> dict[str, SiteFacts]:
    """Return the facts of the sites that fit with each other; why others do not is added to `reasons`."""
    fitting = {site: one for site, one in checked.items() if one.facets is not None and site not in reasons}

    def leave_out(found: Mapping[str, str]) -> None:
        for site, reason in found.items():
            reasons[site] = [reason]
            fitting.pop(site, None)

    leave_out(repeated(fitting, chosen, "file"))
    facets = {site: one.facets for site, one in fitting.items() if one.facets is not None}
    leave_out(mismatches(facets, _expected_facets(plan), _needs_equal_widths(plan, facets)))
    leave_out(oversized(fitting))
    facts = {site: one.facts for site, one in fitting.items() if one.facts is not None}
    leave_out(implausible(facts))
    return {site: facts[site] for site in sorted(fitting)}


def _fused(
    plan: RoundPlan,
    checked: Mapping[str, CheckedContribution],
    facts: Mapping[str, SiteFacts],
    reasons: dict[str, Sequence[str]],
) -> tuple[Fusion | None, list[str], list[Problem]]:
    """Return the fusion of as many sites as may be fused, their names, and why there is none.

    Why sites are left out is added to `reasons`, of all sites where nothing is fused.
    """
    good, problems = _leave_out_unfusable(plan, checked, list(facts), reasons)
    fusion = None
    if len(good) >= plan.needed:
        isolation = isolate(site_order({site: facts[site] for site in good}), partial(_valid_fusion, plan, checked))
        fusion = isolation.result
        if fusion is None:
            problems = problems or [Problem.of(reason) for reason in dict.fromkeys(isolation.guilty.values())]
        else:
            problems = []
            reasons |= {site: [f"does not fit with the others: {reason}"] for site, reason in isolation.guilty.items()}
            good = sorted(isolation.sites)
    if len(good) < plan.needed:
        shortage = f"{len(good)} good contributions, and the round needs {plan.needed}"
        problems = [*problems, Problem("", f"{shortage}; nothing was fused")]
        fusion = None
    if fusion is None:
        fitting = "is good" if len(good) < plan.needed else "passed every check of its own"
        reasons |= {site: [f"{fitting}, but nothing was fused"] for site in good}
    return fusion, good, problems


MAX_CLAIM = 3.0
"""A network's observations count at most so many times the median of all that are claimed. Judged by
`benchmarks/hostile_sites.py` (docs/sites/robust.md)."""


_ROUNDING = 1e-9
"""Relative error of a sum of expected counts: half of all is no majority."""


def bounded_claims(facts: Mapping[str, SiteFacts]) -> dict[str, float]:
    """Return the observations that sites count for, at most `MAX_CLAIM` times the median; empty where one is silent."""
    stated = {site: one.n_observations for site, one in facts.items() if one.n_observations is not None}
    if len(stated) < len(facts) or not stated:
        return {}
    most = MAX_CLAIM * float(np.median([*stated.values()]))
    return {site: min(claimed, most) for site, claimed in stated.items()}


def claim_notes(facts: Mapping[str, SiteFacts], is_bounded: bool) -> tuple[str, ...]:
    """Return a line for a site that claims more than half of all observations, and for what does not count whole."""
    stated = {site: one.n_observations for site, one in facts.items() if one.n_observations is not None}
    total = sum(stated.values())
    notes = [
        f"claims: {site} states {claimed:,.0f} of {total:,.0f} observations, more than all others together"
        for site, claimed in stated.items()
        if len(stated) > 1 and 2 * claimed > total * (1.0 + _ROUNDING)
    ]
    counted = bounded_claims(facts) if is_bounded else {}
    return (
        *notes,
        *(
            f"claims: {site} counts as {most:,.0f} observations, not the {stated[site]:,.0f} that it states: "
            f"{MAX_CLAIM:g} times the median is the most"
            for site, most in counted.items()
            if most < stated[site]
        ),
    )


def _bounds(plan: RoundPlan, checked: Mapping[str, CheckedContribution], sites: Sequence[str]) -> bool:
    """Return whether claims are bounded: of networks whose weights the plan does not state or trust."""
    kinds = {kind_of_file(file) for site in sites if (file := checked[site].file) is not None}
    return plan.weights is None and not plan.trust_counts and any(kind.bounds_claims for kind in kinds)


def _with_method(plan: RoundPlan, checked: Mapping[str, CheckedContribution], sites: Sequence[str]) -> RoundPlan:
    """Return the plan with the method that it leaves to the kind of the models; see `Kind.method_of_round`."""
    if plan.method is not None or not sites or (file := checked[sites[0]].file) is None:
        return plan
    return plan_for(plan, kind_of_file(file))


def plan_for(plan: RoundPlan, kind: Kind) -> RoundPlan:
    """Return the plan of a round of models of a kind; raise OptionError where it must say more."""
    if plan.method is not None:
        return plan
    method, options = kind.method_of_round(plan.options, allow_single=plan.allow_single, asks_sites=plan.asks_sites)
    return replace(plan, method=method, options={**plan.options, **options})


def _refusal_to_publish(plan: RoundPlan, fusion: Fusion) -> list[Problem]:
    """Return why a fusion may not be published: it is one site's own model, and the plan does not allow that."""
    if fusion.single_site is None or plan.allow_single:
        return []
    text = f"no fused model was found better than that of {fusion.single_site}, which was not sent to be published"
    remedy = "open a round with `then='choose'`, with a `method=` by name, or with `allow_single=True`"
    return [Problem("", text, remedy)]


def _chosen(fusion: Fusion) -> str | None:
    """Return the candidate that the default took; None where nothing was chosen."""
    chosen = fusion.details.get("chosen")
    return None if chosen is None else str(chosen)


def _files(checked: Mapping[str, CheckedContribution], sites: Sequence[str]) -> dict[str, SafetensorsFile]:
    """Return the files of sites by their names in results and messages: models first, then their companions."""
    models = {site: checked[site].file for site in sites}
    companions = {f"{_called(checked[site].fisher)} of {site}": checked[site].fisher for site in sites}
    return {name: file.called(name) for name, file in {**models, **companions}.items() if file is not None}


def _called(companion: SafetensorsFile | None) -> str:
    """Return the name in messages of a network's companion file."""
    is_description = companion is not None and companion.format == DESCRIPTION
    return "description" if is_description else "Fisher information"


def _weights(plan: RoundPlan, sites: Sequence[str]) -> list[float] | None:
    return None if plan.weights is None else [plan.weights[site] for site in sites]


def _claims(
    plan: RoundPlan, checked: Mapping[str, CheckedContribution], sites: Sequence[str]
) -> dict[str, float] | None:
    """Return what sites' observations count where some claim too many; None where none does."""
    if not _bounds(plan, checked, sites):
        return None
    facts = {site: one for site in sites if (one := checked[site].facts) is not None}
    counted = bounded_claims(facts)
    return counted if any(most < (facts[site].n_observations or 0) for site, most in counted.items()) else None


def _valid_fusion(plan: RoundPlan, checked: Mapping[str, CheckedContribution], sites: Sequence[str]) -> Fusion:
    """Return the fusion of sites, with their names for those of the files, if its file can be written and read again.

    Raises FusionFaultError for whatever else comes of it: any exception, or a file that the readers refuse. Raises
    OptionError for options that are wrong whatever the sites are.
    """
    options: Any = plan.options
    sites = sorted(sites)
    try:
        with np.errstate(all="ignore"):
            fusion = cs.fuse(
                _files(checked, sites),
                plan.method,
                weights=_weights(plan, sites),
                n_observations=_claims(plan, checked, sites),
                rng=plan.seed,
                **options,
            )
            if plan.asks_sites and not plan.allow_single:
                with suppress(UnsupportedError):  # of a site's own model alone; see `_refusal_to_publish`
                    fusion = fusion.without_single_site()
            with tempfile.TemporaryDirectory(prefix="consilience-round-") as folder:
                file = Path(folder) / "fused.safetensors"
                fusion.save(file)
                problems = check_files(SafetensorsFile(file)).problems
    except (OptionError, OSError):
        raise
    except ConsilienceError as error:
        if error.may_pass:  # a full disk is no site's fault
            raise
        raise FusionFaultError("; ".join(map(str, error.problems))) from error
    except Exception as error:
        raise FusionFaultError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error
    if problems:
        raise FusionFaultError(f"the fused model {'; '.join(map(str, problems))}")
    return fusion


def _problems_of_fusing(
    plan: RoundPlan, checked: Mapping[str, CheckedContribution], sites: Sequence[str]
) -> list[Problem]:
    """Return what ``consilience.check`` has against fusing some sites, which it calls by their names."""
    if len(sites) < 2:
        return []
    options: Any = plan.options
    return cs.check(_files(checked, sites), plan.method, weights=_weights(plan, sites), **options)


def _named_problems(plan: RoundPlan, checked: Mapping[str, CheckedContribution], sites: Sequence[str]) -> list[Problem]:
    """Return what ``consilience.check`` has against fusing some sites; nothing where it fails at the extremes."""
    try:
        with np.errstate(all="ignore"):
            return _problems_of_fusing(plan, checked, sites)
    except ConsilienceError:
        raise
    except Exception:
        return []  # fusing them fails too, and the sites at fault are searched for


def _expected_facets(plan: RoundPlan) -> Facets | None:
    """Return the facets of the plan's expected file, but for Fisher information, which a model's file has none of."""
    if plan.expect is None:
        return None
    checked = check_files(SafetensorsFile(plan.expect))
    if checked.facets is None:
        raise InputError(problem.about(plan.expect) for problem in checked.problems)
    return {facet: value for facet, value in checked.facets.items() if facet != "Fisher information"}


def _leave_out_unfusable(
    plan: RoundPlan, checked: Mapping[str, CheckedContribution], good: list[str], reasons: dict[str, Sequence[str]]
) -> tuple[list[str], list[Problem]]:
    """Return the sites whose contributions may be fused, and the problems that are no single site's fault.

    Sites that ``consilience.check`` names are left out, with their problems added to `reasons`, as long as they are
    fewer than half. Then the others are checked again, since a problem may hide another. Problems that name no site,
    and whatever else checking raises, are left to the search for sites at fault.
    """
    while problems := _named_problems(plan, checked, good):
        faults: dict[str, list[str]] = defaultdict(list)
        for problem in problems:
            for part in problem.parts or (problem,):  # what several sites share is said once
                if part.subject in good:
                    faults[part.subject].append(part.without_subject())
        if not faults or 2 * len(faults) >= len(good):
            return good, problems
        reasons |= faults
        good = [site for site in good if site not in faults]
    return good, []


def _took_part(
    good: Sequence[str],
    chosen: Mapping[str, Announcement],
    by_announcement: Mapping[Announcement, Contribution],
    plan: RoundPlan,
) -> tuple[Record, ...]:
    return tuple(
        Record.of(
            chosen[site],
            bytes=by_announcement[chosen[site]].n_bytes,
            weight=1.0 if plan.weights is None else float(plan.weights[site]),
        )
        for site in good
    )


def _needs_equal_widths(plan: RoundPlan, facets: Mapping[str, Facets]) -> bool:
    """Return whether the method of the round fuses networks of equal widths only."""
    name: Any = plan.method
    if name is None:
        # The default method for networks with Fisher information needs equal widths.
        return any(site_facets.get("Fisher information") == "sent" for site_facets in facets.values())
    name = name if isinstance(name, str) else name.name
    return any(method.name == name and not method.widths for method in NETWORKS.methods)


def refuse_options(plan: RoundPlan) -> None:
    """Raise, before anyone waits, for a method or options that do not exist, and for an unreadable expected file."""
    _expected_facets(plan)
    name: Any = plan.method
    options = {key: value for key, value in plan.options.items() if key not in (*NETWORK_KEYWORDS, "min_count")}
    method_name = name if name is None or isinstance(name, str) else name.name
    candidates = [kind for kind in KINDS if name is None or kind.has_method(method_name)]
    refusals = []
    for kind in candidates or [POSTERIORS]:
        try:
            method = kind.make_method(name, options)
        except OptionError as error:
            refusals.append(error)
            continue
        if method.keeps_models:
            raise OptionError(f"method {method.name!r} keeps all models, which no file holds; choose another")
        return
    raise refusals[0]
