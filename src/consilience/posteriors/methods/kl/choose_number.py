"""Selection of the number of components by the evidence of the matching.

In turn, until the matching stays: the heterogeneity between sites is estimated from the matching; every component is
discounted by it; equation (6) of Claici et al. 2020,

    min over theta, P of sum_l w_l sum_g P_lg KL(theta_g || theta_l),    G given, one component of a site per group,

is solved for the discounted components at every number G, each from the next larger one less the group that is cheapest
to place elsewhere; the log evidence of each solution decides (``evidence``). Claici et al. choose G by a price lambda
at one scale; a price has to know how much copies differ, which is what the heterogeneity estimates (docs/adr/0008).
A search whose matching still changes after ``MAX_CALIBRATIONS`` rounds returns the last one as not converged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.site_by_site import ascend
from consilience.posteriors.ensemble import Stack, StackLike
from consilience.posteriors.methods.kl.descent import fit_number, without_one_group
from consilience.posteriors.methods.kl.evidence import Evidence
from consilience.posteriors.methods.kl.heterogeneity import discount_by_heterogeneity, estimate_heterogeneity
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem

MAX_CALIBRATIONS = 5
"""Rounds of estimating heterogeneity and searching. Against cycling only; how often it is reached was not measured."""
MAX_COORDINATE_SWEEPS = 10
"""Passes over all sites in the last ascent on the evidence: a bound, for passes end at the first without a move."""
MAX_ASCENT_ROWS = 2000
"""Components up to which the best solution of (6) is improved on the evidence itself. Chosen by hand for its cost."""
MAX_DESCENT_STEPS = 50
"""Matching and averaging steps in one solution of (6): a bound on the time of a start. Chosen by hand."""
STARTS_PER_SIZE = 2
"""Fresh starts for each first matching: two are enough since three sizes are started from. Chosen by hand."""
DESCENT_TOLERANCE = 1e-6
"""Relative decrease of (6) that ends a descent: that of the default option of ``KLFusion``."""


@dataclass(frozen=True, eq=False)
class SelectedNumber:
    """A matching whose number of components was selected, and the search that led to it.

    Parameters
    ----------
    labels : Labels of shape (L,)
        Group of each component, consecutive from 0.
    evidence : Evidence
        What the matching was chosen by.
    heterogeneity : Array of shape (B,)
        Discount of each block of sufficient statistics.
    path : dict of int to float
        The greatest log evidence seen for each number of components.
    history : tuple of float
        The greatest log evidence so far, whenever a step of the last round raised it.
    converged : bool
        Whether the last round left the matching as it was.
    """

    labels: Labels
    evidence: Evidence
    heterogeneity: Array
    path: dict[int, float]
    history: tuple[float, ...]
    converged: bool

    @property
    def likelihood(self) -> float:
        """The log evidence in a form that can be compared between discounts."""
        return self.evidence.likelihood(self.labels)


def select_n_components(
    stack: Stack,
    limit: int,
    rng: np.random.Generator,
    restarts: int,
    report: Callable[[int, int], None],
) -> SelectedNumber:
    """Return the matching of the greatest evidence with at most `limit` components, as far as descent reaches it.

    Parameters
    ----------
    stack : Stack
        What the sites' data say (L, P), see ``likelihood_stack``.
    limit : int
        Largest number of components tried, at least that of the largest site.
    rng : Generator
        Draws seeds and orders.
    restarts : int
        Fresh starts for each first matching, of which two are used at most.
    report : callable
        Called with (rounds done, rounds at most).
    """
    problem = InMemory.of(stack)
    best: SelectedNumber | None = None
    sizes = _first_sizes(int(stack.sizes.max()), limit)
    for index, (size, child) in enumerate(zip(sizes, rng.spawn(len(sizes)), strict=True)):
        report(index, len(sizes))
        fits = [
            problem.descend(problem.seeds(size, generator), generator)
            for generator in child.spawn(min(restarts, STARTS_PER_SIZE))
        ]
        # All numbers G are searched at one discount, since only then the evidence of two matchings compares; the
        # discount is re-estimated afterwards, and the search repeated, in ``refine_until_stationary``.
        candidate = _estimate_and_search(stack, min(fits, key=lambda fit: fit.objective).labels, limit, None, child)
        if best is not None and _is_same_partition(candidate.labels, best.labels):
            continue
        candidate = refine_until_stationary(stack, candidate, limit, child)
        if best is None or candidate.likelihood > best.likelihood:
            best = candidate
    assert best is not None  # noqa: S101  (there is at least one first size)
    report(len(sizes), len(sizes))
    return best


def select_from_matching(stack: StackLike, labels: Labels, limit: int, rng: np.random.Generator) -> SelectedNumber:
    """Return the matching of the greatest evidence that searches from one matching lead to, or that matching.

    A search at another discount may end at less evidence than it started from; then the start is kept.

    Parameters
    ----------
    stack : StackLike
        What the sites' data say (L, P), in memory or in shards.
    labels : Labels of shape (L,)
        Where to start, consecutive from 0.
    limit : int
        Largest number of components tried, at least that of the largest site.
    rng : Generator
        Draws seeds and orders.
    """
    first = _estimate_and_search(stack, labels, limit, None, rng)
    found = refine_until_stationary(stack, first, limit, rng)
    # As between first sizes in ``select_n_components``: the log evidence in the form that compares discounts.
    if found.likelihood >= first.evidence.likelihood(labels):
        return found
    score = first.evidence.score(labels)
    return replace(first, labels=labels, path={int(labels.max()) + 1: score}, history=(score,), converged=True)


def refine_until_stationary(
    stack: StackLike, selected: SelectedNumber, limit: int, rng: np.random.Generator
) -> SelectedNumber:
    """Estimate heterogeneity and search in turn until the matching stays; parameters as in ``select_n_components``."""
    for _ in range(MAX_CALIBRATIONS):
        if selected.converged:
            break
        selected = _estimate_and_search(stack, selected.labels, limit, selected.heterogeneity, rng)
    return selected


def _is_same_partition(a: Labels, b: Labels) -> bool:
    """Return whether two matchings are one partition, whatever the groups are called."""
    # As many distinct pairs (group in a, group in b) as groups on either side: the pairing is one to one.
    return len(np.unique(np.stack([a, b]), axis=1).T) == a.max() + 1 == b.max() + 1


def _first_sizes(smallest: int, limit: int) -> list[int]:
    """Return numbers of components to take the first matchings from: the smallest, and two on the way to the limit.

    The sizes are geometric. At the limit itself groups are close pairs by choice, which say that copies do not differ.
    """
    ratio = limit / smallest
    return sorted({smallest, round(smallest * ratio ** (1 / 3)), round(smallest * ratio ** (2 / 3))})


def _estimate_and_search(
    stack: StackLike, labels: Labels, limit: int, start: Array | None, rng: np.random.Generator
) -> SelectedNumber:
    """Estimate heterogeneity from one matching and search for the matching of the greatest evidence."""
    heterogeneity = estimate_heterogeneity(stack, labels, start)
    evidence = discount_by_heterogeneity(stack, heterogeneity)
    search = _Search(evidence, limit, rng)
    best_labels = search.search_path(labels)
    is_stationary = _is_same_partition(best_labels, labels)
    return SelectedNumber(best_labels, evidence, heterogeneity, search.path, tuple(search.history), is_stationary)


class SearchProblem(Protocol):
    """Equation (6) for the components of a stack: what the search over numbers of components asks of it."""

    def seeds(self, count: int, rng: np.random.Generator) -> Array:
        """Return components drawn as first centres (count, P), spread out."""

    def barycenters(self, labels: Labels, n_groups: int) -> Array:
        """Return the averages (G, P) of a matching."""

    def descend(self, centres: Array, rng: np.random.Generator) -> KLFit:
        """Return a solution of (6) from `centres`, without refinement."""

    def without_one_group(self, fit: KLFit) -> Array:
        """Return the centres (G - 1, P) left when the group goes whose members cost least to place elsewhere."""


class InMemory(KLProblem):
    """The problem of components in memory."""

    def descend(self, centres: Array, rng: np.random.Generator) -> KLFit:
        """Return a solution of (6) from `centres`, without refinement."""
        return fit_number(self, centres, rng, MAX_DESCENT_STEPS, DESCENT_TOLERANCE)

    def without_one_group(self, fit: KLFit) -> Array:
        """Return the centres left without one group; see ``descent.without_one_group``."""
        return without_one_group(self, fit)


@runtime_checkable
class Searchable(Protocol):
    """Components in shards, which make their search problem themselves."""

    def search_problem(self) -> SearchProblem:
        """Return equation (6) for these components."""


def search_problem(stack: StackLike) -> SearchProblem:
    """Return equation (6) for the components of a stack, in memory or in shards."""
    if isinstance(stack, Stack):
        return InMemory.of(stack)
    assert isinstance(stack, Searchable)  # noqa: S101  (stacks in shards are)
    return stack.search_problem()


class _Search:
    """One search for the matching of the greatest evidence, over all numbers of components at one discount."""

    def __init__(self, evidence: Evidence, limit: int, rng: np.random.Generator) -> None:
        self.evidence, self.limit, self.rng = evidence, limit, rng
        self.path: dict[int, float] = {}
        self.history: list[float] = []
        self._labels: dict[int, Labels] = {}

    def _offer(self, labels: Labels) -> None:
        """Keep a matching if it is the best of its size."""
        size, score = int(labels.max()) + 1, self.evidence.score(labels)
        if size > self.limit:
            return
        if score > self.path.get(size, -np.inf):
            self.path[size], self._labels[size] = score, labels
        if not self.history or score > self.history[-1]:
            self.history.append(score)

    def search_path(self, labels: Labels) -> Labels:
        """Return the best matching on two paths down to the largest site: from `labels`, and from `limit` seeds."""
        problem = search_problem(self.evidence.stack)
        largest_site = int(self.evidence.stack.sizes.max())
        self._offer(labels)
        fits = [
            problem.descend(problem.barycenters(labels, int(labels.max()) + 1), self.rng),
            problem.descend(problem.seeds(self.limit, self.rng), self.rng),
        ]
        for fit in fits:
            while True:  # one group fewer at a time: each solution starts the next
                self._offer(fit.labels)
                if fit.n_groups <= largest_site:
                    break
                fit = problem.descend(problem.without_one_group(fit), self.rng)
        best_size = max(self.path, key=self.path.__getitem__)
        # (6) is descended, the evidence decides: the best solution is improved on the evidence itself, site by site.
        if len(labels) <= MAX_ASCENT_ROWS:
            self._offer(ascend(self.evidence.groups, self._labels[best_size], self.rng, MAX_COORDINATE_SWEEPS)[0])
            best_size = max(self.path, key=self.path.__getitem__)
        return self._labels[best_size]
