"""What every fusion method is: match, then average.

A method is a frozen dataclass of options with one job of its own, ``match``: labels for the stacked components. The
rest is the same for all: put the models in canonical order, average what was matched, carry what is attached, and put
the fused components in an order that does not depend on how the local ones were numbered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from consilience.checks import Array, Labels, is_number
from consilience.core.options import Options
from consilience.core.progress import Progress, silent
from consilience.core.status import Status
from consilience.errors import InputError
from consilience.families import Direction, FixedSide
from consilience.matching.assignment import assign_block
from consilience.matching.result import Matching
from consilience.posteriors.average import Combine, combine, kl_average
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.robust.average import most_common, robust_combine
from consilience.posteriors.robust.estimators import MIN_VOTES, How, RobustEstimator
from consilience.posteriors.robust.minority import match_supported_first, report_minority, without_minority


@dataclass(frozen=True, eq=False)
class Assignment:
    """What ``match`` gives: labels and how they were found.

    Parameters
    ----------
    labels
        Global index of every stacked component (L,), -1 for a dropped one; indices are consecutive from 0.
    objective
        Value of the method's objective at the end; NaN for a method without one.
    history
        The objective after each iteration (iterations,).
    status
        How it ended.
    coupling
        Soft plan (L, G), for methods that have one.
    confidence
        How sure each match is (L,), as in Matching.
    details
        Further facts worth reporting, as JSON values.
    averaged
        Natural parameters of the fused components (G, P), for methods that find them with the matching; None averages
        what was matched.
    atoms
        Posterior over the points that stand for the fused components (G, D), for methods that have one.
    """

    labels: Labels
    objective: float = float("nan")
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    coupling: Array | None = None
    confidence: Array | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    averaged: Array | None = None
    atoms: Posterior | None = None


@dataclass(frozen=True, eq=False)
class PosteriorOutcome:
    """A finished fusion of posteriors; fields as in Assignment."""

    posterior: Posterior
    matching: Matching
    objective: float
    history: Array
    status: Status
    details: Mapping[str, Any]
    atoms: Posterior | None = None


@dataclass(frozen=True)
class Method(Options, ABC):
    """A way to fuse posteriors; its fields are its options.

    Class attributes describe it for users: ``name``, ``summary`` (one line), ``needs`` and ``gives`` (what goes in and
    comes out), ``paper`` (a key of docs/refs.bib, or why there is none), ``relabels`` (whether the numbering of local
    components is without meaning for it), ``keeps_models`` (whether the fused model is all models side by side), and
    ``matches`` (whether it says who is who at all).

    Options that all have are `combine` and, for sites that may be hostile or broken, the following.

    Parameters
    ----------
    robust
        ``"trim"`` leaves out of every group the part `trim` of its copies that is farthest from where most are;
        ``"median"`` takes the geometric median of those that are not far. Counts, mixture weights, priors and attached
        arrays are robust too. None trusts every site.
    trim
        Part of the sites that may be hostile, below one half.
    minority
        Whether components that fewer than half of the sites hold are kept (``"keep"``; ``details["minority"]`` names
        them) or left out of the fused model (``"drop"``).
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str]
    paper: ClassVar[str]
    relabels: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = False
    matches: ClassVar[bool] = True

    combine: Combine = field(default="barycenter", kw_only=True)
    robust: How | None = field(default=None, kw_only=True)
    trim: float = field(default=0.2, kw_only=True)
    minority: Literal["keep", "drop"] = field(default="keep", kw_only=True)

    def __post_init__(self) -> None:
        self.require("combine", self.combine in ("barycenter", "product"), "'barycenter' or 'product'")
        self.require("robust", self.robust in ("trim", "median", None), "'trim', 'median' or None")
        self.require("trim", is_number(self.trim) and 0 < self.trim < 0.5, "a number between 0 and 0.5")
        self.require("minority", self.minority in ("keep", "drop"), "'keep' or 'drop'")

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

    @property
    def finds_number(self) -> bool:
        """Whether the number of fused components follows from the models; if not, it was told."""
        return True

    @property
    def matches_parts(self) -> bool:
        """Whether it can match some components of the models and leave the others for later."""
        return self.matches and self.relabels

    def refuse(self, ensemble: Ensemble) -> list[str]:
        """Return why these models cannot be fused with these options, a line each; empty when they can."""
        reasons = self.refuse_robust(ensemble)
        if self.combine == "product":
            if not ensemble.family.has_width:
                return [*reasons, f"combine='product' means nothing for {ensemble.family.name}s, which have no width"]
            return reasons + without_priors(ensemble, "combine='product'")
        return reasons

    @final
    def refuse_robust(self, ensemble: Ensemble) -> list[str]:
        """Return why robust fusion of these models means nothing, a line each."""
        if self.robust is None:
            return []
        reasons = []
        if not self.matches:
            reasons.append(f"robust={self.robust!r}: {self.name} matches nothing, so no copy can be held beside others")
        if self.robust == "median" and self.combine == "product":
            reasons.append("robust='median' is an average, and combine='product' is none; use robust='trim'")
        for name in ("counts", "weights", "prior"):
            stated = [getattr(posterior, name) is not None for posterior in ensemble.posteriors]
            lacking = [one for one, has in zip(ensemble.names, stated, strict=True) if not has]
            if 0 < len(lacking) < len(stated):
                reasons.append(
                    f"robust={self.robust!r}: {', '.join(lacking)} states no {name}, others do; leave it out, or all "
                    f"{name} would be"
                )
        if ensemble.voting().n_sites < MIN_VOTES:
            reasons.append(
                f"robust={self.robust!r} needs at least {MIN_VOTES} models: of two, none tells which is right"
            )
        return reasons

    def _told(self, fused: Posterior, silent_model: Posterior) -> Labels:
        """Return who is who in a model of no weight: nearest fused components, -1 for what is left over."""
        if not self.relabels:
            return np.arange(silent_model.n_components)
        divergence = FixedSide(fused.family, silent_model.natural, self.average_direction)
        costs = divergence.costs(fused.natural).T
        spare = max(0, costs.shape[0] - costs.shape[1])
        columns = assign_block(np.pad(costs, ((0, 0), (0, spare)), constant_values=2.0 * costs.max() + 1.0))
        return np.where(columns < fused.n_components, columns, -1)

    @final
    def fuse(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress = silent) -> PosteriorOutcome:
        """Match and average.

        Raises
        ------
        InputError
            When the models do not fit the options.
        """
        reasons = self.refuse(ensemble)
        if reasons:
            raise InputError(reasons)
        canonical, origin = ensemble.canonical(relabel=self.relabels)
        voting, total = canonical.voting(), len(canonical.natural)
        robust = None if self.robust is None else RobustEstimator(self.robust, self.trim)
        if robust is None or not self.matches_parts:
            voted = self.match(voting, rng, progress)
        else:
            voted = match_supported_first(
                voting, robust, lambda part: self.match(part, rng, progress), open_number=self.finds_number
            )
        if self.minority == "drop" and self.matches:
            voted = without_minority(voted, voting)
        n_components = int(voted.labels.max()) + 1
        if robust is None:
            known = voted.averaged
            average = self.average if known is None else lambda _ensemble, _labels, _n_groups: known
            posterior = combine(voting, voted.labels, n_components, self.combine, average)
        else:
            direction, average = self.average_direction, self.average
            posterior = robust_combine(voting, voted.labels, n_components, self.combine, average, direction, robust)
            voted = replace(voted, atoms=None)  # the law of atoms counts every copy
        if self.relabels:
            order = fused_order(posterior, voted.labels)
            posterior = posterior.take(order)
            voted = _renumbered(voted, order)
        if self.matches:
            voted = report_minority(voted, voting)
        found = expand_assignment(voted, np.flatnonzero(canonical.row_weights > 0), total)
        for site in np.flatnonzero(canonical.site_weights == 0):
            rows = slice(canonical.offsets[site], canonical.offsets[site + 1])
            found.labels[rows] = self._told(posterior, canonical.posteriors[site])
        found = expand_assignment(found, origin, total)
        matching = Matching(found.labels, ensemble.owner, n_components, found.coupling, found.confidence)
        sources = [one.source for one in canonical.posteriors]
        posterior = replace(posterior, source=dict(sources[0] if robust is None else most_common(sources)))
        return PosteriorOutcome(
            posterior, matching, found.objective, found.history, found.status, found.details, found.atoms
        )


def without_priors(ensemble: Ensemble, what: str) -> list[str]:
    """Return why `what` is impossible for models that do not state their prior; empty when all do."""
    pairs = zip(ensemble.names, ensemble.posteriors, strict=True)
    lacking = [name for name, posterior in pairs if posterior.prior is None]
    return [f"{what} needs every model's prior, which is missing in {', '.join(lacking)}"] if lacking else []


def improper_priors(ensemble: Ensemble, what: str) -> list[str]:
    """Return why `what`, which weighs new components, is impossible for models that do not state a proper prior."""
    if reasons := without_priors(ensemble, what):
        return reasons
    pairs = zip(ensemble.names, ensemble.posteriors, strict=True)
    flat = [name for name, p in pairs if p.prior is not None and p.family.check(p.prior[None])]
    if flat:
        return [f"{what} weighs new components by their prior, which is improper in {', '.join(flat)}; use method 'kl'"]
    return []


def _renumbered(found: Assignment, order: Labels) -> Assignment:
    """Return an assignment with fused component ``order[g]`` as number g."""
    return replace(
        found,
        labels=np.append(np.argsort(order), -1)[found.labels],
        coupling=None if found.coupling is None else found.coupling[:, order],
        atoms=None if found.atoms is None else found.atoms.take(order),
    )


def expand_assignment(found: Assignment, rows: Labels, total: int) -> Assignment:
    """Return an assignment of some components as one of all `total`, given their rows; the others get label -1."""
    labels = np.full(total, -1, dtype=np.int64)
    labels[rows] = found.labels
    coupling = None
    if found.coupling is not None:
        coupling = np.zeros((total, found.coupling.shape[1]))
        coupling[rows] = found.coupling
    confidence = None
    if found.confidence is not None:
        confidence = np.full(total, np.nan)
        confidence[rows] = found.confidence
    return replace(found, labels=labels, coupling=coupling, confidence=confidence)


def informed(ensemble: Ensemble, min_count: float) -> tuple[Ensemble, Labels]:
    """Return the ensemble of components with at least `min_count` effective observations, and their rows.

    A model keeps its best-informed component whatever its count. Models that state no counts keep everything.
    """
    counts = ensemble.column("counts")
    if counts is None or min_count <= 0 or counts.min() >= min_count:
        return ensemble, np.arange(len(ensemble.natural))
    keep = counts >= min_count
    keep[np.lexsort((-counts, ensemble.owner))[ensemble.offsets[:-1]]] = True
    kept = [
        posterior.take(np.flatnonzero(keep[start:end]))
        for posterior, start, end in zip(ensemble.posteriors, ensemble.offsets[:-1], ensemble.offsets[1:], strict=True)
    ]
    return Ensemble(tuple(kept), ensemble.site_weights, ensemble.names), np.flatnonzero(keep)


def match_informed(ensemble: Ensemble, min_count: float, match: Callable[[Ensemble], Assignment]) -> Assignment:
    """Match only the components that ``informed`` keeps; the others get label -1."""
    kept, rows = informed(ensemble, min_count)
    found = match(kept)
    total = len(ensemble.natural)
    if len(rows) == total:
        return found
    details = {**found.details, "left_out": total - len(rows) + found.details.get("left_out", 0)}
    return expand_assignment(replace(found, details=details), rows, total)


def fused_order(posterior: Posterior, labels: Labels) -> Labels:
    """Order components by observations (or members), largest first, then by their parameters."""
    mass = posterior.counts
    if mass is None:
        mass = np.bincount(labels[labels >= 0], minlength=posterior.n_components).astype(np.float64)
    return np.lexsort((*posterior.natural.T[::-1], -mass))
