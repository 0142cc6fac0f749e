"""Search for the matching of the greatest evidence: agglomeration, site-by-site ascent and fits of h, in turn.

One search starts at some heterogeneity h. A round agglomerates the groups there are (in the first round every component
by itself) at fixed h and prior, takes the best number of groups on the path, ascends site by site from it and from the
matching of the round before, and refits prior and h to the better one. It ends when the matching stays.

Nothing in it is random. Sites come in an order that depends on contents only and continuously so, then in one fixed
shuffle: changes of the input by rounding change nothing but ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families.chunks import sum_of_rows
from consilience.matching.agglomeration import MIN_RELATIVE_GAIN, AgglomerationPath, agglomerate, nearest_rows
from consilience.matching.assignment import NO_NEW_GROUPS, UNLIMITED, Openings
from consilience.matching.conjugate_groups import ConjugateGroups, MixedGroups
from consilience.matching.site_by_site import ascend, grow
from consilience.posteriors.ensemble import Stack
from consilience.posteriors.evidence.random_effects import (
    LOG_REFIT_STEP,
    LOG_STEP,
    MatchingPrior,
    RandomEffects,
    fit_lenient_prior,
    lenient_prior,
    strict_prior,
)

FIRST_HETEROGENEITIES = (0.05, 0.5)
"""Heterogeneities, in units of the family, that searches start from."""
LOW_FIRST_HETEROGENEITY = 0.005
"""A further start where components are too many to be agglomerated one by one."""
HIGH_FIRST_HETEROGENEITY = 5.0
"""A further start of Gaussians of parameters, whose unit is guessed from the spread of all: maybe copies of one."""
MAX_ROUNDS = 6
"""Rounds of one search at most; nearly all end earlier, since the matching stays."""
MAX_ASCENTS = 6
"""Times that a selected matching gives way to a better one on its own paths: a bound, for evidence rises every time."""
MAX_SWEEPS = 8
"""Passes over all sites in one ascent: a bound, for passes end at the first without a move."""
MAX_AGGLOMERATED_ROWS = 2000
"""Components up to which a search starts from every component by itself; more of them are first grown site by site.

The gains of all pairs of so many take 32 MB.
"""

MIN_GAIN_SHARE = 0.2
"""Gain of a pair, in that of the best one, from which on it is merged in the same round. From one pair at a time to all
pairs that gain, no end of an ascent changed on the half for tuning of experiments/battery."""
N_NEAREST = 16
"""Nearest components of each that agglomeration looks at while any of them gain."""
MIN_NEIGHBOUR_RATIO = 4
"""Components, in numbers of the nearest, from which on not all pairs are looked at. Chosen by hand for its cost."""

MAX_SEARCHED_ROWS = 6000
"""Components up to which all take part in the search; of more, a sample of sites is searched and the rest join it."""

SMALLEST_SPREAD = 1e-9
"""Spread of a column, in units of its size, below which it is taken for constant when rows are put in order."""


@dataclass(frozen=True, eq=False)
class SearchedMatching:
    """A matching and what it is judged by."""

    labels: Labels  # group of each component (L,), consecutive from 0; -1 for components left out
    heterogeneity: Array  # h of each block of sufficient statistics (B,)
    prior: MatchingPrior  # fitted where it has parameters
    evidence: float  # F of the matching
    converged: bool  # whether the last round left the matching as it was
    has_own: bool = False  # whether groups are judged with a heterogeneity of their own

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.labels.max(initial=-1)) + 1


class EvidenceSearch:
    """Searches over the matchings of one stack, whose sites are in the order of ``steady_order``.

    Matchings of more than `max_groups` are not looked at. With a `start` (B,) it is the only heterogeneity to start
    from.
    """

    def __init__(self, stack: Stack, max_groups: int | None = None, start: Array | None = None) -> None:
        self.problem, self.max_groups, self._start = RandomEffects(stack), max_groups, start
        self._paths: tuple[SearchedMatching, list[AgglomerationPath]] | None = None

    @property
    def _stack(self) -> Stack:
        return self.problem.stack

    @cached_property
    def _openings(self) -> Openings:
        return UNLIMITED if self.max_groups is None else Openings(max_groups=self.max_groups)

    def strict(self) -> SearchedMatching:
        """Return the best matching under the strict prior."""
        prior = strict_prior(self._stack.n_sites)
        return self._best(prior, lambda _sizes: prior)

    def lenient(self) -> SearchedMatching:
        """Return the best matching under the lenient prior.

        That of the strict prior is no candidate: where sites share nothing its evidence may be greater, with chance
        pairs that differ as much as components do, and it is for the virtual loss to tell them apart.
        """
        n_sites = self._stack.n_sites
        n_holding = max(1, int(np.count_nonzero(self._stack.sizes)))
        first = lenient_prior(n_sites, len(self._stack.natural) / n_holding, 1.0)
        return self._best(first, lambda sizes: fit_lenient_prior(sizes, n_sites))

    def apart(self) -> SearchedMatching:
        """Return the best matching under the lenient prior of components that are copies without heterogeneity.

        None differ by more than their posteriors admit. For sites that share nothing, whose heterogeneity, fitted to
        chance groups, is that of any two components.
        """
        heterogeneity, n_rows = LOW_FIRST_HETEROGENEITY * self.problem.unit, len(self._stack.natural)
        prior = fit_lenient_prior(np.ones(n_rows, dtype=np.int64), self._stack.n_sites)
        labels = self._round(self.problem.groups(heterogeneity, prior), None)
        return SearchedMatching(labels, heterogeneity, prior, self.problem.evidence(labels, heterogeneity, prior), True)

    def _best(self, first: MatchingPrior, refit: Callable[[Labels], MatchingPrior]) -> SearchedMatching:
        """Return the best matching over all starts."""
        starts: tuple[float, ...] = FIRST_HETEROGENEITIES
        if len(self._stack.natural) > MAX_SEARCHED_ROWS and self._stack.sizes.min() <= MAX_AGGLOMERATED_ROWS:
            return self._from_pilot(first, refit)
        if len(self._stack.natural) > MAX_AGGLOMERATED_ROWS:
            starts = (LOW_FIRST_HETEROGENEITY, *starts)
        family = self._stack.family
        if not family.describes_data and family.plug_in(self._stack.natural[:1]) is not None:
            starts = (*starts, HIGH_FIRST_HETEROGENEITY)
        heterogeneities = [start * self.problem.unit for start in starts] if self._start is None else [self._start]
        ends: list[SearchedMatching] = []
        for heterogeneity in heterogeneities:
            ends.append(self._search(heterogeneity, first, refit, ends))
        best = ends[0]
        for candidate in ends[1:]:
            if candidate.evidence > best.evidence + MIN_RELATIVE_GAIN * (1.0 + abs(best.evidence)):
                best = candidate
        return best

    def _from_pilot(self, first: MatchingPrior, refit: Callable[[Labels], MatchingPrior]) -> SearchedMatching:
        """Return the matching that a sample of the sites leads to: all others join its groups, or open new ones."""
        stack = self._stack
        sites = shuffled(stack.n_sites)
        small = sites[stack.sizes[sites] <= MAX_AGGLOMERATED_ROWS]  # a sample of one huge site would be no sample
        n_pilots = int(np.searchsorted(np.cumsum(stack.sizes[small]), MAX_AGGLOMERATED_ROWS, side="right"))
        is_pilot = np.zeros(stack.n_sites, dtype=np.bool_)
        is_pilot[small[:n_pilots]] = True
        rows = np.flatnonzero(is_pilot[stack.owner])
        # All sites keep their places, so that a group of the sample is rare or common as it is among all.
        search = EvidenceSearch(stack.take(rows), self.max_groups, self._start)
        pilot = search._best(first, refit)
        del search
        labels = np.full(len(stack.natural), -1, dtype=np.int64)
        labels[rows] = pilot.labels
        objective = self.problem.groups(pilot.heterogeneity, pilot.prior)
        labels = grow(objective, sites[~is_pilot[sites]], self._openings, labels)
        if int(labels.max()) < MAX_AGGLOMERATED_ROWS:
            path = agglomerate(objective, labels)
            labels = path.labels(path.best(self.max_groups))
        labels = ascend(objective, labels, np.random.default_rng(0), 1, self._openings)[0]
        del objective  # its pieces may fill the memory
        return self.refitted(replace(pilot, prior=refit(np.bincount(labels))), labels)

    def _search(
        self,
        heterogeneity: Array,
        prior: MatchingPrior,
        refit: Callable[[Labels], MatchingPrior],
        ends: Sequence[SearchedMatching],
    ) -> SearchedMatching:
        """Return the best matching from one initialisation; the search stops at any of the `ends` of earlier ones."""
        best: SearchedMatching | None = None
        labels: Labels | None = None
        for _ in range(MAX_ROUNDS):
            objective = self.problem.groups(heterogeneity, prior)
            new_labels = self._round(objective, labels)
            if labels is not None and is_same_partition(labels, new_labels):
                assert best is not None  # noqa: S101  (labels are of a round before)
                return replace(best, converged=True)
            end = next((end for end in ends if is_same_partition(end.labels, new_labels)), None)
            if end is not None:  # where an earlier search has ended, with the h that is best for it
                return end if best is None or end.evidence > best.evidence else replace(best, converged=True)
            labels, prior = new_labels, refit(np.bincount(new_labels))
            step = LOG_STEP if best is None else LOG_REFIT_STEP
            heterogeneity, evidence = self.problem.fit_heterogeneity(labels, heterogeneity, prior, step)
            if best is None or evidence > best.evidence:
                best = SearchedMatching(labels, heterogeneity, prior, evidence, False)
        assert best is not None  # noqa: S101  (there is at least one round)
        return best

    def _round(self, objective: ConjugateGroups, labels: Labels | None) -> Labels:
        """Return the best matching of one round, from every component by itself or from the groups there are."""
        if labels is not None:
            path = agglomerate(objective, labels, while_gaining=True)
        elif len(self._stack.natural) <= MAX_AGGLOMERATED_ROWS:
            path = self.full_path(objective, while_gaining=True)
        else:
            path = agglomerate(objective, grow(objective, shuffled(self._stack.n_sites)))
        if not np.isfinite(path.totals).all():
            text = "their numbers are so great, or so small, that float64 loses what components say of each other"
            raise InputError("the models", text, "scale the columns, the same at all sites, and fit again", "E-NUMBER")
        if self.max_groups is not None and path.n_groups[-1] > self.max_groups:
            path = agglomerate(objective, path.labels(len(path.merges)))  # by merges that lose, down to the limit
        step = path.best(self.max_groups)
        agglomerated = path.labels(step)
        is_unmerged = labels is not None and agglomerated.max(initial=-1) == labels.max(initial=-1)
        if self.max_groups is not None and path.n_groups[step] > self.max_groups:
            # Sites that share a component with everybody end the path above the limit.
            agglomerated = grow(objective, shuffled(self._stack.n_sites), self._openings)
        ascended = self.ascend(objective, agglomerated)
        if labels is None or is_unmerged:
            return ascended
        total = objective.total(ascended)
        # The groups of the round before are given up for no less only, so that evidence never falls.
        tolerance = MIN_RELATIVE_GAIN * (1.0 + abs(total))
        return ascended if objective.total(labels) <= total + tolerance else self.ascend(objective, labels)

    def full_path(
        self, objective: ConjugateGroups, is_in: NDArray[np.bool_] | None = None, *, while_gaining: bool = False
    ) -> AgglomerationPath:
        """Return the agglomeration from every component by itself, of all or of those that are `in` (L,).

        On none of 270 paths of the half for tuning of experiments/battery a better matching came after the first merge
        that did not gain.
        """
        neighbours = self._neighbours
        if is_in is None:
            is_in = np.ones(len(self._stack.natural), dtype=np.bool_)
        if neighbours is not None and not is_in.all():
            neighbours = neighbours[np.ix_(is_in, is_in)]
        start = np.where(is_in, np.cumsum(is_in) - 1, -1)
        return agglomerate(
            objective,
            start,
            min_gain_share=MIN_GAIN_SHARE if while_gaining else 1.0,  # rounds ended below in 1 of 87 cells
            are_neighbours=neighbours,
            while_gaining=while_gaining,
        )

    @cached_property
    def _neighbours(self) -> NDArray[np.bool_] | None:
        """Which components (L, L) are among the nearest of each other; None where they are few or very many.

        By Jeffreys' divergence, KL(a || b) + KL(b || a) = (eta_a - eta_b) (mu_a - mu_b), of components that are given
        the same information: components of many and of few observations are to be told apart by where they are.
        """
        family, natural = self._stack.family, self._stack.natural
        if not MIN_NEIGHBOUR_RATIO * N_NEAREST < len(natural) <= MAX_AGGLOMERATED_ROWS:
            return None
        undiscounted = self.problem.undiscounted + family.flat  # centred
        information = family.information(undiscounted)  # (L, B)
        eta = family.reweighted(undiscounted, np.median(information, axis=0) / information)
        mean = family.mean_parameters(eta)
        products = eta @ mean.T  # (L, L)
        squares = np.diagonal(products)
        divergences = squares[:, None] + squares - products - products.T
        np.fill_diagonal(divergences, np.inf)
        owner = self._stack.owner
        divergences[owner[:, None] == owner] = np.inf
        return nearest_rows(divergences, N_NEAREST)

    @cached_property
    def _neighbour_pairs(self) -> tuple[Labels, Labels] | None:
        """The pairs of components (m,) that are among the nearest of each other; None where all are looked at."""
        if self._neighbours is None:
            return None
        first, second = self._neighbours.nonzero()
        return first, second

    def paths(self, matching: SearchedMatching) -> list[AgglomerationPath]:
        """Return the agglomerations from the groups of a matching, and from every component of them by itself.

        Both are at its heterogeneity and under its prior, merged at the common one; those of more than 2,000 groups are
        not made. The last ones are kept: they say first whether a better matching is near, then what every number of
        groups is worth.
        """
        if self._paths is None or not _is_same_matching(self._paths[0], matching):
            labels, is_in = matching.labels, matching.labels >= 0
            objective = self.problem.groups(matching.heterogeneity, matching.prior)
            paths = [agglomerate(objective, labels)] if matching.n_groups <= MAX_AGGLOMERATED_ROWS else []
            if np.count_nonzero(is_in) <= MAX_AGGLOMERATED_ROWS:
                paths.append(self.full_path(objective, is_in))
            self._paths = (matching, paths)
        if not matching.has_own:
            return self._paths[1]
        judged = self.judged_groups(matching)
        return [path.valued_by(judged) for path in self._paths[1]]

    def judged_groups(self, matching: SearchedMatching) -> ConjugateGroups | MixedGroups:
        """Return what groups are worth at the heterogeneity of a matching, or each at its own about it."""
        groups = self.problem.own_groups if matching.has_own else self.problem.groups
        return groups(matching.heterogeneity, matching.prior)

    def refitted(self, matching: SearchedMatching, labels: Labels) -> SearchedMatching:
        """Return the matching of these labels under the prior of another one, its heterogeneity fitted from there."""
        heterogeneity, evidence = self.problem.fit_heterogeneity(labels, matching.heterogeneity, matching.prior)
        refitted = replace(matching, labels=labels, heterogeneity=heterogeneity, evidence=evidence)
        if not matching.has_own:
            return refitted
        # What was fitted is the heterogeneity of the greatest evidence where all groups have the same.
        trials = (self.with_own(refitted), self.with_own(replace(matching, labels=labels)))
        return max(trials, key=lambda trial: trial.evidence)

    def with_own(self, matching: SearchedMatching) -> SearchedMatching:
        """Return the matching with its evidence where each group has a heterogeneity of its own."""
        evidence = self.problem.own_evidence(matching.labels, matching.heterogeneity, matching.prior)
        return replace(matching, evidence=evidence, has_own=True)

    def ascended(self, matching: SearchedMatching, labels: Labels) -> SearchedMatching:
        """Return the matching that sites ascend to from these labels at the heterogeneity of another one, refitted."""
        return self.refitted(matching, self.ascend(self.judged_groups(matching), labels))

    def total(self, matching: SearchedMatching) -> float:
        """Return what a matching is worth as those on its paths are: F without what no matching changes."""
        if matching.has_own:
            return self.judged_groups(matching).total(matching.labels)
        return self.problem.total(matching.labels, matching.heterogeneity, matching.prior)

    def best_of_its_paths(self, matching: SearchedMatching) -> SearchedMatching:
        """Return a matching of no less evidence that is the best on its own paths, under the same prior.

        Leaving components out, and the last fit of h, may leave a matching below others at its own heterogeneity.
        While one is, sites ascend from the best and h is fitted again.
        """
        for _ in range(MAX_ASCENTS):
            better = self._better_on_paths(matching)
            if better is None:
                return matching
            matching = self.ascended(matching, better)
        return replace(matching, converged=self._better_on_paths(matching) is None)

    def _better_on_paths(self, matching: SearchedMatching) -> Labels | None:
        """Return the best matching on the paths of one, within the limit; None where none exceeds it."""
        total = self.total(matching)
        lowest, better = total + MIN_RELATIVE_GAIN * (1.0 + abs(total)), None
        paths = self.paths(matching)
        if matching.has_own and matching.n_groups <= MAX_AGGLOMERATED_ROWS:
            # Merges that pay for a group of its own heterogeneity may be none of those at the common one.
            paths = [agglomerate(self.judged_groups(matching), matching.labels, while_gaining=True), *paths]
        for path in paths:
            step = path.best(self.max_groups)
            is_allowed = self.max_groups is None or path.n_groups[step] <= self.max_groups
            if is_allowed and path.totals[step] > lowest:
                lowest, better = float(path.totals[step]), path.labels(step)
        return better

    def ascend(self, objective: ConjugateGroups | MixedGroups, labels: Labels) -> Labels:
        """Return the matching that site-by-site ascent reaches, in a fixed order of sites."""
        rng = np.random.default_rng(0)
        return ascend(
            objective,
            labels,
            rng,
            MAX_SWEEPS,
            self._openings,
            screened_by=objective.value,
            neighbours=self._neighbour_pairs,
        )[0]

    def ascend_in_size(self, objective: ConjugateGroups | MixedGroups, labels: Labels) -> Labels:
        """Return the matching that site-by-site ascent reaches, of as many groups."""
        rng = np.random.default_rng(0)
        return ascend(objective, labels, rng, MAX_SWEEPS, NO_NEW_GROUPS, empties_groups=False)[0]


def _is_same_matching(a: SearchedMatching, b: SearchedMatching) -> bool:
    """Return whether two matchings have the same labels, heterogeneity and prior."""
    is_same_law = a.prior is b.prior and np.array_equal(a.heterogeneity, b.heterogeneity)
    return is_same_law and np.array_equal(a.labels, b.labels)


def is_same_partition(a: Labels, b: Labels) -> bool:
    """Return whether two matchings are one partition, whatever the groups are called."""
    if not np.array_equal(a < 0, b < 0):
        return False
    kept_a, kept_b = a[a >= 0], b[b >= 0]
    if not len(kept_a):
        return True
    # As many distinct pairs (group in a, group in b) as groups on either side: the pairing is one to one.
    n_pairs = len(np.unique(kept_a * (int(kept_b.max()) + 1) + kept_b))
    return n_pairs == len(np.unique(kept_a)) == len(np.unique(kept_b))


def shuffled(n_sites: int) -> Labels:
    """Return the sites in the one fixed order in which they come."""
    return np.random.default_rng(0).permutation(n_sites)


def steady_order(natural: Array, owner: Labels) -> Labels:
    """Return all rows (L, P) ordered by site and within sites, by contents alone, so that tiny changes change no order.

    Rows are ordered by one fixed linear form of their natural parameters, sites by the sum of those of their rows.
    Bytes, which order an ensemble, change at random where a number changes in its last digit.
    """
    centre = natural.mean(axis=0)
    scale = sum_of_rows(len(natural), natural.shape[1], lambda rows: np.abs(natural[rows] - centre)) / len(natural)
    largest = np.maximum(natural.max(axis=0), -natural.min(axis=0))
    is_rounding = scale <= SMALLEST_SPREAD * largest  # columns that are alike order nothing
    direction = np.random.default_rng(0).standard_normal(natural.shape[1])
    keys = natural @ np.where(is_rounding, 0.0, direction / np.where(is_rounding, 1.0, scale))
    site_keys = np.bincount(owner, weights=keys)
    return np.lexsort((keys, owner, site_keys[owner]))
