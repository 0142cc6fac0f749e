"""Details of fusions of estimators, reported with the sums as records of JSON values."""

from __future__ import annotations

from typing import Any, TypedDict

from consilience.core.details import Details, LeftOut, Withheld


class HeterogeneityTest(TypedDict):
    """Cochran's test whether coefficients differ between sites: Q, its degrees of freedom, the p-value, I2."""

    q: float
    degrees_of_freedom: int
    p_value: float
    i2: float
    sites: int


LeftOutOfClass = TypedDict("LeftOutOfClass", {"model": str, "class": str, "score": float})
"""A site whose sums of one class were left out, with its distance in units of the usual one."""


class GateDetails(TypedDict, total=False):
    """What ``robust=True`` did."""

    left_out: list[LeftOut]  # sites that were left out as a whole
    tolerated: int  # how many sites may be hostile
    unseen_error_ratio: float  # what these can do unseen, as in ``RobustDetails``
    weak: str  # likewise
    cut: list[str]  # sites whose sums count as the median number of rows
    cut_information: dict[str, float]  # sites that told more in some direction, how many times what the usual one does
    # Classes that half of the sites or fewer have: those left out since too few sites have them, and those kept
    # without judgement.
    withheld_classes: list[str]
    unjudged_classes: list[str]
    left_out_of_classes: list[LeftOutOfClass]  # sites that were left out of one class


class FourthMomentDetails(TypedDict):
    """Fourth moments that sites sent: of how many rows, whether these are all rows, and the classes without any."""

    rows: float
    is_complete: bool
    unknown: list[str]


class RefinementDetails(TypedDict):
    """How refining the product of Laplace approximations ended: the last step, whether it is taken, who took part."""

    step: float | None
    is_taken: bool
    sites: int
    carried: int


class EstimatorDetails(Details, total=False):
    """What a fusion of estimators reports."""

    sites: dict[str, float]  # rows of each site
    classes: dict[str, dict[str, float]]  # rows of each class that a site knows, by site
    withheld: Withheld  # classes that were left out for too few rows
    hyper_parameters: list[str]  # how sites differ in hyper-parameters that change no sums, a sentence each
    robust: GateDetails  # what ``robust=True`` did
    prior_share: float  # largest share of the sites' penalties in what is known of some coefficient
    heterogeneity: HeterogeneityTest  # whether coefficients differ between sites
    moments4: FourthMomentDetails  # what sites answered after their sums, as of `refinement`
    refinement: RefinementDetails
    n_sites: int  # number of sites of a masked sum
    masked: dict[str, Any]  # the plan of a masked sum
    rows: float  # rows that are left after sites were removed
