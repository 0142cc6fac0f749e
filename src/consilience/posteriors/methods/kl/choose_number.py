"""How many components there are: the matching of the greatest evidence, over all numbers of components.

In turn, until the matching stays: the heterogeneity between sites is estimated from the matching; every component is
discounted by it; equation (6) of Claici et al. 2020 is solved for the discounted components at every number G, each
from the next larger one less the group that is cheapest to place elsewhere; the evidence of each solution decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.site_by_site import ascend
from consilience.posteriors.ensemble import Stack
from consilience.posteriors.methods.kl.descent import fit_number, without_one_group
from consilience.posteriors.methods.kl.evidence import Evidence
from consilience.posteriors.methods.kl.heterogeneity import calibrated, heterogeneity
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem

_ROUNDS = 5
_SWEEPS = 10
_POLISH_ROWS = 2000
_STEPS = 50
_STARTS = 2
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class SelectedNumber:
    """A matching whose number of components was found, and how.

    Parameters
    ----------
    labels
        Group of each component (L,), consecutive from 0.
    evidence
        What the matching was chosen by.
    heterogeneity
        Discount of each block of sufficient statistics (B,).
    path
        The greatest log evidence found for each number of components.
    history
        The greatest log evidence so far, whenever a step of the last round raised it.
    converged
        Whether the matching stayed.
    """

    labels: Labels
    evidence: Evidence
    heterogeneity: Array
    path: dict[int, float]
    history: tuple[float, ...]
    converged: bool

    @property
    def likelihood(self) -> float:
        """The log evidence in a form that can be compared between calibrations."""
        return self.evidence.likelihood(self.labels)


def select_n_components(
    stack: Stack,
    limit: int,
    rng: np.random.Generator,
    restarts: int,
    report: Callable[[int, int], None],
) -> SelectedNumber:
    """Return the matching of the greatest evidence with at most `limit` components, as far as descent finds it.

    Parameters
    ----------
    stack
        What the sites' data say, see ``likelihood_stack``.
    limit
        Largest number of components tried, at least that of the largest site.
    rng
        Draws seeds and orders.
    restarts
        Fresh starts for each first matching, of which two are enough.
    report
        Told (rounds done, rounds at most).
    """
    problem = KLProblem.of(stack)
    best: SelectedNumber | None = None
    sizes = _first_sizes(int(stack.sizes.max()), limit)
    for number, (size, child) in enumerate(zip(sizes, rng.spawn(len(sizes)), strict=True)):
        report(number, len(sizes))
        starts = [_descend(problem, problem.seeds(size, each), each) for each in child.spawn(min(restarts, _STARTS))]
        tried = _round(stack, min(starts, key=lambda fit: fit.objective).labels, limit, None, child)
        if best is not None and _same(tried.labels, best.labels):
            continue
        tried = refine_until_stationary(stack, tried, limit, child)
        if best is None or tried.likelihood > best.likelihood:
            best = tried
    assert best is not None  # noqa: S101  (there is at least one first size)
    report(len(sizes), len(sizes))
    return best


def refine_until_stationary(
    stack: Stack, found: SelectedNumber, limit: int, rng: np.random.Generator
) -> SelectedNumber:
    """Calibrate and search in turn until the matching stays; parameters as in ``select_n_components``."""
    for _ in range(_ROUNDS):
        if found.converged:
            break
        found = _round(stack, found.labels, limit, found.heterogeneity, rng)
    return found


def _same(a: Labels, b: Labels) -> bool:
    """Return whether two matchings are one, whatever the groups are called."""
    return len(np.unique(np.stack([a, b]), axis=1).T) == a.max() + 1 == b.max() + 1


def _first_sizes(least: int, limit: int) -> list[int]:
    """Return numbers of components to take the first matchings from: the least, and two on the way to the limit.

    At the limit itself groups are close pairs by choice, which say that copies do not differ at all.
    """
    ratio = limit / least
    return sorted({least, round(least * ratio ** (1 / 3)), round(least * ratio ** (2 / 3))})


def _round(stack: Stack, labels: Labels, limit: int, start: Array | None, rng: np.random.Generator) -> SelectedNumber:
    """Calibrate by one matching and search for the matching of the greatest evidence."""
    amount = heterogeneity(stack, labels, start)
    evidence = calibrated(stack, amount)
    search = _Search(evidence, limit, rng)
    found = search.best(labels)
    settled = _same(found, labels)
    return SelectedNumber(found, evidence, amount, search.path, tuple(search.history), settled)


def _descend(problem: KLProblem, centres: Array, rng: np.random.Generator) -> KLFit:
    return fit_number(problem, centres, rng, _STEPS, _TOLERANCE)


class _Search:
    """One search for the matching of the greatest evidence, at given calibration."""

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

    def best(self, labels: Labels) -> Labels:
        """Return the best matching found from `labels` and from fresh seeds, from `limit` components down."""
        problem = KLProblem.of(self.evidence.stack)
        least = int(self.evidence.stack.sizes.max())
        self._offer(labels)
        fits = [
            _descend(problem, problem.barycenters(labels, int(labels.max()) + 1), self.rng),
            _descend(problem, problem.seeds(self.limit, self.rng), self.rng),
        ]
        for fit in fits:
            while True:
                self._offer(fit.labels)
                if fit.n_groups <= least:
                    break
                fit = _descend(problem, without_one_group(problem, fit), self.rng)
        size = max(self.path, key=self.path.__getitem__)
        if len(labels) <= _POLISH_ROWS:
            self._offer(ascend(self.evidence.groups, self._labels[size], self.rng, _SWEEPS)[0])
            size = max(self.path, key=self.path.__getitem__)
        return self._labels[size]
