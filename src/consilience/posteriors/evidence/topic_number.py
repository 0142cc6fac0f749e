"""The number of topics, and which are the same: the agglomerative information bottleneck, judged by virtual documents.

Topics are merged two by two, the pair first whose merging loses least of what topics tell about words, the weighted
Jensen-Shannon divergence of their counts (Slonim and Tishby 1999): with n_g(v) the tokens of word v in group g,

    I = sum_g [sum_v n_g(v) log n_g(v) - n_g log n_g] + constant.

One topic after another then goes where I rises most (the sequential bottleneck, Slonim, Friedman and Tishby 2002).

Two topics of one site may become one, unless a chain or an untrusted site forbids it: a site that is told ten topics
and has six splits some. The number is the smallest whose loss on virtual documents (``virtual_documents``) is at most
0.02 nats a token more than that of the best number. That is a choice of how much may be lost, and no fact about the
texts, so none is called probable: details hold the curve, the number for each of several losses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import xlogy

from consilience.checks import Array, Labels
from consilience.matching.agglomeration import AgglomerationPath, agglomerate, nearest_rows
from consilience.matching.assignment import NO_NEW_GROUPS
from consilience.matching.groups import GroupSums, consecutive, group_sums
from consilience.matching.site_by_site import ValuedGroups, ascend
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.search import MAX_AGGLOMERATED_ROWS, MAX_SWEEPS, MIN_NEIGHBOUR_RATIO, N_NEAREST
from consilience.posteriors.evidence.virtual_documents import VirtualDocuments, virtual_documents_of
from consilience.posteriors.evidence.virtual_loss import mean_and_error

MAX_LOSS = 0.02
"""Nats a token that the number of topics may lose against the best one, 2 % of perplexity. Chosen on two splits of
four collections that no table shows (experiments/kl_fusion/topic_sets.py)."""
PART_GROUPS = 500
"""Topics of a part that are merged to half as many where there are too many for one agglomeration. For its cost."""
MAX_REFINED_VALUES = 10**9
"""Topics times groups times words up to which topics are moved one by one, some ten seconds. For its cost."""
N_LOOKED_AT = 10
"""Numbers of topics, evenly spaced in logarithms, of which the best is what others are compared with."""
MAX_COMPARED_SITES = 50
"""Sites whose own topics the fused ones are to lose no more than. For their cost: the best is among the largest."""
SITE_MARGIN = 0.005
"""Nats a token by which they may exceed it: a standard error of 400 documents."""
STATED_LOSSES = (0.01, MAX_LOSS, 0.05, 0.1)
"""Losses, in nats a token, for which the smallest number of topics is stated."""


@dataclass(frozen=True, eq=False)
class TokenGroups(ValuedGroups):
    """What groups of topics tell about words: a ``ValuedObjective``, I above."""

    pieces: Array  # tokens n_l(v) of each topic (L, V)
    offsets: Labels  # where each site starts whose topics stay apart, and the end

    @cached_property
    def _price(self) -> float:
        """What one more group costs, so that every merge gains: no topic tells more than all words hold."""
        return float(self.pieces.sum() * np.log(max(self.pieces.shape[1], 2)))

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""
        totals = groups.sums.sum(axis=1)
        return np.asarray(xlogy(groups.sums, groups.sums).sum(axis=1) - xlogy(totals, totals) - self._price)


@dataclass(eq=False)
class TopicNumber:
    """Matchings of one ensemble of topics by number, and what each loses on the same virtual documents."""

    documents: VirtualDocuments
    keeps_apart: bool  # topics of one site
    max_topics: int | None = None
    _losses: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ensemble: Ensemble, *, keeps_apart: bool, max_topics: int | None = None) -> TopicNumber | None:
        """Return them; None where components are no topics, or nothing was seen."""
        documents = virtual_documents_of(ensemble)
        return None if documents is None else cls(documents, keeps_apart, max_topics)

    @cached_property
    def _groups(self) -> TokenGroups:
        tokens = self.documents.tokens
        return TokenGroups(tokens, self.documents.offsets if self.keeps_apart else np.arange(len(tokens) + 1))

    @cached_property
    def _path(self) -> AgglomerationPath:
        """The agglomeration from every topic by itself, of rows in the order of the documents.

        Of very many topics those of a part at a time are merged to half as many, until it can begin with all there are.
        """
        tokens, start = self.documents.tokens, np.arange(len(self.documents.tokens))
        while (n_groups := int(start.max()) + 1) > MAX_AGGLOMERATED_ROWS:
            merged = np.empty(n_groups, dtype=np.int64)
            sums = group_sums(tokens, start, np.ones(len(start)), n_groups).sums
            for first in range(0, n_groups, PART_GROUPS):
                part = sums[first : first + PART_GROUPS]
                path = _agglomerated(TokenGroups(part, np.arange(len(part) + 1)), np.arange(len(part)))
                merged[first : first + len(part)] = first + path.labels(len(part) // 2)
            start = consecutive(merged)[start]
        return _agglomerated(self._groups, start)

    @property
    def fewest(self) -> int:
        """The smallest number of topics on the path."""
        return int(self._path.n_groups[-1])

    @property
    def most(self) -> int:
        """The greatest number of topics that may be taken."""
        n_first = int(self._path.n_groups[0])
        return n_first if self.max_topics is None else max(self.fewest, min(n_first, self.max_topics))

    def labels(self, n_topics: int) -> Labels:
        """Return the matching (L,) with so many topics, each moved to the group that it belongs to best, in turn."""
        groups, labels = self._groups, self._of_path(n_topics)
        if len(labels) * (int(labels.max()) + 1) * groups.pieces.shape[1] <= MAX_REFINED_VALUES:
            rng = np.random.default_rng(0)
            labels = ascend(groups, labels, rng, MAX_SWEEPS, NO_NEW_GROUPS, empties_groups=False)[0]
        return self._of_input(labels)

    def _of_path(self, n_topics: int) -> Labels:
        """Return the matching (L,) on the path with so many topics, or as near as there is."""
        path = self._path
        return path.labels(int(path.n_groups[0]) - int(np.clip(n_topics, self.fewest, path.n_groups[0])))

    def _of_input(self, labels: Labels) -> Labels:
        of_input = np.empty_like(labels)
        of_input[self.documents.order] = labels
        return of_input

    def loss(self, labels: Labels) -> tuple[float, float]:
        """Return what a matching (L,) loses, in nats a token, and its standard error."""
        return mean_and_error(self.documents.by_document(labels))

    def _path_loss(self, n_topics: int) -> float:
        """Return what the matching of so many topics on the path loses, in nats a token."""
        if n_topics not in self._losses:
            self._losses[n_topics] = self.loss(self._of_input(self._of_path(n_topics)))[0]
        return self._losses[n_topics]

    @cached_property
    def best(self) -> int:
        """The number of topics that loses least, of some between the fewest and the most."""
        numbers = np.unique(np.geomspace(self.fewest, self.most, N_LOOKED_AT).round().astype(np.int64))
        return min(numbers.tolist(), key=self._path_loss)

    @cached_property
    def _best_site_loss(self) -> float:
        """What the topics of one site alone lose at least, of those with the most tokens."""
        by_site = np.add.reduceat(self.documents.totals, self.documents.offsets[:-1])
        largest = np.argsort(-by_site, kind="stable")[:MAX_COMPARED_SITES]
        return float(self.documents.of_sites(largest).mean(axis=1).min())

    def smallest(self, most_lost: float) -> int:
        """Return the smallest number of topics on the path that loses no more, against the best number.

        By bisection: fewer topics lose more, but for noise. None loses more than a site's own topics, unless all do.
        """
        least = self._path_loss(self.best)
        limit = max(least, min(least + most_lost, self._best_site_loss + SITE_MARGIN))
        low, high = self.fewest, self.best
        while low < high:
            middle = (low + high) // 2
            if self._path_loss(middle) <= limit:
                high = middle
            else:
                low = middle + 1
        return low

    @cached_property
    def selected(self) -> int:
        """The number of topics."""
        return self.smallest(MAX_LOSS)

    def path_losses(self) -> dict[int, float]:
        """Return the losses that were computed on the path, by number of topics."""
        return dict(sorted(self._losses.items()))


def _agglomerated(groups: TokenGroups, start: Labels) -> AgglomerationPath:
    """Return the agglomeration from some groups; of many, the nearest by Hellinger's distance are looked at first."""
    sums = group_sums(groups.pieces, start, np.ones(len(start)), int(start.max()) + 1).sums
    neighbours = None
    if len(sums) > MIN_NEIGHBOUR_RATIO * N_NEAREST:
        roots = np.sqrt(sums / np.maximum(sums.sum(axis=1), np.finfo(np.float64).tiny)[:, None])
        distances = 1.0 - roots @ roots.T
        np.fill_diagonal(distances, np.inf)
        neighbours = nearest_rows(distances, N_NEAREST)
    return agglomerate(groups, start, are_neighbours=neighbours)
