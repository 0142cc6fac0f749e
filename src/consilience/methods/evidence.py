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
from consilience.matching.assignment import assign_block
from consilience.methods.combine import GroupSums, group_sums

VERY_STRONG = 5.0
"""Log odds against one more component beforehand."""

_IMPOSSIBLE = -1e12


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

    def gains(self, rows: Labels, sums: GroupSums) -> Array:
        """Return what each group would add (k, G) by taking in each of some rows that are in none.

        A group without members is opened by the first one.
        """
        used = np.flatnonzero(sums.mass > 0)
        gains = np.full((len(rows), len(sums.mass)), float(self.held(np.ones(1))[0]))
        if used.size:
            together = sums.sums[used][None] + self.pieces[rows][:, None]
            joined = self._level(together.reshape(-1, together.shape[2])).reshape(len(rows), -1)
            members, sites = sums.mass[used], self.stack.n_sites
            gains[:, used] = joined - self._level(sums.sums[used]) + np.log((members + 1.0) / (sites - members))
            gains[:, used] -= self.alone[rows][:, None]
        return gains


class _Places:
    """The groups of a matching with room for new ones, kept up to date while sites leave and come back."""

    def __init__(self, evidence: Evidence, labels: Labels) -> None:
        self.evidence, self.labels = evidence, labels.copy()
        sums = evidence.sums(labels)
        room = int(evidence.stack.sizes.max())
        self.sums = np.concatenate([sums.sums, np.zeros((room, sums.sums.shape[1]))])
        self.mass = np.concatenate([sums.mass, np.zeros(room)])

    def rows(self, site: int) -> Labels:
        """Return the matched rows of a site."""
        rows = np.arange(self.evidence.stack.offsets[site], self.evidence.stack.offsets[site + 1])
        return rows[self.labels[rows] >= 0]

    def leave(self, rows: Labels) -> Array:
        """Take the rows of one site out and return what each place would gain by each of them (k, places)."""
        self._add(rows, -1.0)
        if np.count_nonzero(self.mass == 0) < len(rows):
            self.sums = np.concatenate([self.sums, np.zeros((len(rows), self.sums.shape[1]))])
            self.mass = np.concatenate([self.mass, np.zeros(len(rows))])
        return self.evidence.gains(rows, GroupSums(self.sums, self.mass))

    def enter(self, rows: Labels, labels: Labels) -> None:
        """Put rows that left into places."""
        self.labels[rows] = labels
        self._add(rows, 1.0)

    def _add(self, rows: Labels, sign: float) -> None:
        own = self.labels[rows]
        self.sums[own] += sign * self.evidence.pieces[rows]
        self.mass[own] += sign
        self.sums[own[self.mass[own] == 0]] = 0.0


def polish(evidence: Evidence, labels: Labels, rng: np.random.Generator, sweeps: int) -> Labels:
    """Raise the evidence site by site, each matched exactly given the others, with new groups where they pay.

    Parameters
    ----------
    evidence
        What is raised.
    labels
        Where to start: consecutive labels (L,), -1 for rows that are left out.
    rng
        Draws the order of sites.
    sweeps
        Rounds over all sites at most.

    Returns
    -------
    numpy.ndarray
        Consecutive labels (L,) of no less evidence.
    """
    places = _Places(evidence, labels)
    for _ in range(sweeps):
        changed = False
        for site in rng.permutation(evidence.stack.n_sites):
            rows = places.rows(site)
            if not rows.size:
                continue
            own, here = places.labels[rows], np.arange(len(rows))
            gains = places.leave(rows)
            chosen = assign_block(-gains)
            had = gains[here, own].sum()
            better = gains[here, chosen].sum() > had + 1e-9 * abs(had)
            places.enter(rows, chosen if better else own)
            changed |= bool(better)
        if not changed:
            break
    kept = places.labels >= 0
    result = places.labels.copy()
    result[kept] = np.unique(places.labels[kept], return_inverse=True)[1]
    return result


def posterior_of_matches(evidence: Evidence, labels: Labels) -> Array:
    """Return the probability of each match (L,), given what all other sites say.

    For each component its site's best matching without this match is compared with the one it has: the odds are
    exp(difference in evidence). Components labelled -1 have none (NaN).
    """
    places = _Places(evidence, labels)
    sure = np.full(len(labels), np.nan)
    for site in range(evidence.stack.n_sites):
        rows = places.rows(site)
        if not rows.size:
            continue
        own, here = labels[rows], np.arange(len(rows))
        gains = places.leave(rows)
        places_left = places.mass.copy()
        places.enter(rows, own)
        has = gains[here, own].sum()
        for place in here:
            barred = gains.copy()
            same = np.flatnonzero(places_left == 0) if places_left[own[place]] == 0 else own[place]
            barred[place, same] = _IMPOSSIBLE  # one empty group is as good as another
            other = barred[here, assign_block(-barred)].sum()
            sure[rows[place]] = 1.0 / (1.0 + np.exp(np.clip(other - has, -700.0, 700.0)))
    return sure
