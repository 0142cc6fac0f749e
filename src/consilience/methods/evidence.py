"""The evidence of a matching: how much likelier the sites' posteriors are with it than without any match.

Every fused component theta is drawn from a base law, every site holds it with a probability of its own, uniform on
(0, 1), and the sites that hold it report copies. With the copies' evidence e_l = eta_l - flat, calibrated beforehand,
everything integrates out (the conjugate marginal likelihood, and the Beta-Bernoulli one of who holds what):

    log evidence = sum_g [A(base + sum_{l in g} e_l) - A(base)] - sum_l [A(base + e_l) - A(base)]
                   + sum_g [log(n_g! (J - n_g)! / (J + 1)!) - 5].

It balances fit against the number of components by itself, in nats. The 5 is a prior, geometric in the number of
components: one more must have very strong evidence (2 log B > 10 in the words of Kass & Raftery 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from consilience.checks import Array, Labels
from consilience.families import EvidenceFamily
from consilience.families.ensemble import Stack
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.places import subtraction_gains

VERY_STRONG = 5.0
"""Log odds against one more component beforehand."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of matchings of calibrated components.

    Parameters
    ----------
    stack
        Calibrated components (L, P).
    base
        Law that components come from (P,).
    observed
        What normalises each component as a likelihood (L,), see ``EvidenceFamily.observed``; None takes the log
        normaliser of the calibrated ones.
    """

    stack: Stack
    base: Array
    observed: Array | None = None

    @classmethod
    def of(cls, stack: Stack, observed: Array | None = None) -> Evidence:
        """Return the evidence with the base law estimated: that of the moments of all components."""
        return cls(stack, stack.family.law_of(stack.natural), observed)

    @property
    def family(self) -> EvidenceFamily:
        """The family of every component."""
        return self.stack.family

    @cached_property
    def pieces(self) -> Array:
        """What each component adds to its group (L, P)."""
        pieces: Array = (self.stack.natural - self.family.flat) * self.stack.row_weights[:, None]
        return pieces

    @cached_property
    def _floor(self) -> float:
        return float(self.family.log_normalizer(self.base[None])[0])

    @cached_property
    def alone(self) -> Array:
        """Log evidence of each component in a group of its own (L,), before who holds what."""
        return self._level(self.pieces)

    def _level(self, sums: Array) -> Array:
        """Return A(base + sums) - A(base) (n,)."""
        return self.family.log_normalizer(self.base + sums) - self._floor

    def held(self, members: Array) -> Array:
        """Return the log probability of a component and of which of the J sites hold it, given how many do."""
        sites = self.stack.n_sites
        result: Array = gammaln(members + 1.0) + gammaln(sites - members + 1.0) - gammaln(sites + 2.0)
        return result - VERY_STRONG

    def sums(self, labels: Labels) -> GroupSums:
        """Return what the members of each group say together; rows labelled -1 are left out."""
        return group_sums(self.pieces, labels, np.ones(len(labels)), int(labels.max()) + 1)

    def of_groups(self, sums: GroupSums) -> Array:
        """Return each group's part of the log evidence (G,), before the members' own are taken off."""
        return self._level(sums.sums) + self.held(sums.mass)

    def score(self, labels: Labels) -> float:
        """Return the log evidence of a matching with consecutive labels; rows labelled -1 are left out."""
        return float(self.of_groups(self.sums(labels)).sum() - self.alone[labels >= 0].sum())

    def likelihood(self, labels: Labels) -> float:
        """Return the log evidence of a matching of all components, in a form that compares calibrations as well.

        Scores leave out what normalises the components' likelihoods, which depends on how they were calibrated.
        """
        observed = self.family.log_normalizer(self.stack.natural) if self.observed is None else self.observed
        return float(self.of_groups(self.sums(labels)).sum() - self.stack.row_weights @ observed)

    @property
    def offsets(self) -> Labels:
        """Where each site starts, and the end (J + 1,)."""
        return self.stack.offsets

    def opening(self, rows: Labels) -> Array:
        """Return what a group of its own is worth to each of some rows (k,)."""
        return self.alone[rows] + self.held(np.ones(1))

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return what each group would add (k, G) by taking in each of some rows that are in none."""
        return subtraction_gains(self.of_groups, self.pieces[rows], groups)
