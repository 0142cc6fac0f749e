"""Empirical Bayes for the distributions of atoms and their copies in SPAHM: mean and variances, given the matching.

Atoms theta_i ~ N(mu0, s0), copies v ~ N(theta_i, s). With n_i copies of atom i that sum to t_i, N = sum n_i and G
atoms, equations (10) of Yurochkin et al. (2019) are, per dimension,

    mu0 = mean_i t_i / n_i,   s = (sum v^2 - sum_i t_i^2 / n_i) / (N - G),
    s0 = mean_i (t_i / n_i - mu0)^2 - s mean_i 1 / n_i

(the main text prints the last mean as a sum; the supplement and the published code have the mean). These closed forms
take the variance of a group's mean for that of its atom, so that a step may lower the posterior, or ask for a negative
variance where groups are badly separated. Dimensions are independent given the matching: each takes the published step
where that pays, else a step of expectation-maximisation, which always does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.beta_bernoulli import AtomLaw
from consilience.matching.groups import GroupSums

FLOOR = 1e-10
"""Least variance, as a share of the variance of all points in that dimension; the published code has it absolute."""
SAMPLE_POINTS = 256
"""Points whose nearest neighbour starts the within variance, evenly spaced. Chosen by hand for their cost."""
NEIGHBOUR_POINTS = 2000
"""Points among which the nearest is sought, evenly spaced. Chosen by hand for their cost."""
MIN_WITHIN_SHARE = 1e-6
"""Least within variance to start from, as a share of all variance: with none, copies would have to be equal."""
POINT_ROUNDING = 1e-12
"""Spread of a dimension, in units of its largest point, below which it is rounding and counts as constant."""
MIN_VARIANCE = 1e-200
"""Variance of a dimension that counts as constant where all its points are zero."""


def point_variances(points: Array) -> Array:
    """Return the variance of all points per dimension (D,), and 1 in dimensions without any."""
    spread = points.var(axis=0)
    rounding = np.maximum((POINT_ROUNDING * np.abs(points).max(axis=0)) ** 2, MIN_VARIANCE)
    return np.where(spread > rounding, spread, 1.0)


def initial_law(points: Array, offsets: Labels, spread: Array) -> AtomLaw:
    """Return the initial distributions: copies differ as much as points do from their nearest one of another site.

    The mean and the variance of atoms are those of all points. Both variances scale with the data, so that the unit of
    a dimension does not matter.
    """
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    sample, neighbours = (
        np.unique(np.linspace(0, len(points) - 1, n).astype(np.int64)) for n in (SAMPLE_POINTS, NEIGHBOUR_POINTS)
    )
    sampled, neighbour_points = points[sample] / np.sqrt(spread), points[neighbours] / np.sqrt(spread)
    # Squared distances in units of the spread; components of one site are never copies of each other.
    squares = (sampled**2).sum(axis=1)[:, None] + (neighbour_points**2).sum(axis=1) - 2.0 * sampled @ neighbour_points.T
    squares[owner[sample][:, None] == owner[neighbours][None]] = np.inf
    nearest_squares = squares.min(axis=1)
    gaps = nearest_squares[np.isfinite(nearest_squares)]
    # Two copies differ by twice the variance of one.
    within_share = 0.5 * float(np.mean(gaps)) / points.shape[1] if gaps.size else 0.0
    return AtomLaw(points.mean(axis=0), np.clip(within_share, MIN_WITHIN_SHARE, 1.0) * spread, spread)


@dataclass(frozen=True, eq=False)
class AtomStatistics:
    """Sufficient statistics of a matching for the distributions of atoms and copies."""

    groups: GroupSums  # sum (G, D) and number (G,) of the points of each group
    squares: Array  # (D,), sum of all squared points

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
        total_variance = np.multiply.outer(count, law.between) + law.within  # n_i s0 + s: (G, D)
        fit = (centred.groups.sums**2 * law.between / total_variance).sum(axis=0) - centred.squares
        logs = np.log(total_variance).sum(axis=0) + (count - 1.0).sum() * np.log(law.within)
        likelihoods: Array = 0.5 * (fit / law.within - logs)
        return likelihoods


def update_law(copies: AtomStatistics, law: AtomLaw, spread: Array, *, scalar: bool = False) -> AtomLaw:
    """Return distributions of no lower posterior, given the matching: per dimension the first of three steps that pays.

    Variances do not fall below 1e-10 of the spread (D,), see ``point_variances``; `scalar` has all dimensions share
    their two variances.
    """
    likelihoods = copies.log_likelihoods(law)
    # Dimensions are independent given the matching, so each keeps its own best step (tied variances move together).
    for step in (_published, _single_atom, _expectation_maximisation):
        proposal = step(copies, law)
        within, between = np.maximum(proposal.within, FLOOR * spread), np.maximum(proposal.between, FLOOR * spread)
        if scalar:
            within, between = np.full_like(within, within.mean()), np.full_like(between, between.mean())
        proposed_likelihoods = copies.log_likelihoods(AtomLaw(proposal.mean, within, between))
        is_better = (
            np.full(len(likelihoods), proposed_likelihoods.sum() > likelihoods.sum())
            if scalar
            else proposed_likelihoods > likelihoods
        )
        law = AtomLaw(
            np.where(is_better, proposal.mean, law.mean),
            np.where(is_better, within, law.within),
            np.where(is_better, between, law.between),
        )
        likelihoods = np.where(is_better, proposed_likelihoods, likelihoods)
        if is_better.all():
            break
    return law


def _published(copies: AtomStatistics, law: AtomLaw) -> AtomLaw:
    """Equations (10); a variance that they cannot tell stays, one below zero comes out as zero."""
    groups = copies.groups
    means, count = groups.means(), groups.mass  # (G, D), (G,)
    n_groups, residual_dof = len(count), float(count.sum()) - len(count)
    centre = means.mean(axis=0)
    within = (copies.squares - (groups.sums * means).sum(axis=0)) / residual_dof if residual_dof > 0 else law.within
    noise = within * float(np.mean(1.0 / count))  # expected variance of group means around atoms (D,)
    between = np.maximum(((means - centre) ** 2).mean(axis=0) - noise, 0.0) if n_groups > 1 else law.between
    return AtomLaw(centre, np.maximum(within, 0.0), between)


def _single_atom(copies: AtomStatistics, law: AtomLaw) -> AtomLaw:
    """Return the limit of one atom for all points, s0 = 0, which expectation-maximisation approaches ever more slowly.

    Where nothing is matched the likelihood cannot tell s from s0, and the law so far stays.
    """
    if copies.groups.mass.max() <= 1:
        return law
    count = copies.groups.mass.sum()
    mean = copies.groups.sums.sum(axis=0) / count
    return AtomLaw(mean, np.maximum(copies.squares / count - mean**2, 0.0), np.zeros_like(law.between))


def _expectation_maximisation(copies: AtomStatistics, law: AtomLaw) -> AtomLaw:
    """Return the distributions after one step of expectation-maximisation, with the atoms as latent variables."""
    groups = copies.groups
    means, variances = law.atoms(groups)  # posterior of each atom (G, D)
    centre = means.mean(axis=0)
    between = (variances + (means - centre) ** 2).mean(axis=0)
    cross_terms, atom_squares = (groups.sums * means).sum(axis=0), groups.mass @ (means**2 + variances)
    return AtomLaw(
        centre, np.maximum(copies.squares - 2.0 * cross_terms + atom_squares, 0.0) / groups.mass.sum(), between
    )
