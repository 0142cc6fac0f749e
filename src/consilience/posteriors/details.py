"""Details that fusions of posteriors report along with the components, as records of JSON values."""

from __future__ import annotations

from typing import NotRequired, Required, TypedDict

from consilience.core.details import Details, RobustDetails, Withheld


class TriedNumber(TypedDict, total=False):
    """A number of components that was tried, with its ``criterion`` (less is better) or its ``cost``."""

    n_components: Required[int]
    criterion: float
    cost: float


class NumberDetails(TypedDict, total=False):
    """Why there are so many components.

    ``probability`` of each number by the evidence; the ``prior`` over matchings, and nats an observation that the
    matching under each loses (``virtual_loss``), of topics nats a token on virtual documents, with a
    ``virtual_loss_error``, and the numbers of topics that lose no more than each of several losses
    (``topics_at_loss``); whether components are ``linked`` rather than
    merged by evidence; how many components were ``merged_within_models``; whether
    ``nothing_separates`` the models' components, and whether no two models share any (``shares_nothing``).
    """

    probability: dict[str, float]
    prior: str
    virtual_loss: dict[str, float]
    virtual_loss_error: float
    topics_at_loss: dict[str, int]
    linked: bool
    merged_within_models: int
    nothing_separates: bool
    shares_nothing: bool


class Outlier(TypedDict):
    """A model that does not belong, or whose components do not: its ``name``, ``why``, and whether all of it."""

    name: str
    why: str
    whole_site: bool


class MinorityDetails(TypedDict):
    """A component that fewer than half of the sites hold: how many, the first of their names, their observations."""

    component: int
    sites: int
    names: list[str]
    counts: float | None


class AverageDetails(TypedDict, total=False):
    """Which average was taken: its ``name``, what was ``requested``, the ``reason``, and how ``priors`` differ."""

    name: str
    requested: str
    reason: str
    priors: str


class ComponentName(TypedDict):
    """A component: its ``model``, and its number there."""

    model: str
    component: int


class HierarchicalDetails(TypedDict, total=False):
    """What the random-effects average found, one value a fused component; None for what is infinite or not known.

    ``heterogeneity`` h by block of statistics, and that of all components together (``pooled_heterogeneity``); whether
    a component ``is_pooled``; f, by which its information was divided (``widening``); degrees of freedom of its
    interval (``effective_dof``), and the interval's part of the information; its sites; copies that were ``left_out``
    since they say nothing beyond their prior.
    """

    heterogeneity: dict[str, list[float | None]]
    pooled_heterogeneity: dict[str, float | None]
    is_pooled: list[bool]
    widening: list[float | None]
    effective_dof: list[float | None]
    interval_share: list[float | None]
    n_sites: list[int]
    left_out: list[ComponentName]


class VocabularyDetails(TypedDict):
    """The ``size`` of the common vocabulary, words ``missing`` by model, and the share of words of models ``apart``."""

    size: int
    missing: dict[str, int]
    apart: NotRequired[dict[str, float]]


class PosteriorDetails(Details, total=False):
    """What a method reports of its matching, and the fusion of the average and of what the models state.

    Parameters
    ----------
    path
        Every number of components that was tried.
    number
        Why there are so many components.
    heterogeneity
        How much sites differ, by block of statistics; None where no component has two copies.
    outliers
        Models that do not belong.
    violations
        Components that share a group with another one of their own model.
    left_out
        Components with too few observations to be matched.
    dropped
        Components that fewer than half of the models hold, which ``minority="drop"`` left out.
    minority
        The same where they are kept.
    backed
        Components that enough sites hold for ``robust=``.
    robust
        The sites that ``robust=True`` left out.
    regularization, spread, penalty, certified_gap, kmeans_gain, runnalls_gain
        Of KL fusion and DP-means: lambda; the standard deviation of divergences that it multiplies; the price of a
        group; how far the relaxed optimum may be below; nats an observation that k-means,
        or Runnalls' reduction, loses less.
    concentration, share
        Of Dirichlet processes.
    within_variance, between_variance, atom_variance
        Of SPAHM: the mean variance of copies about their component, of components about their mean, of atoms.
    pilot_sites
        Over shards: sites of the sample from which passes begin.
    average, hierarchical
        Which average was taken, and what the random-effects average found.
    vocabulary
        How words were aligned, for topic models of different vocabularies.
    withheld
        Components that take no part for too few observations.
    unusable
        Components without usable parameters, by model.
    n_observations
        What the call said of the models.
    sites, shards
        Numbers of both, where models are in shards.
    """

    path: list[TriedNumber]
    number: NumberDetails
    heterogeneity: dict[str, float | None]
    outliers: list[Outlier]
    violations: int
    left_out: int
    dropped: int
    minority: list[MinorityDetails]
    backed: int
    robust: RobustDetails
    regularization: float
    spread: float
    penalty: float
    certified_gap: float
    kmeans_gain: float
    runnalls_gain: float
    concentration: float
    share: float
    within_variance: float
    between_variance: float
    atom_variance: float
    pilot_sites: int
    average: AverageDetails
    hierarchical: HierarchicalDetails
    vocabulary: VocabularyDetails
    withheld: Withheld
    unusable: dict[str, list[int]]
    n_observations: dict[str, float] | str
    sites: int
    shards: int
