"""Strays: components of local fits gone wrong, which are left out of a matching.

A mixture fitted with too few components blends two true ones; one fitted with too many has two copies of one. With many
sites these cannot join their group, for the site is there already, and stay as small groups of their own: more evidence
is found by keeping them, however good the search is. How components are shared tells them from rare true components:
where most groups have thirty members one of a single member is suspect, where all have one to three it is not.

The sizes of groups are fitted as a mixture of strays, geometric in size, and of shared components, beta-binomial among
the sites. A member of a group that is likelier to be of strays is left out if it is also explained as a blend of two
other components or as a second copy of one, given those odds. The second condition is necessary: true components of one
site are rare, too, but no blends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln

from consilience.checks import Array, Labels
from consilience.families.chunks import map_rows
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import consecutive, group_sums
from consilience.posteriors.evidence.search import EvidenceSearch, SearchedMatching

STRAY_REPEAT = 0.2
"""Probability that a group of strays has one more member: blends of the same two components at several sites."""
STRAY_PRICE = 3.0
"""Log likelihood by which strays must explain the sizes of groups better before any are admitted."""
MAX_LOG_ODDS = 30.0
"""Sizes alone may count as no more than this against what a component itself says."""
MAX_STRAY_SHARE = 0.15
"""Part of all components that may be left out; more show a model that does not hold, not fits gone wrong."""
MAX_STRAY_ROUNDS = 4
"""Times that strays are looked for among what is left."""
STRAY_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7])
"""Shares of stray groups that are tried."""
INCLUSION_MEANS = np.array([0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 0.95])
"""Mean inclusion probabilities of shared components that are tried."""
INCLUSION_PRECISIONS = np.array([1.0, 3.0, 10.0, 30.0, 100.0])
"""Precisions a + b of the beta law of inclusion probabilities that are tried."""
BLEND_SHARES = np.linspace(0.1, 0.9, 9)[:, None]
"""Shares of the first of two blended components that are tried (9, 1)."""
BLEND_PARTNERS = 3
"""Components that are tried as the first of a blend: those that explain the row best alone."""
MIN_EXPLAINED_SHARE = 0.2
"""Part of the log evidence of a perfect second copy that a blend or copy must reach at least. Chosen by hand: blends of
topics that hardly share a word reached 0.1 for another one, those of simulated fits gone wrong 0.2 to 0.9."""
EXPLAINED_SLACK = 20.0
"""Nats by which it may be missed: components of few observations say little at all. Chosen by hand, as above."""
MAX_SUSPECT_MEMBERS = 3
"""Members up to which a group may be fits gone wrong whatever the sizes of the others are."""
MAX_SUSPECT_SHARE = 0.02
"""The same per site: with many sites, more of them blend the same two components."""
LOG_FAILURE_PROBABILITY = float(np.log(0.01))
"""Log prior probability that a local fit went wrong: a guess, as docs/adr/0008 says."""


def without_strays(search: EvidenceSearch, matching: SearchedMatching) -> SearchedMatching:
    """Return a matching of all components from which those of local fits gone wrong are left out (label -1)."""
    limit = int(MAX_STRAY_SHARE * len(matching.labels))
    for find in (_strays_by_size, _rare_failures):
        for _ in range(MAX_STRAY_ROUNDS):
            n_out = int(np.count_nonzero(matching.labels < 0))
            rows = find(search, matching, max(0, limit - n_out))
            if not rows.size:
                break
            labels = matching.labels.copy()
            labels[rows] = -1
            matching = search.ascended(matching, consecutive(labels))
            matching = search.ascended(matching, matching.labels)
    return matching


def _strays_by_size(search: EvidenceSearch, matching: SearchedMatching, limit: int) -> Labels:
    """Return rows of groups whose size is that of strays and that are blends or copies: the clearest, up to a limit."""
    sizes = np.bincount(matching.labels[matching.labels >= 0])
    log_odds = stray_log_odds(sizes, int(np.count_nonzero(search.problem.stack.sizes)))
    suspects, real = np.flatnonzero(log_odds > 0), np.flatnonzero(log_odds <= 0)
    if not suspects.size or not real.size:
        return np.zeros(0, dtype=np.int64)
    explanations = _Explanations.of(search, matching)
    rows = np.flatnonzero(np.isin(matching.labels, suspects))
    scores = np.array([explanations.log_odds(row, real) for row in rows.tolist()])
    scores += np.minimum(log_odds[matching.labels[rows]], MAX_LOG_ODDS)
    order = np.argsort(-scores, kind="stable")
    return rows[order[scores[order] > 0][:limit]]


def _rare_failures(search: EvidenceSearch, matching: SearchedMatching, limit: int) -> Labels:
    """Return rows of small groups that are better explained as rare failures: whole groups, up to so many rows."""
    n_sites = int(np.count_nonzero(search.problem.stack.sizes))
    sizes = np.bincount(matching.labels[matching.labels >= 0])
    suspects = np.flatnonzero(sizes <= max(MAX_SUSPECT_MEMBERS, MAX_SUSPECT_SHARE * n_sites))
    if not suspects.size:
        return suspects
    explanations = _Explanations.of(search, matching)
    failures: list[int] = []
    for group in suspects.tolist():
        # Only larger groups explain a smaller one: else two small groups would explain each other away.
        others = np.flatnonzero(sizes > sizes[group])
        rows = np.flatnonzero(matching.labels == group)
        if others.size:
            as_blends = sum(explanations.log_odds(row, others) for row in rows.tolist())
            as_blends += len(rows) * (LOG_FAILURE_PROBABILITY - float(np.log(n_sites)))
            if as_blends > explanations.worth[group] and len(failures) + len(rows) <= limit:
                failures += rows.tolist()
    return np.array(failures, dtype=np.int64)


def stray_log_odds(sizes: Labels, n_sites: int) -> Array:
    """Return for each group (G,) the log odds that its size is that of strays; -inf where none explain the sizes.

    With rho the share of strays, q = 1/5 and BB the beta-binomial law, the sizes n_g are drawn from

        rho (1 - q) q^(n - 1) + (1 - rho) BB(n; J, a, b) / (1 - BB(0; J, a, b)),

    fitted by maximum likelihood on a grid of rho, a and b.
    """
    means, precisions = (grid.ravel() for grid in np.meshgrid(INCLUSION_MEANS, INCLUSION_PRECISIONS))
    a, b = (means * precisions)[:, None], ((1.0 - means) * precisions)[:, None]  # (laws, 1)
    log_choose = gammaln(n_sites + 1.0) - gammaln(sizes + 1.0) - gammaln(n_sites - sizes + 1.0)
    log_none = betaln(a, n_sites + b) - betaln(a, b)
    log_shared = log_choose + betaln(sizes + a, n_sites - sizes + b) - betaln(a, b)
    log_shared -= np.log(-np.expm1(np.minimum(log_none, -1e-300)))  # (laws, G)
    log_stray = np.log1p(-STRAY_REPEAT) + (sizes - 1) * np.log(STRAY_REPEAT)  # (G,)
    best, odds = float(log_shared.sum(axis=1).max()), np.full(len(sizes), -np.inf)
    for share in STRAY_SHARES.tolist():
        as_stray, as_shared = np.log(share) + log_stray, np.log1p(-share) + log_shared
        total = np.logaddexp(as_stray, as_shared).sum(axis=1) - STRAY_PRICE
        law = int(total.argmax())
        if total[law] > best:
            best, odds = float(total[law]), as_stray - as_shared[law]
    return odds


@dataclass(frozen=True, eq=False)
class _Explanations:
    """What explains single components: the groups of a matching, blends of two of them, and second copies."""

    search: EvidenceSearch
    groups: ConjugateGroups  # what groups are worth at the heterogeneity of the matching
    heterogeneity: Array  # (B,)
    own: Array  # what each component says, not discounted (L, P)
    statistics: Array  # mean of what the members of each group say, not discounted (G, P)
    information: Array  # how much each component says (L, B)
    worth: Array  # evidence of each group over that of its members alone, with the prior (G,)

    @classmethod
    def of(cls, search: EvidenceSearch, matching: SearchedMatching) -> _Explanations:
        """Return the explanations that a matching offers."""
        problem, labels = search.problem, matching.labels
        groups = problem.groups(matching.heterogeneity, matching.prior)
        undiscounted = problem.undiscounted
        statistics = group_sums(undiscounted, labels, np.ones(len(labels)), matching.n_groups).means()
        alone = np.bincount(labels[labels >= 0], weights=groups.alone[labels >= 0], minlength=matching.n_groups)
        worth = groups.value(groups.sums(labels)) - alone
        natural, family = problem.stack.natural, problem.stack.family
        information = map_rows(len(natural), natural.shape[1], lambda rows: family.information(natural[rows]))
        return cls(search, groups, matching.heterogeneity, undiscounted, statistics, information, worth)

    def log_odds(self, row: int, partners: Labels) -> float:
        """Return the log evidence of a row as a blend or copy of some groups, less that of being on its own.

        Minus infinity where they explain hardly anything of the row: what all components have in common may explain it
        even less, without its being a blend. That component's (or blend's) sufficient statistics, with the row's own
        information and the heterogeneity of two copies, are its prior then. Every copy and every blend of two in one
        of the shares is equally likely beforehand.
        """
        copies, n_copies = self.statistics[partners], len(partners)
        as_copy = self._log_evidence(row, copies)
        best = float(as_copy.max())
        if n_copies > 1:
            firsts = np.argsort(-as_copy, kind="stable")[:BLEND_PARTNERS]  # all pairs would cost G^2 priors a row
            value, blend = max(
                (self._best_blend(row, copies[first], np.delete(copies, first, axis=0)) for first in firsts.tolist()),
                key=lambda valued: valued[0],
            )
            # A third one, and then shares between those tried: what is given up is that they are equally likely.
            value = max(value, self._best_blend(row, blend, copies)[0])
            best = max(best, value)
        if best < MIN_EXPLAINED_SHARE * float(self._log_evidence(row, self.own[np.array([row])])[0]) - EXPLAINED_SLACK:
            return -np.inf
        return best - float(np.log(n_copies + len(BLEND_SHARES) * n_copies * (n_copies - 1) / 2))

    def _best_blend(self, row: int, first: Array, seconds: Array) -> tuple[float, Array]:
        """Return the greatest log evidence of the row as a blend of one component and another, and that blend (P,)."""
        blends = (BLEND_SHARES * first + (1.0 - BLEND_SHARES) * seconds[:, None]).reshape(-1, len(first))  # (9 G, P)
        values = self._log_evidence(row, blends)
        best = int(values.argmax())
        return float(values[best]), blends[best]

    def _log_evidence(self, row: int, statistics: Array) -> Array:
        """Return the log evidence (n,) of the row under a prior of these sufficient statistics (n, P)."""
        family, groups = self.search.problem.stack.family, self.groups
        template = family.flat + statistics
        information = self.information[row]
        # Two copies of one component differ by the heterogeneity of both.
        discounted = information / (1.0 + 2.0 * self.heterogeneity * information)
        prior = family.reweighted(template, discounted / family.information(template))
        both = family.log_normalizer_of_sums(np.concatenate([prior + groups.pieces[np.array([row])], prior]))
        return both[: len(prior)] - both[len(prior) :] - groups.alone[row]
