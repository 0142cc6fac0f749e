"""The keywords of ``fuse`` and ``check``, one table: what every call has, what some kinds take, options of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.symmetry.symmetry import Symmetry


class NetworkKeywords(TypedDict, total=False):
    """Keywords of networks, plain and Bayesian."""

    example: Any
    inputs: Any
    symmetry: Symmetry | str | Path | None
    module: nn.Module | Callable[[], nn.Module] | None
    target: nn.Module | None
    target_widths: Mapping[str, int] | None
    reference: int | str | None
    fishers: Mapping[str, Any] | Sequence[Any] | None
    descriptions: Mapping[str, Any] | Sequence[Any] | None
    classes: Literal["union"] | None
    output: str | int | None


class ShardKeywords(TypedDict, total=False):
    """Keywords of the posteriors of very many sites."""

    pilot_sites: int | None
    shard_bytes: int | None


class CommonOptions(TypedDict, total=False):
    """Options of so many methods that ``fuse`` names them."""

    n_components: int | None
    combine: str | None
    min_count: float | None


class MethodOptions(TypedDict, total=False):
    """Every option of some method that is not among `CommonOptions`.

    `consilience methods` says which has which, and what it means.

    A test holds these names against the fields of the methods. Options of methods of one's own go inside a method
    object.
    """

    absent_columns: Literal["zeros"] | None
    aligned: bool | None
    allow_differences: bool
    allow_divergent: bool
    allow_single: bool
    alpha: float | None
    annealing: bool
    assignment: Literal["integral", "relaxed", "variational", "means"]
    balance: bool
    batch_size: int
    between_variance: float | tuple[float, ...] | None
    class_counts: Sequence[Sequence[float]] | None
    clip: int | None
    concentration: float | None
    constraints: Mapping[str, Any] | None
    cost: str
    covariance: Literal["full", "diagonal"]
    covariance_type: str
    damping: float | None
    direction: Literal["forward", "reverse"]
    divergence: str
    epsilon: float
    exchangeable: Sequence[str] | None
    exclusive: bool
    favor_target: int | None
    floor: float
    gamma: float
    gap: float
    growth: bool
    lacking: str
    learning_rate: float | None
    likelihood: Literal["gaussian", "conjugate"]
    marginal: bool
    mask_rate: float
    masks: int
    mass: float
    max_components: int | None
    max_iterations: int
    max_seconds: float | None
    max_units: int | Mapping[str, int] | None
    mean: Literal["probabilities", "logits", "stationary"] | None
    metric: str
    min_matching_count: float
    minority: Literal["auto", "keep", "drop"]
    mode: str
    n_draws: int | None
    n_inputs: int
    n_samples: int
    normalize: bool
    only: Sequence[str] | None
    optimize: bool
    order: float
    outgoing: str
    parametric: bool
    penalty: float | None
    prior: float | str | Mapping[str, Any] | None
    prior_precision: float | None
    prior_variance: float | None
    rank: int | float | None
    refit: bool
    regularization: float | Literal["auto"]
    restarts: int
    revisit: bool
    rho: float
    ridge: float
    robust: Literal["trim", "median"] | bool | None
    sent: bool
    shrink: bool
    shrinkage: float | None
    sigma0: float
    sigma: float
    signs: bool | None
    start: Any
    starts: tuple[str, ...]
    steps: int
    structure: str | None
    sweeps: int
    tolerance: float
    trim: float
    variances: Literal["dimension", "scalar"]
    window: int | None
    within_variance: float | tuple[float, ...] | None
    writers: str


class KindKeywords(NetworkKeywords, ShardKeywords, CommonOptions, total=False):
    """All keywords that only some kinds, or some methods, take; others refuse them by name."""


class FuseKeywords(KindKeywords, MethodOptions, total=False):
    """All keywords of ``fuse`` but those that every call has."""


NETWORK_KEYWORDS = tuple(NetworkKeywords.__annotations__)
SHARD_KEYWORDS = tuple(ShardKeywords.__annotations__)
KIND_KEYWORDS = (*NETWORK_KEYWORDS, *SHARD_KEYWORDS, *CommonOptions.__annotations__)
"""Keywords of ``fuse`` that a request keeps with the options of its method."""
OF_NETWORKS = ("classes", "example", "class_prior", "layers", "output", "held_out", "share_network")
"""Keywords of ``describe`` that are for networks only."""
OF_STATISTICAL_MODELS = ("sample_weight", "features")
"""Keywords of ``describe`` that are for other models only."""
OF_SUMS = ("withhold_columns",)
"""Keywords of ``describe`` that are for estimators of sums only."""
OF_TOPICS = ("round_counts",)
"""Keywords of ``describe`` that are for topic models only."""
WHOSE = {
    **dict.fromkeys(OF_NETWORKS, "networks"),
    **dict.fromkeys(OF_STATISTICAL_MODELS, "statistical models"),
    **dict.fromkeys(OF_SUMS, "estimators that are fused by their sums"),
    **dict.fromkeys(OF_TOPICS, "topic models"),
}
"""What models a keyword of ``describe`` is for, where it is not for all."""
CALL_KEYWORDS = ("method", "weights", "n_observations", "rng", "engine", "progress", "held_out", *NETWORK_KEYWORDS)
"""Keywords of ``fuse`` that are no options of a method: for suggestions, and what ``--set`` may not say."""
