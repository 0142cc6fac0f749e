"""Outliers among local components and sites: blended or duplicated components, and sites far from all others.

A local fit goes wrong in two ways that matter for matching: it blends two true components into one, or splits one in
two. Both leave small groups of their own. For such a group the log evidence of its members as components of their own
is compared with the log evidence of each member as a blend of two other components or a second copy of one
(``find_blends``). A site is an outlier by the distance of its components from those that they are matched with
(``find_far_sites``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.families.evidence import EvidenceFamily
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.ensemble import Stack, StackLike
from consilience.posteriors.methods.kl.evidence import Evidence

BLEND_SHARES = np.linspace(0.1, 0.9, 9)[:, None]
"""Shares of the first of two blended components that are tried (9, 1). Chosen by hand."""
MAX_SUSPECT_MEMBERS = 3
"""Members up to which a group may be fits gone wrong. Chosen by hand."""
MAX_SUSPECT_SHARE = 0.02
"""The same per site: with many sites, more of them blend the same two components. Chosen by hand."""
BLEND_PARTNERS = 3
"""Components that are tried as the first of a blend: those that explain the row best alone. Chosen by hand."""
FAR_SITE_RATIO = 8.0
"""Distance of a far site, in median distances of all sites. Chosen by hand; nobody has measured other values."""
FAR_SITE_IQRS = 3.0
"""Distance of a far site beyond the third quartile, in interquartile ranges: Tukey's (1977) "far out" fence."""
MIN_SITES_FOR_QUARTILES = 5
"""Sites below which no site is called far: quartiles of fewer say nothing. Chosen by hand."""
MAX_BLEND_SHARE = 0.1
"""Part of all components that may be fits gone wrong; more of them show a model that does not hold (docs/adr/0008)."""
LOG_FAILURE_PROBABILITY = float(np.log(0.01))
"""Log prior probability that a local fit went wrong: a guess, as docs/adr/0008 says."""


def find_blends(stack: StackLike, evidence: Evidence, heterogeneity: Array, labels: Labels) -> Labels:
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
    stack : StackLike
        What the data say (L, P), not discounted.
    evidence : Evidence
        Evidence of the discounted components.
    heterogeneity : Array of shape (B,)
        Their discount.
    labels : Labels of shape (L,)
        Consecutive labels.

    Returns
    -------
    Labels
        Rows of the stack, ascending; empty where none is a blend, or too many are.
    """
    family = stack.family
    n_members = np.bincount(labels)
    copies = stack.sum(_sums, family.flat, len(n_members), each=labels).means()  # (G, P)
    values = evidence.value(evidence.sums(labels))  # (G,) log evidence, members' own part included
    suspect_groups = np.flatnonzero(n_members <= max(MAX_SUSPECT_MEMBERS, MAX_SUSPECT_SHARE * stack.n_sites))
    suspects = np.flatnonzero(np.isin(labels, suspect_groups))  # only these rows are looked at one by one
    suspect_natural = stack.gather(suspects).natural
    suspect_evidence = replace(evidence, stack=evidence.stack.gather(suspects)).groups
    blend_rows: list[int] = []
    for group in suspect_groups:
        # Only larger groups explain a smaller one: else two small groups would explain each other away.
        others = np.flatnonzero((n_members > n_members[group]) & (np.arange(len(n_members)) != group))
        if not others.size:
            continue
        members = np.flatnonzero(labels[suspects] == group)
        as_component = values[group] - suspect_evidence.alone[members].sum()
        as_blends = sum(
            _as_blend(suspect_natural[row], suspect_evidence, heterogeneity, row, copies[others], stack.n_sites)
            for row in members.tolist()
        )
        if as_blends > as_component:
            blend_rows += suspects[members].tolist()
    if len(blend_rows) > max(1.0, MAX_BLEND_SHARE * len(labels)):
        blend_rows = []
    return np.array(sorted(blend_rows), dtype=np.int64)


def _as_blend(
    natural: Array, evidence: ConjugateGroups, heterogeneity: Array, row: int, copies: Array, n_sites: int
) -> float:
    """Return the log evidence of one row as a copy or a blend of two of `copies` (G, P), over that of being alone."""
    family = evidence.family
    assert isinstance(family, EvidenceFamily)  # noqa: S101  (components in their evidence form)
    information = family.information(natural[None])

    def log_evidence(statistics: Array) -> Array:
        """Return the log evidence (n,) of the row under a prior of these sufficient statistics (n, P)."""
        template = family.flat + statistics
        scaled = family.reweighted(template, information / family.information(template))
        # Two copies of one component differ by the heterogeneity of both.
        prior = family.discounted(scaled, 2.0 * heterogeneity)
        marginal = family.log_normalizer(prior + evidence.pieces[row])
        result: Array = marginal - family.log_normalizer(prior) - evidence.alone[row]
        return result

    as_copy = log_evidence(copies)
    best, n_copies = float(as_copy.max()), len(copies)
    for first in np.argsort(-as_copy)[:BLEND_PARTNERS]:  # greedy: all pairs would cost G^2 priors for every row
        seconds = np.delete(copies, first, axis=0)
        if len(seconds):
            blended_statistics = BLEND_SHARES * copies[first] + (1.0 - BLEND_SHARES) * seconds[:, None]  # (G - 1, 9, P)
            best = max(best, float(log_evidence(blended_statistics.reshape(-1, copies.shape[1])).max()))
    # Every copy and every blend of two in one of the shares is equally likely beforehand, at each of J sites.
    n_explanations = n_copies + len(BLEND_SHARES) * n_copies * (n_copies - 1) / 2
    return best + LOG_FAILURE_PROBABILITY - float(np.log(n_explanations * n_sites))


def find_far_sites(stack: StackLike, labels: Labels) -> dict[int, str]:
    """Return the sites that do not belong, and why.

    The distance of a site is the mean divergence of its components from the barycenters of the other members of their
    groups,

        d_j = mean_{l in j} KL(mean_{k in g(l), k != l} eta_k || eta_l),

    over its components that are shared. Far is more than eight times the median of all sites and beyond the third
    quartile by three times the interquartile range. A site of several components of which none is shared is named too,
    if most sites share theirs.

    Parameters
    ----------
    stack : StackLike
        What the data say (L, P), not discounted: an outlier makes copies look more different than they are.
    labels : Labels of shape (L,)
        Group of each component.

    Returns
    -------
    dict of int to str
        Reason by site.
    """
    sums = stack.sum(_sums, 0.0, int(labels.max()) + 1, each=labels)
    site_distances = np.concatenate(stack.map(_site_distances, sums, each=labels))  # (J,), NaN where nothing is shared
    sites = np.flatnonzero(~np.isnan(site_distances))
    distances = site_distances[sites]
    reasons = {}
    if len(sites) >= MIN_SITES_FOR_QUARTILES:
        lower, median, upper = np.quantile(distances, [0.25, 0.5, 0.75])
        fence = max(FAR_SITE_RATIO * median, upper + FAR_SITE_IQRS * (upper - lower))
        for index in np.flatnonzero(distances > fence):
            ratio = distances[index] / median
            reasons[int(sites[index])] = f"its components are {ratio:.0f} times as far from what they match as is usual"
    if len(sites) > stack.n_sites / 2:
        unmatched = np.setdiff1d(np.flatnonzero(stack.sizes > 1), sites)
        reasons |= {int(site): "none of its components is found at another site" for site in unmatched}
    return reasons


def _sums(stack: Stack, labels: Labels, origin: Array | float, n_groups: int) -> GroupSums:
    """Return sums and numbers of the members of each group in one shard, less an origin."""
    return group_sums(stack.natural - origin, labels, np.ones(len(labels)), n_groups)


def _site_distances(stack: Stack, labels: Labels, sums: GroupSums) -> Array:
    """Return d_j of each site of one shard (J,), given the sums of the groups of all; NaN where nothing is shared."""
    shared = np.flatnonzero(sums.mass[labels] > 1)
    other_means = sums.sums[labels[shared]] - stack.natural[shared]  # (n, P): leave one out
    other_means /= (sums.mass[labels[shared]] - 1.0)[:, None]
    divergences = stack.family.kl_pairs(other_means, stack.natural[shared])
    owner, n_sites = stack.owner[shared], len(stack.sizes)
    n_shared = np.bincount(owner, minlength=n_sites)
    distances: Array = np.bincount(owner, weights=divergences, minlength=n_sites) / np.where(n_shared, n_shared, np.nan)
    return distances


def describe_outliers(names: tuple[str, ...], blend_sites: Labels, far_sites: dict[int, str]) -> list[dict[str, Any]]:
    """Return why which site is an outlier, as JSON records with ``name`` and ``why``, by name.

    Parameters
    ----------
    names : tuple of str
        Names of the sites (J,).
    blend_sites : Labels
        Site of each component from ``find_blends``.
    far_sites : dict of int to str
        From ``find_far_sites``.
    """
    records: list[dict[str, Any]] = []
    for site, count in zip(*np.unique(blend_sites, return_counts=True), strict=True):
        subject = "1 component looks" if count == 1 else f"{count} components look"
        reason = f"{subject} like a blend or a second copy of others, as after a fit gone wrong, and was left out"
        records.append({"name": names[int(site)], "why": reason.replace("was", "were") if count > 1 else reason})
    records += [{"name": names[site], "why": reason} for site, reason in far_sites.items()]
    return sorted(records, key=lambda record: record["name"])
