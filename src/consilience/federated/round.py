"""A round without any transport: contributions in, one model and a truthful report out.

What comes out depends on the set of contributions, not on when or how often they came: the fused file of the same
contributions has the same bytes. It is the file that ``consilience fuse`` would write of the good sites' files, each
called as its site.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience import api
from consilience.bayesian.methods import make_bayesian_method
from consilience.core.fusion import Fusion
from consilience.errors import InputError, OptionError
from consilience.federated.check import Checked, Facets, check_alone, check_files, misfits, oversized
from consilience.federated.contribution import Announcement, Contribution, standing
from consilience.federated.plan import RoundPlan
from consilience.federated.report import Record, RoundError, RoundReport
from consilience.networks.fuse_aligned import ARGUMENTS
from consilience.networks.method import NetworkMethod
from consilience.networks.methods import make_network_method
from consilience.posteriors.fuse import RECOMMENDED
from consilience.posteriors.methods import make_method

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
    with tempfile.TemporaryDirectory(prefix="consilience-round-") as folder:
        room = _Room(Path(folder), every, chosen.chosen)
        good = [site for site in sorted(facets) if site not in reasons]
        good, problems = _fitting(plan, room, good, reasons)
        if len(good) < plan.needed:
            few = f"{len(good)} good contributions, and the round needs {plan.needed}"
            problems = [*problems, f"{few}; nothing was fused"]
        fusion = None
        if not problems:
            try:
                fusion = room.fuse(plan, good)
            except InputError as error:
                problems = [room.named(problem) for problem in error.problems]
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


class _Room:
    """A folder in which files are called as their sites, so that what is said of them names sites.

    Parameters
    ----------
    folder
        Empty; only the server's.
    every
        The contributions.
    chosen
        Which of them stands, by site.
    """

    def __init__(
        self, folder: Path, every: Mapping[Announcement, Contribution], chosen: Mapping[str, Announcement]
    ) -> None:
        self.models, self.fishers = folder / "models", folder / "fishers"
        self.models.mkdir()
        self.fishers.mkdir()
        for site, one in chosen.items():
            for path, room in ((every[one].path, self.models), (every[one].fisher, self.fishers)):
                if path is not None:
                    _same_file(path, room / site)

    def files(self, sites: Sequence[str]) -> list[str]:
        """Return the models' files of sites, then those of their Fisher information."""
        return [
            *(str(self.models / site) for site in sites),
            *(str(self.fishers / site) for site in sites if (self.fishers / site).exists()),
        ]

    def named(self, value: Any) -> Any:
        """Return a text, or JSON values of any depth, with sites' names in place of paths."""
        if isinstance(value, str):
            return value.replace(f"{self.models}/", "").replace(f"{self.fishers}/", "Fisher information of ")
        if isinstance(value, Mapping):
            return {self.named(key): self.named(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.named(one) for one in value)
        return value

    def refused(self, plan: RoundPlan, sites: Sequence[str]) -> list[str]:
        """Return what there is against fusing these."""
        if len(sites) < 2:
            return []
        weights = None if plan.weights is None else [plan.weights[site] for site in sites]
        found = api.check(self.files(sites), plan.method, weights=weights, **plan.options)
        return [self.named(problem) for problem in found]

    def fuse(self, plan: RoundPlan, sites: Sequence[str]) -> Fusion:
        """Return the fusion of these, which names sites."""
        weights = None if plan.weights is None else [plan.weights[site] for site in sites]
        fusion = api.fuse(self.files(sites), plan.method, weights=weights, rng=plan.seed, **plan.options)
        fields: dict[str, Any] = {"provenance": self.named(fusion.provenance), "details": self.named(fusion.details)}
        known: Any = fusion
        inputs = tuple(replace(one, name=self.named(one.name)) for one in known.inputs)
        return replace(known, inputs=inputs, **fields)


def _same_file(path: Path, place: Path) -> None:
    """Put a file in another place of the same disk without copying it, or copy it."""
    try:
        place.symlink_to(path.resolve())
    except OSError:  # systems that let nobody make links
        shutil.copyfile(path, place)


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
    found = check_files(plan.expect, None)
    if found.facets is None:
        raise InputError([f"{plan.expect}: {problem}" for problem in found.problems])
    return {facet: value for facet, value in found.facets.items() if facet != "Fisher information"}


def _fitting(
    plan: RoundPlan, room: _Room, good: list[str], reasons: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Return the sites whose contributions can be fused, and why the rest cannot if that is not one site's matter.

    Those that ``consilience.check`` names are left out, as long as they are the fewer.
    """
    while problems := room.refused(plan, good):
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
    try:
        options = {key: value for key, value in plan.options.items() if key not in ARGUMENTS}
        return not make_network_method(name, options).widths
    except OptionError:  # a method for other models
        return False


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
    refusals = []
    for make in (make_method, make_network_method, make_bayesian_method):
        try:
            method = make(RECOMMENDED if name is None and make is make_method else name, options)
        except OptionError as error:
            refusals.append(error)
            continue
        if method.keeps_models:
            raise OptionError(f"method {method.name!r} keeps all models, which no file holds; choose another")
        averages = method.averages if isinstance(method, NetworkMethod) else method.matches
        if method.robust is not None and not averages:
            raise OptionError(
                f"method {method.name!r} cannot be robust={method.robust!r}; see the page on robust fusion"
            )
        return
    raise next((one for one in refusals if "does not exist" not in str(one)), refusals[0])
