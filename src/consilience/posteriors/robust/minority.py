"""Who holds what: components that only a minority of sites have, and matching that no minority can lead astray.

A component that fewer than half of the sites hold may be a rare disease at two hospitals, or an invention of two
hostile ones: parameters cannot tell which. So such components are named with their holders, and kept unless the user
says no.

Robust matching goes in two steps, since the copies that a hostile site sends would otherwise drag centres, and whatever
is estimated from all components, before any robust average is taken. A component is **backed** when as many other sites
as may be hostile have one within eight times the usual symmetric divergence of it. Backed components are matched first,
by the method as it is: its objective is that of theirs and never rises, and a hostile copy among them is one that an
honest site backs. Every other component then joins a group that its site has no part in, if it is at most five times as
far from the medoid as its members usually are. What is left is matched by itself: rare components find each other
there, and a wild copy stays alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.matching.assignment import assign_block
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.robust.estimators import RobustEstimator, finite, symmetric_divergence

if TYPE_CHECKING:
    from consilience.posteriors.method import Assignment

_USUAL = 8.0
_JOINS = 25.0  # five times as far as members usually are from their medoid
_WITNESSES = 64  # sites that are asked, of many
_ROWS = 512
_NAMED = 8

Match = Callable[[Ensemble], "Assignment"]


def holders(owner: Labels, labels: Labels, n_groups: int) -> Labels:
    """Return the number of sites that hold each fused component (G,)."""
    held = np.unique(np.stack([labels, owner])[:, labels >= 0], axis=1)
    return np.bincount(held[0], minlength=n_groups)


def minority(
    owner: Labels, labels: Labels, names: Sequence[str], counts: Array | None, n_groups: int
) -> list[dict[str, Any]]:
    """Return the components that fewer than half of the sites hold, as JSON values.

    Half, since that many can be hostile at most: what half of the sites hold or more, no minority has invented.

    Parameters
    ----------
    owner, labels
        Site and group of each component (L,).
    names
        Of the sites (J,).
    counts
        Effective observations of each component (L,), where all are known.
    n_groups
        Number G of groups.

    Returns
    -------
    list
        For each: ``component``, ``sites`` (how many), ``names`` (the first eight), ``counts`` (of all its members).
    """
    told = []
    for group in np.flatnonzero(2 * holders(owner, labels, n_groups) < len(names)).tolist():
        rows = np.flatnonzero(labels == group)
        sites = np.unique(owner[rows])
        record = {
            "component": group,
            "sites": len(sites),
            "names": sorted(names[site] for site in sites[: 4 * _NAMED])[:_NAMED],
            "counts": None if counts is None else round(float(counts[rows].sum()), 6),
        }
        told.append(record)
    return told


def report_minority(found: Assignment, ensemble: Ensemble) -> Assignment:
    """Return an assignment whose details name the components that fewer than half of the models hold."""
    few = minority(ensemble.owner, found.labels, ensemble.names, ensemble.column("counts"), int(found.labels.max()) + 1)
    return replace(found, details={**found.details, "minority": few}) if few else found


def without_minority(found: Assignment, ensemble: Ensemble) -> Assignment:
    """Return an assignment without the components that fewer than half of the models hold.

    Raises
    ------
    InputError
        When nothing would be left.
    """
    n_groups = int(found.labels.max()) + 1
    few = [one["component"] for one in minority(ensemble.owner, found.labels, ensemble.names, None, n_groups)]
    if len(few) == n_groups:
        raise InputError("minority='drop': no component is held by half of the models, so none would be left")
    order = np.setdiff1d(np.arange(n_groups), few)
    places = np.full(n_groups + 1, -1, dtype=np.int64)
    places[order] = np.arange(len(order))
    return replace(
        found,
        labels=places[found.labels],
        coupling=None if found.coupling is None else found.coupling[:, order],
        averaged=None if found.averaged is None else found.averaged[order],
        atoms=None if found.atoms is None else found.atoms.take(order),
        details={**found.details, "dropped": len(few)} if few else found.details,
    )


def match_supported_first(
    ensemble: Ensemble, robust: RobustEstimator, match: Match, *, open_number: bool
) -> Assignment:
    """Match the components that enough sites back, then the others to them, then the rest among themselves.

    Parameters
    ----------
    ensemble
        The models.
    robust
        How many sites may be hostile.
    match
        The method's own matching of an ensemble.
    open_number
        Whether the rest may make components of their own; else they join the nearest that is free, or are dropped.
    """
    divergence = symmetric_divergence(ensemble.family)
    nearest = _nearest(ensemble, robust.tolerated(ensemble.n_sites))
    usual = float(np.median(nearest))
    sure = nearest <= _USUAL * usual + 1e-6
    if not np.isfinite(usual) or sure.all():
        return match(ensemble)
    backed, rest = np.flatnonzero(sure), np.flatnonzero(~sure)
    part = _part(ensemble, backed)
    found = match(part)
    labels, confidence = np.full(len(ensemble.natural), -1, dtype=np.int64), None
    labels[backed] = found.labels
    if found.confidence is not None:
        confidence = np.full(len(labels), np.nan)
        confidence[backed] = found.confidence
    n_groups = int(found.labels.max()) + 1
    _, medoids = robust.kept(divergence, part.natural, found.labels, np.ones(len(backed)), n_groups)
    centres = part.natural[medoids]
    radius = np.maximum(_JOINS * _usual_radius(part, found.labels, medoids), _USUAL * usual)
    far = finite(divergence, ensemble.natural[rest], centres)
    for site in np.unique(ensemble.owner[rest]):
        here = np.flatnonzero(ensemble.owner[rest] == site)
        taken = labels[ensemble.offsets[site] : ensemble.offsets[site + 1]]
        open_groups = np.setdiff1d(np.arange(n_groups), taken)
        labels[rest[here]] = _joined(far[np.ix_(here, open_groups)], open_groups, radius, free=not open_number)
    details = {**found.details, "backed": len(backed)}
    left = rest[labels[rest] < 0]
    if open_number and left.size:
        own = match(_part(ensemble, left))
        labels[left] = np.where(own.labels >= 0, own.labels + n_groups, -1)
    return replace(
        found, labels=labels, coupling=None, confidence=confidence, averaged=None, atoms=None, details=details
    )


def _joined(far: Array, groups: Labels, radius: Array, *, free: bool) -> Labels:
    """Return the group of each component of one site (n,), -1 for none, given its divergences (n, open groups)."""
    if not groups.size:
        return np.full(len(far), -1, dtype=np.int64)
    reach = np.full(len(groups), np.inf) if free else radius[groups]
    big = 1e9
    costs = np.minimum(np.where(far <= reach, far / np.maximum(radius[groups], 1e-12), big), big)
    padded = np.concatenate([costs, np.full((len(far), len(far)), big)], axis=1)
    chosen = assign_block(padded)
    fits = (chosen < len(groups)) & (padded[np.arange(len(far)), chosen] < big)
    return np.where(fits, groups[np.minimum(chosen, len(groups) - 1)], -1)


def _nearest(ensemble: Ensemble, tolerated: int) -> Array:
    """Return how far each component (L,) is from the nearest ones of as many other sites as may be hostile.

    All of them are hostile only if the component itself is honest, or if more sites are hostile than may be.
    """
    asked = np.unique(np.linspace(0, ensemble.n_sites - 1, min(ensemble.n_sites, _WITNESSES)).astype(np.int64))
    needed = max(1, round(tolerated * len(asked) / ensemble.n_sites))
    rows = np.flatnonzero(np.isin(ensemble.owner, asked))
    starts = np.searchsorted(ensemble.owner[rows], asked)
    divergence, result = symmetric_divergence(ensemble.family), np.empty(len(ensemble.natural))
    for start in range(0, len(result), _ROWS):
        part = slice(start, start + _ROWS)
        by_site = np.minimum.reduceat(
            finite(divergence, ensemble.natural[part], ensemble.natural[rows]), starts, axis=1
        )
        by_site[ensemble.owner[part, None] == asked] = np.inf
        result[part] = np.partition(by_site, needed - 1, axis=1)[:, needed - 1]
    return result


def _usual_radius(part: Ensemble, labels: Labels, medoids: Labels) -> Array:
    """Return the median divergence of members from their medoid (G,), and no less than that of all groups together."""
    inside = np.setdiff1d(np.flatnonzero(labels >= 0), medoids)
    own = labels[inside]
    with np.errstate(all="ignore"):
        a, b = part.natural[medoids[own]], part.natural[inside]
        near = np.nan_to_num(part.family.kl_pairs(a, b) + part.family.kl_pairs(b, a), nan=np.inf)
    every = float(np.median(near)) if near.size else 0.0
    medians = [float(np.median(near[own == group])) if np.any(own == group) else 0.0 for group in range(len(medoids))]
    return np.maximum(medians, every)


def _part(ensemble: Ensemble, rows: Labels) -> Ensemble:
    """Return the ensemble of some rows, ascending; sites of which nothing is left are not in it."""
    posteriors, sites = [], np.unique(ensemble.owner[rows])
    for site in sites:
        own = rows[ensemble.owner[rows] == site] - ensemble.offsets[site]
        posteriors.append(ensemble.posteriors[site].take(own))
    return Ensemble.of(posteriors, ensemble.site_weights[sites], [ensemble.names[site] for site in sites])
