"""Details of fusions of draws, reported with the fused draws as records of JSON values."""

from __future__ import annotations

from typing import TypedDict

from consilience.core.details import Details
from consilience.posteriors.details import HierarchicalDetails


class SiteDetails(TypedDict):
    """One site's draws: chains, draws, least effective sample size, largest R-hat, observations."""

    chains: int
    draws: int
    least_ess: float | None
    largest_rhat: float | None
    n_observations: float | None


class OverlapDetails(TypedDict):
    """How far subposteriors overlap: the least coefficient, where and between whom, and Cochran's test."""

    coefficient: float | None
    coordinate: str | None
    sites: list[str]
    q: float | None
    p_value: float
    degrees_of_freedom: int
    i2: float


class RelabellingDetails(TypedDict):
    """Share of a site's draws whose components were renumbered, and of those whose labels are a close call."""

    switched: float | None
    close: float | None


class Weighting(TypedDict):
    """How draws were weighted by the sites' log densities: points, effective size, Pareto k, who answered."""

    points: int
    effective_size: float
    pareto_k: float | None
    sites: list[str]
    standing_in: list[str]


class CombinationDetails(Details, total=False):
    """What a method of combining draws reports.

    Parameters
    ----------
    largest_skewness
        Of any coordinate at any site, by which the default chooses.
    acceptance_rate, bandwidth
        Of density products: share of proposals that were accepted, width of the last kernel.
    random_effects
        What the random-effects posterior found.
    """

    largest_skewness: float
    acceptance_rate: float
    bandwidth: float
    random_effects: HierarchicalDetails


class DrawsDetails(CombinationDetails, total=False):
    """What a fusion of draws reports.

    Parameters
    ----------
    sites
        The draws of each site.
    overlap
        How far subposteriors overlap.
    constant_entries
        Entries that are constant at every site.
    relabelling
        How components were renumbered, by site.
    weighted
        How the sites' log densities weighted the draws.
    """

    sites: dict[str, SiteDetails]
    overlap: OverlapDetails
    constant_entries: list[str]
    relabelling: dict[str, RelabellingDetails]
    weighted: Weighting
