"""Components that local fits split: several of one site that are one, told from true neighbours by all sites' evidence.

A mixture fitted with too many components splits some; with the rule that a site has one copy of each at most, the
halves then become components of their own or push true ones apart. Two components of one site, with what their data
say e_1 and e_2, n observations in all and I the mutual information between an observation and which of the two it
belongs to, are better explained as one if

    A(base + e_1 + e_2) - A(base + e_1) - A(base + e_2) + A(base) + n I > 0:

the first terms compare the likelihoods where it is known who belongs to whom, and n I is what that knowledge is worth.
(A Gaussian cut into halves: they fit 0.51 n nats better, and knowing the half is worth 0.69 n.) One site alone cannot
tell a split component from two true ones that overlap. So the matching is selected twice, of the components as they
are and of the merged ones, and the greater evidence decides, of all sites and with n I taken off: true neighbours,
which other sites have too, are worth their price once for all sites.

By the same evidence one Gaussian for each whole site is compared with its components: where that is the better
explanation nothing separates, as in fits of several components to data that have one mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from consilience.checks import Array, Labels
from consilience.families.evidence import MAX_KEPT_ROWS, EvidenceFamily
from consilience.families.linalg import log_gaussians
from consilience.posteriors.ensemble import Stack, offsets_of
from consilience.posteriors.evidence.random_effects import RandomEffects
from consilience.posteriors.evidence.search import SearchedMatching

N_DRAWS = 400
"""Draws for one mutual information: a standard error of 0.02 nats, of some 0.1 to 0.7."""
MIN_EVIDENCE_GAIN = 12.0
"""Nats for each component less by which merged ones must be the better explanation. Tuned on one half of
experiments/battery: 15 to 100 where fits had split components, 4 to 10 where true ones overlap."""
MAX_KNOWN_SHARE = 0.1
"""Part of the components up to which merging them hardly changes how much copies differ: the search starts there."""


@dataclass(frozen=True, eq=False)
class MergedComponents:
    """Components of a stack with those of one site merged that look like one."""

    stack: Stack  # the merged components (U, P)
    unit_of_row: Labels  # which of these each component is part of (L,)


def merge_split_components(stack: Stack) -> MergedComponents | None:
    """Return what sites' data say with split components merged; None where none are, or where data have no density."""
    if not stack.family.describes_data:
        return None
    problem = RandomEffects(stack)
    base, pieces = problem.discounts.law(np.zeros(len(stack.family.part_names))), problem.undiscounted
    units, merged_rows, merged_natural = np.arange(len(stack.natural)), [], []
    for sites in stack.runs(MAX_KEPT_ROWS):
        rows = stack.rows_of(sites)
        offsets = stack.offsets[sites.start : sites.stop + 1] - rows.start
        part = Stack(stack.family, stack.natural[rows], offsets, stack.row_weights[rows])
        units_of_part, natural = _merged_within(part, pieces[rows].copy(), base)
        units[rows] = rows.start + units_of_part
        # Rows that others became part of; all others stay as they are.
        into = np.unique(units_of_part[units_of_part != np.arange(len(units_of_part))])
        merged_rows.append(rows.start + into)
        merged_natural.append(natural[into])
    changed, changed_natural = np.concatenate(merged_rows), np.concatenate(merged_natural)
    if not len(changed):
        return None
    kept = np.flatnonzero(units == np.arange(len(units)))
    merged = stack.take(kept)
    merged.natural[np.searchsorted(kept, changed)] = changed_natural
    return MergedComponents(merged, np.searchsorted(kept, units))


def merge_sites(stack: Stack) -> MergedComponents:
    """Return what sites' data say with all components of every site merged into one."""
    is_held = stack.sizes > 0
    starts, sizes = stack.offsets[:-1][is_held], stack.sizes[is_held]
    natural = np.add.reduceat(stack.natural, starts) - (sizes - 1.0)[:, None] * stack.family.flat
    offsets = offsets_of(is_held.astype(np.int64))
    merged = Stack(stack.family, natural, offsets, stack.row_weights[starts])
    return MergedComponents(merged, (offsets[1:] - 1)[stack.owner])


def _merged_within(stack: Stack, pieces: Array, base: Array) -> tuple[Labels, Array]:
    """Return which row each of a stack is part of (L,), and the rows (L, P) with what became part of them.

    `pieces` (L, P) are the rows less the flat limit, and are overwritten; `base` (P,) is the law of all components.
    """
    units, natural, alive = np.arange(len(pieces)), stack.natural.copy(), np.ones(len(pieces), dtype=np.bool_)
    first, second = _pairs_of_sites(stack.offsets)
    while len(first):
        gains = _merge_gains(stack, natural, pieces, base, first, second)
        # The best pair of every site is merged, and the merged component tried with the others of its site.
        merged_into: dict[int, int] = {}  # by site
        for pair in np.argsort(-gains, kind="stable")[: np.count_nonzero(gains > 0)].tolist():
            into, other = int(first[pair]), int(second[pair])
            if int(stack.owner[into]) in merged_into:
                continue
            merged_into[int(stack.owner[into])] = into
            units[other] = into
            pieces[into] += pieces[other]
            natural[into] += natural[other] - stack.family.flat
            alive[other] = False
        again = np.isin(stack.owner[first], list(merged_into)) & alive[first] & alive[second]
        first, second = first[again], second[again]
    while not np.array_equal(units, units[units]):  # what a component became may have become part of another one
        units = units[units]
    return units, natural


def full_evidence(stack: Stack, matching: SearchedMatching) -> float:
    """Return the log evidence of a matching in a form that compares matchings of merged and of single components.

    Undiscounted normalisers are put back, as the likelihood of the data has none, and for every site n I is taken off.
    Components left out stand for themselves.
    """
    problem = RandomEffects(stack)
    labels = matching.labels.copy()
    out = np.flatnonzero(labels < 0)
    labels[out] = matching.n_groups + np.arange(len(out))
    undiscounted = problem.discounts.observed(np.zeros(len(matching.heterogeneity))) * stack.row_weights
    information = _site_information(stack)
    return problem.evidence(labels, matching.heterogeneity, matching.prior) + float(undiscounted.sum()) - information


def _pairs_of_sites(offsets: Labels) -> tuple[Labels, Labels]:
    """Return the rows of all pairs of components of one site, the lower row first."""
    firsts, seconds = [], []
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        first, second = np.triu_indices(end - start, 1)
        firsts.append(start + first)
        seconds.append(start + second)
    return np.concatenate(firsts), np.concatenate(seconds)


def _merge_gains(stack: Stack, natural: Array, pieces: Array, base: Array, first: Labels, second: Labels) -> Array:
    """Return what merging each pair gains (n,), minus infinity or a bound where it certainly does not."""
    family = stack.family
    marginal = family.log_normalizer_of_sums
    joined = marginal(base + pieces[first] + pieces[second]) + marginal(base[None])[0]
    gains = joined - marginal(base + pieces[first]) - marginal(base + pieces[second])
    counts = family.information(natural)[:, 0]
    total = counts[first] + counts[second]
    share = counts[first] / total
    entropy = -(share * np.log(share) + (1.0 - share) * np.log(1.0 - share))
    # I(x; component) <= H(component): a pair that does not gain with its entropy in place of the information gains
    # less with the information itself, so that most pairs need no draws.
    for pair in np.flatnonzero(gains + total * entropy > 0).tolist():
        rows = np.array([first[pair], second[pair]])
        gains[pair] += total[pair] * mutual_information(*_densities(family, natural[rows]), counts[rows])
    return gains


def _densities(family: EvidenceFamily, natural: Array) -> tuple[Array, Array]:
    """Return the Gaussians (n, D) and (n, D, D) or (n, D) that rows stand for."""
    densities = family.plug_in(natural)
    assert densities is not None  # noqa: S101  (families that describe data have them)
    return densities


def _site_information(stack: Stack) -> float:
    """Return the sum over sites of n I, what knowing the components of all observations is worth in nats."""
    total = 0.0
    for sites in stack.runs(MAX_KEPT_ROWS):
        offsets = stack.offsets[sites.start : sites.stop + 1]
        natural, weights = (array[offsets[0] : offsets[-1]] for array in (stack.natural, stack.row_weights))
        counts = stack.family.information(natural)[:, 0]
        means, covariances = _densities(stack.family, natural)
        for start, end in zip((offsets[:-1] - offsets[0]).tolist(), (offsets[1:] - offsets[0]).tolist(), strict=True):
            if end - start > 1:
                rows = slice(start, end)
                information = mutual_information(means[rows], covariances[rows], counts[rows])
                total += float((counts[rows] * weights[rows]).sum()) * information
    return total


def mutual_information(means: Array, covariances: Array, counts: Array) -> float:
    """Return the mutual information between a draw of a Gaussian mixture and its component, in nats.

    Of means (k, D), covariances (k, D, D) or variances (k, D), and observations of each component (k,), in any unit.
    """
    rng = np.random.default_rng(0)
    shares = counts / counts.sum()
    rows = np.repeat(np.arange(len(shares)), np.diff(np.rint(N_DRAWS * np.cumsum([0.0, *shares])).astype(np.int64)))
    noise = rng.standard_normal((len(rows), means.shape[1]))
    if covariances.ndim == 2:
        draws = means[rows] + noise * np.sqrt(covariances[rows])
    else:
        draws = means[rows] + np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[rows], noise)
    log_joint = log_gaussians(draws, means, covariances) + np.log(shares)  # (n, k)
    log_shares = log_joint - logsumexp(log_joint, axis=1, keepdims=True)
    posterior_entropy = -np.sum(np.exp(log_shares) * log_shares, axis=1).mean()
    return float(max(0.0, -np.sum(shares * np.log(shares)) - posterior_entropy))
