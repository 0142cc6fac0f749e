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
from consilience.posteriors.ensemble import Stack

COMPONENT_LOG_ODDS = 5.0
"""Log odds against one more component beforehand: 2 log B > 10, "very strong", in Kass & Raftery (1995).

Chosen with the 25 sites of ``MAX_EFFECTIVE_SITES`` on seeds 0 to 5 of the simulations of docs/adr/0008 and on the demo;
seeds 6 to 9 of those simulations judge it there.
"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of matchings of discounted components.

    Parameters
    ----------
    stack : Stack
        Discounted components (L, P).
    base : Array of shape (P,)
        Natural parameters of the law that components come from.
    observed : Array of shape (L,), optional
        What normalises each component as a likelihood, see ``EvidenceFamily.observed``. Default: the log normaliser of
        the discounted components.
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
        stack, n_members = self.stack, np.arange(self.stack.n_sites + 1.0)  # (J + 1,)
        pieces = (stack.natural - stack.family.flat) * stack.row_weights[:, None]  # e_l: (L, P)
        # log of the beta integral of p^n (1 - p)^(J - n): inclusion probabilities are uniform on (0, 1).
        inclusion = gammaln(n_members + 1.0) + gammaln(stack.n_sites - n_members + 1.0) - gammaln(stack.n_sites + 2.0)
        return ConjugateGroups(stack.family, self.base, pieces, stack.offsets, inclusion - COMPONENT_LOG_ODDS)

    def score(self, labels: Labels) -> float:
        """Return the log evidence of a matching with consecutive labels; rows labelled -1 are left out."""
        return self.groups.total(labels) - float(self.groups.alone[labels >= 0].sum())

    def likelihood(self, labels: Labels) -> float:
        """Return the log evidence of a matching of all components, in a form that compares discounts as well.

        Scores leave out what normalises the components' likelihoods, which depends on the discount.
        """
        stack = self.stack
        normalizers = stack.family.log_normalizer(stack.natural) if self.observed is None else self.observed
        return self.groups.total(labels) - float(stack.row_weights @ normalizers)
