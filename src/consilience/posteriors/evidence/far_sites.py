"""Outliers among sites: sites far from all others, and sites whose fits went wrong.

A site is far by the distance of its components from those that they are matched with (``find_far_sites``). Components
that look like blends or second copies of others (``strays``) are named with their site.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.families.chunks import map_rows
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.ensemble import Stack

FAR_SITE_RATIO = 8.0
"""Distance of a far site, in median distances of all sites. Chosen by hand; nobody has measured other values."""
FAR_SITE_IQRS = 3.0
"""Distance of a far site beyond the third quartile, in interquartile ranges: Tukey's (1977) "far out" fence."""
FAR_SITE_NATS = 1.0
"""Divergence below which no site is far, however alike all others are. Chosen by hand."""
MIN_SITES_FOR_QUARTILES = 5
"""Sites below which no site is called far: quartiles of fewer say nothing. Chosen by hand."""


def find_far_sites(stack: Stack, labels: Labels) -> dict[int, str]:
    """Return the sites that do not belong, and why.

    The distance of a site is the mean divergence of its components from the barycenters of the other members of their
    groups,

        d_j = mean_{l in j} KL(mean_{k in g(l), k != l} eta_k || eta_l),

    over its components that are shared. Far is more than eight times the median of all sites and beyond the third
    quartile by three times the interquartile range. A site of several components of which none is shared is named too,
    if most sites share theirs.

    Parameters
    ----------
    stack : Stack
        What the data say (L, P), not discounted: an outlier makes copies look more different than they are.
    labels : Labels of shape (L,)
        Group of each component; -1 for one in none.

    Returns
    -------
    dict of int to str
        Reason by site.
    """
    site_distances = _site_distances(stack, labels)  # (J,), NaN where nothing is shared
    sites = np.flatnonzero(~np.isnan(site_distances))
    distances = site_distances[sites]
    reasons = {}
    if len(sites) >= MIN_SITES_FOR_QUARTILES:
        lower, median, upper = np.quantile(distances, [0.25, 0.5, 0.75])
        fence = max(FAR_SITE_NATS, FAR_SITE_RATIO * median, upper + FAR_SITE_IQRS * (upper - lower))
        for index in np.flatnonzero(distances > fence):
            ratio = distances[index] / median
            reasons[int(sites[index])] = f"its components are {ratio:.0f} times as far from what they match as is usual"
    if len(sites) > stack.n_sites / 2:
        unmatched = np.setdiff1d(np.flatnonzero(stack.sizes > 1), sites)
        reasons |= {int(site): "none of its components is found at another site" for site in unmatched}
    return reasons


def _site_distances(stack: Stack, labels: Labels) -> Array:
    """Return d_j of each site (J,); NaN where nothing is shared."""
    sums: GroupSums = group_sums(stack.natural, labels, np.ones(len(labels)), int(labels.max()) + 1)
    shared = np.flatnonzero((labels >= 0) & (sums.mass[labels] > 1))

    def divergences_of(chunk: slice) -> Array:
        rows = shared[chunk]
        other_means = sums.sums[labels[rows]] - stack.natural[rows]  # (n, P): leave one out
        other_means /= (sums.mass[labels[rows]] - 1.0)[:, None]
        return stack.family.kl_pairs(other_means, stack.natural[rows])

    divergences = map_rows(len(shared), stack.family.size, divergences_of) if len(shared) else np.zeros(0)
    owner, n_sites = stack.owner[shared], stack.n_sites
    n_shared = np.bincount(owner, minlength=n_sites)
    distances: Array = np.bincount(owner, weights=divergences, minlength=n_sites) / np.where(n_shared, n_shared, np.nan)
    return distances


def describe_outliers(
    names: tuple[str, ...], stray_sites: Labels, is_placed: NDArray[np.bool_], far_sites: dict[int, str]
) -> list[dict[str, Any]]:
    """Return why which site is an outlier, as JSON records with ``name``, ``why`` and ``whole_site``, by name.

    Parameters
    ----------
    names : tuple of str
        Names of the sites (J,).
    stray_sites : Labels
        Site of each component that the search left out as a stray (n,).
    is_placed : ndarray of bool of shape (n,)
        Whether it was put into a group afterwards.
    far_sites : dict of int to str
        From ``find_far_sites``.
    """
    records: list[dict[str, Any]] = []
    for placed, ending in ((False, "left out"), (True, "put where most of it fits")):
        for site, count in zip(*np.unique(stray_sites[is_placed == placed], return_counts=True), strict=True):
            subject, verb = ("1 component looks", "was") if count == 1 else (f"{count} components look", "were")
            reason = (
                f"{subject} like a blend or a second copy of others, as after a fit gone wrong, and {verb} {ending}"
            )
            records.append({"name": names[int(site)], "why": reason, "whole_site": False})
    records += [{"name": names[site], "why": reason, "whole_site": True} for site, reason in far_sites.items()]
    return sorted(records, key=lambda record: record["name"])
