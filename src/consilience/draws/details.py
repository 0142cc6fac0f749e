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
    """What a method of combining draws reports."""

    largest_skewness: float  # of any coordinate at any site, by which the default chooses
    acceptance_rate: float  # of density products: share of proposals that were accepted
    bandwidth: float  # of density products: width of the last kernel
    random_effects: HierarchicalDetails  # what the random-effects posterior found


class DrawsDetails(CombinationDetails, total=False):
    """What a fusion of draws reports."""

    sites: dict[str, SiteDetails]  # the draws of each site
    overlap: OverlapDetails  # how far subposteriors overlap
    constant_entries: list[str]  # entries that are constant at every site
    relabelling: dict[str, RelabellingDetails]  # how components were renumbered, by site
    weighted: Weighting  # how the sites' log densities weighted the draws
