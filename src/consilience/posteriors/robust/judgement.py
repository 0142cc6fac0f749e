"""Which sites are judged by: copies of each other, and sites beyond the usual radius, are left out as a whole.

A row V_j is all that site j says, in coordinates of equal importance; t = ceil(n / 2) - 1 of n sites may be hostile.

**Alike.** d_ij are distances of whole sites, q = med_i med_{j != i} d_ij. Sites joined by d_ij < 0.4 q (single linkage)
are copies of each other, which colluding sites send and honest ones do not: all of them are left out, if they are at
most t. This comes first, since equal copies would draw the centre to themselves.

**Gate.** r_jg is the distance of site j in group g from the geometric median of that group over the sites left, over
the median of these distances; r_j is its median over the groups. Sites with r_j > 1.5 are left out, the worst first,
while no more than t are out. A copy that passes is at most 1.5 median radii away in half of its groups.

**Average.** What is left is averaged by the weights of the geometric median of each group,

    argmin_c sum_j v_j |V_j - c|,    w_j proportional to v_j / max(|V_j - c|, 1e-3 med),

which are convex, so that they can be applied to moments. (Weiszfeld 1937; breakdown: Lopuhaa and Rousseeuw, Annals of
Statistics 19, 1991.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from consilience.checks import Array, Labels

ALIKE_RATIO = 0.4
"""Distance of two copies of one another, in the median distance of sites. Honest sites of one population came no nearer
than 0.59 of it in 25 coordinates and 0.80 in 135 (draws of mixtures of five components); half of it left honest ones
out. Chosen on the seeds 0-2, 10 and 11 of benchmarks/hostile_sites.py, and judged on others."""

MIN_COORDINATES = 20
"""Coordinates below which honest sites may be near each other by chance: only equal copies are alike there."""

EQUAL = 1e-9
"""Distance of copies that are equal but for rounding, in the median distance of sites."""

GATE_RADIUS = 1.5
"""Distance from the centre, in the median distance, beyond which a site is left out. Chosen on seeds 0-2 of
benchmarks/hostile_sites.py."""

MIN_DISTANCE = 1e-3
"""Distance from the centre, in the median distance, below which a copy's weight grows no further."""

MAX_STEPS, TOLERANCE = 200, 1e-9
"""Weiszfeld's steps end where the centre moves by less, relative to the median distance; the number is a bound only."""

MAX_COORDINATE = 20.0
"""Coordinates of groups are clipped here, so that nothing overflows: far beyond every gate."""


def tolerated(n_sites: int) -> int:
    """Return how many of so many sites may be hostile: fewer than half."""
    return max(0, (n_sites + 1) // 2 - 1)


@dataclass(frozen=True)
class Judgement:
    """Which sites are averaged.

    Parameters
    ----------
    kept : ndarray of shape (J,), bool
        Sites that are averaged.
    alike : ndarray of shape (J,), bool
        Sites that were left out as copies of each other.
    radii : ndarray of shape (J,)
        Score of each site at the gate; NaN of those left out before it.
    """

    kept: NDArray[np.bool_]
    alike: NDArray[np.bool_]
    radii: Array

    def details(self, names: Any, reasons: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
        """Return the sites that were left out as JSON values: ``model``, ``step`` and, of the gate, ``score``.

        Parameters
        ----------
        names : sequence of str of length J
            Names of the sites.
        reasons : mapping of int to str, optional
            Steps of sites that were left out before. Default: none.
        """
        records: list[dict[str, Any]] = []
        for site in np.flatnonzero(~self.kept).tolist():
            if site in (reasons or {}):
                records.append({"model": names[site], "step": (reasons or {})[site]})
            elif self.alike[site]:
                records.append({"model": names[site], "step": "copy of another"})
            else:
                records.append({"model": names[site], "step": "gate", "score": round(float(self.radii[site]), 3)})
        return sorted(records, key=lambda record: str(record["model"]))


def geometric_median_weights(squares: Array, votes: Array) -> tuple[Array, Array]:
    """Return the weights (n,) of the geometric median of n points, summing to one, and distances (n,) from it.

    Parameters
    ----------
    squares : Array of shape (n, n)
        Squared distances of the points: |V_i - sum_j w_j V_j|^2 = (S w)_i - w' S w / 2.
    votes : Array of shape (n,)
        Votes v, not negative.
    """
    total = votes.sum()
    weights: Array = votes / total
    distances = _distances(squares, weights)
    for _ in range(MAX_STEPS):
        usual = _weighted_median(distances, votes)
        if usual <= 0.0:  # most points are equal: theirs is the median
            at_centre = np.where(distances <= 0.0, votes, 0.0)
            return (at_centre / at_centre.sum() if at_centre.any() else weights), distances
        pulls = votes / np.maximum(distances, MIN_DISTANCE * usual)
        updated: Array = pulls / pulls.sum()
        change = updated - weights
        moved = -0.5 * float(change @ squares @ change)  # |sum change_j V_j|^2, as the changes sum to zero
        weights, distances = updated, _distances(squares, updated)
        if moved <= (TOLERANCE * usual) ** 2:
            break
    return weights, distances


def _distances(squares: Array, weights: Array) -> Array:
    """Return the distances (n,) of points from their weighted mean."""
    products = squares @ weights
    distances: Array = np.sqrt(np.maximum(products - 0.5 * float(weights @ products), 0.0))
    return distances


def _weighted_median(values: Array, votes: Array) -> float:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(votes[order])
    return float(values[order[np.searchsorted(cumulative, 0.5 * cumulative[-1])]])


def pairwise_squares(points: Array) -> Array:
    """Return the squared distances (n, n) of points (n, P), by differences, which lose no digits."""
    squares: Array = ((points[:, None] - points) ** 2).sum(axis=2)
    return squares


def alike_sites(distances: Array, n_coordinates: int) -> NDArray[np.bool_]:
    """Return which sites (J,) are copies of each other; nobody where these are more than may be hostile.

    Parameters
    ----------
    distances : Array of shape (J, J)
        Distances of whole sites.
    n_coordinates : int
        Numbers that they are distances of.
    """
    n_sites = len(distances)
    nobody = np.zeros(n_sites, dtype=np.bool_)
    if n_sites < 3:
        return nobody
    off_diagonal = distances[~np.eye(n_sites, dtype=np.bool_)].reshape(n_sites, n_sites - 1)
    usual = float(np.median(np.median(off_diagonal, axis=1)))
    ratio = ALIKE_RATIO if n_coordinates >= MIN_COORDINATES else EQUAL
    near = (distances < ratio * usual) & ~np.eye(n_sites, dtype=np.bool_)
    _, cluster = connected_components(csr_array(near), directed=False)
    alike: NDArray[np.bool_] = np.bincount(cluster)[cluster] > 1
    return alike if alike.sum() <= tolerated(n_sites) else nobody


def judge(
    groups: list[tuple[Labels, Array]], n_sites: int, n_coordinates: int, out: NDArray[np.bool_] | None = None
) -> Judgement:
    """Return which sites are averaged, from squared distances in every group.

    Parameters
    ----------
    groups : list of (sites, squares)
        Of every group the sites that have a copy of it (n,), ascending, and the squared distances (n, n) of the copies.
    n_sites : int
        Number J of sites.
    n_coordinates : int
        Numbers that the distances of a whole site are of.
    out : ndarray of shape (J,), bool, optional
        Sites that were left out before, which count as hostile. Default: none.
    """
    kept = np.ones(n_sites, dtype=np.bool_) if out is None else ~out
    limit = tolerated(n_sites)
    total, shared = np.zeros((n_sites, n_sites)), np.zeros((n_sites, n_sites))
    for sites, squares in groups:
        total[np.ix_(sites, sites)] += squares
        shared[np.ix_(sites, sites)] += 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        # Of groups that not both have, nothing is known: the others stand for them.
        distances = np.sqrt(np.where(shared > 0, total / shared, np.nan) * max(len(groups), 1))
    distances = np.where(np.isnan(distances), np.inf, distances)
    alike = np.zeros(n_sites, dtype=np.bool_)
    chosen = np.flatnonzero(kept)
    alike[chosen] = alike_sites(distances[np.ix_(chosen, chosen)], n_coordinates)
    if np.count_nonzero(alike | ~kept) > limit:
        alike[:] = False
    kept &= ~alike
    radii = _radii(groups, kept)
    worst_first = [site for site in np.argsort(-np.nan_to_num(radii), kind="stable").tolist() if kept[site]]
    for site in worst_first:
        if not radii[site] > GATE_RADIUS or np.count_nonzero(~kept) >= limit:
            break
        kept[site] = False
    return Judgement(kept, alike, radii)


def _radii(groups: list[tuple[Labels, Array]], kept: NDArray[np.bool_]) -> Array:
    """Return the score (J,) of each kept site: its median distance from the centres, in the median of all sites."""
    scores = np.full((len(groups), len(kept)), np.nan)
    for row, (sites, squares) in enumerate(groups):
        is_in = kept[sites]
        if np.count_nonzero(is_in) < 3:
            continue
        _, distances = geometric_median_weights(squares[np.ix_(is_in, is_in)], np.ones(np.count_nonzero(is_in)))
        usual = float(np.median(distances))
        if usual > 0.0:
            scores[row, sites[is_in]] = distances / usual
    radii = np.full(len(kept), np.nan)
    has_score = ~np.isnan(scores).all(axis=0) if len(groups) else np.zeros(len(kept), dtype=np.bool_)
    radii[has_score] = np.nanmedian(scores[:, has_score], axis=0)
    return radii
