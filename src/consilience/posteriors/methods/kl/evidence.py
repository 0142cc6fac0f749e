"""The evidence of a matching: conjugate marginal likelihood times a Beta-Bernoulli prior.

Every fused component theta is drawn from a base law, every site holds it with a probability of its own, uniform on
(0, 1), and the sites that hold it report copies. With the copies' evidence e_l = eta_l - flat, discounted beforehand
for heterogeneity, J sites, n_g members of group g and A the log normaliser, everything integrates out:

    log evidence = sum_g [A(base + sum_{l in g} e_l) - A(base)] - sum_l [A(base + e_l) - A(base)]
                   + sum_g [log(n_g! (J - n_g)! / (J + 1)!) - 5].

It balances fit against the number of components by itself, in nats. The 5 is a prior, geometric in the number of
components: one more must have very strong evidence (2 log B > 10 in the words of Kass & Raftery 1995). Claici et al.
2020 have no such criterion; there the number follows from lambda.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from consilience.checks import Array, Labels
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.ensemble import Mapped, OneShard, Stack, StackLike

COMPONENT_LOG_ODDS = 5.0
"""Log odds against one more component beforehand: 2 log B > 10, "very strong", in Kass & Raftery (1995).

Chosen with the 25 sites of ``MAX_EFFECTIVE_SITES`` on seeds 0 to 5 of the simulations of docs/adr/0008 and on the demo;
seeds 6 to 9 of those simulations judge it there.
"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of matchings of discounted components: sums over shards, of which one in memory is the only one.

    Parameters
    ----------
    stack : StackLike
        Discounted components (L, P).
    base : Array of shape (P,)
        Natural parameters of the law that components come from.
    """

    stack: StackLike
    base: Array

    @classmethod
    def of(cls, stack: StackLike) -> Evidence:
        """Return the evidence with the base law estimated: that of the moments of all components."""
        return cls(stack, stack.law())

    @cached_property
    def _levels(self) -> Array:
        """Log prior of a group of n = 0 ... J members (J + 1,)."""
        n_sites, n_members = self.stack.n_sites, np.arange(self.stack.n_sites + 1.0)
        # log of the beta integral of p^n (1 - p)^(J - n): inclusion probabilities are uniform on (0, 1).
        inclusion = gammaln(n_members + 1.0) + gammaln(n_sites - n_members + 1.0) - gammaln(n_sites + 2.0)
        levels: Array = inclusion - COMPONENT_LOG_ODDS
        return levels

    @cached_property
    def _shards(self) -> Mapped:
        """What groups of the components of each shard are worth: ``ConjugateGroups`` of every shard."""
        return self.stack.derive(conjugate_shard, self.base, self._levels)

    @cached_property
    def groups(self) -> ConjugateGroups:
        """What groups of components are worth, the members' own part not yet taken off; all are brought to memory."""
        if isinstance(self._shards, OneShard) and isinstance(self._shards.shard, ConjugateGroups):
            return self._shards.shard
        return conjugate_shard(self.stack.gather(np.arange(len(self.stack.owner))), self.base, self._levels)

    @cached_property
    def _law(self) -> ConjugateGroups:
        """What groups are worth by their sums, without any components."""
        no_rows = Stack(self.stack.family, np.zeros((0, len(self.base))), np.zeros(1, dtype=np.int64), np.zeros(0))
        return conjugate_shard(no_rows, self.base, self._levels)

    def sums(self, labels: Labels) -> GroupSums:
        """Return what the members of each group say together; rows labelled -1 are left out."""
        sums: GroupSums = self._shards.sum(_group_sums, int(labels.max()) + 1, each=labels)
        return sums

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,), the members' own part not yet taken off."""
        return self._law.value(groups)

    def score(self, labels: Labels) -> float:
        """Return the log evidence of a matching with consecutive labels; rows labelled -1 are left out."""
        return float(self.value(self.sums(labels)).sum()) - float(self._shards.sum(_alone, each=labels))

    def likelihood(self, labels: Labels) -> float:
        """Return the log evidence of a matching of all components, in a form that compares discounts as well.

        Scores leave out what normalises the components' likelihoods, which depends on the discount.
        """
        return float(self.value(self.sums(labels)).sum()) - float(self.stack.sum(_normalizers))


def conjugate_shard(stack: Stack, base: Array, levels: Array) -> ConjugateGroups:
    """Return what groups of the components of one shard are worth."""
    pieces = (stack.natural - stack.family.flat) * stack.row_weights[:, None]  # e_l: (L, P)
    return ConjugateGroups(stack.family, base, pieces, stack.offsets, levels)


def _group_sums(shard: ConjugateGroups, labels: Labels, n_groups: int) -> GroupSums:
    """Return what the members of each group in one shard say together."""
    return group_sums(shard.pieces, labels, np.ones(len(labels)), n_groups)


def _alone(shard: ConjugateGroups, labels: Labels) -> float:
    """Return what the matched components of one shard are worth, each by itself."""
    return float(shard.alone[labels >= 0].sum())


def _normalizers(stack: Stack) -> float:
    """Return what normalises the components of one shard as likelihoods, weighted and summed."""
    normalizers = stack.family.log_normalizer(stack.natural) if stack.observed is None else stack.observed
    return float(stack.row_weights @ normalizers)
