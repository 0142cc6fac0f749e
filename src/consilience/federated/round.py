"""A round without any transport: contributions in, one model and a truthful report out.

What comes out depends on the set of contributions, not on when or how often they came: the fused file of the same
contributions has the same bytes. It is the file that ``consilience fuse`` would write of the good sites' files, each
called as its site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience import api
from consilience.api.kinds import BAYESIAN, NETWORKS, POSTERIORS
from consilience.core.fusion import Fusion
from consilience.core.kind import Facets
from consilience.errors import InputError, OptionError
from consilience.federated.check import Checked, check_alone, check_files, misfits, oversized
from consilience.federated.contribution import Announcement, Contribution, standing
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.fuse_aligned import ARGUMENTS

Checker = Callable[[Contribution], Checked]


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round gives.

    Parameters
    ----------
    fusion
        As from ``consilience.fuse``, with the names of sites for those of files.
    reports
        What each round says of itself, in order.
    """

    fusion: Fusion
    reports: tuple[RoundReport, ...]

    @property
    def report(self) -> RoundReport:
        """What the last round says of itself."""
        return self.reports[-1]


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
    """Check, choose and fuse contributions.

    Parameters
    ----------
    plan
        What the round was told.
    contributions
        In any order, any number of times; of this round.
    number, closed, unknown
        What the report is to say; see `RoundReport`.
    blocked
        Sites of which nothing is taken, with the reason.
    check
        How a contribution is checked alone; a server remembers what it found before.

    Raises
    ------
    RoundError
        When fewer contributions than the quorum are good, or they cannot be fused; its ``report`` says why.
    OptionError
        For a method or options that do not exist.
    """
    check = check or (lambda one: check_alone(one, plan.limits))
    every = {one.announcement: one for one in contributions}
    expected = set(plan.sites)
    chosen = standing(one for one in every if one.site in expected)
    strangers = {one.site for one in every} - expected
    found: dict[str, Checked] = {site: check(every[one]) for site, one in sorted(chosen.chosen.items())}
    reasons = {site: list(one.problems) for site, one in found.items() if one.problems}
    reasons |= {site: [why] for site, why in {**chosen.conflicts, **(blocked or {})}.items()}
    facets = {site: one.facets for site, one in found.items() if one.facets is not None and site not in reasons}
    reasons |= {site: [why] for site, why in _alike(facets, chosen.chosen).items()}
    facets = {site: one for site, one in facets.items() if site not in reasons}
    reasons |= {site: [why] for site, why in misfits(facets, _expected(plan), _equal_widths(plan, facets)).items()}
    reasons |= {s: [why] for s, why in oversized({s: found[s] for s in facets if s not in reasons}).items()}
    good = [site for site in sorted(facets) if site not in reasons]
    good, problems = _fitting(plan, found, good, reasons)
    if len(good) < plan.needed:
        few = f"{len(good)} good contributions, and the round needs {plan.needed}"
        problems = [*problems, f"{few}; nothing was fused"]
    fusion = None
    if not problems:
        try:
            fusion = _fuse(plan, found, good)
        except InputError as error:
            problems = list(error.problems)
    took = _took_part(good, chosen.chosen, every, plan)
    if fusion is None:
        reasons |= {site: ["is good, but nothing was fused"] for site in good}
        took = []
    report = RoundReport(
        plan.name,
        number,
        plan.sites,
        took_part=tuple(took),
        left_out=tuple(_left_out(reasons, chosen.chosen)),
        missing=tuple(site for site in plan.sites if site not in chosen.chosen and site not in reasons),
        ignored=tuple(
            Record.of(one, f"attempt {chosen.chosen[one.site].attempt} replaces attempt {one.attempt}")
            for one in chosen.ignored
        ),
        unknown=tuple(sorted(strangers | set(unknown))),
        closed=closed,
        quorum=plan.needed,
        deadline=float(plan.deadline),
        method=None if fusion is None else fusion.provenance["method"],
        seed=plan.seed,
        problems=tuple(problems),
    )
    if fusion is None:
        raise RoundError(report)
    return RoundResult(fusion, (report,))


def _files(found: Mapping[str, Checked], sites: Sequence[str]) -> dict[str, SafetensorsFile]:
    """Return the files of sites by what results and messages call them: models first, then Fisher information."""
    models = {site: found[site].file for site in sites}
    fishers = {f"Fisher information of {site}": found[site].fisher for site in sites}
    return {name: file.called(name) for name, file in {**models, **fishers}.items() if file is not None}


def _weights(plan: RoundPlan, sites: Sequence[str]) -> list[float] | None:
    return None if plan.weights is None else [plan.weights[site] for site in sites]


def _fuse(plan: RoundPlan, found: Mapping[str, Checked], sites: Sequence[str]) -> Fusion:
    """Return the fusion of sites, which names them."""
    options: Any = plan.options
    return api.fuse(_files(found, sites), plan.method, weights=_weights(plan, sites), rng=plan.seed, **options)


def _refusals(plan: RoundPlan, found: Mapping[str, Checked], sites: Sequence[str]) -> list[str]:
    """Return what there is against fusing sites, a line each that names them."""
    if len(sites) < 2:
        return []
    options: Any = plan.options
    return api.check(_files(found, sites), plan.method, weights=_weights(plan, sites), **options)


def _alike(facets: Mapping[str, Facets], chosen: Mapping[str, Announcement]) -> dict[str, str]:
    """Return the sites that sent the very file that another one sent, which counts once."""
    owner: dict[str, str] = {}
    out: dict[str, str] = {}
    for site in sorted(facets):
        first = owner.setdefault(chosen[site].digest, site)
        if first != site:
            out[site] = f"sent the same file as {first}, which counts once"
    return out


def _expected(plan: RoundPlan) -> Facets | None:
    if plan.expect is None:
        return None
    found = check_files(SafetensorsFile(plan.expect))
    if found.facets is None:
        raise InputError([f"{plan.expect}: {problem}" for problem in found.problems])
    return {facet: value for facet, value in found.facets.items() if facet != "Fisher information"}


def _fitting(
    plan: RoundPlan, found: Mapping[str, Checked], good: list[str], reasons: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Return the sites whose contributions can be fused, and why the rest cannot if that is not one site's matter.

    Those that ``consilience.check`` names are left out, as long as they are the fewer.
    """
    while problems := _refusals(plan, found, good):
        named = {site: [p.removeprefix(f"{site}: ") for p in problems if p.startswith(f"{site}: ")] for site in good}
        fault = {site: own for site, own in named.items() if own}
        if not fault or 2 * len(fault) >= len(good):
            return good, problems
        reasons |= fault
        good = [site for site in good if site not in fault]
    return good, []


def _took_part(
    good: Sequence[str],
    chosen: Mapping[str, Announcement],
    every: Mapping[Announcement, Contribution],
    plan: RoundPlan,
) -> list[Record]:
    return [
        Record.of(
            chosen[site],
            bytes=_length(every[chosen[site]]),
            weight=1.0 if plan.weights is None else float(plan.weights[site]),
        )
        for site in good
    ]


def _length(one: Contribution) -> int:
    return sum(path.stat().st_size for path in (one.path, one.fisher) if path is not None)


def _left_out(reasons: Mapping[str, Sequence[str]], chosen: Mapping[str, Announcement]) -> list[Record]:
    return [
        Record.of(chosen[site], *reasons[site]) if site in chosen else Record(site, reasons=tuple(reasons[site]))
        for site in sorted(reasons)
    ]


def _equal_widths(plan: RoundPlan, facets: Mapping[str, Facets]) -> bool:
    """Return whether networks must be as wide as one another to be fused as this round is told to."""
    name: Any = plan.method
    if name is None:
        return any(one.get("Fisher information") == "sent" for one in facets.values())
    name = name if isinstance(name, str) else name.name
    return any(method.name == name and not method.widths for method in NETWORKS.methods)


def refuse_options(plan: RoundPlan) -> None:
    """Raise for a method or options that no kind of model has, and for an expected file that is none, before waiting.

    Raises
    ------
    OptionError, InputError
        Saying what is wrong.
    """
    _expected(plan)
    name: Any = plan.method
    options = {key: value for key, value in plan.options.items() if key not in ARGUMENTS}
    called = name if name is None or isinstance(name, str) else name.name
    candidates = [kind for kind in (POSTERIORS, NETWORKS, BAYESIAN) if name is None or kind.has_method(called)]
    refusals = []
    for kind in candidates or [POSTERIORS]:
        try:
            method = kind.make_method(name, options)
        except OptionError as error:
            refusals.append(error)
            continue
        if method.keeps_models:
            raise OptionError(f"method {method.name!r} keeps all models, which no file holds; choose another")
        if method.robust is not None and not kind.averages(method):
            raise OptionError(
                f"method {method.name!r} cannot be robust={method.robust!r}; see the page on robust fusion"
            )
        return
    raise refusals[0]
