"""Estimates of the law of atoms and their copies, given who is who: equations (10) of Yurochkin et al. (2019).

The published closed forms take the variance of a group's mean for that of its atom, so that a step may lower the
posterior, or ask for a negative variance where groups are badly separated. Dimensions are independent given the
matching: each takes the published step where that pays, else a step of expectation-maximisation, which always does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.beta_bernoulli import AtomLaw
from consilience.matching.groups import GroupSums

FLOOR = 1e-10
"""Least variance, as a share of the spread of all points in that dimension."""

_ASKED, _NEIGHBOURS = 256, 2000  # of how many points the nearest is sought, and among how many


def point_variances(points: Array) -> Array:
    """Return the variance of all points per dimension (D,), and 1 in dimensions without any."""
    spread = points.var(axis=0)
    rounding = np.maximum((1e-12 * np.abs(points).max(axis=0)) ** 2, 1e-200)
    return np.where(spread > rounding, spread, 1.0)


def initial_law(points: Array, offsets: Labels, spread: Array) -> AtomLaw:
    """Return a law to start from: copies differ as much as points do from their nearest one of another site.

    The mean and the variance of atoms are those of all points. Both variances scale with the data, so that the unit of
    a dimension does not matter.
    """
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    some, others = (np.unique(np.linspace(0, len(points) - 1, n).astype(np.int64)) for n in (_ASKED, _NEIGHBOURS))
    asked, near = points[some] / np.sqrt(spread), points[others] / np.sqrt(spread)
    squares = (asked**2).sum(axis=1)[:, None] + (near**2).sum(axis=1) - 2.0 * asked @ near.T
    squares[owner[some][:, None] == owner[others][None]] = np.inf
    nearest = squares.min(axis=1)
    apart = nearest[np.isfinite(nearest)]
    share = 0.5 * float(np.mean(apart)) / points.shape[1] if apart.size else 0.0
    return AtomLaw(points.mean(axis=0), np.clip(share, 1e-6, 1.0) * spread, spread)


@dataclass(frozen=True, eq=False)
class AtomStatistics:
    """What a matching's points say of their law.

    Parameters
    ----------
    groups
        Sum and number of the points of each group.
    squares
        Sum of all squared points (D,).
    """

    groups: GroupSums
    squares: Array

    def about(self, mean: Array) -> AtomStatistics:
        """Return the same for points less `mean`."""
        count = self.groups.mass
        total = self.groups.sums.sum(axis=0)
        squares = self.squares - 2.0 * mean * total + count.sum() * mean**2
        return AtomStatistics(GroupSums(self.groups.sums - np.multiply.outer(count, mean), count), squares)

    def log_likelihoods(self, law: AtomLaw) -> Array:
        """Return log p(v | matching) by dimension (D,), atoms integrated out, without the constant 2 pi."""
        centred = self.about(law.mean)
        count = self.groups.mass
        total = np.multiply.outer(count, law.between) + law.within
        fit = (centred.groups.sums**2 * law.between / total).sum(axis=0) - centred.squares
        logs = np.log(total).sum(axis=0) + (count - 1.0).sum() * np.log(law.within)
        likelihoods: Array = 0.5 * (fit / law.within - logs)
        return likelihoods


def update_law(copies: AtomStatistics, law: AtomLaw, spread: Array, *, scalar: bool = False) -> AtomLaw:
    """Return a law of no less posterior, given the matching.

    Parameters
    ----------
    copies
        Who is who.
    law
        The law so far.
    spread
        Variance of all points (D,), see ``point_variances``; variances do not fall below 1e-10 of it.
    scalar
        Whether all dimensions share their two variances.
    """
    now = copies.log_likelihoods(law)
    for step in (_published, _no_atoms, _expectation_maximisation):
        proposal = step(copies, law)
        within, between = np.maximum(proposal.within, FLOOR * spread), np.maximum(proposal.between, FLOOR * spread)
        if scalar:
            within, between = np.full_like(within, within.mean()), np.full_like(between, between.mean())
        then = copies.log_likelihoods(AtomLaw(proposal.mean, within, between))
        better = np.full(len(now), then.sum() > now.sum()) if scalar else then > now
        law = AtomLaw(
            np.where(better, proposal.mean, law.mean),
            np.where(better, within, law.within),
            np.where(better, between, law.between),
        )
        now = np.where(better, then, now)
        if better.all():
            break
    return law


def _published(copies: AtomStatistics, law: AtomLaw) -> AtomLaw:
    """Equations (10); a variance that they cannot tell stays, one below zero comes out as zero."""
    groups = copies.groups
    means, count = groups.means(), groups.mass
    n_groups, spare = len(count), float(count.sum()) - len(count)
    centre = means.mean(axis=0)
    within = (copies.squares - (groups.sums * means).sum(axis=0)) / spare if spare > 0 else law.within
    noise = within * float(np.mean(1.0 / count))
    between = np.maximum(((means - centre) ** 2).mean(axis=0) - noise, 0.0) if n_groups > 1 else law.between
    return AtomLaw(centre, np.maximum(within, 0.0), between)


def _no_atoms(copies: AtomStatistics, law: AtomLaw) -> AtomLaw:
    """Return the limit in which all points are copies of one, where expectation-maximisation creeps but never is.

    Where nothing is matched, nothing tells it from the law so far, which then stays.
    """
    if copies.groups.mass.max() <= 1:
        return law
    count = copies.groups.mass.sum()
    mean = copies.groups.sums.sum(axis=0) / count
    return AtomLaw(mean, np.maximum(copies.squares / count - mean**2, 0.0), np.zeros_like(law.between))


def _expectation_maximisation(copies: AtomStatistics, law: AtomLaw) -> AtomLaw:
    """One step of expectation-maximisation with the atoms as what is not seen."""
    groups = copies.groups
    means, variances = law.atoms(groups)
    centre = means.mean(axis=0)
    between = (variances + (means - centre) ** 2).mean(axis=0)
    crossed, own = (groups.sums * means).sum(axis=0), groups.mass @ (means**2 + variances)
    return AtomLaw(centre, np.maximum(copies.squares - 2.0 * crossed + own, 0.0) / groups.mass.sum(), between)
