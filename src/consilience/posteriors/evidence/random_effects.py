"""The evidence of a matching under random effects between sites.

A site's posterior is about its own population: copies of one component differ between sites by more than their widths
admit, so each is worth fewer observations of the common component than it states. For information n of a block b of
sufficient statistics and heterogeneity h_b, 1 / n' = 1 / n + h_b, as in the random-effects models of meta-analysis.
With e_l(h) what component l says when discounted, its site's prior taken off, A the log normaliser, base(h) the law
that all components come from, and o_l(h) what normalises e_l as a likelihood,

    F(M, h) = sum_g [A(base + sum_{l in g} e_l) - A(base)] - sum_l o_l + log prior(M).

For a location block with a shared covariance S the first two terms are the exact marginal likelihood of
m_l | mu_g ~ N(mu_g, (1 / kappa_l + h) S): discounting is the hierarchical model with its random effects integrated out.
o_l(h) drops out between matchings at one h and stays in when values of h are compared. There is no power of the
evidence and no cap on the number of groups: any concave reward pays for splitting groups whose members agree perfectly.

**A heterogeneity of each group's own.** Places differ between sites in the units of the data, h is in units of a
component's own variance: what differs as much as others, and is narrower, has the greater h. Under the one h of all
groups its copies look like two components. So, of components that are distributions of data, matchings are compared
with h of the location integrated out, too: log h of a group is drawn about the common one,

    F(M, h) = sum_g log sum_k u_k exp[A(base + sum_{l in g} e_l(h_k)) - A(base) - sum_{l in g} o_l(h_k)] + log prior(M),

with base at the common h and u_k those of ``OWN_FACTORS``. Groups of few members say nothing of their own h, and are
worth about what they are at the common one. This takes K times as long. So searches are made at one h, which is fitted
to each matching, and what they end at is compared with the matchings on its paths in this way.

**Laws of matchings**: how likely a group of n members from J sites is before anything is seen of them.

Both are sums over groups, log prior = sum_g level(n_g) + constant, so that one search serves both:

- ``strict_prior``: every component has an inclusion probability of its own, uniform on (0, 1), and one more component
  needs very strong evidence, level(n) = log[n! (J - n)! / (J + 1)!] - 5;
- ``lenient_prior``: the two-parameter Indian buffet process (Griffiths & Ghahramani, JMLR 12, 2011; Thibaux & Jordan,
  AISTATS 2007), level(n) = log[gamma c B(n, J - n + c)] and constant -gamma H, H = sum_{j=1..J} c / (c + j - 1), B the
  beta function. Components of a site are told apart by their data, so the factorials of the textbook formula, which
  counts columns alike, are absent.

The strict prior charges fifteen components of one site each, five sites in all, 126 nats, and three components of all
five sites 20; the lenient one hardly anything. The strict one therefore merges what sites do not share, however clear
it is; the lenient one keeps every blend of overlapping fits as a component.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betaln, digamma, gammaln

from consilience.checks import Array, Labels
from consilience.families.chunks import LazyRows, as_lazy_array, row_chunks
from consilience.families.evidence import MAX_KEPT_ROWS, Discounts
from consilience.matching.conjugate_groups import ConjugateGroups, MixedGroups
from consilience.matching.groups import GroupSums, carried_sums, membership_matrix
from consilience.posteriors.ensemble import Stack

LOG_STEP = 1.6
"""First step of the search over log h; five times as much heterogeneity, or a fifth."""
LOG_REFIT_STEP = LOG_STEP / 2.2
"""The same where h was fitted to a matching before that is nearly the same: smaller ones follow, as from the first."""
STEP_DIVISOR = 2.2
"""What the step is divided by when no block moves."""
SMALLEST_LOG_STEP = 0.15
"""Step at which the search ends: evidence hardly changes with a tenth of h more or less."""
EVIDENCE_ROUNDING = 1e-12
"""Relative differences of evidence below this are rounding."""
LOG_DECIMALS = 9
"""Decimals of log h that tell two points of the search apart, whose smallest step is 0.15."""
MIN_LOG_HETEROGENEITY, MAX_LOG_HETEROGENEITY = -12.0, 6.0
"""Bounds of log(h / unit): no heterogeneity at all, and twenty times the width of a component between sites."""
OWN_FACTORS = 3.0 ** np.linspace(-2.0, 2.0, 9)
"""Heterogeneities of the location that a group of its own is tried at, in that of all groups: a ninth to nine times.

With 500 degrees of freedom, fifty sites in ten dimensions, a group of an h between two of them loses 10 nats at most.
"""
OWN_LOG_SD = 1.2
"""Standard deviation of the log of a group's heterogeneity about the common one: a factor of three. Chosen by hand."""


class RandomEffects:
    """The components of all sites under random effects, at any heterogeneity; the stack's are not discounted."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._at: tuple[bytes, Array, Array] | None = None
        self._own_at: tuple[bytes, Array] | None = None
        self._are_weighted = bool(np.any(stack.row_weights != 1.0))

    @cached_property
    def discounts(self) -> Discounts:
        """The components under any discount."""
        return self.stack.family.discounts(self.stack.natural)

    @cached_property
    def unit(self) -> Array:
        """The heterogeneity (B,) that says as much as the within-cluster variance: the scale of h."""
        return self.stack.family.heterogeneity_unit(self.stack.natural)

    @cached_property
    def undiscounted(self) -> Array:
        """What each component says (L, P), at no heterogeneity; of very many rows, it is made when asked for."""
        none = np.zeros(len(self.stack.family.part_names))
        if len(self.stack.natural) <= MAX_KEPT_ROWS:
            return self.discounts.pieces(none)
        return as_lazy_array(LazyRows(self.stack.natural.shape, lambda rows: self.discounts.part(rows).pieces(none)))

    def _discounted(self, heterogeneity: Array) -> tuple[Array, Array]:
        """Return weighted pieces (L, P) and the base distribution (P,); those of the last h are kept."""
        key = heterogeneity.tobytes()
        if self._at is None or self._at[0] != key:
            pieces = self.discounts.pieces(heterogeneity)
            if self._are_weighted:
                pieces = pieces * self.stack.row_weights[:, None]
            self._at = (key, pieces, self.discounts.law(heterogeneity))
        return self._at[1:]

    def groups(self, heterogeneity: Array, prior: MatchingPrior) -> ConjugateGroups:
        """Return what groups are worth at one heterogeneity, the normalisers and the prior's constant not counted."""
        pieces, base = self._pieces_and_law(heterogeneity)
        return ConjugateGroups(self.stack.family, base, pieces, self.stack.offsets, prior.level)

    @cached_property
    def has_own(self) -> bool:
        """Whether groups may have a heterogeneity of their own; not of very many components, for its cost."""
        return self.stack.family.describes_data and len(self.stack.natural) <= MAX_KEPT_ROWS

    def own_groups(self, heterogeneity: Array, prior: MatchingPrior) -> MixedGroups:
        """Return what groups are worth, each with a heterogeneity of its own about the common one.

        As in ``groups``, what normalises members at the common one and the prior's constant are not counted.
        """
        key = heterogeneity.tobytes()
        if self._own_at is None or self._own_at[0] != key:
            self._own_at = key, self._own_pieces(heterogeneity)
        log_weights = -0.5 * (np.log(OWN_FACTORS) / OWN_LOG_SD) ** 2
        log_weights -= np.log(np.exp(log_weights).sum())
        base = self.discounts.law(heterogeneity)
        return MixedGroups(self.stack.family, base, self._own_at[1], self.stack.offsets, prior.level, log_weights)

    def _own_pieces(self, heterogeneity: Array) -> Array:
        """Return pieces and normalisers, less the common ones, at every heterogeneity of a group (L, K (P + 1))."""
        common, columns = self.discounts.observed(heterogeneity), list[Array]()
        for factor in OWN_FACTORS.tolist():
            own = heterogeneity.copy()
            own[0] *= factor
            columns += [self.discounts.pieces(own), (self.discounts.observed(own) - common)[:, None]]
        pieces = np.concatenate(columns, axis=1)
        return pieces * self.stack.row_weights[:, None] if self._are_weighted else pieces

    def own_evidence(self, labels: Labels, heterogeneity: Array, prior: MatchingPrior) -> float:
        """Return F of a matching with consecutive labels by ``own_groups``; rows labelled -1 are left out of it."""
        observed = (self.discounts.observed(heterogeneity) * self.stack.row_weights)[labels >= 0]
        return self.own_groups(heterogeneity, prior).total(labels) - float(observed.sum()) + prior.constant

    def _pieces_and_law(self, heterogeneity: Array) -> tuple[Array, Array]:
        """Return weighted pieces (L, P) and the base distribution (P,); of very many rows the pieces are lazy."""
        discounts, weights = self.discounts, self.stack.row_weights
        if len(self.stack.natural) <= MAX_KEPT_ROWS:
            return self._discounted(heterogeneity)

        def pieces(rows: slice | Labels) -> Array:
            of_rows = discounts.part(rows).pieces(heterogeneity)
            return of_rows * weights[rows, None] if self._are_weighted else of_rows

        return as_lazy_array(LazyRows(self.stack.natural.shape, pieces)), discounts.law(heterogeneity)

    def total(self, labels: Labels, heterogeneity: Array, prior: MatchingPrior) -> float:
        """Return ``groups(heterogeneity, prior).total(labels)``, for which the pieces need not be there at once."""
        n_groups = int(labels.max()) + 1
        sums, base, _ = self._sums_of_groups(labels, n_groups)(heterogeneity)
        mass = np.bincount(labels[labels >= 0], minlength=n_groups).astype(np.float64)
        groups = ConjugateGroups(self.stack.family, base, sums[:0], self.stack.offsets, prior.level)
        return float(groups.value(GroupSums(sums, mass)).sum())

    def evidence(self, labels: Labels, heterogeneity: Array, prior: MatchingPrior) -> float:
        """Return F of a matching with consecutive labels; rows labelled -1 are left out of it."""
        return self._evidence_of(labels, prior)(heterogeneity)

    def _evidence_of(self, labels: Labels, prior: MatchingPrior) -> Callable[[Array], float]:
        """Return F of a matching as a function of h."""
        n_groups, family, is_in = int(labels.max(initial=-1)) + 1, self.stack.family, labels >= 0
        sums_of = self._sums_of_groups(labels, n_groups)
        log_prior = prior.total(np.bincount(labels[is_in], minlength=n_groups))

        def evidence(heterogeneity: Array) -> float:
            sums, base, observed = sums_of(heterogeneity)
            marginal = family.log_normalizer_of_sums(np.concatenate([base[None], base + sums]))  # (1 + G,)
            likelihood = float(marginal[1:].sum()) - n_groups * float(marginal[0])
            return likelihood - float(observed[is_in].sum()) + log_prior

        return evidence

    def _sums_of_groups(self, labels: Labels, n_groups: int) -> Callable[[Array], tuple[Array, Array, Array]]:
        """Return a function of h that gives sums of pieces (G, P), the base distribution (P,) and normalisers (L,)."""
        discounts, weights = self.discounts, self.stack.row_weights
        if len(labels) <= MAX_KEPT_ROWS:
            sums_of = discounts.sums_of(membership_matrix(labels, weights, n_groups))

            def sums_at_once(heterogeneity: Array) -> tuple[Array, Array, Array]:
                observed = discounts.observed(heterogeneity)
                observed = observed * weights if self._are_weighted else observed
                return sums_of(heterogeneity), discounts.law(heterogeneity), observed

            return sums_at_once

        def sums_in_chunks(heterogeneity: Array) -> tuple[Array, Array, Array]:
            base, observed = discounts.law(heterogeneity), np.empty(len(labels))
            sums = np.zeros((n_groups, len(base)))
            for rows in row_chunks(len(labels), len(base)):
                part = discounts.part(rows)
                sums = carried_sums(sums, weights[rows, None] * part.pieces(heterogeneity), labels[rows])
                observed[rows] = weights[rows] * part.observed(heterogeneity)
            return sums, base, observed

        return sums_in_chunks

    def fit_heterogeneity(
        self, labels: Labels, start: Array, prior: MatchingPrior, first_step: float = LOG_STEP
    ) -> tuple[Array, float]:
        """Return h (B,) of the greatest evidence F of a matching, and F, by coordinate search on log h from a start.

        Where no group has two members this tends to none at all, of which the matching says nothing.
        """
        # Components of no usable width give a unit of 0 or infinity, between which a search would never end.
        log_unit = np.log(np.clip(np.nan_to_num(self.unit), np.finfo(np.float64).tiny, np.finfo(np.float64).max))
        lowest, highest = MIN_LOG_HETEROGENEITY + log_unit, MAX_LOG_HETEROGENEITY + log_unit
        log_h = np.clip(np.log(start), lowest, highest)
        evidence_at, known = self._evidence_of(labels, prior), dict[bytes, float]()

        def evidence(log_h: Array) -> float:
            key = np.round(log_h, LOG_DECIMALS).tobytes()  # a step back after a step forth is where it was
            if key not in known:
                known[key] = evidence_at(np.exp(log_h))
            return known[key]

        best, step = evidence(log_h), first_step
        while step >= SMALLEST_LOG_STEP:
            has_moved = False
            for block in range(len(log_h)):
                for direction in (step, -step):
                    trial = log_h.copy()
                    trial[block] = np.clip(trial[block] + direction, lowest[block], highest[block])
                    # NaN, which is never as good, where the bound was reached: an evidence may be minus infinity.
                    value = evidence(trial) if trial[block] != log_h[block] else np.nan
                    # On a plateau, where all information is at its floor, less heterogeneity is as good: up it must
                    # gain more than rounding over the greatest so far, down it may lose that.
                    rounding = EVIDENCE_ROUNDING * max(1.0, abs(best)) if np.isfinite(best) else 0.0
                    if value > best + rounding or (value >= best - rounding and direction < 0):
                        log_h, best, has_moved = trial, max(best, value), True
                        break
            if not has_moved:
                step /= STEP_DIVISOR
        return np.exp(log_h), evidence(log_h)


COMPONENT_LOG_ODDS = 5.0
"""Log odds against one more component under the strict prior: 2 log B > 10, "very strong", in Kass & Raftery (1995)."""
CONCENTRATIONS = np.exp(np.linspace(-1.4, 6.0, 16))
"""Values of c that are tried: from 1/4, components of all sites or of one, to 400, all of like shares."""
CONCENTRATION_LOG_SD = 2.0
"""Standard deviation of log c beforehand: c from 1/50 to 50 is unsurprising. A guess, weak against any data."""


@dataclass(frozen=True, eq=False)
class MatchingPrior:
    """The log prior of a matching, sum_g level(n_g) + constant."""

    level: Array  # log prior of a group of n = 0 ... J members (J + 1,); that of 0 is never used
    constant: float = 0.0

    def total(self, sizes: Labels) -> float:
        """Return the log prior of a matching with groups of these sizes (G,)."""
        return float(self.level[sizes].sum()) + self.constant


def strict_prior(n_sites: int) -> MatchingPrior:
    """Return the prior under which components of few sites are unlikely."""
    n_members = np.arange(n_sites + 1.0)
    # log of the beta integral of p^n (1 - p)^(J - n): inclusion probabilities are uniform on (0, 1).
    inclusion = gammaln(n_members + 1.0) + gammaln(n_sites - n_members + 1.0) - gammaln(n_sites + 2.0)
    return MatchingPrior(inclusion - COMPONENT_LOG_ODDS)


def lenient_prior(n_sites: int, intensity: float, concentration: float) -> MatchingPrior:
    """Return the two-parameter Indian buffet process: gamma components a site, shared the more the smaller c is.

    gamma is the `intensity`, c the `concentration`, whose own log law, a normal of mean 0, is in the constant.
    """
    n_members = np.arange(1.0, n_sites + 1.0)
    level = np.log(intensity * concentration) + betaln(n_members, n_sites - n_members + concentration)
    expected = intensity * _expected_share(n_sites, concentration)
    log_law = -0.5 * (np.log(concentration) / CONCENTRATION_LOG_SD) ** 2
    return MatchingPrior(np.concatenate([[-np.inf], level]), log_law - expected)


def fit_lenient_prior(sizes: Labels, n_sites: int) -> MatchingPrior:
    """Return the lenient prior of the greatest probability for a matching with groups of these sizes (G,).

    gamma = G / H in closed form (empirical Bayes) for every c that is tried.
    """
    n_groups = len(sizes)
    priors = [lenient_prior(n_sites, n_groups / _expected_share(n_sites, c), c) for c in CONCENTRATIONS]
    return max(priors, key=lambda prior: prior.total(sizes))


def _expected_share(n_sites: int, concentration: float) -> float:
    """Return H = sum_{j=1..J} c / (c + j - 1): components expected in all, for one expected at each site."""
    return float(concentration * (digamma(concentration + n_sites) - digamma(concentration)))
