"""The base class of fusion methods for posteriors: match, then average.

A method is a frozen dataclass of options with one job of its own, ``match``: labels for the L stacked components. The
remaining steps are the same for all and are in ``Method.fuse``: refuse what cannot be fused, put the models in
canonical order, match (supported components first, where sites may be hostile), average what was matched, carry what is
attached, and put the fused components in an order that does not depend on how the local ones were numbered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels, is_number
from consilience.core.caller import warn_caller
from consilience.core.details import Status
from consilience.core.methods import Options, Requirement, is_robust_option
from consilience.core.progress import Progress, silent
from consilience.core.robust import Judgement, too_few
from consilience.core.robust_estimator import Robust, RobustEstimator
from consilience.errors import InputError, Problem, RobustWarning
from consilience.families import Direction, FixedSide
from consilience.families.random_effects import RandomEffectsFamily
from consilience.matching.assignment import assign_block
from consilience.matching.result import Matching
from consilience.posteriors.average import (
    ALL_COPIES,
    COMBINATIONS,
    AverageFunction,
    AverageRecord,
    Combine,
    Inclusion,
    combine,
    kl_average,
)
from consilience.posteriors.details import ComponentName, PosteriorDetails
from consilience.posteriors.ensemble import Ensemble, informed_rows
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.robust.average import RobustInclusion
from consilience.posteriors.robust.median_site import (
    MEDIAN_OF_ATTACHED,
    JudgedInclusion,
    has_spread,
    judge_sites,
    judge_whole_mixtures,
    match_on_median_site,
)
from consilience.posteriors.robust.minority import (
    Room,
    match_supported_first,
    report_minority,
    take_rows,
    without_minority,
)

IN_DIFFERENT_OPTIMA = (
    "weak here: fits of these sites ended in different optima, so that four hostile sites of ten may be more than hold"
    " what is right"
)
"""Where robust fusion of fits in different optima loses more than 0.03 nats to no defence (docs/evidence/robust.md)."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """What ``match`` returns: a label for every component, and how the search for them ended."""

    # (L,), global index of every stacked component, -1 for a dropped one; indices are consecutive from 0.
    labels: Labels
    # Value of the method's objective at the end. Default: NaN, for a method without one.
    objective: float = float("nan")
    history: Array = field(default_factory=lambda: np.zeros(0))  # (iterations,), the objective after each iteration
    status: Status = Status.CONVERGED  # how the search ended
    coupling: Array | None = None  # (L, G), soft plan, for methods that have one
    confidence: Array | None = None  # (L,), probability of each match, as in Matching
    details: PosteriorDetails = field(default_factory=PosteriorDetails)  # further facts worth reporting
    # (G, P), natural parameters of the fused components, for methods that find them with the matching. Default: the
    # average of what was matched.
    averaged: Array | None = None
    # Posterior over the points that stand for the fused components (G, D), for methods that have one.
    atoms: Posterior | None = None


@dataclass(frozen=True, eq=False)
class PosteriorOutcome:
    """A finished fusion of posteriors; fields as in Assignment."""

    posterior: Posterior
    matching: Matching
    objective: float
    history: Array
    status: Status
    details: PosteriorDetails
    atoms: Posterior | None = None


@dataclass(frozen=True)
class SiteNeed:
    """A field that a method needs every site to state along with its components."""

    field: Literal["counts", "weights", "prior"]  # of the posterior
    subject: str  # the method, or the option of it, that needs it, for messages
    why: str = ""  # what it does with a prior that must be proper; empty where an improper one will do
    remedy: str = ""  # what to do where it is missing; empty where that goes without saying

    def reasons(self, ensemble: Ensemble) -> list[Problem]:
        """Return why it is not met, in a line that names the models; none where it is."""
        pairs = list(zip(ensemble.names, ensemble.unordered, strict=True))
        lacking = [name for name, posterior in pairs if getattr(posterior, self.field) is None]
        if lacking:
            verb = "is" if self.field == "prior" else "are"
            text = f"{self.subject} needs every model's {self.field}, which {verb} missing in {', '.join(lacking)}"
            return [Problem("", text, self.remedy)]
        if not self.why:
            return []
        improper = [name for name, p in pairs if p.prior is not None and p.family.check(p.prior[None])]
        if not improper:
            return []
        return [
            Problem("", f"{self.subject} {self.why}, which is improper in {', '.join(improper)}", "use method 'kl'")
        ]


WEIGHS_BY_PRIOR = "weighs new components by their prior"
"""Why a prior must be proper."""


@dataclass(frozen=True)
class Method(Options, ABC):
    """A way to fuse posteriors; its fields are its options.

    Class attributes describe it for users: ``name``, ``summary`` (one line), ``needs`` and ``gives`` (what goes in and
    comes out), ``paper`` (a key of docs/refs.bib, or why there is none), ``relabels`` (whether the numbering of local
    components is without meaning for it), ``keeps_models`` (whether the fused model is all models side by side),
    ``matches`` (whether it says who is who at all), and ``takes_labels`` (whether its average makes sense where it is
    known who is who; ``matching_options`` names the options that then mean nothing).

    Options that all have are `combine` and, for sites that may be hostile or broken, the three after it.

    Parameters
    ----------
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        What the copies of a component are together. ``"hierarchical"``: the posterior of what they have in common under
        random effects between sites, the product where sites agree. ``"product"``: the posterior of all data, sites
        taken for alike. ``"barycenter"``: the Kullback-Leibler mean, as wide as one site's. ``"auto"`` is hierarchical
        where every model states its prior and its counts, else the barycenter; ``details["average"]`` says which and
        why.
    robust : {True, "trim", "median"}, optional
        True is for sites that are not trusted: components are matched on the median site, sites that are copies of each
        other or beyond the usual radius are left out, and each group is the geometric median of the rest. Where these
        do not hold the same components, the method itself matches them (`robust.median_site`). ``"trim"`` leaves out of
        every group the part `trim` of its copies that is farthest from where most are; ``"median"`` takes the geometric
        median of those that are not far.
        Counts, mixture weights, priors and attached arrays are robust too. None trusts every site.
    trim : float, default 0.2
        Part of the sites that may be hostile, below one half; of ``"trim"`` only.
    minority : {"auto", "keep", "drop"}, default "auto"
        Whether components that fewer than half of the sites hold are kept (``"keep"``; ``details["minority"]`` names
        them) or left out of the fused model (``"drop"``). ``"auto"`` drops them in robust fusion, where a few sites may
        have made them up, and else keeps them.
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str]
    paper: ClassVar[str]
    relabels: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = False
    matches: ClassVar[bool] = True
    takes_labels: ClassVar[bool] = False
    matching_options: ClassVar[tuple[str, ...]] = ()

    combine: Combine = field(default="auto", kw_only=True)
    robust: Robust = field(default=None, kw_only=True)
    trim: float = field(default=0.2, kw_only=True)
    minority: Literal["auto", "keep", "drop"] = field(default="auto", kw_only=True)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from (
            ("combine", self.combine in COMBINATIONS, "'auto', 'hierarchical', 'product' or 'barycenter'"),
            ("robust", is_robust_option(self.robust), "True, 'trim', 'median' or None"),
            ("trim", is_number(self.trim) and 0 < self.trim < 0.5, "a number between 0 and 0.5"),
            ("minority", self.minority in ("auto", "keep", "drop"), "'auto', 'keep' or 'drop'"),
        )

    @property
    def is_robust(self) -> bool:
        """Whether some site may be hostile."""
        return self.robust not in (None, False)

    @property
    def drops_minority(self) -> bool:
        """Whether components that fewer than half of the sites hold are left out."""
        return self.minority == "drop" or (self.minority == "auto" and self.is_robust)

    @property
    def own_average(self) -> str:
        """Why ``combine="auto"`` is the average of the method itself; empty where it is not."""
        if not self.matches:
            return "components are not matched, so each stays as it is"
        if self.robust is True:
            return "`robust=True` takes the geometric median of the copies of the sites that are kept"
        if self.is_robust:
            return f"`robust={self.robust!r}` averages the copies that are near to where most are"
        if self.average_direction == "reverse":
            return "`direction='reverse'` averages mean parameters"
        return ""

    @property
    def average_direction(self) -> Direction:
        """Which Kullback-Leibler barycenter averages matched components."""
        return "forward"

    def average(self, ensemble: Ensemble, labels: Labels, n_groups: int) -> Array:
        """Return what the components of each group are together (G, P): their Kullback-Leibler barycenters."""
        return kl_average(ensemble, labels, n_groups, self.average_direction)

    @abstractmethod
    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Return which components are the same thing."""

    @final
    def changed_matching_options(self) -> list[str]:
        """Return the options of the matching that are not left at their defaults."""
        defaults = {option.name: option.default for option in fields(self)}
        return [name for name in self.matching_options if getattr(self, name) != defaults[name]]

    @property
    def finds_number(self) -> bool:
        """Whether the number of fused components follows from the models; if not, it was told."""
        return True

    @property
    def matches_parts(self) -> bool:
        """Whether it can match some components of the models and leave the others for later."""
        return self.matches and self.relabels

    @property
    def needs_equal_sizes(self) -> bool:
        """Whether all models must have as many components: then those of few observations are matched, not averaged."""
        return False

    def site_needs(self) -> tuple[SiteNeed, ...]:
        """Return what every site must state, with these options; ``check`` asks for it."""
        if self.combine == "hierarchical":
            return (SiteNeed("prior", "`combine='hierarchical'`", remedy="state it, `family.flat` for none at all"),)
        return (SiteNeed("prior", "`combine='product'`"),) if self.combine == "product" else ()

    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Return why these models cannot be fused with these options, a line each; empty when they can."""
        reasons = self.refuse_robust(ensemble)
        if self.combine in ("product", "hierarchical") and not ensemble.family.has_width:
            text = f"`combine={self.combine!r}` means nothing for {ensemble.family.name}s, which have no width"
            return [*reasons, Problem("", text)]
        if self.combine == "hierarchical" and not isinstance(ensemble.family, RandomEffectsFamily):
            text = f"`combine='hierarchical'` is not known for {ensemble.family.name} components"
            return [*reasons, Problem("", text, "use 'product' or 'barycenter'")]
        return reasons + [text for need in self.site_needs() for text in need.reasons(ensemble)]

    @final
    def refuse_robust(self, ensemble: Ensemble) -> list[Problem]:
        """Return why robust fusion of these models means nothing, a line each."""
        if not self.is_robust:
            return []
        reasons, option = [], f"`robust={self.robust!r}`"
        if self.combine == "hierarchical":
            text = f"{option} and `combine='hierarchical'` are two answers to sites that differ"
            reasons.append(Problem("", text, "leave one of them out"))
        if self.robust is True and self.relabels and not self.finds_number:
            text = f"{option} takes the number of components from the median site, and another number was given"
            reasons.append(Problem("", text, "leave the number out, or use `robust='median'`"))
        if self.robust == "median" and self.combine == "product":
            reasons.append(
                Problem("", f"{option} is an average, and `combine='product'` is none", "use `robust='trim'`")
            )
        for name in ("counts", "weights", "prior"):
            states = [getattr(posterior, name) is not None for posterior in ensemble.unordered]
            lacking = [model for model, has_it in zip(ensemble.names, states, strict=True) if not has_it]
            if 0 < len(lacking) < len(states):
                text, remedy = (
                    f"{', '.join(lacking)} states no {name}, others do",
                    f"leave it out, or all {name} would be",
                )
                reasons.append(Problem(option, text, remedy))
        return reasons + too_few("", option, ensemble.voting().n_sites, "models")

    def _label_weightless(
        self, assignment: Assignment, canonical: Ensemble, fused: Posterior, groups: Labels | None
    ) -> None:
        """Set the labels of models of no weight: those of their group (L,), else the nearest fused components."""
        for site in np.flatnonzero(canonical.site_weights == 0).tolist():
            rows = slice(canonical.offsets[site], canonical.offsets[site + 1])
            if groups is None:
                assignment.labels[rows] = self._match_weightless(fused, canonical.posteriors[site])
            else:
                same_group = groups[rows, None] == groups  # (L_j, L)
                assignment.labels[rows] = np.where(same_group, assignment.labels, -1).max(axis=1, initial=-1)

    def _match_weightless(self, fused: Posterior, silent_model: Posterior) -> Labels:
        """Return the labels of a model of no weight: nearest fused components, -1 where it has more than these."""
        if not self.relabels:
            return np.arange(silent_model.n_components)
        divergence = FixedSide(fused.family, silent_model.natural, self.average_direction)
        return assign_or_leave(divergence.costs(fused.natural).T)

    def _assign(
        self,
        voting: Ensemble,
        groups: Labels | None,
        robust: RobustEstimator | None,
        rng: np.random.Generator,
        progress: Progress,
    ) -> Assignment:
        """Return which components of the models of positive weight are the same thing: by label, or matched."""
        if groups is not None:
            return Assignment(groups)
        if self.robust is True and self.relabels and self.matches:
            return Assignment(_consecutive(match_on_median_site(voting)))
        if robust is None or not self.matches_parts:
            return self.match(voting, rng, progress)
        return match_supported_first(
            voting, robust, lambda part: self.match(part, rng, progress), open_number=self.finds_number
        )

    def _included(
        self,
        assignment: Assignment,
        voting: Ensemble,
        robust: RobustEstimator | None,
        match_again: Callable[[Ensemble], Assignment] | None,
    ) -> tuple[Assignment, Inclusion]:
        """Return the assignment of the sites that are averaged, and which of their copies are.

        Where only sites that are kept are averaged, they are matched again by `match_again`, unless this is None.
        """
        if self.robust is True:
            return _judged(assignment, voting, self.combine, match_again)
        return assignment, ALL_COPIES if robust is None else RobustInclusion(robust, self.average_direction)

    def _average(
        self, voting: Ensemble, assignment: Assignment, n_components: int, inclusion: Inclusion
    ) -> tuple[Posterior, AverageRecord]:
        """Return the average of each group, and the record of which it is."""
        average: AverageFunction = self.average
        if not self.is_robust and (averaged := assignment.averaged) is not None:
            average = lambda _ensemble, _labels, _n_groups: averaged  # noqa: E731
        kind = "auto" if self.robust is True else self.combine
        return combine(voting, assignment.labels, n_components, kind, average, inclusion, self.own_average)

    @final
    def fuse(
        self,
        ensemble: Ensemble,
        rng: np.random.Generator,
        progress: Progress = silent,
        groups: Labels | None = None,
        thin: Labels | None = None,
    ) -> PosteriorOutcome:
        """Match and average.

        Groups (L,) say which components are the same thing, where their labels do: consecutive numbers over the models
        of positive weight, -1 for a component in none. `thin` (n,) are rows of components that are matched but not
        averaged (label -1), where `needs_equal_sizes`.
        """
        if reasons := self.refuse(ensemble):
            raise InputError(reasons)
        # Canonical order makes every later step, random draws included, independent of arrival order and numbering.
        canonical, origin = ensemble.canonical(relabel=self.relabels)
        voting, n_rows, votes = canonical.voting(), len(canonical.natural), np.flatnonzero(canonical.row_weights > 0)
        robust = RobustEstimator(self.robust, self.trim) if isinstance(self.robust, str) else None
        if self.is_robust and self.minority == "keep":
            text = "`minority='keep'` keeps components that few sites hold, which hostile ones may have fabricated"
            warn_caller(text, RobustWarning)
        # Models of no weight take no part in matching or averaging; they are matched to the fused ones afterwards.
        groups = None if groups is None else groups[origin]
        assignment = self._assign(voting, None if groups is None else groups[votes], robust, rng, progress)
        thin_rows = np.zeros(n_rows, dtype=np.bool_)
        if thin is not None:
            thin_rows[thin] = True
            assignment = _without_rows(assignment, thin_rows[origin[votes]])
        if self.drops_minority and self.matches:
            assignment = without_minority(assignment, voting)
        may_match_again = groups is None and thin is None and self.matches_parts
        match_again = partial(self.match, rng=rng, progress=progress) if may_match_again else None
        assignment, inclusion = self._included(assignment, voting, robust, match_again)
        n_components = int(assignment.labels.max()) + 1
        posterior, record = self._average(voting, assignment, n_components, inclusion)
        if self.is_robust:
            assignment = replace(assignment, atoms=None)  # the law of atoms counts every copy, hostile ones included
        if self.relabels and groups is None:
            order = fused_order(posterior, assignment.labels)
            posterior, record = posterior.take(order), record.take(order)
            assignment = _renumbered(assignment, order)
        if self.matches:
            assignment = report_minority(assignment, voting)
        details = _details_of(assignment, record, ensemble, origin[votes])
        assignment = expand_assignment(assignment, votes, n_rows)
        # Labels so far are of the canonical order; models of no weight are added, then the order of the input restored.
        self._label_weightless(assignment, canonical, posterior, groups)
        assignment = expand_assignment(assignment, origin, n_rows)
        assignment.labels[thin_rows] = -1
        coupling, confidence = assignment.coupling, assignment.confidence
        matching = Matching(assignment.labels, ensemble.owner, n_components, coupling, confidence, names=ensemble.names)
        posterior = replace(posterior, source=dict(inclusion.agreed([local.source for local in canonical.unordered])))
        objective, history, status = assignment.objective, assignment.history, assignment.status
        return PosteriorOutcome(posterior, matching, objective, history, status, details, assignment.atoms)


def assign_or_leave(costs: Array) -> Labels:
    """Return which column (k,) each row of costs (k, G) is assigned to; -1 for the dearest rows where they are more."""
    n_rows, n_columns = costs.shape
    # Further columns, dearer than any two matches together, take the rest.
    columns = np.pad(costs, ((0, 0), (0, max(0, n_rows - n_columns))), constant_values=2.0 * costs.max() + 1.0)
    assigned = assign_block(columns)
    return np.where(assigned < n_columns, assigned, -1)


def _consecutive(labels: Labels) -> Labels:
    """Return labels whose groups are numbered from 0 on without gaps; -1 stays. Some component must have one."""
    used = np.unique(labels[labels >= 0])
    if not used.size:
        text = "`robust=True`: no component matches that of another model, so none would be left"
        raise InputError("", text, code="E-MISMATCH")
    return np.where(labels >= 0, np.searchsorted(used, labels), -1)


def _judged(
    assignment: Assignment,
    ensemble: Ensemble,
    combine_as: Combine,
    match_again: Callable[[Ensemble], Assignment] | None,
) -> tuple[Assignment, Inclusion]:
    """Return the assignment of the sites that are kept, with a record of the others, and how they are averaged."""
    judgement = judge_sites(ensemble, assignment.labels, int(assignment.labels.max()) + 1)
    judged, is_of_one_kind = _of_kept(assignment, ensemble, judgement, match_again)
    if match_again is not None and (of_mixtures := judge_whole_mixtures(ensemble)) is not None:
        if is_of_one_kind:  # of those that are kept: others may be left out for the optimum of their fit alone
            is_of_one_kind = _on_median_site(ensemble, of_mixtures.kept).is_of_one_kind
        else:
            judgement = of_mixtures
            judged, _ = _of_kept(assignment, ensemble, judgement, match_again)
    robust = judgement.details(ensemble.names)
    if not is_of_one_kind:
        robust["weak"] = IN_DIFFERENT_OPTIMA
    details: PosteriorDetails = {**judged.details, "robust": robust}
    states_all = all(p.prior is not None and p.counts is not None for p in ensemble.posteriors)
    inclusion = JudgedInclusion(MEDIAN_OF_ATTACHED, "forward", combine_as != "barycenter" and states_all)
    return replace(judged, coupling=None, averaged=None, atoms=None, details=details), inclusion


@dataclass(frozen=True, eq=False)
class _OnMedianSite:
    """What the components of some sites match on their median site."""

    rows: Labels  # (n,), of the ensemble those that match anything
    labels: Labels  # (n,), groups of these, consecutive
    is_of_one_kind: bool  # whether their fits ended in one optimum


def _on_median_site(ensemble: Ensemble, kept: NDArray[np.bool_]) -> _OnMedianSite:
    """Return the groups of the sites that are kept (J,) on their median site."""
    rows = np.flatnonzero(kept[ensemble.owner])
    labels = match_on_median_site(take_rows(ensemble, rows))
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    if not rows.size:
        return _OnMedianSite(rows, labels, is_of_one_kind=True)
    labels = _consecutive(labels)
    return _OnMedianSite(rows, labels, Room.of(take_rows(ensemble, rows), labels).is_of_one_kind)


def _of_kept(
    assignment: Assignment,
    ensemble: Ensemble,
    judgement: Judgement,
    match_again: Callable[[Ensemble], Assignment] | None,
) -> tuple[Assignment, bool]:
    """Return the assignment of the sites that are kept, and whether their fits ended in one optimum."""
    is_kept = judgement.kept[ensemble.owner]
    judged = replace(assignment, labels=_consecutive(np.where(is_kept, assignment.labels, -1)))
    return (judged, True) if match_again is None else _matched_again(judged, ensemble, judgement.kept, match_again)


def _matched_again(
    judged: Assignment, ensemble: Ensemble, kept: NDArray[np.bool_], match: Callable[[Ensemble], Assignment]
) -> tuple[Assignment, bool]:
    """Return the groups of the sites that are kept (J,), on their median site or, where that says little, by `match`.

    As they were judged where neither leaves anything. Beside them stands whether fits ended in one optimum.
    """
    n_rows, found = len(ensemble.owner), _on_median_site(ensemble, kept)
    rows = found.rows
    if not rows.size:
        return judged, True
    if found.is_of_one_kind:
        return expand_assignment(replace(judged, labels=found.labels), rows, n_rows), True
    rows = rows[has_spread(take_rows(ensemble, rows))]
    if not rows.size:
        return judged, False
    of_kept = take_rows(ensemble, rows)
    matched = match(of_kept)
    room = Room.of(of_kept, matched.labels)
    of_most = room.of_most
    if not of_most.any() or not room.accounts_for_most(of_most):
        return judged, False
    labels = _consecutive(np.where(np.append(of_most, False)[matched.labels], matched.labels, -1))
    details: PosteriorDetails = {**judged.details, **matched.details}
    if n_dropped := int(np.count_nonzero(~of_most)):
        details["dropped"] = n_dropped
    return expand_assignment(replace(matched, labels=labels, coupling=None, details=details), rows, n_rows), False


def _details_of(assignment: Assignment, record: AverageRecord, ensemble: Ensemble, rows: Labels) -> PosteriorDetails:
    """Return the details of a matching and its average; `rows` (n,) of the ensemble are those that were matched."""
    details: PosteriorDetails = {**assignment.details, **record.details()}
    if (effects := record.random_effects) is not None and len(effects.left_out):
        details["hierarchical"]["left_out"] = component_names(ensemble, np.sort(rows[effects.left_out]))
    return details


def component_names(ensemble: Ensemble, rows: Labels) -> list[ComponentName]:
    """Return model and number of the components of some rows (n,) of an ensemble."""
    sites = ensemble.owner[rows]
    numbers = rows - ensemble.offsets[sites]
    return [
        {"model": ensemble.names[site], "component": number}
        for site, number in zip(sites.tolist(), numbers.tolist(), strict=True)
    ]


def _without_rows(assignment: Assignment, left_out: NDArray[np.bool_]) -> Assignment:
    """Return an assignment without some components (n,), and without groups that had no others."""
    labels = np.where(left_out, -1, assignment.labels)
    used = np.unique(labels[labels >= 0])
    numbers = np.full(int(assignment.labels.max()) + 2, -1, dtype=np.int64)  # index -1 reads the last entry
    numbers[used] = np.arange(len(used))
    coupling = None if assignment.coupling is None else assignment.coupling[:, used] * ~left_out[:, None]
    return replace(assignment, labels=numbers[labels], coupling=coupling)


def _renumbered(assignment: Assignment, order: Labels) -> Assignment:
    """Return an assignment with fused component ``order[g]`` as number g."""
    return replace(
        assignment,
        labels=np.append(np.argsort(order), -1)[assignment.labels],
        coupling=None if assignment.coupling is None else assignment.coupling[:, order],
        atoms=None if assignment.atoms is None else assignment.atoms.take(order),
    )


def expand_assignment(assignment: Assignment, rows: Labels, n_rows: int) -> Assignment:
    """Return an assignment of n components as one of all `n_rows`, among which they are `rows` (n,).

    The others get label -1 and no confidence (NaN).
    """
    labels = np.full(n_rows, -1, dtype=np.int64)
    labels[rows] = assignment.labels
    coupling = None
    if assignment.coupling is not None:
        coupling = np.zeros((n_rows, assignment.coupling.shape[1]))
        coupling[rows] = assignment.coupling
    confidence = None
    if assignment.confidence is not None:
        confidence = np.full(n_rows, np.nan)
        confidence[rows] = assignment.confidence
    return replace(assignment, labels=labels, coupling=coupling, confidence=confidence)


def informed(ensemble: Ensemble, min_count: float) -> tuple[Ensemble, Labels | None]:
    """Return the ensemble of components with at least `min_count` effective observations, and their rows.

    A model keeps its best-informed component whatever its count. Models that state no counts keep everything. The rows
    are None where these are all.
    """
    counts = ensemble.column("counts")
    if counts is None or min_count <= 0 or counts.min() >= min_count:
        return ensemble, None
    is_kept = informed_rows(counts, ensemble.owner, ensemble.offsets, min_count)
    return (ensemble, None) if is_kept.all() else (ensemble.keep(is_kept), np.flatnonzero(is_kept))


def match_informed(ensemble: Ensemble, min_count: float, match: Callable[[Ensemble], Assignment]) -> Assignment:
    """Match only the components that ``informed`` keeps; the others get label -1."""
    informed_ensemble, rows = informed(ensemble, min_count)
    assignment = match(informed_ensemble)
    if rows is None:
        return assignment
    n_rows = len(ensemble.owner)
    details: PosteriorDetails = {
        **assignment.details,
        "left_out": n_rows - len(rows) + assignment.details.get("left_out", 0),
    }
    return expand_assignment(replace(assignment, details=details), rows, n_rows)


def fused_order(posterior: Posterior, labels: Labels) -> Labels:
    """Order components by observations (or members), largest first, then by their parameters."""
    # Members stand in for observations where sites state none; parameters break ties, byte for byte.
    mass = posterior.counts
    if mass is None:
        mass = np.bincount(labels[labels >= 0], minlength=posterior.n_components).astype(np.float64)
    return np.lexsort((*posterior.natural.T[::-1], -mass))
