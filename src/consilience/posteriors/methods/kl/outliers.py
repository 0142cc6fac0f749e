"""Local components and sites that do not belong: fits gone wrong, and sites far from all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.groups import group_sums
from consilience.posteriors.ensemble import Stack
from consilience.posteriors.methods.kl.evidence import Evidence

_SHARES = np.linspace(0.1, 0.9, 9)[:, None]
_RARE = 3
_RARE_SHARE = 0.02
_PARTNERS = 3
_FAR = 8.0
_ENOUGH_SITES = 5
_FAILURES_AT_MOST = 0.1
_LOG_OF_FAILURE = float(np.log(0.01))  # how often a local fit is taken to go wrong


def find_blends(stack: Stack, evidence: Evidence, heterogeneity: Array, labels: Labels) -> Labels:
    """Return the rows that are better explained as local fits gone wrong than as components of their own.

    A mixture fitted with too few components merges two true ones; one fitted with too many splits one. The evidence of
    a group of at most three members, or of one for every fifty sites, is compared with that of each of its members
    being a blend of two other components, or a second copy of one: that component's (or blend's) sufficient statistics,
    with the member's own information and the heterogeneity of two copies, are its prior then. That a fit went wrong has
    probability 1/100 beforehand, and which two components in what shares equal ones. Where more than a tenth of all
    components would be left out, these are no rare failures but components that the model does not describe well, and
    all stay.

    Parameters
    ----------
    stack
        What the data say (L, P), not discounted.
    evidence
        Evidence of the discounted components.
    heterogeneity
        Their discount (B,).
    labels
        Consecutive labels (L,).
    """
    family = stack.family
    members = np.bincount(labels)
    copies = group_sums(stack.natural - family.flat, labels, np.ones(len(labels)), len(members)).means()
    groups = evidence.groups.value(evidence.groups.sums(labels))
    found: list[int] = []
    for group in np.flatnonzero(members <= max(_RARE, _RARE_SHARE * stack.n_sites)):
        others = np.flatnonzero((members > members[group]) & (np.arange(len(members)) != group))
        if not others.size:
            continue
        rows = np.flatnonzero(labels == group)
        own = groups[group] - evidence.groups.alone[rows].sum()
        explained = sum(_as_blend(stack, evidence, heterogeneity, row, copies[others]) for row in rows.tolist())
        if explained > own:
            found += rows.tolist()
    if len(found) > max(1.0, _FAILURES_AT_MOST * len(labels)):
        found = []
    return np.array(sorted(found), dtype=np.int64)


def _as_blend(stack: Stack, evidence: Evidence, heterogeneity: Array, row: int, copies: Array) -> float:
    """Return the log evidence of one row as a copy or a blend of two of `copies` (G, P), over that of being alone."""
    family = stack.family
    own = family.information(stack.natural[row : row + 1])

    def explained(statistics: Array) -> Array:
        blended = family.flat + statistics
        sized = family.reweighted(blended, own / family.information(blended))
        prior = family.discounted(sized, 2.0 * heterogeneity)
        joined = family.log_normalizer(prior + evidence.groups.pieces[row])
        result: Array = joined - family.log_normalizer(prior) - evidence.groups.alone[row]
        return result

    single = explained(copies)
    best, count = float(single.max()), len(copies)
    for first in np.argsort(-single)[:_PARTNERS]:
        seconds = np.delete(copies, first, axis=0)
        if len(seconds):
            mixed = _SHARES * copies[first] + (1.0 - _SHARES) * seconds[:, None]
            best = max(best, float(explained(mixed.reshape(-1, copies.shape[1])).max()))
    tried = count + len(_SHARES) * count * (count - 1) / 2
    return best + _LOG_OF_FAILURE - float(np.log(tried * stack.n_sites))


def find_far_sites(stack: Stack, labels: Labels) -> dict[int, str]:
    """Return the sites that do not belong, and why.

    The distance of a site is the mean divergence of its components from the barycenters of the other members of their
    groups. Far is more than eight times the median of all sites and beyond the third quartile by three times the
    interquartile range. A site of several components of which none is shared is named too, if most sites share theirs.

    Parameters
    ----------
    stack
        What the data say (L, P), not discounted: an outlier makes copies look more different than they are.
    labels
        Group of each component (L,).
    """
    family, weights = stack.family, np.ones(len(labels))
    sums = group_sums(stack.natural, labels, weights, int(labels.max()) + 1)
    shared = np.flatnonzero(sums.mass[labels] > 1)
    rest = sums.sums[labels[shared]] - stack.natural[shared]
    rest /= (sums.mass[labels[shared]] - 1.0)[:, None]
    apart = family.kl_pairs(rest, stack.natural[shared])
    sites, place = np.unique(stack.owner[shared], return_inverse=True)
    told = {}
    if len(sites) >= _ENOUGH_SITES:
        distances = np.bincount(place, weights=apart) / np.bincount(place)
        low, middle, high = np.quantile(distances, [0.25, 0.5, 0.75])
        limit = max(_FAR * middle, high + 3.0 * (high - low))
        for number in np.flatnonzero(distances > limit):
            times = distances[number] / middle
            told[int(sites[number])] = f"its components are {times:.0f} times as far from what they match as is usual"
    if len(sites) > stack.n_sites / 2:
        alone = np.setdiff1d(np.flatnonzero(stack.sizes > 1), sites)
        told |= {int(site): "none of its components is found at another site" for site in alone}
    return told


def describe_outliers(names: tuple[str, ...], blended: Labels, far: dict[int, str]) -> list[dict[str, Any]]:
    """Return what is odd about which site, for reports.

    Parameters
    ----------
    names
        Names of the sites (J,).
    blended
        Site of each component that ``find_blends`` found.
    far
        What ``find_far_sites`` found.
    """
    told: list[dict[str, Any]] = []
    for site, count in zip(*np.unique(blended, return_counts=True), strict=True):
        what = "1 component looks" if count == 1 else f"{count} components look"
        why = f"{what} like a blend or a second copy of others, as after a fit gone wrong, and was left out"
        told.append({"name": names[int(site)], "why": why.replace("was", "were") if count > 1 else why})
    told += [{"name": names[site], "why": why} for site, why in far.items()]
    return sorted(told, key=lambda record: record["name"])
