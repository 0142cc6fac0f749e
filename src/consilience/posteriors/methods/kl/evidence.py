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
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.posteriors.ensemble import Stack

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

    @cached_property
    def groups(self) -> ConjugateGroups:
        """What groups of components are worth, the members' own part not yet taken off."""
        stack, members = self.stack, np.arange(self.stack.n_sites + 1.0)
        pieces = (stack.natural - stack.family.flat) * stack.row_weights[:, None]
        held = gammaln(members + 1.0) + gammaln(stack.n_sites - members + 1.0) - gammaln(stack.n_sites + 2.0)
        return ConjugateGroups(stack.family, self.base, pieces, stack.offsets, held - VERY_STRONG)

    def score(self, labels: Labels) -> float:
        """Return the log evidence of a matching with consecutive labels; rows labelled -1 are left out."""
        return self.groups.total(labels) - float(self.groups.alone[labels >= 0].sum())

    def likelihood(self, labels: Labels) -> float:
        """Return the log evidence of a matching of all components, in a form that compares calibrations as well.

        Scores leave out what normalises the components' likelihoods, which depends on how they were calibrated.
        """
        stack = self.stack
        observed = stack.family.log_normalizer(stack.natural) if self.observed is None else self.observed
        return self.groups.total(labels) - float(stack.row_weights @ observed)
