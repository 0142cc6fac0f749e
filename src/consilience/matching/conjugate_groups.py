"""Log marginal likelihoods of groups of conjugate posteriors: a ``GroupObjective`` for site-by-site matching.

A posterior eta_l under prior lambda0 says e_l = eta_l - lambda0 of its component. If the members of a group are about
one component, with prior lambda0, the marginal likelihood of all their data is, up to what each contributes anyway,

    A(lambda0 + sum_l e_l) - A(lambda0),

A being the log normaliser of the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import Family
from consilience.families.chunks import CHUNK_BYTES, map_rows
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_by_site import ValuedGroups, subtraction_gains


@dataclass(frozen=True, eq=False)
class ConjugateGroups:
    """Log marginal likelihoods of groups: a ``GroupObjective``.

    `base` (P,) are the natural parameters lambda0 of the prior of a component, `pieces` (L, P) what each local one adds
    to it, w_l e_l, `offsets` (J + 1,) where each site starts, and the end, and `level` (J + 1,) the log prior of a
    group of n = 0 ... J members. Where the prior is no proper law, A(base) is taken for 0: groups compare while their
    number stays.
    """

    family: Family
    base: Array
    pieces: Array
    offsets: Labels
    level: Array
    proper: bool = True

    @cached_property
    def _base_log_normalizer(self) -> float:
        # A(base) of an improper prior is infinite; as a constant per group it cancels while their number stays.
        return 0.0 if not self.proper else float(self.family.log_normalizer(self.base[None])[0])

    @cached_property
    def alone(self) -> Array:
        """What each component's data are worth in a group of its own (L,), without the level."""
        return self.marginal(self.pieces)

    def marginal(self, sums: Array) -> Array:
        """Return A(base + sums) - A(base) (n,)."""
        if sums.nbytes <= CHUNK_BYTES:  # nearly always, and this is called very often
            marginal = self.family.log_normalizer_of_sums(self.base + sums)
        else:
            family, base = self.family, self.base
            marginal = map_rows(len(sums), sums.shape[1], lambda rows: family.log_normalizer_of_sums(base + sums[rows]))
        marginal -= self._base_log_normalizer
        return marginal

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""
        return self.marginal(groups.sums) + self.level[groups.mass.astype(np.int64)]

    def opening(self, rows: Labels) -> Array:
        """Return what a group of its own is worth to each of some rows (k,)."""
        return self.alone[rows] + self.level[1]

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return what each group would add (k, G) by taking in each of some rows that are in none."""
        return subtraction_gains(self.value, self.pieces[rows], groups)

    def sums(self, labels: Labels) -> GroupSums:
        """Return what the members of each group say together; rows labelled -1 are left out."""
        return group_sums(self.pieces, labels, np.ones(len(labels)), int(labels.max()) + 1)

    def total(self, labels: Labels) -> float:
        """Return what a matching with consecutive labels is worth."""
        return float(self.value(self.sums(labels)).sum())


@dataclass(frozen=True, eq=False)
class MixedGroups(ValuedGroups):
    """Log marginal likelihoods of groups, each under one of K discounts that is integrated out: a ``ValuedObjective``.

    Under discount k, whose weight is u_k, component l adds e_lk to its group, which o_lk normalises as a likelihood.
    With sums over the members of a group,

        f = log sum_k u_k exp[A(lambda0 + sum_l e_lk) - A(lambda0) - sum_l o_lk] + level(n).

    `pieces` (L, K (P + 1)) are e_lk and o_lk, one discount after another; all else is as in ``ConjugateGroups``.
    """

    family: Family
    base: Array
    pieces: Array
    offsets: Labels
    level: Array
    log_weights: Array  # log u_k (K,)

    @cached_property
    def _base_log_normalizer(self) -> float:
        return float(self.family.log_normalizer(self.base[None])[0])

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""
        sums = groups.sums
        if sums.nbytes <= CHUNK_BYTES:  # nearly always, and maybe of none
            marginal = self._marginal(sums)
        else:
            marginal = map_rows(len(sums), sums.shape[1], lambda rows: self._marginal(sums[rows]))
        return marginal + self.level[groups.mass.astype(np.int64)]

    def _marginal(self, sums: Array) -> Array:
        """Return f of sums (n, K (P + 1)) without the level (n,)."""
        by_discount = sums.reshape(len(sums), len(self.log_weights), len(self.base) + 1)
        eta = (by_discount[:, :, :-1] + self.base).reshape(-1, len(self.base))  # (n K, P)
        terms = self.family.log_normalizer_of_sums(eta).reshape(by_discount.shape[:2])
        terms += self.log_weights - by_discount[:, :, -1]
        greatest = terms.max(axis=1)
        total = np.log(np.exp(terms - greatest[:, None]).sum(axis=1))
        return np.asarray(greatest + total - self._base_log_normalizer)
