"""Minority components, and robust matching: components that several sites support are matched first.

A component that fewer than half of the sites hold may be a rare disease at two hospitals, or an invention of two
hostile ones: parameters cannot tell which. So such components are named with their holders, and kept unless the user
says no.

Where fits end in different optima, fewer than half may hold what is right: a component in whose place the others have
a wider one. A site **has room** for a component (m, C) if one of its own (m_a, C_a), of at least half its share, would
take its data for its own:

    tr(C_a^-1 C) + (m - m_a)' C_a^-1 (m - m_a) <= chi2_D^-1(0.95),

where the left side is the mean squared distance of these data from m_a. Where most have room for it, nobody can have
invented a component where there are no data.

Robust matching goes in two steps, since the copies that a hostile site sends would otherwise drag centres, and whatever
is estimated from all components, before any robust average is taken. A component is **supported** when as many other
sites as may be hostile have one within eight times the usual symmetric divergence of it. Supported components are
matched first, by the method as it is: its objective is that of theirs and never rises, and a hostile copy among them is
one that an honest site supports. Every other component then joins a group that its site has no part in, if it is at
most five times as far from the medoid as its members usually are. What remains is matched by itself: rare components
find each other there, and a wild copy stays alone (docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from consilience.checks import Array, Labels
from consilience.core.robust import evenly_spaced, pairwise_squares
from consilience.core.robust_estimator import RobustEstimator, finite_divergences
from consilience.errors import InputError
from consilience.matching.assignment import assign_block
from consilience.posteriors.details import MinorityDetails, PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.robust.average import symmetric_divergence

if TYPE_CHECKING:
    from consilience.posteriors.method import Assignment

SUPPORT_RADIUS_RATIO = 8.0
"""Divergence that still supports a component, in median divergences of nearest components. Chosen by hand."""
JOINING_RADIUS_RATIO = 25.0
"""Divergence up to which a component joins a group, in that of usual members: five times the distance. By hand."""
SUPPORT_ROUNDING = 1e-6
"""Divergence that is always support: where copies are equal the median is rounding."""
MAX_WITNESS_SITES = 64
"""Sites whose components are compared with each component, evenly spaced among all. Chosen by hand for its cost."""
CHUNK_ROWS = 512
"""Components whose divergences from all witnesses are held at once. It bounds memory; chosen by hand."""
MAX_NAMED_SITES = 8
"""Holders of a minority component that a report names."""
FORBIDDEN_COST = 1e9
"""Cost of a group out of reach: more than any assignment of ratios that are allowed."""
ROOM_LEVEL = 0.95
"""Part of a component's own data that lie nearer to it than data for which it has room do on average: a convention."""
ROOM_SHARE = 0.5
"""Share of the observations, in that of a component, that one which has room for it has at least. Chosen by hand."""
MIN_FITTING = 0.75
"""Part of the copies of a component that are one with its medoid where fits end in one optimum. Of 1/2, 3/4 and 1,
chosen on chains of the seeds 300 to 311 of benchmarks/hostile_sites.py, where the last two agree and mixtures do not
tell them apart."""
MIN_RADIUS = 1e-12
"""Radius to divide by where all members of a group are equal."""

Match = Callable[[Ensemble], "Assignment"]


@dataclass(frozen=True, eq=False)
class GroupHolders:
    """How many sites hold each fused component: sums over sites, so additive over shards of whole sites."""

    n_sites: int  # number of sites that have a say
    sites: Labels  # (G,), number of these that have a component in each group
    counts: Array | None  # (G,), effective observations of the members; None where a site does not state them

    def __add__(self, other: GroupHolders) -> GroupHolders:
        counts = None if self.counts is None or other.counts is None else self.counts + other.counts
        return GroupHolders(self.n_sites + other.n_sites, self.sites + other.sites, counts)

    @property
    def minority(self) -> Labels:
        """Groups that fewer than half of the sites hold, ascending.

        Half, since that many can be hostile at most: what half of the sites hold or more, no minority has invented.
        """
        return np.flatnonzero(2 * self.sites < self.n_sites)

    def without_minority(self) -> tuple[Labels, Labels]:
        """Return the groups that remain, ascending, and the new label of each group, with -1 for those dropped.

        The new labels (G + 1,) have a last entry of -1, so that the label -1 of a component stays. Where nothing would
        be left, this is refused.
        """
        n_groups = len(self.sites)
        remaining = np.setdiff1d(np.arange(n_groups), self.minority)
        if not remaining.size:
            raise InputError("`minority='drop'`: no component is held by half of the models, so none would be left")
        new_labels = np.full(n_groups + 1, -1, dtype=np.int64)
        new_labels[remaining] = np.arange(len(remaining))
        return remaining, new_labels

    def records(self, names: Sequence[Sequence[str]]) -> list[MinorityDetails]:
        """Return the minority components as JSON values, given the ``holder_names`` of each group of `minority`."""
        return [
            {
                "component": group,
                "sites": int(self.sites[group]),
                "names": list(names_of_group),
                "counts": None if self.counts is None else round(float(self.counts[group]), 6),
            }
            for group, names_of_group in zip(self.minority.tolist(), names, strict=True)
        ]


def group_holders(owner: Labels, labels: Labels, counts: Array | None, n_sites: int, n_groups: int) -> GroupHolders:
    """Return how many of the sites that have a say hold each group, from site, group and counts of each component."""
    is_matched = labels >= 0
    n_owners = int(owner.max(initial=0)) + 1  # those without a say included
    pairs = np.unique(labels[is_matched] * n_owners + owner[is_matched])  # of a group and a site
    observations: Array | None = None
    if counts is not None:
        observations = np.bincount(labels[is_matched], counts[is_matched], n_groups).astype(np.float64, copy=False)
    return GroupHolders(n_sites, np.bincount(pairs // n_owners, minlength=n_groups), observations)


def holder_names(owner: Labels, labels: Labels, names: Sequence[str], groups: Labels) -> list[list[str]]:
    """Return the names of the sites that hold each of some groups: the first eight, in alphabetical order."""
    return [first_names([names[site] for site in np.unique(owner[labels == group])]) for group in groups.tolist()]


def first_names(names: Iterable[str]) -> list[str]:
    """Return the first eight of some names in alphabetical order; those of all sites are among those of each shard."""
    return nsmallest(MAX_NAMED_SITES, names)


def minority_components(
    owner: Labels, labels: Labels, names: Sequence[str], counts: Array | None, n_groups: int
) -> list[MinorityDetails]:
    """Return the components that fewer than half of the sites hold, as JSON values; see ``GroupHolders.records``."""
    holders = group_holders(owner, labels, counts, len(names), n_groups)
    return holders.records(holder_names(owner, labels, names, holders.minority))


def report_minority(assignment: Assignment, ensemble: Ensemble) -> Assignment:
    """Return an assignment whose details name the components that fewer than half of the models hold."""
    minority = minority_components(
        ensemble.owner, assignment.labels, ensemble.names, ensemble.column("counts"), int(assignment.labels.max()) + 1
    )
    return replace(assignment, details={**assignment.details, "minority": minority}) if minority else assignment


def without_minority(assignment: Assignment, ensemble: Ensemble) -> Assignment:
    """Return an assignment without the components that fewer than half of the models hold; refused where all are."""
    n_groups = int(assignment.labels.max()) + 1
    holders = group_holders(ensemble.owner, assignment.labels, None, ensemble.n_sites, n_groups)
    remaining, new_labels = holders.without_minority()
    n_dropped = n_groups - len(remaining)
    return replace(
        assignment,
        labels=new_labels[assignment.labels],
        coupling=None if assignment.coupling is None else assignment.coupling[:, remaining],
        averaged=None if assignment.averaged is None else assignment.averaged[remaining],
        atoms=None if assignment.atoms is None else assignment.atoms.take(remaining),
        details={**assignment.details, "dropped": n_dropped} if n_dropped else assignment.details,
    )


def match_supported_first(
    ensemble: Ensemble, robust: RobustEstimator, match: Match, *, open_number: bool
) -> Assignment:
    """Match the components that enough sites support, then the others to them, then the remaining among themselves.

    `match` is the method's own matching. With an open number the others may make components of their own; else they
    join the nearest that is free, or are dropped.
    """
    divergence = symmetric_divergence(ensemble.family)
    support_radii = _support_radii(ensemble, robust.tolerated(ensemble.n_sites))
    # A median: while most components are honest, it is at most the largest honest support radius.
    usual_radius = float(np.median(support_radii))
    is_supported = support_radii <= SUPPORT_RADIUS_RATIO * usual_radius + SUPPORT_ROUNDING
    if not np.isfinite(usual_radius) or is_supported.all():
        return match(ensemble)
    supported, unsupported = np.flatnonzero(is_supported), np.flatnonzero(~is_supported)
    supported_ensemble = take_rows(ensemble, supported)
    assignment = match(supported_ensemble)
    labels, confidence = np.full(len(ensemble.natural), -1, dtype=np.int64), None
    labels[supported] = assignment.labels
    if assignment.confidence is not None:
        confidence = np.full(len(labels), np.nan)
        confidence[supported] = assignment.confidence
    n_groups = int(assignment.labels.max()) + 1
    _, medoids = robust.inliers(
        divergence, supported_ensemble.natural, assignment.labels, np.ones(len(supported)), n_groups
    )
    # Medoids, no averages: what joins later is judged by a component that some site sent and others support.
    centres = supported_ensemble.natural[medoids]
    radius = np.maximum(
        JOINING_RADIUS_RATIO * _usual_radius(supported_ensemble, assignment.labels, medoids),
        SUPPORT_RADIUS_RATIO * usual_radius,
    )
    divergences = finite_divergences(divergence, ensemble.natural[unsupported], centres)
    for site in np.unique(ensemble.owner[unsupported]):
        site_rows = np.flatnonzero(ensemble.owner[unsupported] == site)
        site_labels = labels[ensemble.offsets[site] : ensemble.offsets[site + 1]]
        open_groups = np.setdiff1d(np.arange(n_groups), site_labels)
        labels[unsupported[site_rows]] = _join_groups(
            divergences[np.ix_(site_rows, open_groups)], open_groups, radius, free=not open_number
        )
    details: PosteriorDetails = {**assignment.details, "backed": len(supported)}
    unmatched = unsupported[labels[unsupported] < 0]
    if open_number and unmatched.size:
        late = match(take_rows(ensemble, unmatched))
        labels[unmatched] = np.where(late.labels >= 0, late.labels + n_groups, -1)
    return replace(
        assignment, labels=labels, coupling=None, confidence=confidence, averaged=None, atoms=None, details=details
    )


@dataclass(frozen=True, eq=False)
class Room:
    """Which components have room for the medoid of which group, of sites whose densities of data are known."""

    labels: Labels  # (L,), group of each component, -1 for none
    owner: Labels  # (L,), site of each component
    n_sites: int
    has_room: NDArray[np.bool_]  # (G, L), whether a component has room for the medoid of a group
    fits: NDArray[np.bool_]  # (G, L), whether that and the component are one: each has room for the other

    @classmethod
    def of(cls, ensemble: Ensemble, labels: Labels) -> Room:
        """Return the room for each group; of families without Gaussian densities of data members alone have any."""
        members = labels == np.arange(int(labels.max()) + 1)[:, None]  # (G, L)
        counts = ensemble.column("counts")
        gaussians = ensemble.family.plug_in(ensemble.natural) if ensemble.family.describes_data else None
        if counts is None or gaussians is None:
            return cls(labels, ensemble.owner, ensemble.n_sites, members, members)
        means, spreads = gaussians
        medoids = [rows[np.argmin(pairwise_squares(means[rows]).sum(axis=1))] for rows in map(np.flatnonzero, members)]
        totals = np.bincount(ensemble.owner, counts, ensemble.n_sites)
        shares = counts / np.maximum(totals, np.finfo(np.float64).tiny)[ensemble.owner]
        limit = 2.0 * float(gammaincinv(0.5 * means.shape[1], ROOM_LEVEL))  # chi2_D^-1
        has_room, fits = np.zeros_like(members), np.zeros_like(members)
        for group, medoid in enumerate(medoids):
            outer = outer_squares(means - means[medoid], spreads)  # (L, D, D), or its diagonal
            near = _ratio_trace(spreads, spreads[medoid] + outer) <= limit
            has_room[group] = near & (shares >= ROOM_SHARE * shares[medoid])
            fits[group] = near & (_ratio_trace(spreads[medoid][None], spreads + outer) <= limit)
        return cls(labels, ensemble.owner, ensemble.n_sites, has_room | members, fits)

    @property
    def is_of_one_kind(self) -> bool:
        """Whether half of the sites hold every group, and most of its members are one with its medoid."""
        members = self.labels == np.arange(len(self.fits))[:, None]
        sizes = np.count_nonzero(members, axis=1)
        n_fitting = np.count_nonzero(members & self.fits, axis=1)
        return bool((2 * sizes >= self.n_sites).all() and (n_fitting >= MIN_FITTING * sizes).all())

    @property
    def of_most(self) -> NDArray[np.bool_]:
        """Groups (G,) that at least half of the sites hold or have room for."""
        sites = [len(np.unique(self.owner[has_room])) for has_room in self.has_room]
        return 2 * np.array(sites) >= self.n_sites

    def accounts_for_most(self, groups: NDArray[np.bool_]) -> bool:
        """Whether half of the sites have no component that is in none of some groups (G,), and has room for none."""
        is_left = ~self.has_room[groups].any(axis=0)
        return 2 * len(np.unique(self.owner[is_left])) <= self.n_sites


def outer_squares(differences: Array, spreads: Array) -> Array:
    """Return differences (L, D) times themselves: (L, D, D), or (L, D) where spreads are variances."""
    outer: Array = differences**2 if spreads.ndim == 2 else differences[:, :, None] * differences[:, None, :]
    return outer


def _ratio_trace(spreads: Array, moments: Array) -> Array:
    """Return tr(C^-1 M) (L,) of covariances or variances C and moments M."""
    if spreads.ndim == 2:
        return np.asarray((moments / spreads).sum(axis=1))
    return np.asarray(np.trace(np.linalg.solve(spreads, moments), axis1=1, axis2=2))


def _join_groups(divergences: Array, groups: Labels, radius: Array, *, free: bool) -> Labels:
    """Return the group of each component of one site (n,), -1 for none, given its divergences (n, open groups)."""
    if not groups.size:
        return np.full(len(divergences), -1, dtype=np.int64)
    limits = np.full(len(groups), np.inf) if free else radius[groups]
    costs = np.minimum(
        np.where(divergences <= limits, divergences / np.maximum(radius[groups], MIN_RADIUS), FORBIDDEN_COST),
        FORBIDDEN_COST,
    )
    # As many columns again as rows, so that every row can stay without a group.
    padded = np.concatenate([costs, np.full((len(divergences), len(divergences)), FORBIDDEN_COST)], axis=1)
    columns = assign_block(padded)
    is_near = (columns < len(groups)) & (padded[np.arange(len(divergences)), columns] < FORBIDDEN_COST)
    return np.where(is_near, groups[np.minimum(columns, len(groups) - 1)], -1)


def _support_radii(ensemble: Ensemble, tolerated: int) -> Array:
    """Return the divergence of each component (L,) within which as many other sites as may be hostile have one.

    All of them are hostile only if the component itself is honest, or if more sites are hostile than may be.
    """
    witnesses = evenly_spaced(ensemble.n_sites, MAX_WITNESS_SITES)
    n_needed = max(1, round(tolerated * len(witnesses) / ensemble.n_sites))
    witness_rows = np.flatnonzero(np.isin(ensemble.owner, witnesses))
    witness_starts = np.searchsorted(ensemble.owner[witness_rows], witnesses)
    divergence, result = symmetric_divergence(ensemble.family), np.empty(len(ensemble.natural))
    for start in range(0, len(result), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        nearest_by_site = np.minimum.reduceat(
            finite_divergences(divergence, ensemble.natural[chunk], ensemble.natural[witness_rows]),
            witness_starts,
            axis=1,
        )
        nearest_by_site[ensemble.owner[chunk, None] == witnesses] = np.inf  # a site supports none of its own
        result[chunk] = np.partition(nearest_by_site, n_needed - 1, axis=1)[:, n_needed - 1]
    return result


def _usual_radius(ensemble: Ensemble, labels: Labels, medoids: Labels) -> Array:
    """Return the median divergence of members from their medoid (G,), and no less than that of all groups together."""
    members = np.setdiff1d(np.flatnonzero(labels >= 0), medoids)
    group_of_row = labels[members]
    with np.errstate(all="ignore"):
        a, b = ensemble.natural[medoids[group_of_row]], ensemble.natural[members]
        divergences = np.nan_to_num(ensemble.family.kl_pairs(a, b) + ensemble.family.kl_pairs(b, a), nan=np.inf)
    overall = float(np.median(divergences)) if divergences.size else 0.0
    medians = [
        float(np.median(divergences[group_of_row == group])) if np.any(group_of_row == group) else 0.0
        for group in range(len(medoids))
    ]
    return np.maximum(medians, overall)


def take_rows(ensemble: Ensemble, rows: Labels) -> Ensemble:
    """Return the ensemble of some rows, ascending; sites of which nothing is left are not in it."""
    posteriors, sites = [], np.unique(ensemble.owner[rows])
    for site in sites:
        site_rows = rows[ensemble.owner[rows] == site] - ensemble.offsets[site]
        posteriors.append(ensemble.posteriors[site].take(site_rows))
    return Ensemble.of(posteriors, ensemble.site_weights[sites], [ensemble.names[site] for site in sites])
