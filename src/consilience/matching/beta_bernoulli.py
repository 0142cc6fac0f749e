"""The marginal posterior of a matching of point components under a Beta-Bernoulli process (SPAHM).

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, "Statistical Model Aggregation via Parameter Matching", NeurIPS 2019.
Global atoms theta come from N(mu0, s0), every site holds each with a probability of the atom's own, and reports
v ~ N(theta, s) of those that it holds (means and variances per dimension). With atoms and probabilities integrated out,
the log posterior of a matching with groups of n members v, by y = (v - mu0) / sqrt(s) and r = s0 / s, is

    sum_g { log p(n) + 1/2 sum_d [ (sum y)^2 r / (n r + 1) - log(n r + 1) ] } - 1/2 sum_l sum_d [ y^2 + log 2 pi s ],

which is equation (8) completed by its constants; p(n) is in ``BetaBernoulliPrior``. ``site_by_site`` raises it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betaln

from consilience.checks import Array, Labels
from consilience.matching.groups import GroupSums, group_sums

_LOG_TWO_PI = float(np.log(2.0 * np.pi))
MAX_TABLE_SITES = 4096
"""Sites up to which levels and shrinkage are tabulated for n = 0 ... J. It bounds memory; chosen by hand."""


@dataclass(frozen=True)
class BetaBernoulliPrior:
    """The Beta-Bernoulli process of who holds what, equation (2): log p(n) of an atom that n of J sites hold.

    Integrating out its probability p gives log(concentration * mass) + log B(n, J - n + concentration). Given the
    others, the log odds that a site holds an atom of m holders are log(m / (concentration + J - 1 - m)), and it holds a
    new one at rate concentration * mass / (concentration + J - 1).

    Parameters
    ----------
    n_sites : int
        Number J of sites.
    concentration : float, optional
        alpha of the process: the larger, the fewer sites share an atom. Default: 1, as in the paper.
    mass : float, optional
        gamma0 of the process: the larger, the more atoms. Default: 1, as in the paper (50 for inducing points).
    clip : int, optional
        Holders beyond which the odds grow no more. Default: no limit (the published code has 10).
    """

    n_sites: int
    concentration: float = 1.0
    mass: float = 1.0
    clip: int | None = None

    @cached_property
    def log_probability(self) -> Array:
        """Return log p(n) (J + 1,), and 0 for n = 0."""
        holders = np.arange(1.0, self.n_sites + 1.0)  # n = 1 ... J
        rate = np.log(self.concentration * self.mass)
        if self.clip is None:
            log_p = rate + betaln(holders, self.n_sites - holders + self.concentration)
        else:
            others = self.concentration + self.n_sites - 1.0
            clipped = np.minimum(holders[:-1], min(self.clip, self.n_sites - 1))
            # The published code clips counts at 10 in the odds; a level whose steps are these odds is the same prior.
            odds = np.log(clipped / (others - clipped))
            log_p = rate - np.log(others) + np.concatenate([np.zeros(1), np.cumsum(odds)])
        return np.concatenate([np.zeros(1), log_p])


@dataclass(frozen=True, eq=False)
class AtomLaw:
    """Gaussian distributions of atoms and of their copies, per dimension: theta ~ N(mu0, s0), v ~ N(theta, s).

    The mean is mu0, the variance `within` s that of a copy around its atom, and `between` s0 that of atoms around their
    mean, all (D,).
    """

    mean: Array
    within: Array
    between: Array

    @property
    def information(self) -> float:
        """Mutual information of a copy and its atom, in nats: sum_d log(1 + s0 / s) / 2."""
        return 0.5 * float(np.log1p(self.between / self.within).sum())

    def distance(self, other: AtomLaw, spread: Array) -> float:
        """Return the largest step between two distributions: of means in widths of the data, of variances in ratios."""
        means = np.abs(self.mean - other.mean) / np.sqrt(spread)
        ratios = np.abs(np.log([self.within / other.within, self.between / other.between]))  # (2, D)
        return float(max(means.max(), ratios.max()))

    def atoms(self, sums: GroupSums) -> tuple[Array, Array]:
        """Return mean and variance (G, D) of the atoms of groups, given sums and number of their copies."""
        count = sums.mass[:, None]
        total = self.within + count * self.between  # s + n s0: (G, D)
        return (self.mean * self.within + self.between * sums.sums) / total, self.within * self.between / total


@dataclass(frozen=True, eq=False)
class GaussianAtoms:
    """The log posterior of matchings of Gaussian point components: a ``GroupObjective``.

    `pieces` (L, D) are what the sites report, best centred beforehand, since sums of it are subtracted from one
    another; `offsets` (J + 1,) are where each site starts, and the end; the law is that of atoms and copies, sharing
    that of who holds what. Unless atoms are integrated out (`marginal`), they take their likeliest values (the
    published form for networks, only without estimation of variances), and the two logarithms of the objective vanish.
    """

    pieces: Array
    offsets: Labels
    law: AtomLaw
    sharing: BetaBernoulliPrior
    marginal: bool = True

    def _centred(self, sums: Array, count: Array | float) -> Array:
        """Return sum (v - mu0) (n, D) of groups of so many members."""
        centred: Array = sums - np.multiply.outer(count, self.law.mean)
        return centred

    def _coefficients(self, count: Labels) -> tuple[Array, Array]:
        """Return c = r / (n r + 1) / 2 s (k, D), and the level of groups of n members (k,): log p(n) and logarithms."""
        if self.sharing.n_sites > MAX_TABLE_SITES:
            return self._computed(count)
        shrinkage, level = self._table
        return shrinkage.take(count, axis=0), level.take(count)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """What ``_computed`` returns for n = 0 ... J, looked up many times where sites are few."""
        return self._computed(np.arange(self.sharing.n_sites + 1))

    def _computed(self, count: Labels) -> tuple[Array, Array]:
        """Return what ``_coefficients`` does, computed from the atom distribution and the prior."""
        variance_ratio = self.law.between / self.law.within
        variance_ratios = np.multiply.outer(count.astype(np.float64), variance_ratio)  # n r: (k, D)
        level = self.sharing.log_probability[count]
        if self.marginal:
            level = level - 0.5 * np.log1p(variance_ratios).sum(axis=1)
        return 0.5 * (variance_ratio / self.law.within) / (variance_ratios + 1.0), level

    @cached_property
    def _of_rows(self) -> tuple[Array, Array]:
        """What each component is worth as a group of its own (L,), and the sum of y^2 of each (L,)."""
        shrinkage, level = self._coefficients(np.ones(1, dtype=np.int64))
        squares = self._centred(self.pieces, np.ones(len(self.pieces))) ** 2  # (L, D)
        return squares @ shrinkage[0] + level[0], squares @ (1.0 / self.law.within)

    def opening(self, rows: Labels) -> Array:
        """Return what each of some rows is worth as a group of its own (k,)."""
        return self._of_rows[0][rows]

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,), before the members' own constants."""
        return self._value(self._centred(groups.sums, groups.mass), groups.mass.astype(np.int64))

    def _value(self, centred: Array, count: Labels) -> Array:
        """Return what groups of so many members (n,) are worth (n,), given sums of v - mu0 (n, D)."""
        shrinkage, level = self._coefficients(count)
        return np.asarray(np.vecdot(shrinkage * centred, centred) + level)

    def gains(self, rows: Labels, groups: GroupSums) -> Array:
        """Return ``subtraction_gains`` of the value (k, G) as two matrix products.

        With t the sum of a group's v - mu0, u = t - mu0 and c' the coefficient of one member more, the gain is
        c' (u + v)^2 - c t^2 + level' - level = c' v^2 + 2 c' u v + c' u^2 + level' - (c t^2 + level) per dimension.
        """
        newcomers, count = self.pieces[rows], groups.mass.astype(np.int64)  # (k, D); members of each group (G,)
        sums = self._centred(groups.sums, groups.mass)  # t: (G, D)
        constant = -self._value(sums, count)
        sums -= self.law.mean
        shrinkage, level = self._coefficients(count + 1)
        slopes = shrinkage * sums
        constant += np.vecdot(slopes, sums)
        constant += level
        slopes *= 2.0
        gains: Array = newcomers**2 @ shrinkage.T
        gains += newcomers @ slopes.T
        gains += constant
        return gains

    def sums(self, labels: Labels) -> GroupSums:
        """Return sums and number of the members of each group."""
        return group_sums(self.pieces, labels, np.ones(len(labels)), int(labels.max()) + 1)

    def total(self, labels: Labels) -> float:
        """Return the log posterior of a matching of all components with consecutive labels, in nats, up to P(v).

        In the plug-in form it is without the two logarithms.
        """
        noise = 0.5 * float(self._of_rows[1].sum())
        if self.marginal:
            noise += 0.5 * len(labels) * float((_LOG_TWO_PI + np.log(self.law.within)).sum())
        return float(self.value(self.sums(labels)).sum()) - noise
